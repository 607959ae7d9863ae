"""A forecast is never negative, says how sure it is, and survives whatever the history or a member does."""

import sys
from datetime import timedelta
from functools import lru_cache
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from headway.domain.series import Floats, QuantileForecast
from headway.errors import ConfigError
from headway.prescale.clean import without_faults
from headway.prescale.forecast import Event, forecast, learn, learned_factor, roll, with_events, without_events
from headway.prescale.forecast.blend import POWERS, mean, pooled, powers
from headway.prescale.forecast.ensemble import KNOTS, MEMBERS, filled
from headway.prescale.forecast.members import Ints, Member, Past, hold, past, predictions, repeat
from tests.unit.prescale.data import DAY, START, daily, series


def said_of(values: Floats, steps: int = DAY) -> QuantileForecast:
    history = without_faults(series(values)).series
    return forecast(learn(history), history, steps=steps)


@lru_cache(maxsize=1)
def usual() -> QuantileForecast:
    return said_of(daily(9))


def assert_sane(said: QuantileForecast) -> None:
    assert np.isfinite(said.values).all()
    assert (said.values >= 0).all()
    assert (np.diff(said.values, axis=0) >= 0).all()


def test_a_regular_day_is_known_in_advance() -> None:
    ahead = daily(10, noise=0.0)[9 * DAY :]

    error = np.abs(usual().median - ahead).sum() / ahead.sum()

    assert error < 0.05
    assert_sane(usual())


def test_the_same_history_gives_the_same_forecast() -> None:
    np.testing.assert_array_equal(said_of(daily(9)).values, usual().values)


def test_the_high_quantile_covers_what_it_says() -> None:
    """Stationary noise: over many origins the 90 % quantile is exceeded about every tenth time."""
    values = daily(12, noise=0.2)
    full = series(values)
    learned, below = learn(full.before(8 * DAY)), []
    for origin in range(8 * DAY, 11 * DAY, 36):
        known = full.before(origin)
        learned = roll(learned, known)
        high = forecast(learned, known, steps=DAY).quantile(0.9)
        below.append(values[origin : origin + DAY] <= high)

    assert 0.86 <= float(np.mean(below)) <= 0.94


def test_rolling_forward_is_learning_from_the_longer_history() -> None:
    """A tick costs little and gives what a full replay gives."""
    full = series(daily(12))
    learned = learn(full.before(10 * DAY))
    for origin in (10 * DAY + 1, 10 * DAY + 2, 10 * DAY + 40, 12 * DAY):
        learned = roll(learned, full.before(origin))

    stepwise, at_once = forecast(learned, full), forecast(learn(full), full)

    np.testing.assert_allclose(stepwise.median, at_once.median, rtol=0.02)
    np.testing.assert_allclose(stepwise.quantile(0.9), at_once.quantile(0.9), rtol=0.05)


@pytest.mark.parametrize(
    ("bins", "words"),
    [(1, "no day is known"), (18, "no day is known"), (200, "whether it repeats"), (500, "the week is not")],
)
def test_short_history_falls_back_and_says_so(bins: int, words: str) -> None:
    said = said_of(daily(9)[-bins:])

    assert_sane(said)
    assert words in said.notes[0]


def test_a_full_history_has_nothing_to_excuse() -> None:
    assert usual().notes == ()


def test_three_hours_of_history_forecast_their_level() -> None:
    said = said_of(np.full(18, 70.0), steps=288)

    np.testing.assert_allclose(said.median, 70.0, rtol=0.05)


@pytest.mark.parametrize("value", [0.0, 5.0, 1e-9, 1e9])
def test_a_constant_stays_constant(value: float) -> None:
    said = said_of(np.full(9 * DAY, value))

    assert_sane(said)
    np.testing.assert_allclose(said.median, value, rtol=0.02, atol=1e-12)


def test_a_giant_spike_does_not_move_the_days_after() -> None:
    values = daily(9)
    values[8 * DAY + 70] = 1e8

    np.testing.assert_allclose(said_of(values).median, usual().median, rtol=0.15)


