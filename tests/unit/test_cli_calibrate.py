"""`headway calibrate` from recorded blocks: a table with exact intervals, and evidence that the profile can carry."""

from pathlib import Path

import pytest

from headway import wiring
from headway.cli import main
from headway.cli.trials import both_stable
from headway.domain.traffic import Backend, Route
from headway.domain.value import slug
from headway.errors import NotFound
from headway.judge import records as record_rules
from headway.judge.calibrate import flaw
from headway.judge.records import Run
from headway.pods import records_parquet
from headway.release.canary import SIDE_HEADER
from tests.fakes import FakeTraffic
from tests.unit.judge.data import make_canary, make_run

CANARY = make_canary(
    blocks=12,
    requests_per_block=20,
    p50_margin=0.3,
    p95_margin=0.5,
    error_margin_pct=9.0,
    rate_per_s=1.0,
    max_tokens=16,
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    keys = ("blocks", "requests_per_block", "p50_margin", "p95_margin", "error_margin_pct", "rate_per_s", "max_tokens")
    lines = [f"  {key}: {getattr(CANARY, key)}  # as the tests say" for key in keys]
    path.write_text("\n".join(["model: m", "hardware: {accelerator: cpu, per_replica: 1}", "canary:", *lines, ""]))
    return path


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    """One in each form."""
    found = []
    for seed in range(2):
        records, summaries = make_run(CANARY, seed=seed, spread=0.2)
        content = record_rules.write(Run("d" * 64, tuple(records), tuple(summaries)))
        path = tmp_path / f"{seed}.{'parquet' if seed else 'jsonl'}"
        path.write_bytes(records_parquet.write(content) if seed else content)
        found.append(str(path))
    return found


def test_error_rates_are_shown_with_their_intervals(
    profile: Path, recordings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = profile.read_text()

    assert main(["calibrate", *recordings, "--profile", str(profile), "--hardware", "cpu", "--replays", "300"]) == 0
    shown = capsys.readouterr().out

    assert "equal sides (A/A)" in shown
    assert "slow requests only (p95)" in shown
    assert " to " in shown
    assert "evidence:" in shown
    assert profile.read_text() == before


def test_the_profile_carries_what_was_found(
    profile: Path, recordings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Written once, neither plan nor report has anything to say about its margins."""
    command = ["calibrate", *recordings, "--profile", str(profile), "--hardware", "cpu", "--replays", "300", "--write"]

    assert main(command) == 0
    once = wiring.read_profile(profile)
    assert main(command) == 0
    twice = wiring.read_profile(profile)

    assert flaw(once.canary, once.hardware.accelerator) == ""
    assert once.canary.evidence is not None
    assert twice.canary.evidence is not None
    assert once.canary.evidence.recorded_blocks == 24
    assert once.canary.evidence.trials == twice.canary.evidence.trials
    assert profile.read_text().count("# as the tests say") == 7
    assert "evidence:" not in capsys.readouterr().out


def test_other_margins_make_the_evidence_old(profile: Path, recordings: list[str]) -> None:
    assert (
        main(["calibrate", *recordings, "--profile", str(profile), "--hardware", "cpu", "--replays", "100", "--write"])
        == 0
    )
    profile.write_text(profile.read_text().replace("p50_margin: 0.3", "p50_margin: 0.31"))

    assert "other margins" in flaw(wiring.read_profile(profile).canary, "cpu")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["none.jsonl"], "none.jsonl"),
        ([__file__], "records"),
        ([], "nothing answers"),
    ],
)
def test_what_cannot_be_calibrated_is_one_error(
    arguments: list[str], word: str, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = arguments or ["--url-a", "http://127.0.0.1:1"]

    assert main(["calibrate", *extra, "--hardware", "cpu", "--profile", str(profile), "--write"]) == 1
    assert word in capsys.readouterr().err
    assert "evidence" not in profile.read_text()


def test_what_the_table_does_not_know_is_said(
    profile: Path, recordings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *recordings, "--profile", str(profile), "--hardware", "cpu", "--replays", "100"]) == 0
    shown = capsys.readouterr().out

    assert "not the luck of the 24 recorded blocks" in shown
    assert "takes your word for the hardware (cpu)" in shown


@pytest.mark.parametrize(("given", "word"), [([], "add --hardware cpu"), (["--hardware", "h100"], "for cpu")])
def test_the_caller_says_what_was_measured(
    given: list[str], word: str, profile: Path, recordings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither records nor an endpoint know their hardware, and evidence of another is none."""
    before = profile.read_text()

    for what in (recordings, ["--url-a", "http://127.0.0.1:1"], ["--url-b", "http://127.0.0.1:1"]):
        assert main(["calibrate", *what, *given, "--profile", str(profile), "--write"]) == 1
        assert word in capsys.readouterr().err
    assert profile.read_text() == before


def test_the_stack_s_own_stable_runs_on_the_profile_s_hardware(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to say it; saying another is an error all the same."""
    monkeypatch.setattr(wiring, "connect", Stack)

    assert main(["calibrate", "--profile", str(profile)]) == 1
    assert "serves nothing" in capsys.readouterr().err
    assert main(["calibrate", "--profile", str(profile), "--hardware", "h100"]) == 1
    assert "for cpu" in capsys.readouterr().err


def test_records_of_something_else_are_no_evidence(
    profile: Path, recordings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that differs in one error, with what was found and expected."""
    text = profile.read_text().replace("model: m\n", "model: big-70b\n").replace("max_tokens: 16", "max_tokens: 4096")
    profile.write_text(text.replace("rate_per_s: 1.0", "rate_per_s: 999"))

    assert main(["calibrate", *recordings, "--profile", str(profile), "--hardware", "cpu", "--write"]) == 1
    said = capsys.readouterr().err

    assert "found m, expected big-70b" in said
    assert "found 16, expected 4096" in said
    assert "expected 999" in said
    assert "evidence:" not in profile.read_text()


@pytest.mark.parametrize("command", ["judge", "calibrate"])
def test_help_says_every_default(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets in a help text are markup and vanish."""
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())

    texts = {
        "judge": ["(default: those of the basis)", "(default: basis.json beside)"],
        "calibrate": [
            *("(default: measure now)", "(default: the stack's stable)", "(default: the same)"),
            *("(default: the median's margin)", "(default: `calibrations` of the stack)", "takes your word"),
        ],
    }
    assert [text for text in texts[command] if text not in shown] == []


def test_records_and_endpoints_exclude_each_other(
    profile: Path, recordings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *recordings, "--profile", str(profile), "--url-a", "http://h"]) == 1
    assert "not both" in capsys.readouterr().err


class Stack:
    """A stack whose gateway knows one model."""

    gateway_url = "http://gateway/"

    def __init__(self) -> None:
        self.traffic = FakeTraffic()
        stable = Backend(cluster="c", release="r7", version=1, cluster_digest="c" * 64)
        self.traffic.shift(Route(model="org/tiny", stable=stable))


def test_by_default_both_sides_are_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' own stable, twice, through the gateway's internal listener: equal hardware and equal weights."""
    monkeypatch.setattr(wiring, "connect", Stack)

    sides = both_stable("org/tiny")

    assert [s.side for s in sides] == ["stable", "candidate"]
    assert {(s.base_url, s.release, s.served_model, s.headers[SIDE_HEADER]) for s in sides} == {
        (f"http://gateway/{slug('org/tiny')}", "r7", "org/tiny", "stable")
    }
    with pytest.raises(NotFound, match="serves nothing"):
        both_stable("another")
