"""How sure a figure is, when its tokens come in texts.

Tokens of one text share its subject and its style, so they are no independent observations: the texts are what is drawn
again (a cluster bootstrap: Davison and Hinkley, Bootstrap Methods and their Application, section 3.8). The interval is
BCa (Efron, Better Bootstrap Confidence Intervals, JASA 1987), which corrects the plain percentiles for bias and skew
and is the same on the figure and on its exponential.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000
LEVEL = 0.95
SEED = 20260101
"""Any fixed number: the same figures give the same interval, wherever and whenever they are judged."""


def interval(values: Sequence[float], tokens: Sequence[int], *, level: float = LEVEL) -> tuple[float, float] | None:
    """Return bounds of `sum(values) / sum(tokens)`, by drawing texts; none of fewer than two texts.

    The bounds enclose the figure itself, and do not depend on the order of the texts.

    Args:
        values: One sum for each text.
        tokens: Tokens of each text.
        level: Share of repetitions that the interval should cover.
    """
    texts = sorted((v, t) for v, t in zip(values, tokens, strict=True) if t > 0 and math.isfinite(v))
    if len(texts) < 2 or len(texts) < sum(t > 0 for t in tokens):
        return None
    v = np.array([value for value, _ in texts], dtype=float)
    t = np.array([count for _, count in texts], dtype=float)
    point = float(v.sum() / t.sum())
    drawn = np.random.default_rng(SEED).integers(0, len(texts), (RESAMPLES, len(texts)))
    means = np.sort(v[drawn].sum(axis=1) / t[drawn].sum(axis=1))
    low, high = (float(np.quantile(means, share)) for share in _shares(means, point, v, t, level))
    return min(low, point), max(high, point)


def _shares(
    means: NDArray[np.float64], point: float, v: NDArray[np.float64], t: NDArray[np.float64], level: float
) -> tuple[float, float]:
    """Return the quantiles of the drawn means that BCa takes; the plain ones where it is not defined."""
    normal = NormalDist()
    plain = ((1 - level) / 2, (1 + level) / 2)
    below = float(((means < point).sum() + 0.5 * (means == point).sum()) / len(means))
    left_out = (v.sum() - v) / (t.sum() - t)
    spread = left_out.mean() - left_out
    widest = float(np.abs(spread).max())
    if not 0 < below < 1 or widest <= 0:
        return plain
    # The skew has no unit; without one, tiny figures do not underflow in its powers.
    spread = spread / widest
    scale = float((spread**2).sum())
    bias = normal.inv_cdf(below)
    skew = float((spread**3).sum()) / (6 * scale**1.5)
    found = []
    for share in plain:
        z = bias + normal.inv_cdf(share)
        if 1 - skew * z <= 0:
            return plain
        found.append(normal.cdf(bias + z / (1 - skew * z)))
    return found[0], found[1]
