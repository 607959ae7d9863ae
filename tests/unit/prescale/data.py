"""Generated traffic: days with a peak, noise, and what goes wrong."""

from datetime import UTC, datetime

import numpy as np

from headway.domain.series import Floats, QuantileForecast, Series

START = datetime(2026, 3, 2, tzinfo=UTC)
STEP_S = 600
DAY = 144


def daily(days: float, *, seed: int = 1, noise: float = 0.05, level: float = 100.0) -> Floats:
    """Return traffic with a peak in the afternoon and multiplicative noise."""
    at = np.arange(round(days * DAY))
    shape = 1 + 0.8 * np.sin(2 * np.pi * (at / DAY - 0.4))
    drawn = np.random.default_rng(seed).standard_normal(len(at))
    return np.asarray(level * shape * np.exp(noise * drawn))


def series(values: Floats) -> Series:
    """Return values as ten-minute bins."""
    return Series(START, STEP_S, np.asarray(values, dtype=float))


def times(bins: int) -> Floats:
    """Return a time within each bin, in seconds since 1970."""
    return np.asarray(START.timestamp() + STEP_S * np.arange(bins) + 30.0)


def flat(values: Floats | list[float], *, spread: float = 0.2, start: datetime = START) -> QuantileForecast:
    """Return a forecast with these medians, and a spread (a share of them) from the 10 % to the 90 % quantile."""
    middle = np.asarray(values, dtype=float)
    levels = (0.1, 0.5, 0.8, 0.9, 0.99)
    around = np.array([-1.0, 0.0, 0.6, 1.0, 2.0]) * spread
    return QuantileForecast(start, STEP_S, levels, np.maximum(middle * (1 + around[:, None]), 0))
