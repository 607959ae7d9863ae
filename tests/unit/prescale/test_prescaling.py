"""The kept plan: who can read it, and what it says of a peak to come."""

from datetime import timedelta
from typing import Any

import pytest

from headway.domain.prescaling import Fan, Standing, Tick, peak_within, plan_key, read_tick
from headway.errors import IntegrityError
from tests.unit.prescale.world import NOON


def planned(median: list[float], *, high: float = 1.1, **changes: Any) -> Tick:
    """A plan made at noon, with these busy replicas from then on, and a high quantile so many times above."""
    rows = (tuple(median), tuple(value * high for value in median))
    fan = Fan(start_at=NOON.isoformat(), step_s=600, levels=(0.5, 0.8), values=rows)
    made = Tick.off("tiny", NOON, 3, "").model_copy(
        update={"mode": "forecast", "load": median[0] if median else None, "fan": fan}
    )
    return made.model_copy(update=changes)


def test_a_rise_within_the_lead_time_is_a_peak() -> None:
    """The sentence says from what to what, and when."""
    sentence = peak_within(planned([4, 4, 4, 8, 8, 8]), NOON, 3600) or ""

    assert "within 1 h 00 min the load of tiny is expected to rise from 4.40 to 8.80" in sentence
    assert "at 12:40 UTC" in sentence


@pytest.mark.parametrize(
    "made",
    [
        planned([4, 4, 4, 4, 4, 4, 9]),
        planned([4.0] * 9, high=1.9),
        planned([9, 7, 5, 4, 4, 4]),
        planned([4, 8, 8, 8, 8, 8], fan=None),
        planned([4, 8, 8, 8, 8, 8], at=(NOON - timedelta(hours=1)).isoformat()),
    ],
    ids=["after the lead time", "wild all day", "falling", "without a forecast", "an old plan"],
)
def test_what_is_no_rise_within_the_lead_time_stops_nobody(made: Tick) -> None:
    """A release must not wait for ever."""
    assert peak_within(made, NOON, 1800) is None


def test_without_a_load_the_forecast_says_what_is_now() -> None:
    """Nobody measured, and the peak comes all the same."""
    assert peak_within(planned([4, 4, 8, 8], load=None), NOON, 1800)


def test_a_plan_is_read_as_it_was_written() -> None:
    """To the last field."""
    made = planned([1, 2, 3])

    assert read_tick(made.model_dump_json().encode(), "tiny") == made
    assert read_tick(None, "tiny") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        planned([1, 2]).model_dump_json().encode()[:-40],
        planned([1, 2], schema_number=2).model_dump_json().encode(),
        planned([1, 2], model="other").model_dump_json().encode(),
        planned([1, 2], at="noon").model_dump_json().encode(),
        planned([1, 2], at="2026-11-25T12:00:00").model_dump_json().encode(),
        planned([1, 2], lead_times_s=(300.0, 0.0)).model_dump_json().encode(),
        planned([1, 2], standings=(Standing(day="x", policy="headway", cost=1, bad_min=0),)).model_dump_json().encode(),
        planned([], load=None).model_dump_json().encode(),
    ],
    ids=[
        *("empty", "a list", "cut", "of a later release", "of another model", "no time", "a time without a zone"),
        *("a scale-up in no time", "a day that is none", "an empty forecast"),
    ],
)
def test_what_is_no_plan_of_the_model_is_refused(content: bytes) -> None:
    """The sentence names the document, and says what to do."""
    with pytest.raises(IntegrityError, match=f"{plan_key('tiny')}.*delete it"):
        read_tick(content, "tiny")
