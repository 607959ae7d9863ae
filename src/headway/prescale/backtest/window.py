"""What of a series is used: the days that a tick would keep, the last of them to be forecast and served."""

from typing import NamedTuple

import numpy as np

from headway.domain.series import DAY_S, Series
from headway.errors import ConfigError
from headway.prescale.forecast import STEP_S
from headway.units import format_seconds

DAY = DAY_S // STEP_S
KEPT_DAYS = 14
"""As long a history as a tick keeps by default."""
TEST_DAYS = 7
LEAST_DAYS = 2
"""A day to learn from, and one to be tested on."""


class Window(NamedTuple):
    """A series to be tested on.

    Args:
        series: In bins of a tick, as they were measured; NaN where missing.
        first: From this bin on forecasts are scored and the load is served.
        notes: What was changed for it, one sentence each.
    """

    series: Series
    first: int
    notes: tuple[str, ...]


def window(series: Series) -> Window:
    """Return what of a series is tested.

    Args:
        series: As it was measured.

    Raises:
        ConfigError: It is too short, or nothing was measured in it but zeros.
    """
    notes: list[str] = []
    if series.step_s > STEP_S and series.step_s % STEP_S == 0:
        many = series.step_s // STEP_S
        notes.append(
            f"Each bin of {format_seconds(series.step_s)} was read as {many} alike of {format_seconds(STEP_S)}: what "
            "happens within one is not seen."
        )
        series = Series(series.start_at, STEP_S, np.repeat(series.values, many))
    series = _measured(series.resampled(STEP_S))
    days = len(series) / DAY
    if days < LEAST_DAYS:
        raise ConfigError(
            f"{format_seconds(len(series) * STEP_S)} of history; a backtest learns from at least one day and is tested "
            f"on another: give {LEAST_DAYS} days or more"
        )
    if days > KEPT_DAYS:
        notes.append(f"Of {days:.0f} days the last {KEPT_DAYS} were used, as a tick keeps by default.")
        series = series.last(KEPT_DAYS * DAY)
    first = len(series) - min(TEST_DAYS, int(days) // 2) * DAY
    for part, words in ((series.values[:first], "before the test"), (series.values[first:], "in the days of the test")):
        if not np.isfinite(part).any():
            raise ConfigError(
                f"nothing was measured {words}: from {series.start_at:%Y-%m-%d} to {series.end_at:%Y-%m-%d} "
                f"{series.missing_share:.0%} of the bins are missing; is a time in the file wrong?"
            )
        if not np.nanmax(part) > 0:
            raise ConfigError(f"nothing but zeros was measured {words}: there is nothing to learn from, or to serve")
    return Window(series, first, tuple(notes))


def _measured(series: Series) -> Series:
    """Return the series from its first measured bin to its last."""
    known = np.flatnonzero(np.isfinite(series.values))
    if len(known) == 0:
        return series.before(0)
    return Series(series.at(int(known[0])), series.step_s, series.values[known[0] : known[-1] + 1])
