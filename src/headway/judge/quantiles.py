"""What one side of one block amounts to: quantiles of latencies, and rates of failure with their bounds.

An empty set has no quantile: it is missing, never zero.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from headway.domain.bench import RequestRecord

LATENCIES: tuple[tuple[str, str, float], ...] = (
    ("ttft_p50", "ttft_ms", 50),
    ("ttft_p95", "ttft_ms", 95),
    ("tpot_p50", "tpot_ms", 50),
    ("tpot_p95", "tpot_ms", 95),
)
"""Name of the metric, attribute of the record, percentile."""


def quantile(values: Iterable[float | None], percent: float) -> float | None:
    """Return a percentile by linear interpolation (numpy's default, as vLLM's benchmark does); none of nothing.

    With fewer than 20 values the 95th percentile lies between the two largest: of 15 values it is 0.7 times the second
    largest plus 0.3 times the largest. The ratio of two such figures is still centred on 1 when both sides are equal,
    so a comparison stays valid; it is a statement about the slowest requests of a block, and a noisy one.
    """
    present = [v for v in values if v is not None]
    return float(np.percentile(present, percent)) if present else None


def latencies(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    """Return every latency metric of one side, over the requests that ended well."""
    good = [r for r in records if r.error is None]
    return {name: quantile((getattr(r, attribute) for r in good), percent) for name, attribute, percent in LATENCIES}


class Rate(NamedTuple):
    """Failures among requests."""

    failed: int
    sent: int

    @property
    def share(self) -> float:
        """Failures over requests; 0 of nothing."""
        return self.failed / self.sent if self.sent else 0.0


def failure_rate(records: Sequence[RequestRecord]) -> Rate:
    """Count the failed requests."""
    return Rate(sum(r.error is not None for r in records), len(records))


def wilson(rate: Rate, z: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share (E. B. Wilson, JASA 22, 1927); (0, 1) of nothing."""
    if not rate.sent:
        return 0.0, 1.0
    n, p = rate.sent, rate.share
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def newcombe(candidate: Rate, stable: Rate, *, z_low: float, z_high: float) -> tuple[float, float]:
    """Return bounds of the difference of two shares, candidate minus stable.

    Newcombe's hybrid score interval, method 10 of R. G. Newcombe, "Interval estimation for the difference between
    independent proportions", Statistics in Medicine 17, 1998. Lower and upper bound may have levels of their own.
    """
    difference = candidate.share - stable.share
    low_c, _ = wilson(candidate, z_low)
    _, high_s = wilson(stable, z_low)
    _, high_c = wilson(candidate, z_high)
    low_s, _ = wilson(stable, z_high)
    low = difference - math.hypot(candidate.share - low_c, high_s - stable.share)
    high = difference + math.hypot(high_c - candidate.share, stable.share - low_s)
    return low, high
