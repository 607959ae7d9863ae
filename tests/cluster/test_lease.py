"""Leases on a real API server: dead holders, foreign objects, missing rights, and a server that goes away."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.kinds import LEASE
from headway.adapters.kubernetes.lease import KubernetesLease
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.domain.traffic import Backend, Route
from headway.domain.value import slug
from headway.errors import BackendUnavailable, Conflict, Refused

from .rig.api import Kind
from .rig.rig import Rig
from .sites import KubernetesSite, local_account, restart_api, serve_service

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

NOW = datetime(2026, 3, 2, 9, 0, 0, 123456, tzinfo=UTC)
LEASES = Kind(LEASE.api_version, LEASE.name)


@pytest.fixture
def lease(kubernetes_site: KubernetesSite) -> KubernetesLease:
    """The adapter in an empty namespace."""
    return KubernetesLease(kubernetes_site.client, kubernetes_site.site)


def test_kubernetes_tools_can_read_a_lease(lease: KubernetesLease, kubernetes_site: KubernetesSite) -> None:
    """`kubectl get leases` shows the holder; its times are as exact as headway's clock."""
    grant = lease.acquire("llama-3.3-70b", "release/run-1", 900, NOW)

    found = kubernetes_site.api.list(LEASES, kubernetes_site.site.namespace)[0]
    assert found["spec"]["holderIdentity"] == "release/run-1"
    assert found["spec"]["leaseDurationSeconds"] == 900
    assert grant.expires_at == NOW + timedelta(seconds=900)
    assert lease.holder("llama-3.3-70b", NOW) == grant


def test_the_fencing_number_outlives_its_holders(lease: KubernetesLease) -> None:
    """Of holders that died, gave back or renewed, no two ever had the same number."""
    numbers = [
        lease.acquire("m", "run-1", 60, NOW).fencing,
        lease.acquire("m", "run-1", 60, NOW + timedelta(seconds=30)).fencing,
    ]
    lease.release("m", "run-1", NOW + timedelta(seconds=40))
    numbers.append(lease.acquire("m", "run-2", 60, NOW + timedelta(seconds=41)).fencing)
    with pytest.raises(Conflict, match="held by run-2"):
        lease.acquire("m", "run-3", 60, NOW + timedelta(seconds=100))
    numbers.append(lease.acquire("m", "run-3", 60, NOW + timedelta(seconds=102)).fencing)

    assert numbers == sorted(set(numbers))


def test_of_two_releases_at_once_one_moves_the_traffic(lease: KubernetesLease, kubernetes_site: KubernetesSite) -> None:
    """The other is told who is at work, and has changed nothing."""
    traffic = KubernetesTraffic(kubernetes_site.client, kubernetes_site.site)
    for run in ("run-1", "run-2"):
        kubernetes_site.api.create(serve_service(run, kubernetes_site.site.namespace))

    def release(run: str) -> str:
        try:
            lease.acquire("tiny", run, 60, NOW)
        except Conflict as error:
            return error.message
        backend = Backend(cluster=run, release=run, version=1, cluster_digest="1" * 64)
        traffic.shift(Route(model="tiny", stable=backend))
        return "moved"

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(release, ("run-1", "run-2")))

    winner = f"run-{told.index('moved') + 1}"
    assert sorted(text.partition(" ")[0] for text in told) == ["moved", "tiny"]
    assert winner in next(text for text in told if text != "moved")
    stable = traffic.route("tiny").stable
    assert stable is not None
    assert stable.cluster == winner


def test_a_foreign_lease_of_the_name_is_left_alone(lease: KubernetesLease, kubernetes_site: KubernetesSite) -> None:
    """As is that of a model whose name would be the same."""
    namespace = kubernetes_site.site.namespace
    metadata = {"name": "headway-m", "namespace": namespace}
    kubernetes_site.api.create({"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": {}})
    lease.acquire("Tiny", "run-1", 60, NOW)

    for key in ("m", slug("Tiny")):
        with pytest.raises(Conflict, match="would need the same name"):
            lease.acquire(key, "run-2", 60, NOW)

    found = kubernetes_site.api.get(LEASES, "headway-m", namespace)
    assert found is not None
    assert not found.get("spec")


def test_without_rights_nothing_is_held(rig: Rig, kubernetes_site: KubernetesSite) -> None:
    """The refusal says what is missing."""
    site = kubernetes_site.site
    reader = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
    client = Client.connect(local_account(rig, site.namespace, "reader", reader))

    with pytest.raises(Refused, match="cannot create resource"):
        KubernetesLease(client, site).acquire("m", "run-1", 60, NOW)

    assert KubernetesLease(client, site).holder("m", NOW) is None
    client.close()


def test_a_lease_survives_the_api_server(rig: Rig, lease: KubernetesLease, kubernetes_site: KubernetesSite) -> None:
    """While it is away nobody gets a lease; afterwards the holder still has it."""
    grant = lease.acquire("m", "run-1", 900, NOW)
    rig.kill("api")
    try:
        with pytest.raises(BackendUnavailable, match="does not answer"):
            lease.acquire("m", "run-2", 900, NOW)
    finally:
        restart_api(kubernetes_site)

    assert lease.holder("m", NOW) == grant
    with pytest.raises(Conflict, match="held by run-1"):
        lease.acquire("m", "run-2", 900, NOW)
