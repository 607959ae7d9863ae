"""Each suite runs against the fake and against every adapter that this machine can run."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, sleep
from typing import Any

import pytest

from headway.adapters.local.jobs import LocalJobs
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.metrics import LocalMetrics
from headway.domain.job import JobStatus
from headway.ports import Clusters, Jobs, Lease, Ledger, Metrics, Traffic
from tests.fakes import FakeClusters, FakeJobs, FakeLease, FakeLedger, FakeMetrics, FakeTraffic


@dataclass(frozen=True)
class JobsCase:
    """A `Jobs` adapter, how its job is let end, and how often one was started."""

    port: Jobs
    finish: Callable[..., None]
    starts: Callable[[str], int]


@dataclass(frozen=True)
class MetricsCase:
    """A `Metrics` adapter and how a sample gets into it."""

    port: Metrics
    put: Callable[[str, Mapping[str, str], datetime, float], None]


@pytest.fixture(params=["fake", "local"])
def jobs(request: pytest.FixtureRequest) -> Iterator[JobsCase]:
    """The adapters of `Jobs`; the local one runs `tests.probes.stage` in place of a pod program."""
    if request.param == "local":
        layout = request.getfixturevalue("supervised")
        yield local_jobs(layout)
        return
    fake = FakeJobs()

    def finish(name: str, **status: Any) -> None:
        fake.statuses[name] = JobStatus(name=name, **status)

    yield JobsCase(fake, finish, fake.starts.count)


@pytest.fixture(params=["fake"])
def clusters() -> Clusters:
    """The adapters of `Clusters`."""
    return FakeClusters()


@pytest.fixture(params=["fake"])
def traffic() -> Traffic:
    """The adapters of `Traffic`."""
    return FakeTraffic()


@pytest.fixture(params=["fake", "local"])
def metrics(request: pytest.FixtureRequest) -> MetricsCase:
    """The adapters of `Metrics`; the local one reads files as the scraper writes them."""
    if request.param == "local":
        return local_metrics(request.getfixturevalue("layout"))
    fake = FakeMetrics()
    return MetricsCase(fake, fake.put)


@pytest.fixture(params=["fake"])
def ledger() -> Ledger:
    """The adapters of `Ledger`."""
    return FakeLedger()


@pytest.fixture(params=["fake"])
def lease() -> Lease:
    """The adapters of `Lease`."""
    return FakeLease()


def local_jobs(layout: LocalLayout) -> JobsCase:
    """The jobs of a stack in which nothing but supervisord runs."""
    port = LocalJobs(layout, programs="tests.probes")

    def finish(name: str, **_: Any) -> None:
        (layout.jobs / name / "go").touch()

    def starts(name: str) -> int:
        # A start is counted by the program itself, so the count may come a moment after `submit`.
        ended = monotonic() + 20
        log = layout.jobs / name / "starts"
        while not log.exists() and monotonic() < ended:
            sleep(0.05)
        return len(log.read_text().splitlines())

    return JobsCase(port, finish, starts)


def local_metrics(layout: LocalLayout) -> MetricsCase:
    """The metrics files of a stack in which nothing runs."""
    layout.metrics.mkdir(parents=True, exist_ok=True)
    kept: dict[datetime, list[Any]] = {}

    def put(name: str, labels: Mapping[str, str], at: datetime, value: float) -> None:
        kept.setdefault(at, []).append([name, dict(labels), value])
        lines = [
            json.dumps({"at": moment.isoformat(), "samples": kept[moment]}, separators=(",", ":")) for moment in sorted(kept)
        ]
        (layout.metrics / f"{at:%Y%m%d%H}.jsonl").write_text("\n".join(lines) + "\n")

    return MetricsCase(LocalMetrics(layout), put)
