"""The command line: one message, an exit code, and no stack trace unless asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli import COMMANDS, main

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def wrong_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_BASE_PORT", "many")


@pytest.mark.usefixtures("wrong_port")
def test_an_error_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["down"])
    captured = capsys.readouterr()

    assert code == 1
    assert "error" in captured.err
    assert "HEADWAY_BASE_PORT" in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.usefixtures("wrong_port")
def test_the_stack_trace_is_there_for_who_asks(capsys: pytest.CaptureFixture[str]) -> None:
    main(["down", "--debug"])

    assert "Traceback" in capsys.readouterr().err


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dwon"]) == 2
    assert "dwon" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out

    assert [name for name in COMMANDS if name not in shown] == []


def test_one_command_does_not_import_the_others() -> None:
    """`headway down` must answer at once and work when a heavy library does not."""
    code = (
        "import sys; from headway.cli import build; build(['down']); print([m for m in sys.modules if m in sys.argv])"
    )
    words = [sys.executable, "-c", code, "mlflow", "boto3", "headway.adapters.local.stack", "headway.wiring"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=CHECKOUT / "src")

    assert done.stdout.strip() == "[]"
