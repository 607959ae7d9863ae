"""What the engines report of themselves during the benchmark, candidate against stable.

Latency can still be good while the cache runs full or sequences are thrown out and computed again; the first busy hour
then shows what the benchmark did not. So three figures are held against plain limits (`canary.guards`). They only take
back: none of them promotes anybody.

Stable serves its users beside the benchmark, and the benchmark gives the candidate as much on top, so both carry the
same load. A first
release has no stable to compare with and gets no such check: its absolute limits are those of the benchmark.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise

from headway.domain import engine_series
from headway.domain.engine_series import Series
from headway.domain.profile import Guards
from headway.domain.release import Check
from headway.ports import Metrics

MIN_SAMPLES = 4
"""Readings of each engine below which a mean says nothing: 20 s of the embedded stack's."""


def checks(
    metrics: Metrics,
    limits: Guards,
    *,
    model: str,
    stable_cluster: str,
    candidate_cluster: str,
    start: datetime,
    end: datetime,
    requests: int,
) -> list[Check]:
    """Compare the sides over the benchmark; what could not be measured has `measured=None` and does not pass.

    Args:
        metrics: Where the engines' series are kept.
        limits: Of the profile.
        model: The served name.
        stable_cluster: The side to compare with.
        candidate_cluster: The side that is judged.
        start: When the first block began, UTC.
        end: When the last one ended.
        requests: How many the benchmark sent to each side.
    """
    sides = [
        _Side(metrics, {"model": model, "cluster": name}, start, end) for name in (stable_cluster, candidate_cluster)
    ]
    stable, candidate = sides
    return [
        _check(
            "mean KV cache use",
            "points",
            limits.max_kv_cache_points,
            stable.mean(engine_series.KV_CACHE, 100.0),
            candidate.mean(engine_series.KV_CACHE, 100.0),
        ),
        _check(
            "preemptions per 100 requests",
            "",
            limits.max_preemptions_per_100,
            stable.per_100(engine_series.PREEMPTIONS, requests),
            candidate.per_100(engine_series.PREEMPTIONS, requests),
        ),
        _check(
            "mean queue",
            "requests",
            limits.max_waiting,
            stable.mean(engine_series.WAITING, 1.0),
            candidate.mean(engine_series.WAITING, 1.0),
        ),
    ]


class _Side:
    """What the engine of one side reported meanwhile."""

    def __init__(self, metrics: Metrics, labels: Mapping[str, str], start: datetime, end: datetime) -> None:
        self._metrics = metrics
        self._labels = labels
        self._start = start
        self._end = end

    def mean(self, series: Series, factor: float) -> float | None:
        """Return the mean of a gauge; none if the engine was read too rarely, or never gave it.

        A reading without it is one of an idle engine, whose queue and cache are empty: Ray drops a gauge that is not
        set (see `headway.domain.engine_series`).
        """
        read = self._values(engine_series.GENERATION_TOKENS)
        given = self._values(series)
        return factor * sum(given) / max(len(read), len(given)) if len(read) >= MIN_SAMPLES and given else None

    def per_100(self, series: Series, requests: int) -> float | None:
        """Return by how much a counter grew for each 100 requests; none if the engine was not read.

        A counter that is born with its first event is zero until then, if the engine's other series are there.
        """
        if requests <= 0 or len(self._values(engine_series.GENERATION_TOKENS)) < MIN_SAMPLES:
            return None
        values = self._values(series)
        before = self._at_start(series)
        if before is None and self._at_start(engine_series.GENERATION_TOKENS) is not None:
            before = 0.0
        run = values if before is None else [before, *values]
        # A counter that fell was reset with its engine; what it shows since then is what grew.
        return 100 * sum(new - old if new >= old else new for old, new in pairwise(run)) / requests

    def _values(self, series: Series) -> list[float]:
        return [s.value for s in self._metrics.range(series.name, self._labels, self._start, self._end)]

    def _at_start(self, series: Series) -> float | None:
        return self._metrics.instant(series.name, self._labels, self._start)


def _check(name: str, unit: str, limit: float, stable: float | None, candidate: float | None) -> Check:
    if stable is None or candidate is None:
        silent = " and ".join(side for side, value in (("stable", stable), ("candidate", candidate)) if value is None)
        return Check(
            name=name,
            measured=None,
            limit=limit,
            passed=False,
            sentence=(
                f"{name} was not measured: the engine of {silent} did not give it, or was read fewer than "
                f"{MIN_SAMPLES} times during the benchmark"
            ),
            kind="guard",
        )
    more = candidate - stable
    passed = more <= limit
    return Check(
        name=name,
        measured=more,
        limit=limit,
        passed=passed,
        sentence=(
            f"{name} is {candidate:.3g} on the candidate and {stable:.3g} on stable; {more:+.3g} "
            f"{f'{unit} ' if unit else ''}{'is within' if passed else 'is over'} the {limit:g} allowed"
        ),
        kind="guard",
    )
