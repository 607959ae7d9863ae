"""One model with made traffic, on fakes: what a tick reads and acts on."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from headway.domain import engine_series
from headway.domain.cluster import ClusterStatus
from headway.domain.prescaling import Tick, history_key, plan_key, read_tick
from headway.domain.profile import Profile
from headway.domain.traffic import Backend, Route
from headway.errors import BackendUnavailable
from headway.ports import REQUESTS, Sample
from headway.prescale.history import STEP_S, History, to_parquet
from headway.prescale.tick import tick
from tests.factories import make_plan, make_profile
from tests.fakes import FakeClusters, FakeLedger, FakeMetrics, FakeObjects, FakeTraffic, FakeWarm

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
"""A Wednesday."""
SUSTAINED = 2.0
"""Requests a second of one replica."""
PROMPT, OUTPUT = 200.0, 50.0

PerS = Callable[[datetime], float | None]


def daily(at: datetime, *, low: float = 2.0, high: float = 10.0, peak_h: float = 14.0) -> float:
    """Return requests a second with one peak a day."""
    hour = at.hour + at.minute / 60 + at.second / 3600
    return low + (high - low) * math.exp(-(((hour - peak_h + 12) % 24 - 12) ** 2) / 8)


@dataclass
class PlayedMetrics(FakeMetrics):
    """Gateway and engines as they would be read under a traffic."""

    per_s: PerS = daily
    """Requests a second; none: nobody reads the gateway."""
    served: PerS | None = None
    """What engines count; none: all that is asked."""
    down: bool = False

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        if self.down:
            raise BackendUnavailable("no Prometheus at http://metrics answers")
        times = {
            REQUESTS: 1.0,
            engine_series.REQUESTS.name: 1.0,
            engine_series.PROMPT_TOKENS.name: PROMPT,
            engine_series.GENERATION_TOKENS.name: OUTPUT,
        }.get(name)
        if times is None:
            return []
        asked = self.per_s if name == REQUESTS or self.served is None else self.served
        steps = range(int((end - start).total_seconds() // step_s))
        begins = [start + timedelta(seconds=step * step_s) for step in steps]
        found = [(begin, asked(begin + timedelta(seconds=step_s / 2))) for begin in begins]
        return [Sample(begin, rate * times) for begin, rate in found if rate is not None]

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        if self.down:
            raise BackendUnavailable("no Prometheus at http://metrics answers")
        return super().instant(name, labels, at)


@dataclass
class NoChecks:
    """Finds nothing wrong with any table."""

    def check(self, suite: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        return ()


def prescaled(**changes: Any) -> Profile:
    """A profile that plans ahead, up to ten replicas that sustain two requests a second each."""
    wishes = {"enabled": True, "requests_per_s": SUSTAINED, "lead_time_s": 600, **changes.pop("prescale", {})}
    return make_profile(**{"replicas": {"min": 1, "max": 10}, "prescale": wishes, **changes})


@dataclass
class World:
    """What a tick needs, with a cluster that serves `tiny`."""

    profile: Profile = field(default_factory=prescaled)
    metrics: PlayedMetrics = field(default_factory=PlayedMetrics)
    clusters: FakeClusters = field(default_factory=FakeClusters)
    traffic: FakeTraffic = field(default_factory=FakeTraffic)
    objects: FakeObjects = field(default_factory=FakeObjects)
    ledger: FakeLedger = field(default_factory=FakeLedger)
    checks: NoChecks = field(default_factory=NoChecks)
    warm: FakeWarm | None = None

    def __post_init__(self) -> None:
        plan = make_plan(self.profile)
        self.stable = plan.cluster.name
        if self.stable not in self.clusters.specs:
            self.clusters.apply(plan.cluster.model_copy(update={"replicas": self.profile.replicas}))
            serves = Backend(
                cluster=self.stable, release="tiny-v1-r1", version=1, cluster_digest=plan.cluster.cluster_digest
            )
            self.traffic.shift(Route(model="tiny", stable=serves))

    @property
    def floor(self) -> int:
        """What the cluster must have at least."""
        return self.clusters.specs[self.stable].replicas.min

    def has(self, ready: int, target: int | None = None, *, floor: int | None = None) -> None:
        """Let the cluster have so many replicas."""
        spec = self.clusters.specs[self.stable]
        low = floor if floor is not None else spec.replicas.min
        replicas = spec.replicas.model_copy(update={"min": low, "max": max(low, spec.replicas.max)})
        self.clusters.specs[self.stable] = spec.model_copy(update={"replicas": replicas})
        self.clusters.phases[self.stable] = ClusterStatus(
            name=self.stable,
            phase="ready",
            replicas_ready=ready,
            replicas_target=ready if target is None else target,
        )

    def remember(self, until: datetime, *, days: float = 14, per_s: PerS = daily, **columns: Any) -> None:
        """Keep a history as earlier ticks would have."""
        bins = int(days * 86_400) // STEP_S
        end = datetime.fromtimestamp(until.timestamp() // STEP_S * STEP_S, UTC)
        start = end - timedelta(seconds=bins * STEP_S)
        noise = np.random.default_rng(6).lognormal(0, 0.05, bins)
        rate = [per_s(start + timedelta(seconds=(index + 0.5) * STEP_S)) for index in range(bins)]
        values = np.array([math.nan if one is None else one for one in rate]) * noise
        self.objects.write(
            history_key("tiny"),
            to_parquet(History(start, STEP_S, {"requests_per_s": values, **columns})),
        )

    def tick(self, now: datetime = NOON, **options: Any) -> Tick:
        """Run one tick."""
        return tick(self.profile, self, now=now, **options)

    def plan(self) -> Tick | None:
        """Return the plan that is kept."""
        return read_tick(self.objects.kept.get(plan_key("tiny")), "tiny")

    def copy(self) -> "World":
        """Return the same world for another story."""
        return deepcopy(self)
