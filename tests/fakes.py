"""One fake a port: in memory, deterministic, and as strict as the real thing. `tests/contract` keeps them honest."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headway.domain import counters
from headway.domain.cluster import ClusterSpec, ClusterStatus, Room, ScaleUp, checked_range
from headway.domain.job import Job, JobStatus
from headway.domain.model import ModelVersion
from headway.domain.profile import Replicas, Signer
from headway.domain.traffic import Route
from headway.domain.weights import Manifest
from headway.errors import BackendUnavailable, ConfigError, Conflict, ModelRejected, NotFound, Refused
from headway.ports import UPTIME, Held, LeaseGrant, Sample, Signed, StoredObject
from headway.units import GIB, format_bytes


@dataclass
class FakeJobs:
    """Jobs that run until the test says how they end."""

    statuses: dict[str, JobStatus] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    endings: dict[str, JobStatus] = field(default_factory=dict)
    """By program: how its jobs end at once; absent: they keep running."""

    def submit(self, job: Job) -> JobStatus:
        known = self.statuses.get(job.name)
        if known is not None and known.phase in ("running", "succeeded"):
            return known
        self.jobs[job.name] = job
        self.starts.append(job.name)
        ending = self.endings.get(job.program)
        status = ending.model_copy(update={"name": job.name}) if ending else JobStatus(name=job.name, phase="running")
        self.statuses[job.name] = status
        return status

    def status(self, name: str) -> JobStatus:
        return self.statuses.get(name, JobStatus(name=name, phase="absent"))

    def cancel(self, name: str) -> None:
        self.statuses.pop(name, None)

    def log_tail(self, name: str, lines: int = 40) -> str:
        return f"log of {name}" if name in self.statuses and lines > 0 else ""

    def end(self, name: str, **status: Any) -> None:
        """End a running job."""
        self.statuses[name] = JobStatus(name=name, **status)


@dataclass
class FakeClusters:
    """Clusters that are ready at once, unless the test says otherwise."""

    specs: dict[str, ClusterSpec] = field(default_factory=dict)
    phases: dict[str, ClusterStatus] = field(default_factory=dict)
    comes_up: bool = True
    total_bytes: int = 24 * GIB
    used_bytes: int = 6 * GIB
    deleted: list[str] = field(default_factory=list)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    starts_within: timedelta = timedelta(seconds=90)
    scaled: dict[str, list[ScaleUp]] = field(default_factory=dict)
    """Scale-ups by cluster: one for each raised floor, from `now` on, and what the test adds."""

    def apply(self, spec: ClusterSpec) -> ClusterStatus:
        self.specs.setdefault(spec.name, spec)
        return self.status(spec.name)

    def status(self, name: str) -> ClusterStatus:
        spec = self.specs.get(name)
        if spec is None:
            return ClusterStatus(name=name, phase="absent")
        if name in self.phases:
            return self.phases[name].model_copy(update={"spec": spec})
        if not self.comes_up:
            return ClusterStatus(name=name, phase="starting", spec=spec, replicas_target=spec.replicas.min)
        return ClusterStatus(
            name=name,
            phase="ready",
            endpoint=f"http://{name}",
            replicas_ready=spec.replicas.min,
            replicas_target=spec.replicas.min,
            spec=spec,
        )

    def list(self, model: str | None = None) -> Sequence[ClusterStatus]:
        return [self.status(name) for name, spec in sorted(self.specs.items()) if model in (None, spec.model)]

    def delete(self, name: str) -> None:
        if self.specs.pop(name, None) is not None:
            self.deleted.append(name)
        self.scaled.pop(name, None)
        self.phases.pop(name, None)

    def floor(self, name: str, replicas: Replicas) -> None:
        if name not in self.specs:
            raise NotFound(f"no cluster {name}", cluster=name)
        known = self.specs[name].replicas.min
        self.specs[name] = self.specs[name].model_copy(update={"replicas": checked_range(replicas)})
        if self.comes_up and replicas.min > known:
            came = ScaleUp(self.now, self.now + self.starts_within, replicas.min)
            self.scaled.setdefault(name, []).append(came)

    def scale_ups(self, name: str, since: datetime) -> Sequence[ScaleUp]:
        return sorted((up for up in self.scaled.get(name, ()) if up.ready_at > since), key=lambda up: up.ready_at)

    def room(self, spec: ClusterSpec) -> Room:
        used = self.used_bytes + sum(one.memory_bytes * one.replicas.min for one in self.specs.values())
        free = max(0, self.total_bytes - used)
        replicas = free // spec.memory_bytes
        needed = f"needs {spec.replicas.min} x {format_bytes(spec.memory_bytes)}"
        return Room(
            fits=replicas >= spec.replicas.min,
            possible=self.total_bytes >= spec.memory_bytes,
            replicas=replicas,
            detail=f"{needed}, and {format_bytes(free)} of {format_bytes(self.total_bytes)} are free",
        )

    def fail(self, name: str, reason: str) -> None:
        """Let a cluster fail."""
        self.phases[name] = ClusterStatus(name=name, phase="failed", reason=reason)


@dataclass
class FakeTraffic:
    """Routes, and every shift that was made."""

    kept: dict[str, Route] = field(default_factory=dict)
    history: list[Route] = field(default_factory=list)
    down: bool = False

    def route(self, model: str) -> Route:
        return self.kept.get(model, Route(model=model))

    def routes(self) -> Sequence[Route]:
        return [self.kept[model] for model in sorted(self.kept)]

    def shift(self, route: Route) -> None:
        if self.down:
            raise BackendUnavailable("the gateway does not answer")
        if self.kept.get(route.model) != route:
            self.kept[route.model] = route
            self.history.append(route)

    def remove(self, model: str) -> None:
        self.kept.pop(model, None)


@dataclass
class FakeRegistry:
    """A registry with the versions that the test puts in."""

    versions: dict[tuple[str, int], ModelVersion] = field(default_factory=dict)
    aliases: dict[tuple[str, str], int] = field(default_factory=dict)
    version_tags: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)
    reports: dict[str, tuple[Mapping[str, float], Mapping[str, bytes]]] = field(default_factory=dict)
    down: bool = False
    refuses_reports: bool = False

    def add(self, version: ModelVersion, *aliases: str) -> None:
        """Register a version and point aliases at it."""
        self.versions[(version.name, version.version)] = version
        for alias in aliases:
            self.aliases[(version.name, alias)] = version.version

    def resolve(self, model: str, *, alias: str | None = None, version: int | None = None) -> ModelVersion:
        self._answer()
        number = version if version is not None else self.aliases.get((model, alias or ""))
        if number is None or (model, number) not in self.versions:
            known = sorted(v for m, v in self.versions if m == model)
            raise NotFound(f"{model} has no {alias or version}; it has versions {known}", model=model)
        aliases = tuple(sorted(a for (m, a), v in self.aliases.items() if (m, v) == (model, number)))
        return self.versions[(model, number)].model_copy(
            update={"aliases": aliases, "tags": dict(self.tags(model, number))}
        )

    def tags(self, model: str, version: int) -> Mapping[str, str]:
        self._answer()
        return self.version_tags.get((model, version), {})

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        self._answer()
        self.version_tags.setdefault((model, version), {})[key] = value

    def untag(self, model: str, version: int, key: str) -> None:
        self._answer()
        self.version_tags.get((model, version), {}).pop(key, None)

    def log_report(
        self, model: str, version: int, release: str, metrics: Mapping[str, float], files: Mapping[str, bytes]
    ) -> str:
        self._answer()
        if self.refuses_reports:
            raise Refused("the registry refuses the report")
        self.reports[release] = (metrics, files)
        return f"http://registry/{model}/{version}/{release}"

    def _answer(self) -> None:
        if self.down:
            raise BackendUnavailable("the registry does not answer")


@dataclass
class FakeWeightStore:
    """Objects by address, and artifacts by digest."""

    objects: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    hashed: list[str] = field(default_factory=list)
    """Addresses whose bytes were read for a sha256."""
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def list(self, uri: str) -> Sequence[StoredObject]:
        return [
            StoredObject(name, len(body), hashlib.md5(body, usedforsecurity=False).hexdigest())
            for name, body in sorted(self.objects.items())
            if name.startswith(uri)
        ]

    def read(self, uri: str, *, start: int = 0, length: int | None = None) -> bytes:
        if uri not in self.objects:
            raise NotFound(f"no object {uri}", uri=uri)
        return self.objects[uri][start : None if length is None else start + length]

    def sha256(self, item: StoredObject) -> str:
        key = (item.uri, item.etag)
        if key not in self.known:
            self.hashed.append(item.uri)
            self.known[key] = hashlib.sha256(self.read(item.uri)).hexdigest()
        return self.known[key]

    def manifest(self, artifact_digest: str) -> Manifest | None:
        return self.manifests.get(artifact_digest)

    def artifact_uri(self, artifact_digest: str) -> str:
        return f"s3://headway/artifacts/{artifact_digest}/"

    def json(self, key: str) -> Mapping[str, Any] | None:
        return self.documents.get(key)

    def put(self, uri: str, content: bytes) -> None:
        self.objects[uri] = content

    def get_url(self, uri: str, *, expires_s: int = 3600) -> str:
        return f"http://store/{uri.removeprefix('s3://')}?expires={expires_s}"

    def delete(self, artifact_digest: str) -> None:
        self.manifests.pop(artifact_digest, None)


@dataclass
class FakeLease:
    """Leases by key."""

    grants: dict[str, LeaseGrant] = field(default_factory=dict)
    count: int = 0

    def acquire(self, key: str, holder: str, ttl_s: float, now: datetime) -> LeaseGrant:
        current = self.holder(key, now)
        if current is not None and current.holder != holder:
            raise Conflict(f"{key} is held by {current.holder} until {current.expires_at.isoformat()}")
        self.count += 1
        grant = LeaseGrant(key, holder, self.count, now + timedelta(seconds=ttl_s))
        self.grants[key] = grant
        return grant

    def holder(self, key: str, now: datetime) -> LeaseGrant | None:
        grant = self.grants.get(key)
        return grant if grant is not None and grant.expires_at > now else None

    def release(self, key: str, holder: str, now: datetime) -> None:
        current = self.holder(key, now)
        if current is not None and current.holder == holder:
            del self.grants[key]


@dataclass
class FakeWarm:
    """Room by model, which is there at once."""

    kept: dict[str, Held] = field(default_factory=dict)
    down: bool = False

    def hold(self, model: str, accelerator: str, per_replica: int, replicas: int) -> Held:
        if self.down:
            raise BackendUnavailable("the API server does not answer")
        if accelerator == "cpu" or per_replica < 1 or replicas < 0:
            raise ConfigError(f"no room is held for {replicas} replicas with {per_replica} x {accelerator}")
        held = Held(model, accelerator, per_replica, replicas, replicas)
        if replicas:
            self.kept[model] = held
        else:
            self.kept.pop(model, None)
        return held

    def held(self) -> Sequence[Held]:
        return sorted(self.kept.values())


@dataclass
class FakeMetrics:
    """Series that the test writes."""

    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[Sample]] = field(default_factory=dict)
    began: datetime | None = datetime(2020, 1, 1, tzinfo=UTC)
    """When the gateway's counters began, as long as no uptime was put; none: nobody reads the gateway."""
    gap_s: float = 900
    """Between samples further apart nothing was measured."""

    def put(self, name: str, labels: Mapping[str, str], at: datetime, value: float) -> None:
        """Add one sample."""
        self.series.setdefault((name, tuple(sorted(labels.items()))), []).append(Sample(at, value))

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        last = [
            seen[-1].value
            for (series, own), samples in self.series.items()
            if series == name and set(labels.items()) <= set(own) and (seen := [s for s in samples if s.at <= at])
        ]
        return sum(last) if last else None

    def instant_by(self, name: str, labels: Mapping[str, str], label: str, at: datetime) -> Mapping[str, float]:
        values = {dict(own)[label] for series, own in self.series if series == name and label in dict(own)}
        found = {value: self.instant(name, {**labels, label: value}, at) for value in sorted(values)}
        return {value: count for value, count in found.items() if count is not None}

    def counting_since(self, at: datetime) -> datetime | None:
        up = [s for (series, _), samples in self.series.items() if series == UPTIME for s in samples if s.at <= at]
        return up[-1].at - timedelta(seconds=up[-1].value) if up else self.began

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        totals: dict[datetime, float] = {}
        for (series, own), samples in self.series.items():
            if series == name and set(labels.items()) <= set(own):
                for sample in samples:
                    if start <= sample.at <= end:
                        totals[sample.at] = totals.get(sample.at, 0.0) + sample.value
        return [Sample(at, totals[at]) for at in sorted(totals)]

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        wanted = set(labels.items())
        matching = [kept for (series, own), kept in self.series.items() if series == name and wanted <= set(own)]
        steps = counters.growth(map(sorted, matching), start, end, step_s, gap_s=self.gap_s)
        return [Sample(*step) for step in steps]


