"""Deciding while the blocks come in, without paying for every look.

The number of blocks and the blocks after which a decision is tried (the looks) are declared before the first one. The
permitted error `alpha` is spent over the looks as a power of the share of blocks seen, `alpha * t ** POWER` (K. Kim,
D. L. DeMets, "Design and analysis of group sequential tests based on the type I error spending rate function",
Biometrika 74, 1987). The nominal level of each look follows by recursive integration over the paths that have not
crossed before (P. Armitage, C. K. McPherson, B. C. Rowe, JRSS A 132, 1969; C. Jennison and B. W. Turnbull, "Group
Sequential Methods", 2000, chapter 19). The spread of the blocks is estimated from few of them, so each bound is a
t-quantile at that nominal level (ibid., chapter 4.4).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from headway.domain.profile import Canary
from headway.judge.quantiles import GUARD_PERCENT, LATENCIES, Floats, Rate, wilson

ALPHA = 0.05
"""Chance of promoting a candidate that lies exactly at a margin, and of taking back one whose metrics all lie at half
their margins; an equal one is taken back far more rarely."""
PROMOTE_ALPHA = 0.045
"""What of it is spent on promotions. The levels are those for a known spread, and it is estimated anew at each look,
which lets a tenth more through (measured for 6 to 30 blocks); taking back has room for that in its own division."""
POWER = 1.75
"""How slowly the error is spent. In the simulation 1.5 ends clear cases a third of a block earlier, and holds an equal
candidate and a slow tail more often than is published; 2 does the opposite."""
MIN_LOOK_BLOCKS = 4
"""A spread estimated from fewer blocks is too wide to decide anything."""
MOST_LOOKS = 30
"""More of them end nothing noticeably earlier."""
LIKELY = 0.9
"""How likely an equal candidate must be promoted for a plan to be worth its blocks."""
GRID = 801


def looks_of(canary: Canary) -> tuple[int, ...]:
    """Return the declared looks, or those that follow from the number of blocks."""
    if canary.looks:
        return canary.looks
    step = -(-canary.blocks // MOST_LOOKS)
    return tuple(range(canary.blocks, min(MIN_LOOK_BLOCKS, canary.blocks) - 1, -step))[::-1]


def spent(share: float, alpha: float) -> float:
    """Return how much of `alpha` may be spent once this share (0 to 1) of the blocks is in."""
    return float(alpha * min(max(share, 0.0), 1.0) ** POWER)


def nominal_levels(shares: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return the one-sided level of each look, so that crossing at any of them has probability `alpha` in all.

    Args:
        shares: Rising shares of the planned blocks at the looks so far, each above 0 and at most 1.
        alpha: Error to spend over the whole plan.
    """
    return spending_levels(shares, tuple(spent(share, alpha) for share in shares))


def spending_levels(shares: tuple[float, ...], errors: tuple[float, ...]) -> tuple[float, ...]:
    """Return the one-sided level of each look for any way of spending.

    Args:
        shares: Rising shares of the planned blocks at the looks.
        errors: Probability of having crossed at this look or before; it rises.
    """
    return _paths(shares, errors).levels if shares else ()


class _Paths(NamedTuple):
    """Where the paths are that have not crossed at any look so far."""

    levels: tuple[float, ...]
    grid: Floats
    density: Floats
    """At the grid's points, times the trapezoid's weights, so that the next look only has to sum."""


