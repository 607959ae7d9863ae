"""A clock that runs faster than life, and ports that are read by it: a day of traffic in minutes, on a real stack.

Only times are changed. A rate stays what it was measured to be, because a replica does not compute faster for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headway.domain.cluster import ClusterSpec, ClusterStatus, Room, ScaleUp
from headway.domain.profile import Replicas
from headway.ports import Checks, Clusters, Ledger, Metrics, Sample, Traffic

LEAST_STEP_S = 8.0
"""Least real time over which a rate is read as it is asked for: the stack's counters are read every two seconds."""
WINDOW_S = 15.0
"""Real time over which a rate is read where less is asked for: requests come by chance."""


@dataclass(frozen=True)
class Warp:
    """Two clocks that agree at one moment, of which one runs faster.

    Args:
        real_at: That moment on the wall's clock, UTC.
        virtual_at: The same moment on the fast clock, UTC.
        speed: How many seconds of the fast clock pass in one.
    """

    real_at: datetime
    virtual_at: datetime
    speed: int

    def virtual(self, real: datetime) -> datetime:
        """Return what the fast clock shows."""
        return self.virtual_at + (real - self.real_at) * self.speed

    def real(self, virtual: datetime) -> datetime:
        """Return what the wall's clock shows."""
        return self.real_at + (virtual - self.virtual_at) / self.speed


class WarpedMetrics:
    """The `Metrics` port by the fast clock. What was measured before the two clocks agreed is not there.

    Args:
        metrics: The real port.
        warp: The clocks.
    """

    def __init__(self, metrics: Metrics, warp: Warp) -> None:
        self._metrics = metrics
        self._warp = warp

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        """Return the port's answer for that moment."""
        return self._metrics.instant(name, labels, self._warp.real(at))

    def instant_by(self, name: str, labels: Mapping[str, str], label: str, at: datetime) -> Mapping[str, float]:
        """Return the port's answer for that moment."""
        return self._metrics.instant_by(name, labels, label, self._warp.real(at))

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        """Return the port's samples, at the times of the fast clock."""
        start = max(start, self._warp.virtual_at)
        if start > end:
            return []
        found = self._metrics.range(name, labels, self._warp.real(start), self._warp.real(end))
        return [Sample(self._warp.virtual(sample.at), sample.value) for sample in found]

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        """Return real rates in steps of the fast clock; a step too short to be measured is read over a longer time."""
        warp, step = self._warp, timedelta(seconds=step_s)
        if start < warp.virtual_at:
            start += math.ceil((warp.virtual_at - start) / step) * step
        steps = (end - start) // step
        if steps < 1:
            return []
        real_s = step_s / warp.speed
        if real_s >= LEAST_STEP_S:
            found = self._metrics.rate(name, labels, warp.real(start), warp.real(start + steps * step), round(real_s))
            first = warp.real(start)
            return [
                Sample(start + round((sample.at - first).total_seconds() / real_s) * step, sample.value)
                for sample in found
            ]
        samples = []
        for number in range(steps):
            until = warp.real(start + (number + 1) * step)
            begin = until - timedelta(seconds=WINDOW_S)
            found = self._metrics.rate(name, labels, begin, until, round(WINDOW_S))
            samples += [Sample(start + number * step, sample.value) for sample in found]
        return samples

    def counting_since(self, at: datetime) -> datetime | None:
        """Return the port's answer for that moment, by the fast clock."""
        began = self._metrics.counting_since(self._warp.real(at))
        return None if began is None else self._warp.virtual(began)


class WarpedClusters:
    """The `Clusters` port, whose scale-ups are told by the fast clock.

    Args:
        clusters: The real port.
        warp: The clocks.
    """

    def __init__(self, clusters: Clusters, warp: Warp) -> None:
        self._clusters = clusters
        self._warp = warp

    def apply(self, spec: ClusterSpec) -> ClusterStatus:
        """Do what the port does."""
        return self._clusters.apply(spec)

    def status(self, name: str) -> ClusterStatus:
        """Do what the port does."""
        return self._clusters.status(name)

    def list(self, model: str | None = None) -> Sequence[ClusterStatus]:
        """Do what the port does."""
        return self._clusters.list(model)

    def delete(self, name: str) -> None:
        """Do what the port does."""
        self._clusters.delete(name)

    def floor(self, name: str, replicas: Replicas) -> None:
        """Do what the port does."""
        self._clusters.floor(name, replicas)

    def scale_ups(self, name: str, since: datetime) -> Sequence[ScaleUp]:
        """Return the scale-ups that were asked for since the clocks agreed, by the fast one."""
        since = max(since, self._warp.virtual_at)
        return [
            ScaleUp(self._warp.virtual(up.asked_at), self._warp.virtual(up.ready_at), up.replicas)
            for up in self._clusters.scale_ups(name, self._warp.real(since))
            if up.asked_at >= self._warp.real_at
        ]

    def room(self, spec: ClusterSpec) -> Room:
        """Do what the port does."""
        return self._clusters.room(spec)


class Memory:
    """The `Objects` port in memory: what is kept of real traffic stays as it is, and nothing is left behind."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def read(self, key: str) -> bytes | None:
        """Return the content, none if absent."""
        return self._kept.get(key)

    def write(self, key: str, content: bytes) -> None:
        """Store the content."""
        self._kept[key] = content


@dataclass(frozen=True)
class FastPorts:
    """What a tick reads and acts on (`headway.prescale.tick.Ports`), by the fast clock."""

    metrics: WarpedMetrics
    clusters: WarpedClusters
    objects: Memory
    traffic: Traffic
    ledger: Ledger
    checks: Checks
    warm: None = None
    """The embedded stack holds no room."""
