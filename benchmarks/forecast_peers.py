"""The forecasts that headway is measured against: each takes a filled history and returns the next steps.

All are point forecasts, given the same online-conformal 90 % quantile (see `conformal`), except the quantile boosting,
which is corrected by it. Settings are those that their owners ship, where they ship any.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial

import lightgbm
import numpy as np
from numpy.typing import NDArray
from statsforecast.models import MSTL, AutoARIMA, AutoETS

from headway.domain.series import Floats
from headway.prescale.backtest.baselines import (
    Baseline,
    as_before,
    high_quantile,
    hour_of_week,
    kalman,
    last_value,
    profile_level,
)

RECENT_DAYS = 3
"""History of the peers without a season: more of it costs them seconds and tells them nothing."""


def fitted(y: Floats, steps: int, day: int, *, model: Callable[[int], object], days: int) -> Floats:
    """Return what a statsforecast model says; the last value where it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.asarray(model(day).forecast(y=y[-days * day :], h=steps)["mean"], dtype=float)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - a peer that fails falls back to the simplest one
            return last_value(y, steps, day)


PEERS: Mapping[str, Baseline] = {
    "naive (Dynamo constant)": last_value,
    "seasonal naive day": partial(as_before, days=1),
    "seasonal naive week": partial(as_before, days=7),
    "hour-of-week mean": hour_of_week,
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

    Args:
        point: Forecasts, one row for each origin.
        y: What was measured; NaN is missing.
        origins: Index of the first forecast step of each row.
        high: A quantile to correct in place of the point forecast.
    """
    return high_quantile(point if high is None else high, y, origins, 0.9, least=point if high is None else 0.0)
