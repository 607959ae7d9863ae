"""The worker of the DAG: one answer a line, whatever comes in and whatever libraries print."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from headway.cli.ticks import answer
from headway.domain.profile import Profile
from headway.errors import ConfigError
from headway.wiring import Backend, read_calendar
from tests.unit.prescale.world import NOON, World, prescaled


class Asked(World):
    """A world whose calendar is not there."""

    def calendar(self, profile: Profile) -> str | None:
        raise ConfigError("prescale.calendar of tiny: launches.ics cannot be read")


class Broken(World):
    """A world with a bug in it."""

    def calendar(self, profile: Profile) -> str | None:
        raise ZeroDivisionError("division by zero")


def order(profile: Profile | None = None) -> str:
    """Return the line of an order."""
    return json.dumps({"profile": (profile or prescaled()).to_json(), "at": NOON.isoformat()})


def told(world: World, line: str) -> dict[str, Any]:
    """Return the answer."""
    return answer(cast("Backend", world), line)


def test_a_calendar_that_cannot_be_read_costs_its_events_and_not_the_plan() -> None:
    """The plan says so."""
    world = Asked()
    world.has(3)

    made = told(world, order())["tick"]

    assert made["floor"] >= 3
    assert any("launches.ics cannot be read; the forecast knows no events" in problem for problem in made["problems"])


def test_a_bug_is_an_answer_too() -> None:
    """One model's data must not end the worker of the others."""
    assert told(Broken(), order()) == {"fault": "unexpected ZeroDivisionError: division by zero"}
    assert "fault" in told(World(), "no JSON")


def test_what_cannot_be_planned_says_why() -> None:
    """In headway's own words."""
    world = Asked()
    world.objects.down = True

    assert told(world, order()) == {"fault": "the store does not answer"}


def test_the_program_answers_on_its_output_and_ends_with_its_input(tmp_path: Path) -> None:
    """On a machine without a stack every order has its one sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli.ticks"],
        input=f"{order()}\n{order()}\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={"PYTHONPATH": "src:.", "HEADWAY_HOME": str(tmp_path), "HOME": str(tmp_path)},
    )

    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first == second
    assert "there are no S3 credentials" in first["fault"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"\xff\xfe\x00", "cannot be read"), (b"x" * (4 * 1024 * 1024 + 1), "are read at most")],
)
def test_a_calendar_that_is_no_text_is_refused_with_its_path(tmp_path: Path, content: bytes | None, said: str) -> None:
    """Missing, of another kind, or far too large."""
    if content is not None:
        (tmp_path / "launches.ics").write_bytes(content)

    with pytest.raises(ConfigError, match=said) as refused:
        read_calendar(tmp_path, prescaled(prescale={"calendar": "launches.ics"}))

    assert str(tmp_path / "launches.ics") in refused.value.message


def test_a_calendar_is_read_from_beside_the_profile(tmp_path: Path) -> None:
    """And none is read where none is named."""
    (tmp_path / "launches.ics").write_text("BEGIN:VCALENDAR", encoding="utf-8")

    assert read_calendar(tmp_path, prescaled(prescale={"calendar": "launches.ics"})) == "BEGIN:VCALENDAR"
    assert read_calendar(tmp_path, prescaled()) is None
