"""All fakes together, as `headway.wiring.Backend`; and what a release needs to run through on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headway.adapters.airflow_api import DagRun
from headway.domain import engine_series
from headway.domain.profile import Profile
from headway.errors import ConfigError
from headway.ports import Sample
from tests.factories import make_profile
from tests.fakes import (
    FakeClusters,
    FakeLease,
    FakeLedger,
    FakeMetrics,
    FakeObjects,
    FakeRegistry,
    FakeSignatures,
    FakeTraffic,
    FakeWarm,
    FakeWeightStore,
)
from tests.unit.airflow.played import PlayedJobs

ENGINE_SERIES = frozenset(name for series in engine_series.TABLE for name in series.stored)


@dataclass
class FakeRuns:
    """Airflow's runs, as far as reconcile uses them."""

    triggered: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    active_runs: list[DagRun] = field(default_factory=list)

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, note: str = "") -> DagRun:
        """Start a run, once for each id."""
        fresh = run_id not in {known for _, known, _ in self.triggered}
        if fresh:
            self.triggered.append((dag_id, run_id, conf))
        return DagRun(run_id=run_id, state="queued", conf=conf, fresh=fresh)

    def active(self, dag_id: str) -> Sequence[DagRun]:
        """Return what the test put in."""
        return self.active_runs


@dataclass
class NoChecks:
    """Finds nothing wrong with any table."""

    def check(self, suite: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return no complaint."""
        return ()


@dataclass
class EngineMetrics(FakeMetrics):
    """Every engine gives all its series all the time, apart from what the test puts in."""

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        """Return what was put in; of an engine at least one reading."""
        found = super().range(name, labels, start, end)
        return found or [Sample(end, 1.0)] if "cluster" in labels and name in ENGINE_SERIES else found


@dataclass
class FakeBackend:
    """Every port, in memory."""

    jobs: PlayedJobs = field(default_factory=PlayedJobs)
    clusters: FakeClusters = field(default_factory=FakeClusters)
    traffic: FakeTraffic = field(default_factory=FakeTraffic)
    registry: FakeRegistry = field(default_factory=FakeRegistry)
    weights: FakeWeightStore = field(default_factory=FakeWeightStore)
    lease: FakeLease = field(default_factory=FakeLease)
    metrics: FakeMetrics = field(default_factory=EngineMetrics)
    ledger: FakeLedger = field(default_factory=FakeLedger)
    objects: FakeObjects = field(default_factory=FakeObjects)
    runs: Any = field(default_factory=FakeRuns)
    hooks: Any = None
    checks: NoChecks = field(default_factory=NoChecks)
    warm: FakeWarm | None = None
    signatures: FakeSignatures = field(default_factory=FakeSignatures)
    kept_profiles: dict[str, Profile] = field(default_factory=lambda: {"tiny": make_profile()})
    model_root: str = "/nodes"
    gateway_url: str = "http://gateway"
    stats_url: str | None = None
    profile_faults: tuple[str, ...] = ()
    """What is wrong with profiles that are not there."""
    calendars: dict[str, str] = field(default_factory=dict)
    """ICS text by the file's name."""
    secrets: tuple[str, ...] = ("webhook-secret",)
    """What the registry's messages are signed with."""

    def serving_image(self, profile: Profile) -> str:
        """Return one image for all."""
        return "lock:test"

    def profiles(self) -> Mapping[str, Profile]:
        """Return what the test put in."""
        return self.kept_profiles

    def profile(self, model: str) -> Profile:
        """Return one of them."""
        if model not in self.kept_profiles:
            raise ConfigError(f"no profile for model `{model}`", model=model)
        return self.kept_profiles[model]

    def sound_profiles(self) -> tuple[Mapping[str, Profile], Sequence[str]]:
        """Return what the test put in."""
        return self.kept_profiles, self.profile_faults

    def calendar(self, profile: Profile) -> str | None:
        """Return what the test put in."""
        name = profile.prescale.calendar
        if name is not None and name not in self.calendars:
            raise ConfigError(f"prescale.calendar of {profile.model}: {name} cannot be read")
        return None if name is None else self.calendars[name]

    def webhook_secrets(self, now: datetime) -> Sequence[str]:
        """Return what the test put in."""
        return self.secrets

    def model_url(self, model: str, version: int) -> str:
        """Return an address."""
        return f"http://registry/{model}/{version}"
