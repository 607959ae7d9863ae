"""The forecasts that headway is measured against: each takes a filled history and returns the next steps.

All are point forecasts, given the same online-conformal 90 % quantile (see `conformal`), except the quantile boosting,
which is corrected by it. Settings are those that their owners ship, where they ship any.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import lightgbm
import numpy as np
from numpy.typing import NDArray
from statsforecast.models import MSTL, AutoARIMA, AutoETS

Floats: TypeAlias = NDArray[np.float64]
Peer: TypeAlias = Callable[[Floats, int, int], Floats]
"""From history (no gaps), steps and bins a day to the forecast."""

RECENT_DAYS = 3
"""History of the peers without a season: more of it costs them seconds and tells them nothing."""
FADE_H = 3.0
"""Hours in which what the last hour had over the profile fades to a third."""


def naive(y: Floats, steps: int, day: int) -> Floats:  # noqa: ARG001 - all peers are asked alike
    """Return the last value (the constant predictor of NVIDIA Dynamo's planner)."""
    return np.full(steps, y[-1])


def seasonal_naive(y: Floats, steps: int, day: int, *, days: int) -> Floats:
    """Return what was measured `days` ago; a day ago, where there is less history."""
    period = day * days if len(y) >= day * days else day
    return np.asarray(y[-period:][np.arange(steps) % period])


def hour_of_week_mean(y: Floats, steps: int, day: int) -> Floats:
    """Return the mean of the same hour of the week; of the same hour of the day, where the week has none yet."""
    hour = day // 24
    at = np.arange(len(y) + steps) // hour
    by_day = np.array([y[at[: len(y)] % 24 == h].mean() for h in range(24)])
    week, counts = np.zeros(168), np.zeros(168)
    np.add.at(week, at[: len(y)] % 168, y)
    np.add.at(counts, at[: len(y)] % 168, 1)
    table = np.where(counts > 0, week / np.maximum(counts, 1), by_day[np.arange(168) % 24])
    return np.asarray(table[at[len(y) :] % 168])


def kalman(y: Floats, steps: int, day: int) -> Floats:  # noqa: ARG001 - all peers are asked alike
    """Return the line of a local linear trend filter with Dynamo's defaults (q_level 1, q_trend 0.1, r 10)."""
    move = np.array([[1.0, 1.0], [0.0, 1.0]])
    noise, state, spread = np.diag([1.0, 0.1]), np.array([y[0], 0.0]), np.eye(2) * 1000.0
    for value in y[1:]:
        state, spread = move @ state, move @ spread @ move.T + noise
        gain = spread[:, 0] / (spread[0, 0] + 10.0)
        state = state + gain * (value - state[0])
        spread = spread - np.outer(gain, spread[0])
    return np.asarray(state[0] + state[1] * np.arange(1, steps + 1))


def profile_level(y: Floats, steps: int, day: int) -> Floats:
    """Return the mean day, times what the last hour had over it, which fades."""
    profile = _mean_day(y, day)
    recent = day // 24
    now = np.arange(len(y) - recent, len(y)) % day
    over = y[-recent:].sum() / max(profile[now].sum(), 1e-9)
    last_day = y[-day:].mean() / max(profile.mean(), 1e-9)
    fade = np.exp(-np.arange(1, steps + 1) / (FADE_H * recent))
    ahead = profile[np.arange(len(y), len(y) + steps) % day]
    return np.asarray(ahead * np.clip(last_day + (over - last_day) * fade, 0, None))


def _mean_day(y: Floats, day: int) -> Floats:
    whole = len(y) // day * day
    mean = y[-whole:].reshape(-1, day)[-7:].mean(axis=0)
    mean = np.roll(mean, (len(y) - whole) % day)
    wide = np.concatenate([mean[-3:], mean, mean[:3]])
    return np.asarray(np.convolve(wide, np.full(7, 1 / 7), mode="valid"))


def fitted(y: Floats, steps: int, day: int, *, model: Callable[[int], object], days: int) -> Floats:
    """Return what a statsforecast model says; the last value where it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.asarray(model(day).forecast(y=y[-days * day :], h=steps)["mean"], dtype=float)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - a peer that fails falls back to the simplest one
            return naive(y, steps, day)


PEERS: Mapping[str, Peer] = {
    "naive (Dynamo constant)": naive,
    "seasonal naive day": partial(seasonal_naive, days=1),
    "seasonal naive week": partial(seasonal_naive, days=7),
    "hour-of-week mean": hour_of_week_mean,
    "Kalman (Dynamo)": kalman,
    "AutoARIMA non-seasonal": partial(fitted, model=lambda _: AutoARIMA(season_length=1), days=RECENT_DAYS),
    "AutoETS": partial(fitted, model=lambda day: AutoETS(season_length=day), days=RECENT_DAYS),
    "MSTL+AutoETS": partial(fitted, model=lambda day: MSTL([day], trend_forecaster=AutoETS(model="ZZN")), days=14),
    "MSTL+AutoARIMA": partial(fitted, model=lambda day: MSTL([day], trend_forecaster=AutoARIMA()), days=14),
    "profile x level": profile_level,
}
LIGHTGBM = "LightGBM quantile"
ENSEMBLES: Mapping[str, tuple[str, ...]] = {
    "median of 3": ("profile x level", "MSTL+AutoETS", LIGHTGBM),
    "median of 4": ("profile x level", "MSTL+AutoETS", "MSTL+AutoARIMA", LIGHTGBM),
    "median of all": (*PEERS, LIGHTGBM),
}


def boosted(y: Floats, origins: NDArray[np.int64], steps: int, day: int) -> tuple[Floats, Floats]:
    """Return median and 90 % quantile of LightGBM, fitted anew each day, for all origins (one row each)."""
    medians, highs = np.empty((len(origins), steps)), np.empty((len(origins), steps))
    for first in np.unique(origins // day):
        mine = np.flatnonzero(origins // day == first)
        start = int(origins[mine[0]])
        known = np.arange(day * 2, start - steps // 2, day // 48)
        horizons = np.unique(np.geomspace(1, steps, 24).astype(int))
        x, target = _features(y, known, horizons, day), known[:, None] + horizons[None, :] - 1
        usable = (target < start).ravel()
        scale = np.repeat(_scale(y, known, day), len(horizons))
        goal = y[np.minimum(target, start - 1)].ravel() / scale
        ahead = _features(y, origins[mine], np.arange(1, steps + 1), day)
        for alpha, into in ((0.5, medians), (0.9, highs)):
            model = lightgbm.LGBMRegressor(
                objective="quantile", alpha=alpha, n_estimators=200, learning_rate=0.05, num_leaves=31,
                min_child_samples=40, subsample=0.8, subsample_freq=1, colsample_bytree=0.8, n_jobs=1,
                random_state=1, verbose=-1, deterministic=True,
            )  # fmt: skip
            model.fit(x[usable], goal[usable])
            said = np.asarray(model.booster_.predict(ahead)).reshape(len(mine), steps)
            into[mine] = np.clip(said * _scale(y, origins[mine], day)[:, None], 0, None)
    return medians, np.maximum(medians, highs)


def _scale(y: Floats, origins: NDArray[np.int64], day: int) -> Floats:
    return np.array([max(y[o - day : o].mean(), 1e-9) for o in origins])


def _features(y: Floats, origins: NDArray[np.int64], horizons: NDArray[np.int64], day: int) -> Floats:
    scale = _scale(y, origins, day)
    hour = day // 24
    at = origins[:, None] + horizons[None, :] - 1
    lag = at - day
    lag = np.where(lag >= origins[:, None], lag - day, lag)
    own = [np.array([y[o - n : o].mean() for o in origins]) / scale for n in (1, hour, 3 * hour, day // 4)]
    twice = lag - day
    smooth = np.convolve(y, np.full(hour, 1 / hour), mode="same")
    rows = [
        np.broadcast_to(horizons[None, :], at.shape),
        at % day,
        at // day % 7,
        y[lag] / scale[:, None],
        smooth[np.minimum(lag, origins[:, None] - hour)] / scale[:, None],
        y[np.maximum(twice, 0)] / scale[:, None],
        *(np.broadcast_to(value[:, None], at.shape) for value in own),
    ]
    return np.stack([row.ravel() for row in rows], axis=1).astype(float)


def conformal(point: Floats, y: Floats, origins: NDArray[np.int64], high: Floats | None = None) -> Floats:
    """Return the online-conformal 90 % quantile: the base plus that quantile of the errors known at each origin.

    Errors are pooled over the origins of the last seven days and, beyond the first hour, over six steps.

    Args:
        point: Forecasts, one row for each origin.
        y: What was measured; NaN is missing.
        origins: Index of the first forecast step of each row.
        high: A quantile to correct in place of the point forecast.
    """
    base = point if high is None else high
    steps = point.shape[1]
    at = origins[:, None] + np.arange(steps)[None, :]
    error = y[np.minimum(at, len(y) - 1)] - base
    error[at >= len(y)] = np.nan
    pools = [[h] for h in range(6)] + [list(range(a, min(a + 6, steps))) for a in range(6, steps, 6)]
    result = base.copy()
    for row, origin in enumerate(origins):
        for pool in pools:
            known = error[:row][:, pool][(at[:row][:, pool] < origin) & np.isfinite(error[:row][:, pool])]
            if len(known) == 0:
                continue
            rank = min(int(np.ceil((len(known) + 1) * 0.9)), len(known))
            result[row, pool] += np.sort(known)[rank - 1]
    return np.clip(np.maximum(result, 0 if high is not None else point), 0, None)
