"""What the steps of a release may do to the world.

Every method is idempotent: calling it again after a crash ends in the same state. Adapters raise only
`headway.errors`. One contract suite (`tests/contract`) runs against the fakes and each adapter.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from headway.domain.cluster import ClusterSpec, ClusterStatus, Room, ScaleUp
from headway.domain.job import Job, JobStatus
from headway.domain.model import ModelVersion
from headway.domain.profile import Replicas, Signer
from headway.domain.traffic import Route
from headway.domain.weights import Manifest
from headway.errors import Conflict


class Jobs(Protocol):
    """Runs pod programs that outlive the caller."""

    def submit(self, job: Job) -> JobStatus:
        """Start the job, or adopt the one of this name (running or ended well). A failed one is started anew."""
        ...

    def status(self, name: str) -> JobStatus:
        """Tell where the job stands; phase `absent` if there is none."""
        ...

    def cancel(self, name: str) -> None:
        """End the job and all its processes; absent is fine."""
        ...

    def log_tail(self, name: str, lines: int = 40) -> str:
        """Return the last lines of what the program printed; empty if there is none."""
        ...


class Clusters(Protocol):
    """Runs vLLM clusters."""

    def apply(self, spec: ClusterSpec) -> ClusterStatus:
        """Bring the cluster up, or adopt the running one of this name. Does not wait."""
        ...

    def status(self, name: str) -> ClusterStatus:
        """Tell where the cluster stands. `ready` means `/v1/models` lists the model and a completion came back."""
        ...

    def list(self, model: str | None = None) -> Sequence[ClusterStatus]:
        """Return every cluster of headway, or those of one model."""
        ...

    def delete(self, name: str) -> None:
        """End the cluster and all its processes; returns when nothing of it is left. Absent is fine."""
        ...

    def floor(self, name: str, replicas: Replicas) -> None:
        """Change the replica range in place, without touching running replicas.

        Raises NotFound if absent, and ConfigError if the range contradicts itself.
        """
        ...

    def scale_ups(self, name: str, since: datetime) -> Sequence[ScaleUp]:
        """Return the scale-ups of a cluster that ended since then, oldest first; none of a cluster that is absent."""
        ...

    def room(self, spec: ClusterSpec) -> Room:
        """Tell whether a cluster has a place beside what runs, and if not, what is missing. Nothing is set aside."""
        ...


class Traffic(Protocol):
    """Owns the gateway's routes."""

    def route(self, model: str) -> Route:
        """Return the model's routing state; an empty route if there is none."""
        ...

    def routes(self) -> Sequence[Route]:
        """Return every model's routing state."""
        ...

    def shift(self, route: Route) -> None:
        """Make the gateway route like this; returns when the gateway has taken it. Raises BackendUnavailable if not."""
        ...

    def remove(self, model: str) -> None:
        """Forget the model; the gateway answers 503 for it with a reason."""
        ...


class Registry(Protocol):
    """The model registry."""

    def resolve(self, model: str, *, alias: str | None = None, version: int | None = None) -> ModelVersion:
        """Return the immutable version. Raises NotFound that says what exists instead."""
        ...

    def tags(self, model: str, version: int) -> Mapping[str, str]:
        """Return the version's tags."""
        ...

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        """Set one tag on the version."""
        ...

    def log_report(
        self, model: str, version: int, release: str, metrics: Mapping[str, float], files: Mapping[str, bytes]
    ) -> str:
        """Keep numbers and files (name to content) as the one run of this release; return its web address."""
        ...


class StoredObject(NamedTuple):
    """One object of the store."""

    uri: str
    size_bytes: int
    etag: str


