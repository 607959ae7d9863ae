"""Each suite runs against the fake and against every adapter that this machine can run."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.jobs import OF_JOB
from headway.adapters.kubernetes.lease import KubernetesLease
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.adapters.kubernetes.warm import KubernetesWarm
from headway.adapters.local.clusters import LocalClusters
from headway.adapters.local.jobs import LocalJobs
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.metrics import LocalMetrics
from headway.adapters.local.traffic import LocalTraffic
from headway.adapters.prometheus import PrometheusMetrics
from headway.adapters.s3 import S3Lease, S3Ledger, S3Objects, S3WeightStore
from headway.adapters.signatures import ModelSignatures
from headway.domain.job import JobStatus
from headway.domain.value import canonical_json
from headway.domain.weights import Manifest
from headway.ports import Clusters, Jobs, Lease, Ledger, Metrics, Objects, Signatures, Traffic, Warm, WeightStore
from tests.cluster.conftest import cluster, kubernetes_site, namespace, ray, rig
from tests.cluster.handed import Handed, handed
from tests.cluster.rig.api import POD, wait_until
from tests.cluster.sites import KubernetesSite, serve_service
from tests.component.conftest import envoy_process
from tests.component.servers import S3Server, s3_server
from tests.fakes import (
    FakeClusters,
    FakeJobs,
    FakeLease,
    FakeLedger,
    FakeMetrics,
    FakeObjects,
    FakeSignatures,
    FakeTraffic,
    FakeWarm,
    FakeWeightStore,
)
from tests.prometheus_server import prometheus_server
from tests.signing import key_pair, sign_with_key

__all__ = ["cluster", "envoy_process", "kubernetes_site", "namespace", "ray", "rig"]

KUBERNETES = pytest.param("kubernetes", marks=[pytest.mark.cluster, pytest.mark.timeout(180)])
"""On the rig, or on the cluster of KUBECONFIG; `request.getfixturevalue("kubernetes_site")` has client and site."""


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


@pytest.fixture(params=["fake", "local", KUBERNETES])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobsCase]:
    """The adapters of `Jobs`; the real ones run `tests.probes.bench` in place of a pod program."""
    if request.param == "kubernetes":
        request.getfixturevalue("rig")  # a real cluster has no such program in its images
        with handed(request.getfixturevalue("kubernetes_site"), tmp_path, package="tests.probes") as case:
            yield kubernetes_jobs(case)
        return
    if request.param == "local":
        layout = request.getfixturevalue("supervised")
        yield local_jobs(layout)
        return
    fake = FakeJobs()

    def finish(name: str, **status: Any) -> None:
        fake.statuses[name] = JobStatus(name=name, **status)

    yield JobsCase(fake, finish, fake.starts.count)


@pytest.fixture(params=["fake", "local", KUBERNETES])
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """The adapters of `Clusters`; both others with a stand-in for Ray. `tests/component` has the real one."""
    if request.param == "fake":
        yield FakeClusters()
        return
    if request.param == "kubernetes":
        prepared: KubernetesSite = request.getfixturevalue("kubernetes_site")
        request.getfixturevalue("ray")
        yield KubernetesClusters(prepared.client, replace(prepared.site, node_root="/nodes"))
        return
    layout = request.getfixturevalue("supervised")
    local = LocalClusters(layout, ray=[str(layout.python("airflow")), "-m", "tests.probes.ray_head"])
    yield local
    for status in local.list():
        local.delete(status.name)


@pytest.fixture(params=["fake", "local", KUBERNETES])
def traffic(request: pytest.FixtureRequest) -> Traffic:
    """The adapters of `Traffic`; the local one with a real Envoy."""
    if request.param == "local":
        return LocalTraffic(request.getfixturevalue("envoy_process"), {"a": 1, "b": 2}.get)
    if request.param == "kubernetes":
        prepared: KubernetesSite = request.getfixturevalue("kubernetes_site")
        for cluster in ("a", "b"):
            prepared.api.create(serve_service(cluster, prepared.site.namespace))
        return KubernetesTraffic(prepared.client, prepared.site)
    return FakeTraffic()


@pytest.fixture(params=["fake", KUBERNETES])
def warm(request: pytest.FixtureRequest) -> Warm:
    """The adapters of `Warm`; the embedded stack has none."""
    if request.param == "kubernetes":
        prepared: KubernetesSite = request.getfixturevalue("kubernetes_site")
        return KubernetesWarm(prepared.client, prepared.site)
    return FakeWarm()


@pytest.fixture(params=["fake", "local", "prometheus"])
def metrics(request: pytest.FixtureRequest) -> Iterator[MetricsCase]:
    """The adapters of `Metrics`: local reads files as the scraper writes them; Prometheus has a stand-in below it."""
    if request.param == "local":
        yield local_metrics(request.getfixturevalue("layout"))
    elif request.param == "prometheus":
        with prometheus_server() as server:
            yield MetricsCase(PrometheusMetrics(server.url), server.put)
    else:
        fake = FakeMetrics()
        yield MetricsCase(fake, fake.put)


@pytest.fixture(params=["fake", "s3"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """The adapters of `Objects`."""
    return S3Objects(request.getfixturevalue("empty_s3").connection()) if request.param == "s3" else FakeObjects()


@pytest.fixture(params=["fake", "s3"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """The adapters of `Ledger`."""
    return S3Ledger(request.getfixturevalue("empty_s3").connection()) if request.param == "s3" else FakeLedger()


@pytest.fixture(params=["fake", "s3", KUBERNETES])
def lease(request: pytest.FixtureRequest) -> Lease:
    """The adapters of `Lease`."""
    if request.param == "kubernetes":
        prepared: KubernetesSite = request.getfixturevalue("kubernetes_site")
        return KubernetesLease(prepared.client, prepared.site)
    return S3Lease(request.getfixturevalue("empty_s3").connection()) if request.param == "s3" else FakeLease()


@dataclass(frozen=True)
class WeightsCase:
    """A `WeightStore` adapter, and how an object and an artifact get into it."""

    port: WeightStore
    put: Callable[[str, bytes], None]
    publish: Callable[[Manifest], None]


@pytest.fixture(params=["fake", "s3"])
def weights(request: pytest.FixtureRequest) -> WeightsCase:
    """The adapters of `WeightStore`."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("empty_s3")
        port, put = S3WeightStore(server.connection()), server.client().put

        def publish(manifest: Manifest) -> None:
            put(f"{port.artifact_uri(manifest.artifact_digest)}manifest.json", canonical_json(manifest))

        return WeightsCase(port, put, publish)
    fake = FakeWeightStore()

    def keep(manifest: Manifest) -> None:
        fake.manifests[manifest.artifact_digest] = manifest

    return WeightsCase(fake, fake.objects.__setitem__, keep)


