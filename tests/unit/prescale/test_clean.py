"""What was not measured is missing, never zero; and whatever was changed is said."""

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from headway.errors import ConfigError
from headway.prescale.clean import Cleaned, clean, without_faults
from tests.unit.prescale.data import DAY, START, STEP_S, daily, series, times


def cleaned(values: np.ndarray, bins: int | None = None) -> Cleaned:
    until = START + timedelta(seconds=STEP_S * (len(values) if bins is None else bins))
    return clean(times(len(values)), values, step_s=STEP_S, until=until)


def test_a_clean_series_stays_as_it_is() -> None:
    """Masking leaves every value that is no fault untouched, and there is nothing to say."""
    values = daily(5)

    found = cleaned(values)

    np.testing.assert_array_equal(found.series.values, values)
    assert found.notes == ()


@given(st.permutations(range(60)))
def test_the_order_of_samples_does_not_matter(order: list[int]) -> None:
    at, values = times(60), daily(1)[:60]
    until = START + timedelta(seconds=STEP_S * 60)

    found = clean(at[order], values[order], step_s=STEP_S, until=until).series.values

    np.testing.assert_array_equal(found, values)


def test_unsorted_samples_are_reported() -> None:
    assert "not in order" in clean([1200, 0, 600], [3, 1, 2], step_s=600, until=START).notes[0]


def test_samples_of_the_same_time_become_their_mean() -> None:
    found = clean([0, 0, 600], [1, 3, 5], step_s=600, until=datetime.fromtimestamp(1200, UTC))

    assert found.series.values.tolist() == [2, 5]
    assert "had the time of another" in found.notes[0]


def test_nan_and_negative_rates_are_missing() -> None:
    found = clean([0, 600, 1200, 1800], [1, float("nan"), -5, 2], step_s=600, until=datetime.fromtimestamp(2400, UTC))

    np.testing.assert_array_equal(found.series.values, [1, np.nan, np.nan, 2])
    assert any("without a number" in note for note in found.notes)
    assert any("negative" in note for note in found.notes)


def test_a_missing_last_bin_is_missing_and_not_zero() -> None:
    found = cleaned(daily(3)[:-1], bins=3 * DAY)

    assert len(found.series) == 3 * DAY
    assert np.isnan(found.series.values[-1])
    assert "missing, not zero" in found.notes[-1]


def test_a_bin_that_has_not_ended_is_left_out() -> None:
    """Half a bin looks like half the traffic."""
    until = START + timedelta(seconds=STEP_S * 10 + 60)

    found = clean(times(11), daily(1)[:11], step_s=STEP_S, until=until)

    assert len(found.series) == 10


def test_a_sample_from_the_future_is_dropped() -> None:
    found = clean([0, 600, 9000], [1, 2, 3], step_s=600, until=datetime.fromtimestamp(1200, UTC))

    assert found.series.values.tolist() == [1, 2]
    assert "a clock is ahead" in found.notes[0]


def test_a_counter_that_begins_again_counts_on() -> None:
    """A restart of the server is no negative traffic and no peak."""
    found = clean(
        [0, 600, 1200, 1800],
        [6000, 12000, 600, 6600],
        step_s=600,
        until=datetime.fromtimestamp(2400, UTC),
        kind="counter",
    )

    assert found.series.values.tolist() == [10, 1, 10]
    assert "began again 1 times" in found.notes[0]


def test_growth_of_a_counter_over_a_gap_is_no_peak() -> None:
    at = [*range(0, 6000, 600), 60_000, 60_600]
    found = clean(at, [2.0 * x for x in at], step_s=600, until=datetime.fromtimestamp(61_200, UTC), kind="counter")

    known = found.series.values[np.isfinite(found.series.values)]
    np.testing.assert_allclose(known, 2.0)
    assert np.isnan(found.series.values[50])


@pytest.mark.parametrize("hours", [1, 6, 38])
def test_an_outage_is_missing(hours: int) -> None:
    values = daily(9)
    gone = slice(6 * DAY + 50, 6 * DAY + 50 + hours * 6)
    values[gone] = 0

    found = cleaned(values)

    assert np.isnan(found.series.values[gone]).all()
    np.testing.assert_array_equal(np.delete(found.series.values, np.r_[gone]), np.delete(values, np.r_[gone]))
    assert "outage" in found.notes[0]


def test_traffic_that_is_gone_for_days_is_gone() -> None:
    """A model that nobody uses any more must not be kept up by its past."""
    values = np.concatenate([daily(9), np.zeros(4 * DAY)])

    assert (cleaned(values).series.values[9 * DAY :] == 0).all()


def test_constant_zero_is_measured() -> None:
    found = cleaned(np.zeros(3 * DAY))

    assert (found.series.values == 0).all()
    assert found.notes == ()


def test_sparse_traffic_is_no_series_of_outages() -> None:
    values = np.random.default_rng(3).poisson(0.7, 7 * DAY).astype(float)

    np.testing.assert_array_equal(cleaned(values).series.values, values)


def test_one_giant_spike_is_taken_out() -> None:
    values = daily(5)
    values[300] = 1e9

    found = cleaned(values)

    assert np.isnan(found.series.values[300])
    assert "times above all others" in found.notes[0]


def test_a_launch_is_no_spike() -> None:
    """Traffic of five times the peak for an hour is traffic."""
    values = daily(5)
    values[300:306] = 900

    np.testing.assert_array_equal(cleaned(values).series.values, values)


def test_three_hours_of_history_are_a_series() -> None:
    assert len(cleaned(daily(1)[:18]).series) == 18


@pytest.mark.parametrize("values", [[], [float("nan")] * 3, [-1.0, -2.0]])
def test_nothing_measured_is_refused(values: list[float]) -> None:
    """An empty answer must never look like no traffic."""
    with pytest.raises(ConfigError, match="not zero traffic"):
        clean(times(len(values)), values, step_s=STEP_S, until=START + timedelta(days=1))


def test_the_night_in_which_the_clock_is_set_back_has_every_hour() -> None:
    """2026-10-25 in Berlin: two local hours of the same name, six bins each."""
    start = datetime(2026, 10, 24, 22, tzinfo=UTC).timestamp()
    at = start + 600 * np.arange(36)

    found = clean(at, np.arange(36.0) + 50, step_s=600, until=datetime.fromtimestamp(start + 36 * 600, UTC))

    assert found.series.values.tolist() == list(np.arange(36.0) + 50)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300))
def test_whatever_comes_rates_are_never_negative(values: list[float]) -> None:
    try:
        found = cleaned(np.array(values))
    except ConfigError:
        assert not any(v >= 0 for v in values if np.isfinite(v))
    else:
        known = found.series.values[np.isfinite(found.series.values)]
        assert (known >= 0).all()


def test_cleaning_twice_changes_nothing_more() -> None:
    values = daily(6)
    values[500:560] = 0
    once = without_faults(series(values)).series.values

    np.testing.assert_array_equal(without_faults(series(once)).series.values, once)