@dataclass
class FakeLedger:
    """Records by key; the first one wins."""

    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    down: bool = False

    def append(self, key: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        self._answer()
        return self.records.setdefault(key, dict(record))

    def read(self, key: str) -> Mapping[str, Any] | None:
        self._answer()
        return self.records.get(key)

    def list(self, prefix: str) -> Iterator[str]:
        self._answer()
        yield from sorted(key for key in self.records if key.startswith(prefix))

    def _answer(self) -> None:
        if self.down:
            raise BackendUnavailable("the ledger does not answer")


@dataclass
class FakeObjects:
    """Documents by key."""

    kept: dict[str, bytes] = field(default_factory=dict)
    down: bool = False

    def read(self, key: str) -> bytes | None:
        self._answer()
        return self.kept.get(key)

    def write(self, key: str, content: bytes) -> None:
        self._answer()
        self.kept[key] = content

    def _answer(self) -> None:
        if self.down:
            raise BackendUnavailable("the store does not answer")


@dataclass
class FakeSignatures:
    """Signatures that hold because the fake made them: JSON with a digest over it."""

    keys: set[str] = field(default_factory=lambda: {"model.pub"})
    """Names of the key files that are there."""

    def sign(self, files: Mapping[str, bytes], key: str = "model.pub") -> bytes:
        """Sign the files of a directory."""
        listed = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
        told = json.dumps([key, listed], sort_keys=True)
        return json.dumps({"told": told, "seal": hashlib.sha256(told.encode()).hexdigest()}).encode()

    def verify(self, bundle: bytes, signer: Signer) -> Signed:
        if signer.public_key not in self.keys:
            raise ConfigError(f"there is no file {signer.public_key}")
        try:
            found = json.loads(bundle)
            key, files = json.loads(found["told"])
        except (ValueError, KeyError, TypeError):
            raise _unsigned("the signature is no signature bundle") from None
        if hashlib.sha256(found["told"].encode()).hexdigest() != found["seal"] or key != signer.public_key:
            raise _unsigned(f"the signature does not verify with `{signer.public_key}`")
        return Signed(by=f"key {key}", files=files)


def _unsigned(finding: str) -> ModelRejected:
    return ModelRejected(finding, report=[finding])