@dataclass(frozen=True)
class SignaturesCase:
    """A `Signatures` adapter that knows the keys `model.pub` and `other.pub`, and how somebody signs."""

    port: Signatures
    sign: Callable[[Mapping[str, bytes], str], bytes]


@pytest.fixture(params=["fake", "model-signing"])
def signatures(request: pytest.FixtureRequest, tmp_path: Path) -> SignaturesCase:
    """The adapters of `Signatures`; the real one against what model-signing's public interface writes."""
    if request.param == "fake":
        fake = FakeSignatures({"model.pub", "other.pub"})
        return SignaturesCase(fake, lambda files, key: fake.sign(files, f"{key}.pub"))
    keys = {name: key_pair(tmp_path, name) for name in ("model", "other")}
    return SignaturesCase(
        ModelSignatures(tmp_path), lambda files, key: sign_with_key(files, keys[key], tmp_path / "signed")
    )


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One SeaweedFS for all suites."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def empty_s3(s3: S3Server) -> S3Server:
    """The server without what earlier tests left."""
    client = s3.client()
    for bucket in ("headway", "mlflow"):
        for item in list(client.list(f"s3://{bucket}/")):
            client.delete(item.uri)
    return s3


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


def kubernetes_jobs(case: Handed) -> JobsCase:
    """The jobs of a control plane whose pods run on this machine."""

    def finish(name: str, **_: Any) -> None:
        # The folder is there until the program has ended, which it may have done by itself.
        for pod in case.at.api.list(POD, case.site.namespace, labelSelector=f"{OF_JOB}={name}"):
            if case.work(pod).exists():
                (case.work(pod) / "go").touch()

    def starts(name: str) -> int:
        wait_until(lambda: any(one.startswith(f"{name}-") for one in case.hands.started), f"{name} is started", 30)
        return sum(one.startswith(f"{name}-") for one in case.hands.started)

    return JobsCase(case.jobs, finish, starts)


def local_metrics(layout: LocalLayout) -> MetricsCase:
    """The metrics files of a stack in which nothing runs."""
    layout.metrics.mkdir(parents=True, exist_ok=True)
    kept: dict[datetime, list[Any]] = {}

    def put(name: str, labels: Mapping[str, str], at: datetime, value: float) -> None:
        kept.setdefault(at, []).append([name, dict(labels), value])
        lines = [
            json.dumps({"at": moment.isoformat(), "samples": kept[moment]}, separators=(",", ":"))
            for moment in sorted(kept)
            if moment.replace(minute=0, second=0) == at.replace(minute=0, second=0)
        ]
        (layout.metrics / f"{at:%Y%m%d%H}.jsonl").write_text("\n".join(lines) + "\n")

    return MetricsCase(LocalMetrics(layout), put)