def test_the_day_after_an_outage_is_a_usual_day() -> None:
    """38 hours that were kept as zeros would halve the next day."""
    values = daily(9)
    values[-38 * 6 :] = 0
    ahead = daily(10, noise=0.0)[9 * DAY :]

    bias = said_of(values).median.sum() / ahead.sum() - 1

    assert abs(bias) < 0.1


def test_a_missing_last_bin_is_not_zero_traffic() -> None:
    values = daily(9)
    values[-1] = np.nan

    np.testing.assert_allclose(said_of(values).median, usual().median, rtol=0.1)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4 * DAY), st.sampled_from([0.0, 0.1, 0.6]), st.booleans())
def test_whatever_the_history_the_forecast_is_sane(seed: int, bins: int, missing: float, wild: bool) -> None:
    drawn = np.random.default_rng(seed)
    values = drawn.lognormal(0, 3 if wild else 0.3, bins)
    values[drawn.random(bins) < missing] = np.nan
    values[0] = 1.0

    assert_sane(said_of(values))


def _raises(seen: Past, origins: Ints, steps: tuple[int, ...]) -> Floats:
    raise ZeroDivisionError("no level")


def _explodes(seen: Past, origins: Ints, steps: tuple[int, ...]) -> Floats:
    return np.full((len(origins), len(steps)), 1e12)


def _says_nothing(seen: Past, origins: Ints, steps: tuple[int, ...]) -> Floats:
    return np.full((len(origins), len(steps)), np.nan)


def _loses(seen: Past, origins: Ints, steps: tuple[int, ...]) -> Floats:
    return 3 * hold(seen, origins, steps)


@pytest.mark.parametrize("bad", [_raises, _explodes, _says_nothing, _loses])
def test_a_member_that_fails_or_loses_is_left_out(bad: object) -> None:
    """The forecast is the one of the others."""
    good = MEMBERS[-3:]
    broken = (*good, Member("broken", bad))  # type: ignore[arg-type]
    history = series(daily(9))

    with_it = forecast(learn(history, among=broken), history, steps=DAY, among=broken)
    without = forecast(learn(history, among=good), history, steps=DAY, among=good)

    np.testing.assert_allclose(with_it.median, without.median, rtol=0.01)
    assert "broken" not in with_it.members
    assert any("broken (ZeroDivisionError: no level)" in note for note in with_it.notes) == (bad is _raises)


def _lines_run(values: Floats) -> int:
    """Return how many lines of the forecast's own code it takes to ask all members once."""
    count = 0

    def tracer(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "prescale/forecast" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        predictions(MEMBERS, past(values, DAY, 1.0), np.array([len(values)]), KNOTS)
    finally:
        sys.settrace(before)
    return count


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-300, 1.0, 1e300]))
def test_no_member_can_hang(seed: int, spike: float) -> None:
    """No member goes on until something converges: the work is the same whatever was measured, or less.

    A member that raises costs the line that notes it.
    """
    drawn = np.random.default_rng(seed)
    values = drawn.lognormal(0, 3, 8 * DAY)
    values[drawn.random(len(values)) < 0.1] = spike
    predictions(MEMBERS, past(values, DAY, 1.0), np.array([len(values)]), KNOTS)  # Shared weights are solved once.

    assert _lines_run(values) <= _lines_run(np.ones(8 * DAY)) + 2 * len(MEMBERS)


MEMBERS_SAY = st.lists(
    st.tuples(st.one_of(st.just(np.nan), st.floats(0, 1e6)), st.floats(1e-3, 1)), min_size=1, max_size=12
)


@given(MEMBERS_SAY, st.floats(0, 1), st.floats(0, 1))
def test_a_pool_is_within_what_is_said_and_rises_with_its_level(
    told: list[tuple[float, float]], first: float, second: float
) -> None:
    said, share = np.array(told).T
    low, high = (float(pooled(said, share, level=level)) for level in sorted((first, second)))
    speaking, rounding = said[np.isfinite(said)], 1e-6

    if len(speaking) == 0:
        assert np.isnan([low, high]).all()
    else:
        assert speaking.min() - rounding <= low <= high + rounding <= speaking.max() + 2 * rounding


