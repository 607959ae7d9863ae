"""The nights on which the clock changes, with the dates of 2026, and that following the users' clock pays."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.series import Floats, QuantileForecast, Series
from headway.errors import ConfigError
from headway.prescale import clock, state
from headway.prescale.forecast import forecast, learn
from tests.unit.prescale.data import DAY, STEP_S, flat

BERLIN = "Europe/Berlin"
SPRING = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""02:00 becomes 03:00."""
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""03:00 becomes 02:00."""
HOUR = 6
ZONES = (BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata", "Asia/Kathmandu")


def clock_series(zone: str, start: datetime, bins: int) -> Series:
    """Return a series whose every value is the local time of day, in hours."""
    at = [(start + timedelta(seconds=STEP_S * index)).astimezone(ZoneInfo(zone)) for index in range(bins)]
    return Series(start, STEP_S, np.array([one.hour + one.minute / 60 for one in at]))


def hours_of_day(series: Series, offset_s: int) -> Floats:
    """Return the time of day of each bin on a clock that never changes."""
    return np.asarray((series.start_at.timestamp() + offset_s + STEP_S * np.arange(len(series))) % 86_400 / 3_600)


@given(
    zone=st.sampled_from(ZONES),
    start=st.integers(0, 365 * DAY).map(lambda bins: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10 * bins)),
    days=st.integers(0, 16),
    later=st.integers(0, 3 * DAY),
)
def test_every_bin_of_the_history_lies_at_its_time_of_day(zone: str, start: datetime, days: int, later: int) -> None:
    """Wherever the users are, and however the change falls, days line up, and the history ends when it ended."""
    series = clock_series(zone, start, days * DAY + 7)
    at = series.end_at + timedelta(seconds=STEP_S * later)

    moved = clock.aligned(series, zone, at)

    known = np.isfinite(moved.values)
    expected = hours_of_day(moved, clock.offset_s(zone, at))
    np.testing.assert_allclose(moved.values[known], expected[known], atol=1e-9)
    assert moved.end_at == series.end_at
    assert known.sum() >= len(series) - HOUR


def test_the_hour_that_a_spring_night_leaves_out_is_missing() -> None:
    series = clock_series(BERLIN, SPRING - timedelta(days=2), 3 * DAY)

    moved = clock.aligned(series, BERLIN, series.end_at)

    missing = np.flatnonzero(np.isnan(moved.values))
    assert [moved.at(int(index)) for index in missing] == [
        SPRING - timedelta(hours=1) + timedelta(minutes=10 * index) for index in range(HOUR)
    ]
    assert moved.start_at == series.start_at - timedelta(hours=1)


def test_the_hour_that_an_autumn_night_has_twice_is_the_mean_of_both() -> None:
    values = np.concatenate([np.full(DAY, 10.0), np.full(DAY, 20.0)])
    series = Series(AUTUMN - timedelta(days=1), STEP_S, values)

    moved = clock.aligned(series, BERLIN, series.end_at)

    twice = (AUTUMN - moved.start_at) // timedelta(seconds=STEP_S)
    np.testing.assert_array_equal(moved.values[twice : twice + HOUR], np.full(HOUR, 15.0))
    np.testing.assert_array_equal(moved.values[:twice], np.full(twice, 10.0))
    np.testing.assert_array_equal(moved.values[twice + HOUR :], np.full(DAY - HOUR, 20.0))


def test_of_the_two_hours_one_that_was_not_measured_does_not_hide_the_other() -> None:
    values = np.concatenate([np.full(DAY, 10.0), np.full(HOUR, np.nan), np.full(HOUR, 20.0)])
    series = Series(AUTUMN - timedelta(days=1), STEP_S, values)

    moved = clock.aligned(series, BERLIN, series.end_at)

    assert np.isfinite(moved.values).all()


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
@pytest.mark.parametrize("minutes", [-10, 0, 10, 50, 60, 110])
def test_in_the_night_itself_nothing_comes_from_the_future(change: datetime, minutes: int) -> None:
    """Right at the change the history is as long as it was, and its newest bins are those just measured, or missing."""
    end = change + timedelta(minutes=minutes)
    series = clock_series(BERLIN, end - timedelta(days=2), 2 * DAY)

    moved = clock.aligned(series, BERLIN, end)

    assert moved.end_at == end
    known = np.isfinite(moved.values)
    expected = hours_of_day(moved, clock.offset_s(BERLIN, end))
    np.testing.assert_allclose(moved.values[known], expected[known], atol=1e-9)


def said_at(start: datetime, values: Floats) -> QuantileForecast:
    return flat(values, spread=0.0, start=start)


@given(
    zone=st.sampled_from(ZONES),
    start=st.integers(0, 365 * DAY).map(lambda bins: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10 * bins)),
)
def test_what_is_said_of_a_time_after_a_change_is_that_of_its_time_of_day(zone: str, start: datetime) -> None:
    unchanging = Series(start, STEP_S, np.zeros(2 * DAY))
    said = said_at(start, hours_of_day(unchanging, clock.offset_s(zone, start)))

    moved = clock.realigned(said, zone, start)

    expected = clock_series(zone, start, moved.steps).values
    # In an autumn night the first bins may belong to an hour that was over when the forecast was made.
    early = np.isclose(moved.values[0], said.values[0, 0])
    assert (np.isclose(moved.values[0], expected) | (early & (np.arange(moved.steps) < 3 * HOUR))).all()
    assert 2 * DAY - HOUR <= moved.steps <= 2 * DAY
    assert moved.start_at == start


@pytest.mark.parametrize(("change", "words", "steps"), [(SPRING, "ahead of", -HOUR), (AUTUMN, "behind", 0)])
def test_a_coming_change_is_said(change: datetime, words: str, steps: int) -> None:
    said = said_at(change - timedelta(hours=3), np.arange(2.0 * DAY))

    moved = clock.realigned(said, BERLIN, said.start_at)

    assert moved.steps == said.steps + steps
    assert f"{change:%Y-%m-%d %H:%M} UTC" in moved.notes[-1]
    assert words in moved.notes[-1]
    np.testing.assert_array_equal(moved.values[:, : 3 * HOUR], said.values[:, : 3 * HOUR])


def test_without_a_change_everything_stays_as_it_is() -> None:
    """Most days of the year cost nothing, and no copy."""
    series = clock_series(BERLIN, datetime(2026, 6, 1, tzinfo=UTC), 14 * DAY)
    said = said_at(series.end_at, np.ones(DAY))

    assert clock.aligned(series, BERLIN, series.end_at) is series
    assert clock.realigned(said, BERLIN, series.end_at) is said


def test_hourly_bins_move_by_whole_bins() -> None:
    """Where summer time is half an hour, hours cannot follow it exactly; they stay hours."""
    series = Series(datetime(2026, 4, 1, tzinfo=UTC), 3_600, np.arange(24.0 * 10))

    moved = clock.aligned(series, "Australia/Lord_Howe", series.end_at)

    assert (moved.step_s, moved.end_at) == (3_600, series.end_at)


def test_an_unknown_zone_is_said() -> None:
    with pytest.raises(ConfigError, match="Europe/Berlin"):
        clock.offset_s("Europe/Berln", SPRING)


@pytest.mark.parametrize(("change", "later_h"), [(SPRING, 20), (AUTUMN, -4)])
def test_following_the_clock_pays_around_a_change(change: datetime, later_h: int) -> None:
    """People come by their clock: forecasts over a change that follow it are far better, and by UTC an hour off."""
    end = change + timedelta(hours=later_h)
    series = by_the_clock(end - timedelta(days=4), 5)
    history, ahead = series.before(4 * DAY), series.values[4 * DAY :]

    plain = forecast(learn(history), history)
    moved = clock.aligned(history, BERLIN, end)
    followed = clock.realigned(forecast(learn(moved), moved), BERLIN, end)

    errors = [float(np.abs(said.median[:DAY] - ahead).sum() / ahead.sum()) for said in (plain, followed)]
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
def test_through_the_night_every_tick_has_a_forecast(change: datetime) -> None:
    """What was learned on the clock of before is not rolled into that of after, and no tick says nonsense."""
    series, learned_at = by_the_clock(change - timedelta(days=3), 5), set()
    known: state.State | None = None
    for minutes in range(-40, 120, 20):
        now = change + timedelta(minutes=minutes)
        bins = (now - series.start_at) // timedelta(seconds=STEP_S)
        usual = clock.aligned(series.before(bins), BERLIN, now)
        known = state.brought_up(known, usual, now=now, offset_s=clock.offset_s(BERLIN, now), anew=False)

        said = clock.realigned(forecast(known.learned, usual), BERLIN, now)

        came = series.values[bins : bins + DAY]
        assert said.start_at == now
        assert float(np.abs(said.median[:DAY] - came).sum() / came.sum()) < 0.1
        learned_at.add(known.learned_at)
    assert learned_at == {change - timedelta(minutes=40), change}


def by_the_clock(start: datetime, days: int) -> Series:
    """Return traffic that follows the clock of Berlin, steep in the morning and in the evening, with some noise."""
    hour = clock_series(BERLIN, start, days * DAY).values
    shape = 10 + 90 / (1 + np.exp(-(hour - 8) * 4)) / (1 + np.exp((hour - 18) * 4))
    return Series(start, STEP_S, shape * np.exp(0.03 * np.random.default_rng(6).standard_normal(len(shape))))
