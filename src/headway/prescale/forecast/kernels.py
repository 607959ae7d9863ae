"""Linear predictors that all models share: best linear unbiased prediction for a few fixed covariances.

A forecast by kriging (a Gaussian process with a known covariance and an unknown mean; C. E. Rasmussen and C. K. I.
Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2 and 5.4.3) is a weighted sum of the last days.
On a regular grid the weights depend on the covariance and on nothing else. So nothing is fitted for a model: a handful
of covariances, from "no season" to "the week repeats", is solved once in a process, and a forecast is a product of a
matrix and the window. Which of them fits a series is decided by how well each of them did lately (`blend`).

With less history than the longest window the same covariances are solved for a shorter one: what the data cannot say
(the season in three hours of history) then weighs nothing by itself.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import linalg

from headway.domain.series import Floats

WINDOW_DAYS = 8
"""The longest window: a week and what came right before it."""
SHORT_WINDOWS_H = (1, 2, 4, 8, 12, 16)
MEAN_VARIANCE = 1e3
"""The mean level is unknown: so wide that its prior does not matter."""


class Kernel(NamedTuple):
    """A covariance as a sum of parts, by their variances; the day and the week are those of MacKay's periodic kernel.

    Args:
        day: Variance of the pattern of the day, and `day_width` how fast it changes within the day (1 is slow).
        day_lasts: Days after which a third of that pattern is left.
        week: Variance of the pattern of the week beside it, and `week_width`.
        short: Variance of what lasts `short_h` hours.
        long: Variance of what lasts a day.
        noise: Variance of what is gone at the next bin.
    """

    day: float = 3.0
    day_width: float = 0.3
    day_lasts: float = 60.0
    week: float = 0.2
    week_width: float = 0.1
    short: float = 0.3
    short_h: float = 2.0
    long: float = 0.1
    noise: float = 0.05

    def covariance(self, lag_days: Floats) -> Floats:
        """Return the covariance of two bins so many days apart, without the noise."""
        lag = np.abs(lag_days)
        day = np.exp(-2 * (np.sin(np.pi * lag) / self.day_width) ** 2 - lag / self.day_lasts)
        week = np.exp(-2 * (np.sin(np.pi * lag / 7) / self.week_width) ** 2 - lag / 28)
        fleeting = self.short * np.exp(-lag * 24 / self.short_h) + self.long * np.exp(-lag)
        drift = 0.05 * np.exp(-lag / 14)
        return np.asarray(self.day * day + self.week * week + fleeting + drift + MEAN_VARIANCE)


KERNELS: dict[str, Kernel] = {
    "day": Kernel(),
    "sharp day": Kernel(day_width=0.07, short=0.1, noise=0.1),
    "week": Kernel(week=1.0, week_width=0.05),
    "same week": Kernel(week=4.0, week_width=0.05, noise=0.02),
    "level": Kernel(day=0.05, week=0.02, long=0.5),
    "level and day": Kernel(day=0.3, week=0.02, long=0.3),
}


def window_bins(known: int, day: int) -> int:
    """Return how many of `known` bins the predictors use: whole days up to eight, or a few hours."""
    days = min(known // day, WINDOW_DAYS)
    if days:
        return days * day
    return max((hours * day // 24 for hours in SHORT_WINDOWS_H if hours * day // 24 <= known), default=0)


@lru_cache(maxsize=256)
def weights(kernel: Kernel, window: int, day: int, steps: tuple[int, ...]) -> Floats:
    """Return one row of weights over the window for each number of steps ahead.

    Args:
        kernel: The covariance.
        window: Bins of history, oldest first.
        day: Bins in a day.
        steps: Steps ahead; 1 is the bin after the window.
    """
    column = kernel.covariance(np.arange(window) / day)
    column[0] += kernel.noise
    factor = linalg.cho_factor(linalg.toeplitz(column), lower=True, check_finite=False, overwrite_a=True)
    ahead = np.asarray(steps)[:, None] + np.arange(window - 1, -1, -1)[None, :]
    found: Floats = linalg.cho_solve(factor, kernel.covariance(ahead / day).T, check_finite=False).T
    found.setflags(write=False)
    return found
