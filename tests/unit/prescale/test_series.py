"""A regular series knows its times, and that missing is not zero."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from headway.domain.series import QuantileForecast, Series
from headway.errors import ConfigError

START = datetime(2026, 3, 2, tzinfo=UTC)


def test_longer_bins_are_means_and_missing_where_most_is() -> None:
    fine = Series(START, 300, np.array([1, 3, np.nan, 4, np.nan, np.nan, 7]))

    found = fine.resampled(600)

    np.testing.assert_array_equal(found.values, [2, 4, np.nan])
    assert found.start_at == START


def test_longer_bins_lie_on_the_clock() -> None:
    fine = Series(START + timedelta(minutes=5), 300, np.array([1.0, 2.0, 4.0]))

    found = fine.resampled(600)

    assert found.start_at == START
    np.testing.assert_array_equal(found.values, [1, 3])


@pytest.mark.parametrize(
    ("start", "step_s", "words"),
    [
        (START, 7, "does not divide a day"),
        (START + timedelta(seconds=5), 600, "between two bins"),
        (START.replace(tzinfo=None), 600, "without a time zone"),
    ],
)
def test_an_irregular_series_is_refused(start: datetime, step_s: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Series(start, step_s, np.zeros(3))


def test_bins_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not add up"):
        Series(START, 600, np.zeros(3)).resampled(900)


def test_a_forecast_is_asked_between_levels_and_steps() -> None:
    said = QuantileForecast(START, 600, (0.5, 0.9), np.array([[10.0, 20.0], [30.0, 40.0]]))

    assert said.quantile(0.7).tolist() == [20, 30]
    assert said.value_at(START + timedelta(minutes=10), 0.5) == 15
    assert said.value_at(START, 0.5) == 10
