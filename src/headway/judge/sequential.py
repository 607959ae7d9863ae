"""Deciding while the blocks come in, without paying for every look.

The number of blocks and the blocks after which a decision is tried (the looks) are declared before the first one. The
permitted error `alpha` is spent over the looks by a function of the share of blocks seen: the Pocock-type function
`alpha * ln(1 + (e - 1) t)` of K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials",
Biometrika 70, 1983. The nominal level of each look follows by recursive integration over the paths that have not
crossed before (P. Armitage, C. K. McPherson, B. C. Rowe, JRSS A 132, 1969; C. Jennison and B. W. Turnbull, "Group
Sequential Methods", 2000, chapter 19). The spread of the blocks is estimated from few of them, so each bound is a
t-quantile at that nominal level (ibid., chapter 4.4).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from headway.domain.profile import Canary
from headway.judge.quantiles import Rate, wilson

Floats: TypeAlias = NDArray[np.float64]

ALPHA = 0.05
"""Chance of promoting a candidate that lies exactly at a margin, and of rolling back by any guard one that is equal."""
LOOK_SHARES = (0.2, 1 / 3, 0.5, 2 / 3, 5 / 6, 1.0)
MIN_LOOK_BLOCKS = 4
"""A spread estimated from fewer blocks is too wide to decide anything, and the look would still spend its error."""
GRID = 801


class Interval(NamedTuple):
    """Mean of paired differences with one-sided bounds, each at its own level."""

    mean: float
    low: float
    high: float


def looks_of(canary: Canary) -> tuple[int, ...]:
    """Return the declared looks, or those that follow from the number of blocks."""
    if canary.looks:
        return canary.looks
    least = min(MIN_LOOK_BLOCKS, canary.blocks)
    return tuple(sorted({max(least, round(canary.blocks * share)) for share in LOOK_SHARES}))


def spent(share: float, alpha: float) -> float:
    """Return how much of `alpha` may be spent once this share (0 to 1) of the blocks is in."""
    return alpha * math.log1p((math.e - 1) * min(max(share, 0.0), 1.0))


@lru_cache(maxsize=512)
def nominal_levels(shares: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return the one-sided level of each look, so that crossing at any of them has probability `alpha` in all.

    Args:
        shares: Rising shares of the planned blocks at the looks so far, each above 0 and at most 1.
        alpha: Error to spend over the whole plan.
    """
    levels: list[float] = []
    grid = density = np.empty(0)
    before = 0.0
    for share in shares:
        need = spent(share, alpha) - spent(before, alpha)
        step = math.sqrt(share - before)
        if not levels:
            bound = z_of(need) * step
        else:
            bound = float(optimize.brentq(_excess, -9.0, 9.0, args=(need, grid, density, step), xtol=1e-10))
        levels.append(float(special.ndtr(-bound / math.sqrt(share))))
        points = np.linspace(-8.0 * math.sqrt(share), bound, GRID)
        if len(levels) == 1:
            values = _pdf(points / step) / step
        else:
            values = _pdf((points[:, None] - grid[None, :]) / step) / step @ density
        # Density times the trapezoid's weights, so that the next look only has to sum.
        weights = np.full(GRID, points[1] - points[0])
        weights[[0, -1]] /= 2
        grid, density, before = points, values * weights, share
    return tuple(levels)


def interval(differences: Sequence[float], *, level_low: float, level_high: float) -> Interval:
    """Return mean and t-bounds of paired block differences (two or more)."""
    values = np.asarray(differences, dtype=float)
    n = len(values)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - t_of(level_low, n - 1) * error, mean + t_of(level_high, n - 1) * error)


def z_of(level: float) -> float:
    """Return the normal quantile of a one-sided level."""
    return -float(special.ndtri(level))


def t_of(level: float, freedom: int) -> float:
    """Return Student's quantile of a one-sided level."""
    return -float(special.stdtrit(freedom, level))


def undecidable(canary: Canary) -> list[str]:
    """Return why a flawless candidate could not be promoted with this plan, one sentence each; empty if it could.

    Only what follows from counting is said here: too few requests cannot show few failures, even without a single one.
    """
    sent = canary.blocks * canary.requests_per_block
    high_pct = _flawless_bound_pct(canary)
    if high_pct < canary.error_margin_pct:
        return []
    enough = canary
    while _flawless_bound_pct(enough) >= canary.error_margin_pct:
        # The bound shrinks about as 1 / requests; the last steps are single blocks, because the looks move with them.
        factor = _flawless_bound_pct(enough) / canary.error_margin_pct
        blocks = max(enough.blocks + 1, int(enough.blocks * factor * 0.99))
        enough = enough.model_copy(update={"blocks": blocks, "looks": ()})
    text = (
        f"no failure in {sent} requests still allows {high_pct:.1f} % of failures, and canary.error_margin_pct is "
        f"{canary.error_margin_pct:g}; it needs {enough.blocks} blocks of {canary.requests_per_block} requests, or a "
        "wider margin"
    )
    return [text]


def _flawless_bound_pct(canary: Canary) -> float:
    level = nominal_levels(tuple(k / canary.blocks for k in looks_of(canary)), ALPHA)[-1]
    return wilson(Rate(0, canary.blocks * canary.requests_per_block), z_of(level))[1] * 100


def _pdf(x: Floats) -> Floats:
    density: Floats = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return density


def _excess(
    bound: float,
    need: float,
    grid: Floats,
    density: Floats,
    step: float,
) -> float:
    return float(density @ special.ndtr((grid - bound) / step)) - need
