"""Known events around a forecast: what there is too much of, or meets, lowers nothing."""

from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.series import Floats
from headway.prescale.forecast import Event, learned_factor, with_events, without_events
from tests.unit.prescale.data import DAY, START, STEP_S, daily, flat, series

NOON = START + timedelta(hours=12)


def hours(day: float, *, name: str = "launch", lasts: float = 2, factor: float | None = None) -> Event:
    begin = NOON + timedelta(days=day)
    return Event(name, begin, begin + timedelta(hours=lasts), factor)


def test_what_happens_every_day_is_the_usual_day() -> None:
    """A calendar full of entries takes no history away, and is not counted a second time in the forecast."""
    history = series(daily(9))
    events = [hours(day - 0.5, lasts=20, factor=3) for day in range(11)]
    said = flat(np.ones(DAY), start=history.end_at)

    assert without_events(history, events) is history
    assert learned_factor(history, events, "launch") == 1.0
    found = with_events(said, history, events)
    np.testing.assert_array_equal(found.values, said.values)
    assert "what is usual" in found.notes[-1]


def test_where_events_meet_the_largest_counts() -> None:
    """A holiday that stands in the calendar too does not count twice, and a launch on it is a launch."""
    history = series(daily(9))
    said = flat(np.ones(DAY), spread=0.0, start=history.end_at)
    events = [hours(9, lasts=4, factor=0.5, name="holiday"), hours(9, factor=2), hours(9, factor=2, name="again")]

    found = with_events(said, history, events)

    np.testing.assert_array_equal(found.median[72:84], np.full(12, 2.0))
    np.testing.assert_array_equal(found.median[84:96], np.full(12, 0.5))


def test_an_event_that_nobody_has_seen_is_not_lowered_by_another_one() -> None:
    history = series(daily(9))
    said = flat(np.ones(DAY), spread=0.0, start=history.end_at)

    found = with_events(said, history, [hours(9, factor=0.5, name="holiday"), hours(9)])

    np.testing.assert_array_equal(found.median, np.ones(DAY))


def test_a_factor_that_somebody_gave_holds_for_all_of_its_name() -> None:
    """An entry `public holiday` in the calendar tells what the holidays are like that a country has."""
    history = series(daily(9))
    said = flat(np.ones(DAY), spread=0.0, start=history.end_at)
    events = [hours(9, name="holiday"), hours(9, name="holiday", factor=0.6), hours(3, name="holiday")]

    found = with_events(said, history, events)

    np.testing.assert_array_equal(found.median[72:84], np.full(12, 0.6))


@given(begin=st.integers(-3 * 3600, 30 * 3600), lasts=st.integers(1, 40 * 3600))
def test_an_event_takes_every_bin_that_it_touches(begin: int, lasts: int) -> None:
    history = series(daily(3))
    start = START + timedelta(seconds=begin)
    event = Event("launch", start, start + timedelta(seconds=lasts))

    gone = np.isnan(without_events(history, [event]).values)

    bins: Floats = STEP_S * np.arange(len(history), dtype=float)
    touched = (bins + STEP_S > begin) & (bins < begin + lasts)
    np.testing.assert_array_equal(gone, touched if touched.sum() <= len(history) / 2 else np.zeros_like(touched))