class WeightStore(Protocol):
    """Model files and artifacts."""

    def list(self, uri: str) -> Sequence[StoredObject]:
        """Return the objects below an `s3://bucket/prefix/` address, sorted."""
        ...

    def read(self, uri: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return a stretch of an object. Raises NotFound."""
        ...

    def sha256(self, item: StoredObject) -> str:
        """Return the sha256 of an object's bytes; remembered by address and ETag, so each is read once."""
        ...

    def manifest(self, artifact_digest: str) -> Manifest | None:
        """Return the manifest of a whole artifact, none if it is not there (or not yet whole)."""
        ...

    def artifact_uri(self, artifact_digest: str) -> str:
        """Return where the artifact's files are: an `s3://` address that ends in a slash."""
        ...

    def json(self, key: str) -> Mapping[str, Any] | None:
        """Return a JSON object of headway's bucket (such as `references/...`), none if absent."""
        ...

    def put(self, uri: str, content: bytes) -> None:
        """Store an object, whole or not at all; one that is there is replaced."""
        ...

    def get_url(self, uri: str, *, expires_s: int = 3600) -> str:
        """Return an address with a signature in it, good for reading without credentials."""
        ...

    def delete(self, artifact_digest: str) -> None:
        """Delete an artifact, manifest first; absent is fine."""
        ...


class LeaseGrant(NamedTuple):
    """A lease that was taken."""

    key: str
    holder: str
    fencing: int
    """Grows with every grant; a writer with a smaller one is late."""
    expires_at: datetime

    def conflict(self) -> Conflict:
        """Return the error for somebody else who asks for what is held."""
        until = self.expires_at.isoformat(timespec="seconds")
        return Conflict(
            f"{self.key} is held by {self.holder} until {until}; wait for it, or end that run",
            key=self.key,
            holder=self.holder,
            fencing=self.fencing,
            expires_at=self.expires_at.isoformat(),
        )


class Lease(Protocol):
    """One holder at a time, however many processes ask."""

    def acquire(self, key: str, holder: str, ttl_s: float, now: datetime) -> LeaseGrant:
        """Take the lease, or take it again for the same holder. Raises Conflict that names the holder."""
        ...

    def holder(self, key: str, now: datetime) -> LeaseGrant | None:
        """Return the grant in force, none if free or expired."""
        ...

    def release(self, key: str, holder: str, now: datetime) -> None:
        """Give it back; not holding it is fine."""
        ...


class Held(NamedTuple):
    """Room that is held for replicas of a model which are not there yet."""

    model: str
    accelerator: str
    per_replica: int
    """Accelerators of one replica."""
    replicas: int
    """How many room is asked for."""
    ready: int
    """For how many it is there now."""


class Warm(Protocol):
    """Room for replicas, held by something that makes way for them at once. Not every backend has it."""

    def hold(self, model: str, accelerator: str, per_replica: int, replicas: int) -> Held:
        """Hold room for so many replicas of a model, in place of what was held for it; 0 gives all back.

        Does not wait until the room is there. Raises ConfigError if nothing of the kind can be held.
        """
        ...

    def held(self) -> Sequence[Held]:
        """Return what is held, sorted by model."""
        ...


class Sample(NamedTuple):
    """One value of a series."""

    at: datetime
    value: float


REQUESTS = "headway_requests_total"
"""Counter of the gateway, by `model` and `side`: attempts at the side, however they ended. It is what is demanded."""
UPTIME = "headway_gateway_uptime_seconds"
"""Series without labels: how long the gateway has been counting. It is there whenever the gateway is read."""


class Metrics(Protocol):
    """Time series of the gateway and the engines."""

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        """Return the sum over matching series of the last value at or before `at`; none when there is no data."""
        ...

    def instant_by(self, name: str, labels: Mapping[str, str], label: str, at: datetime) -> Mapping[str, float]:
        """Return what `instant` does for each value of one more label, such as a histogram's `le`; empty: no data."""
        ...

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        """Return that sum over time; a gap is missing, never zero."""
        ...

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        """Return by how much matching counters grew a second, in each whole step from `start` to `end`.

        Every series is taken by itself (a counter that begins again, or a replica that comes and goes, is no growth
        and no fall of the others), then they are summed. A sample's time is the begin of its step. A step in which
        nobody measured is missing; one in which nothing grew is zero.
        """
        ...

    def counting_since(self, at: datetime) -> datetime | None:
        """Return when the gateway's counters last began at zero; none if nobody was reading the gateway at `at`."""
        ...


class Ledger(Protocol):
    """Records: appended, never edited."""

    def append(self, key: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep the record if the key is free; return the record that is kept (the first one wins)."""
        ...

    def read(self, key: str) -> Mapping[str, Any] | None:
        """Return the record, none if absent."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix, sorted."""
        ...


class Objects(Protocol):
    """Small documents that are replaced whole: what a later run starts from, and can be made anew without it."""

    def read(self, key: str) -> bytes | None:
        """Return the content, none if absent."""
        ...

    def write(self, key: str, content: bytes) -> None:
        """Store the content, whole or not at all; what was there is replaced."""
        ...


class Checks(Protocol):
    """Checks of tables before anything is decided from them."""

    def check(self, suite: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return one sentence for each expectation that the rows break; empty when all hold."""
        ...


class Signed(NamedTuple):
    """What a good signature says."""

    by: str
    """Who signed: `key <sha256>` or `certificate <subject> <sha256>`."""
    files: Mapping[str, str]
    """sha256 of each file, by its path relative to the directory that was signed."""


class Signatures(Protocol):
    """Verifies the detached signatures that models come with. No file of the model is read."""

    def verify(self, bundle: bytes, signer: Signer) -> Signed:
        """Return what was signed.

        Raises:
            ModelRejected: It is no signature, or not by this signer, or does not list whole files by sha256.
            ConfigError: A key or certificate of the signer cannot be read; names its path.
        """
        ...
