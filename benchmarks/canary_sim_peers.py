"""How others decide on the same blocks, and how headway decided before its rule was changed.

None of the three peers compares interleaved blocks by itself; each gets the block figures as its measurements. What is
not theirs but their user's to choose (limits, counts) is a usual choice and named here.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.canary_sim_model import BLOCKS, Floats
from headway.judge.rule import HOLD, PROMOTE, ROLLBACK
from headway.judge.sequential import ALPHA, spending_levels, t_of, z_of

Ints: TypeAlias = NDArray[np.int64]
Decided: TypeAlias = tuple[Ints, Ints]
"""Decision and number of blocks, by run."""

WINDOWS = 20
"""Measurements of a peer's analysis."""
RATIO_LIMIT = 1.10
FLAGGER_THRESHOLD = 5
ARGO_FAILURE_LIMIT = 3
KAYENTA_CONFIDENCE, KAYENTA_TOLERANCE = 0.98, 0.25
KAYENTA_MARGINAL, KAYENTA_PASS = 75, 95
"""Scores below the first fail, from the second on they pass; between, a person is asked."""
BEFORE_LOOKS = (6, 10, 15, 20, 25, 30)
BEFORE_METRICS = 5
"""Four latencies and the error rate, which shared the error of taking back wrongly."""


def before(logs: Floats, limits: Floats) -> Decided:
    """Decide as headway did: six looks, Pocock-type spending, each look alone.

    Args:
        logs: [run, block, side, metric]: log latencies; side 0 is stable.
        limits: By metric: log of one plus the margin.
    """
    d = logs[:, :, 1] - logs[:, :, 0]
    shares = tuple(k / BLOCKS for k in BEFORE_LOOKS)

    def levels(alpha: float) -> tuple[float, ...]:
        return spending_levels(shares, tuple(float(alpha * np.log1p((np.e - 1) * t)) for t in shares))

    decision, used = np.full(len(d), HOLD), np.full(len(d), BLOCKS)
    active = np.arange(len(d))
    for look, low, high in zip(BEFORE_LOOKS, levels(ALPHA / BEFORE_METRICS), levels(ALPHA), strict=True):
        seen = d[active, :look]
        mean, error = seen.mean(axis=1), seen.std(axis=1, ddof=1) / np.sqrt(look)
        passes = mean + t_of(high, look - 1) * error < limits
        fails = ~passes & (mean - t_of(low, look - 1) * error > limits / 2)
        now = np.where(fails.any(axis=1), ROLLBACK, np.where(passes.all(axis=1), PROMOTE, HOLD))
        decision[active], used[active] = now, np.where(now == HOLD, BLOCKS, look)
        active = active[now == HOLD]
    return decision, used


def flagger(logs: Floats) -> Decided:
    """Decide as a Flagger canary: a window fails if any metric breaks its limit; the fifth failed one takes back.

    Failed checks are counted over the whole analysis (`failedChecks` against `threshold`). The metric is a user's query
    of the candidate's 95th percentile over stable's, with a maximum of 1.10.

    Args:
        logs: [run, block, side, metric] of the 95th percentiles.
    """
    fails = (np.exp(logs[:, :WINDOWS, 1] - logs[:, :WINDOWS, 0]) > RATIO_LIMIT).any(axis=2)
    return _stopped(fails.cumsum(axis=1) >= FLAGGER_THRESHOLD)


def argo(logs: Floats) -> Decided:
    """Decide as an Argo Rollouts AnalysisRun: `successCondition: result <= 1.10`, `count: 20`, `failureLimit: 3`.

    Every metric counts its own failures, and fails once they are more than the limit (the fourth); one failed metric
    takes back. The condition is the same ratio as Flagger's; nothing is inconclusive.

    Args:
        logs: [run, block, side, metric] of the 95th percentiles.
    """
    fails = np.exp(logs[:, :WINDOWS, 1] - logs[:, :WINDOWS, 0]) > RATIO_LIMIT
    return _stopped((fails.cumsum(axis=1) > ARGO_FAILURE_LIMIT).any(axis=2))


def kayenta(logs: Floats) -> Decided:
    """Decide as Kayenta's judge: each metric by Mann-Whitney with Hodges-Lehmann's shift, then a score.

    A metric is high if the lower end of the shift's 98 % interval lies above a quarter of the shift's own estimate. The
    score is the share of metrics that are not high. One judgement after 20 points.

    Args:
        logs: [run, block, side, metric].
    """
    values = np.exp(logs[:, :WINDOWS])
    n = values.shape[1]
    z = z_of((1 - KAYENTA_CONFIDENCE) / 2)
    # Both series have n points: the interval's end is this order statistic of all n x n differences.
    end = max(0, round(n * n / 2 - z * np.sqrt(n * n * (2 * n + 1) / 12)) - 1)
    middle = (n * n // 2 - 1, n * n // 2)
    high = []
    for metric in range(values.shape[-1]):
        shifts = (values[:, :, None, 1, metric] - values[:, None, :, 0, metric]).reshape(len(values), n * n)
        shifts = np.partition(shifts, (end, *middle), axis=1)
        estimate = shifts[:, middle].mean(axis=1)
        high.append(shifts[:, end] > KAYENTA_TOLERANCE * np.abs(estimate))
    score = 100 * (1 - np.mean(high, axis=0))
    decision = np.where(score >= KAYENTA_PASS, PROMOTE, np.where(score < KAYENTA_MARGINAL, ROLLBACK, HOLD))
    return decision, np.full(len(values), WINDOWS)


def _stopped(failed: NDArray[np.bool_]) -> Decided:
    """Take back at the first window that says so, else promote after the last one."""
    ever = failed.any(axis=1)
    return np.where(ever, ROLLBACK, PROMOTE), np.where(ever, failed.argmax(axis=1) + 1, WINDOWS)
