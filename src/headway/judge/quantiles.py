"""What one side of one block amounts to: quantiles of latencies, and rates of failure with their bounds.

An empty set has no quantile: it is missing, never zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.bench import RequestRecord

Floats: TypeAlias = NDArray[np.float64]

LATENCIES: tuple[tuple[str, str, float], ...] = (
    ("ttft_p50", "ttft_ms", 50),
    ("ttft_p95", "ttft_ms", 95),
    ("tpot_p50", "tpot_ms", 50),
    ("tpot_p95", "tpot_ms", 95),
    ("ttft_p99", "ttft_ms", 99),
    ("tpot_p99", "tpot_ms", 99),
)
"""Name of the metric, attribute of the record, percentile."""
GUARD_PERCENT = 99
"""From this percentile on a metric only takes back: it is too noisy to promote by."""


def quantile(values: Iterable[float | None], percent: float) -> float | None:
    """Return a percentile by linear interpolation (numpy's default, as vLLM's benchmark does); none of nothing.

    With fewer than 20 values the 95th percentile lies between the two largest: of 15 values it is 0.7 times the second
    largest plus 0.3 times the largest. The ratio of two such figures is still centred on 1 when both sides are equal,
    so a comparison stays valid; it is a statement about the slowest requests of a block, and a noisy one.
    """
    present = [v for v in values if v is not None]
    return float(np.percentile(present, percent)) if present else None


def timings(records: Sequence[RequestRecord]) -> dict[str, Floats]:
    """Return every latency of the requests that ended well, by attribute of the record, in milliseconds."""
    good = [r for r in records if r.error is None]
    attributes = dict.fromkeys(attribute for _, attribute, _ in LATENCIES)
    return {a: np.array([v for r in good if (v := getattr(r, a)) is not None], dtype=float) for a in attributes}


def percentiles(of: Mapping[str, Floats]) -> dict[str, float | None]:
    """Return every latency metric of timings."""
    found: dict[str, float | None] = dict.fromkeys(name for name, _, _ in LATENCIES)
    for attribute, values in of.items():
        wanted = [(name, percent) for name, which, percent in LATENCIES if which == attribute]
        if len(values):
            # Times that are no numbers, or infinite, give figures that are none either; that is told elsewhere.
            with np.errstate(invalid="ignore"):
                figures = np.percentile(values, [percent for _, percent in wanted])
            found |= {name: float(figure) for (name, _), figure in zip(wanted, figures, strict=True)}
    return found


def latencies(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    """Return every latency metric of one side, over the requests that ended well."""
    return percentiles(timings(records))


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
    low, high = _wilson(np.array([float(rate.failed)]), np.array([float(rate.sent)]), np.array([z]))
    return float(low[0]), float(high[0])


def newcombe(candidate: Rate, stable: Rate, *, z_low: float, z_high: float) -> tuple[float, float]:
    """Return bounds of the difference of two shares, candidate minus stable; see `newcombe_bounds`."""
    failed, sent = np.array([[candidate, stable]], dtype=float).transpose(2, 0, 1)
    low, high = newcombe_bounds(failed, sent, z_low=np.array([z_low]), z_high=np.array([z_high]))
    return float(low[0]), float(high[0])


def newcombe_bounds(failed: Floats, sent: Floats, *, z_low: Floats, z_high: Floats) -> tuple[Floats, Floats]:
    """Return bounds of the difference of two shares for many pairs at once, the first minus the second.

    Newcombe's hybrid score interval, method 10 of R. G. Newcombe, "Interval estimation for the difference between
    independent proportions", Statistics in Medicine 17, 1998. Lower and upper bound may have levels of their own.

    Args:
        failed: [..., rate, side]: counts, the candidate's first, then stable's.
        sent: [..., rate, side]: of how many.
        z_low: By rate: normal quantile of the lower bound's level.
        z_high: The same of the upper bound's.
    """
    shares = failed / np.maximum(sent, 1.0)
    candidate, stable = shares[..., 0], shares[..., 1]
    low_low, low_high = _wilson(failed, sent, z_low[:, None])
    high_low, high_high = _wilson(failed, sent, z_high[:, None])
    low: Floats = candidate - stable - np.hypot(candidate - low_low[..., 0], low_high[..., 1] - stable)
    high: Floats = candidate - stable + np.hypot(high_high[..., 0] - candidate, stable - high_low[..., 1])
    return low, high


def _wilson(failed: Floats, sent: Floats, z: Floats) -> tuple[Floats, Floats]:
    n = np.maximum(sent, 1.0)
    p = failed / n
    centre = p + z * z / (2 * n)
    spread = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low, high = np.maximum(0.0, (centre - spread) / scale), np.minimum(1.0, (centre + spread) / scale)
    return np.where(sent > 0, low, 0.0), np.where(sent > 0, high, 1.0)
