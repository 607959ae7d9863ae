"""The forecasts that are measured beside headway's: those that are quick, and need nothing but numpy.

Each takes a history without gaps and returns the next steps. All get the same online-conformal high quantile.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import Floats

Baseline: TypeAlias = Callable[[Floats, int, int], Floats]
"""From history (no gaps), steps and bins a day to the forecast."""

FADE_H = 3.0
"""Hours in which what the last hour had over the profile fades to a third."""
Q_LEVEL, Q_TREND, R = 1.0, 0.1, 10.0
"""Noise of level, trend and measurement: what Dynamo's planner ships."""
SMOOTHED_BINS = 7
PROFILE_DAYS = 7
LEAST = 1e-9


def last_value(y: Floats, steps: int, day: int) -> Floats:  # noqa: ARG001 - all are asked alike
    """Return the last value, as the constant predictor of NVIDIA Dynamo's planner does."""
    return np.full(steps, y[-1])


def as_before(y: Floats, steps: int, day: int, *, days: int) -> Floats:
    """Return what was measured some days ago; a day ago, where there is less history."""
    period = day * days if len(y) >= day * days else day
    return np.asarray(y[-period:][np.arange(steps) % period])


def hour_of_week(y: Floats, steps: int, day: int) -> Floats:
    """Return the mean of the same hour of the week; of the same hour of the day, where the week has none yet."""
    hour = day // 24
    at: NDArray[np.int64] = np.arange(len(y) + steps) // hour
    by_day = np.array([y[at[: len(y)] % 24 == h].mean() for h in range(24)])
    week, counts = np.zeros(168), np.zeros(168)
    np.add.at(week, at[: len(y)] % 168, y)
    np.add.at(counts, at[: len(y)] % 168, 1)
    table = np.where(counts > 0, week / np.maximum(counts, 1), by_day[np.arange(168) % 24])
    return np.asarray(table[at[len(y) :] % 168])


def kalman(y: Floats, steps: int, day: int) -> Floats:  # noqa: ARG001 - all are asked alike
    """Return the line of a local linear trend filter with the settings that Dynamo's planner ships."""
    # The state is level, trend and their covariance, written out: a thousand small matrices are slow.
    level, trend = float(y[0]), 0.0
    a, b, c = 1000.0, 0.0, 1000.0
    for value in y[1:]:
        a, b, c = a + 2 * b + c + Q_LEVEL, b + c, c + Q_TREND
        level += trend
        gain_level, gain_trend = a / (a + R), b / (a + R)
        error = float(value) - level
        level, trend = level + gain_level * error, trend + gain_trend * error
        a, b, c = a - gain_level * a, b - gain_level * b, c - gain_trend * b
    return np.asarray(level + trend * np.arange(1, steps + 1))


def profile_level(y: Floats, steps: int, day: int) -> Floats:
    """Return the mean day, times what the last hour had over it, which fades."""
    profile = _mean_day(y, day)
    recent = day // 24
    now: NDArray[np.int64] = np.arange(len(y) - recent, len(y)) % day
    over = y[-recent:].sum() / max(profile[now].sum(), LEAST)
    last_day = y[-day:].mean() / max(profile.mean(), LEAST)
    fade = np.exp(-np.arange(1, steps + 1) / (FADE_H * recent))
    ahead = profile[np.arange(len(y), len(y) + steps) % day]
    return np.asarray(ahead * np.clip(last_day + (over - last_day) * fade, 0, None))


def _mean_day(y: Floats, day: int) -> Floats:
    whole = len(y) // day * day
    mean = y[-whole:].reshape(-1, day)[-PROFILE_DAYS:].mean(axis=0)
    mean = np.roll(mean, (len(y) - whole) % day)
    half = SMOOTHED_BINS // 2
    wide = np.concatenate([mean[-half:], mean, mean[:half]])
    return np.asarray(np.convolve(wide, np.full(SMOOTHED_BINS, 1 / SMOOTHED_BINS), mode="valid"))


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "last value (Dynamo's constant)": last_value,
        "Kalman (Dynamo's defaults)": kalman,
        "same as yesterday": partial(as_before, days=1),
        "same as last week": partial(as_before, days=7),
        "mean of the hour of the week": hour_of_week,
        "profile x level": profile_level,
    }
)


def filled(values: Floats, day: int) -> Floats:
    """Return the series for methods that know no gap: missing is as the day before, or as the bin before.

    Args:
        values: NaN where missing; at least one is known.
        day: Bins in a day.
    """
    result = values.copy()
    for index in np.flatnonzero(np.isnan(values)):
        result[index] = result[index - day] if index >= day else (result[index - 1] if index else np.nanmean(values))
    return result


def high_quantile(
    base: Floats, y: Floats, origins: NDArray[np.int64], level: float, *, least: Floats | float
) -> Floats:
    """Return the online-conformal quantile of forecasts: each plus that quantile of the errors known at its origin.

    Errors are pooled over all earlier origins and, beyond the first hour, over six steps.

    Args:
        base: What is corrected: forecasts, one row for each origin.
        y: What was measured; NaN is missing.
        origins: Index of the first forecast step of each row, rising.
        level: Of the quantile.
        least: What the quantile does not fall below: for a point forecast, that forecast.
    """
    steps = base.shape[1]
    at = origins[:, None] + np.arange(steps)[None, :]
    error = y[np.minimum(at, len(y) - 1)] - base
    error[at >= len(y)] = np.nan
    pools = [[h] for h in range(min(6, steps))] + [list(range(a, min(a + 6, steps))) for a in range(6, steps, 6)]
    result = base.copy()
    for row, origin in enumerate(origins):
        for pool in pools:
            known = error[:row][:, pool][(at[:row][:, pool] < origin) & np.isfinite(error[:row][:, pool])]
            if len(known) == 0:
                continue
            rank = min(int(np.ceil((len(known) + 1) * level)), len(known))
            result[row, pool] += np.sort(known)[rank - 1]
    return np.clip(np.maximum(result, least), 0, None)
