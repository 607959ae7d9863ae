"""How good the forecast is, beside the baselines, in one run.

Origins lie every two hours; each method sees what lies before its origin. The day before the test gives the baselines
errors to take their high quantile from.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import Floats, Series
from headway.errors import ConfigError
from headway.prescale.backtest import live
from headway.prescale.backtest.baselines import BASELINES, Baseline, filled, high_quantile
from headway.prescale.backtest.result import OURS, Score
from headway.prescale.backtest.window import DAY, Window

STEPS = DAY
EVERY = DAY // 12
AHEAD_STEPS = {1: DAY // 24, 24: DAY}
"""Steps by the hours ahead at which forecasts are scored."""
LEVEL = 0.9


class Said(NamedTuple):
    """What a method said: medians and high quantiles, one row for each origin."""

    median: Floats
    high: Floats


def scores(window: Window, *, zone: str = "UTC", baselines: Mapping[str, Baseline] = BASELINES) -> tuple[Score, ...]:
    """Return how good each method was, ours last.

    Args:
        window: What to test on.
        zone: Whose clock the days follow.
        baselines: The methods to measure beside ours.

    Raises:
        ConfigError: Nothing but zeros was measured where forecasts are scored.
    """
    series, first, _ = window
    begin = max(first - DAY, DAY)
    origins = np.arange(begin, len(series) - min(AHEAD_STEPS.values()) + 1, EVERY)
    test = origins >= first
    at = origins[test][:, None] + np.arange(STEPS)[None, :]
    came = np.where(at < len(series), series.values[np.minimum(at, len(series) - 1)], np.nan)
    scale = _scale(series.values[:first])
    return tuple(
        one
        for method, said in _all(series, origins, zone, baselines)
        for one in _scored(method, Said(said.median[test], said.high[test]), came, scale)
    )


def _all(
    series: Series, origins: NDArray[np.int64], zone: str, baselines: Mapping[str, Baseline]
) -> Iterator[tuple[str, Said]]:
    history = filled(series.values, DAY)
    for name, ask in baselines.items():
        point = np.clip(np.array([ask(history[:origin], STEPS, DAY) for origin in origins]), 0, None)
        yield name, Said(point, high_quantile(point, series.values, origins, LEVEL, least=point))
    ours = list(live.forecasts(series, [int(origin) for origin in origins], steps=STEPS, zone=zone))
    yield OURS, Said(np.array([one.median for one in ours]), np.array([one.quantile(LEVEL) for one in ours]))


def _scale(before: Floats) -> float | None:
    """Return the mean error of "same as yesterday" in the days before, none where it has none."""
    errors = np.abs(before[DAY:] - before[:-DAY])
    known = errors[np.isfinite(errors)]
    return float(known.mean()) or None if len(known) else None


def _scored(method: str, said: Said, truth: Floats, scale: float | None) -> Iterator[Score]:
    for ahead_h, steps in AHEAD_STEPS.items():
        came = truth[:, :steps]
        known = np.isfinite(came)
        error = np.abs(came - said.median[:, :steps])[known]
        over = (came - said.high[:, :steps])[known]
        total = came[known].sum()
        if not total > 0:
            raise ConfigError(
                f"nothing but zeros was measured within {ahead_h} h of any origin: no forecast can be scored on so "
                "little traffic"
            )
        yield Score(
            method=method,
            ahead_h=ahead_h,
            wape_pct=float(100 * error.sum() / total),
            mase=float(error.mean() / scale) if scale else None,
            wql90=float(2 * np.maximum(LEVEL * over, (LEVEL - 1) * over).sum() / total),
            cover_pct=float(100 * (over <= 0).mean()),
        )