@given(MEMBERS_SAY)
def test_who_has_no_share_has_no_say(told: list[tuple[float, float]]) -> None:
    said, share = np.array([*told, (1e9, 0.0)]).T

    np.testing.assert_allclose(pooled(said, share), pooled(said[:-1], share[:-1]), rtol=1e-6, atol=1e-6)


def test_a_peak_that_a_believable_member_sees_is_in_the_pool_and_not_in_the_mean() -> None:
    said, share = np.array([[10.0, 10.0, 30.0]]), np.array([[0.35, 0.35, 0.3]])

    assert mean(said, share) == pytest.approx(16)
    assert pooled(said, share) > 25


def test_far_ahead_fewer_errors_are_known_so_the_best_counts_less() -> None:
    found = powers(np.array([1, 12, 144, 288]) / DAY)

    assert (np.diff(found) <= 0).all()
    np.testing.assert_allclose(found[[0, 2, 3]], (POWERS[0], POWERS[1], POWERS[1]))


def test_a_quantile_a_day_ahead_reaches_the_kind_of_day_that_may_come() -> None:
    """Three days of the week are twice the others; on the eve of the first, last week tells of it, not yesterday."""
    values = daily(17, noise=0.03)
    twice = np.isin(np.arange(17) % 7, (3, 4, 5))
    values *= np.repeat(np.where(twice, 2.0, 1.0), DAY)

    said = said_of(values[: 10 * DAY])

    ahead = values[10 * DAY : 11 * DAY]
    assert (ahead <= said.quantile(0.9)).mean() > 0.8


def test_scores_of_other_members_are_refused() -> None:
    history = series(daily(3))

    with pytest.raises(ConfigError, match="learn again"):
        roll(learn(history, among=MEMBERS[:3]), history)


def test_a_history_that_was_not_taken_in_is_refused() -> None:
    """A forecast from stale scores would be silently wrong."""
    full = series(daily(3))

    with pytest.raises(ConfigError, match="roll it forward"):
        forecast(learn(full.before(2 * DAY)), full)


def test_nothing_measured_is_refused() -> None:
    history = series(np.full(50, np.nan))

    with pytest.raises(ConfigError, match="nothing to forecast from"):
        forecast(learn(history), history)


def test_the_week_before_needs_a_week() -> None:
    seen = Past(daily(6), DAY, 1.0, {})

    assert np.isnan(repeat(seen, np.array([6 * DAY]), (1, 144), days=7)).all()


@given(st.lists(st.booleans(), min_size=1, max_size=400))
def test_filling_keeps_what_was_measured(missing: list[bool]) -> None:
    values = np.where(missing, np.nan, 1.0 + np.arange(len(missing)))

    found = filled(values, DAY)

    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[~np.array(missing)], values[~np.array(missing)])


def test_a_past_event_is_no_usual_day_and_the_next_one_is_like_it() -> None:
    values = daily(9, noise=0.01)
    launch = slice(7 * DAY + 60, 7 * DAY + 72)
    values[launch] *= 3
    at = [START + timedelta(days=day, hours=10) for day in (7, 9)]
    events = [Event("launch", begin, begin + timedelta(hours=2)) for begin in at]
    measured = series(values)

    history = without_events(measured, events)
    plain = forecast(learn(history), history, steps=DAY)
    said = with_events(plain, measured, events)

    assert np.isnan(history.values[launch]).all()
    assert learned_factor(measured, events, "launch") == pytest.approx(3, rel=0.1)
    np.testing.assert_allclose(said.median[60:72] / plain.median[60:72], 3, rtol=0.1)
    np.testing.assert_array_equal(said.median[:60], plain.median[:60])
    assert "times a usual day" in said.notes[-1]


def test_an_event_that_nobody_has_seen_is_said() -> None:
    begin = START + timedelta(days=9, hours=1)
    event = Event("launch", begin, begin + timedelta(hours=1))

    said = with_events(usual(), series(daily(9)), [event])

    np.testing.assert_array_equal(said.values, usual().values)
    assert "Give it a factor" in said.notes[-1]