@lru_cache(maxsize=2048)
def _paths(shares: tuple[float, ...], errors: tuple[float, ...]) -> _Paths:
    first = len(shares) == 1
    share, before = shares[-1], 0.0 if first else shares[-2]
    need = errors[-1] - (0.0 if first else errors[-2])
    step = math.sqrt(share - before)
    earlier = None if first else _paths(shares[:-1], errors[:-1])
    if earlier is None:
        bound = z_of(need) * step
    else:
        bound = float(optimize.brentq(_excess, -9.0, 9.0, args=(need, earlier, step), xtol=1e-10))
    points = np.linspace(-8.0 * math.sqrt(share), bound, GRID)
    if earlier is None:
        values = _pdf(points / step) / step
    else:
        values = _pdf((points[:, None] - earlier.grid[None, :]) / step) / step @ earlier.density
    weights = np.full(GRID, points[1] - points[0])
    weights[[0, -1]] /= 2
    level = float(special.ndtr(-bound / math.sqrt(share)))
    return _Paths((*(earlier.levels if earlier else ()), level), points, values * weights)


def z_of(level: float) -> float:
    """Return the normal quantile of a one-sided level."""
    return -float(special.ndtri(level))


def t_of(level: float, freedom: int) -> float:
    """Return Student's quantile of a one-sided level."""
    return -float(special.stdtrit(freedom, level))


def undecidable(canary: Canary) -> list[str]:
    """Return why an equal candidate could not be promoted with this plan, one sentence each; empty if it could.

    Too few requests cannot show few failures, even without a single one. Whether the latencies can be told apart is
    said where their spread was measured (`canary.evidence`): an equal candidate should be promoted in nine of ten
    cases, and the tenth is shared by the latency metrics, all of which must pass.
    """
    margins = [("no failure", "canary.error_margin_pct", canary.error_margin_pct)]
    if canary.goodput:
        margins.append(("no bad request", "canary.goodput.margin_pct", canary.goodput.margin_pct))
    found = [_count_reason(canary, *margin) for margin in margins]
    spread = canary.evidence.spread if canary.evidence else {}
    judged = [(name, percent) for name, _, percent in LATENCIES if percent < GUARD_PERCENT]
    for name, percent in judged:
        key, margin = ("p50_margin", canary.p50_margin) if percent == 50 else ("p95_margin", canary.p95_margin)
        deviations = _last_z(canary) + z_of((1 - LIKELY) / len(judged))
        needed = math.ceil((deviations * spread.get(name, 0.0) / math.log1p(margin)) ** 2)
        if needed > canary.blocks:
            found.append(
                f"equal sides differ in {name} by {math.expm1(spread[name]) * 100:.0f} % from block to block (standard "
                f"deviation), and canary.{key} is {margin * 100:g} %; it needs {needed} blocks, or a wider margin"
            )
    return [reason for reason in found if reason]


def _count_reason(canary: Canary, nothing: str, key: str, margin_pct: float) -> str:
    sent = canary.blocks * canary.requests_per_block
    high_pct = _flawless_bound_pct(canary)
    if high_pct < margin_pct:
        return ""
    enough = canary
    while _flawless_bound_pct(enough) >= margin_pct:
        # Wilson's bound of no failures is z^2 / (n + z^2); z itself moves a little with the looks.
        requests = _last_z(enough) ** 2 * (100 / margin_pct - 1)
        blocks = max(enough.blocks + 1, math.ceil(requests / canary.requests_per_block))
        enough = enough.model_copy(update={"blocks": blocks, "looks": ()})
    return (
        f"{nothing} in {sent} requests still allows {high_pct:.1f} %, and {key} is {margin_pct:g}; it needs "
        f"{enough.blocks} blocks of {canary.requests_per_block} requests, or a wider margin"
    )


def _flawless_bound_pct(canary: Canary) -> float:
    return wilson(Rate(0, canary.blocks * canary.requests_per_block), _last_z(canary))[1] * 100


def _last_z(canary: Canary) -> float:
    return z_of(nominal_levels(tuple(k / canary.blocks for k in looks_of(canary)), PROMOTE_ALPHA)[-1])


def _pdf(x: Floats) -> Floats:
    density: Floats = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return density


def _excess(bound: float, need: float, earlier: _Paths, step: float) -> float:
    return float(earlier.density @ special.ndtr((earlier.grid - bound) / step)) - need
