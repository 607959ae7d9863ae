"""Clusters that fail, and what a person reads about it; clusters that others change, and what stays of them."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.domain.cluster import ClusterStatus
from headway.domain.profile import Replicas
from headway.errors import BackendUnavailable, Conflict, Refused

from .cluster_cases import BUDGET, H200, Counted, pods, ready, spec, wait_for, with_fault
from .conftest import Cluster
from .rig.annotations import EXIT_CODE, FAULT
from .rig.api import NODE, POD, RAY_CLUSTER, RAY_SERVICE, Kind, condition, wait_until
from .rig.nodes import GPU, H100, Machine, nodes
from .rig.ray import Ray
from .rig.rig import Rig
from .sites import KubernetesSite, local_account, local_volume

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

QUOTA = Kind("v1", "ResourceQuota")
VOLUME = Kind("v1", "PersistentVolume")
FAR_FUTURE_S, EPOCH = 4_000_000_000.0, datetime.fromtimestamp(0, UTC)
RAY = {"apiGroups": ["ray.io"], "resources": ["rayservices", "rayclusters"], "verbs": ["*"]}
LOOKS = {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}


@pytest.fixture
def clusters(kubernetes_site: KubernetesSite, ray: Ray) -> KubernetesClusters:
    """The adapter on a prepared namespace, with Ray played."""
    assert ray.answers()
    return KubernetesClusters(kubernetes_site.client, kubernetes_site.site)


def failed(status: ClusterStatus) -> bool:
    """Whether it is given up."""
    return status.phase == "failed"


def says(*words: str) -> Any:
    """Whether a cluster that starts says why."""
    return lambda status: status.phase == "starting" and all(word in status.reason for word in words)


# --- It does not come up ----------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "out of memory": ("replica", {FAULT: "oom"}, ("OOMKilled", "give it more")),
    "a crash loop for memory": ("replica", {FAULT: "crash-loop"}, ("container engine of pod", "limit of 48Gi")),
    "no image": ("replica", {FAULT: "image-pull"}, ("ImagePullBackOff", "not found")),
    "no image of the head": ("head", {FAULT: "image-pull"}, ("ImagePullBackOff", "Ray's head is not ready")),
    "a worker that ends": ("replica", {FAULT: "exit", EXIT_CODE: "9"}, ("pods failed and were replaced", "code 9")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_waiting_does_not_heal_fails_the_cluster_with_its_reason(
    kubernetes_site: KubernetesSite, ray: Ray, tmp_path: Path, fault: str
) -> None:
    """At once, and not when the deadline is over."""
    part, annotations, words = FAULTS[fault]
    ray.behave(deploy_as="DEPLOYING")
    clusters = with_fault(kubernetes_site, tmp_path, part, annotations)
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)

    status = wait_for(clusters, wanted.name, failed)

    assert all(word in status.reason for word in words), status.reason


def test_a_program_that_fails_before_the_engine_says_so(
    kubernetes_site: KubernetesSite, ray: Ray, tmp_path: Path
) -> None:
    """The model could not be staged on that node; it is tried again."""
    ray.behave(deploy_as="DEPLOYING")
    clusters = with_fault(kubernetes_site, tmp_path, "replica", {FAULT: "init-crash", EXIT_CODE: "75"})
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)

    wait_for(clusters, wanted.name, says("container stage of pod", "exit code 75"))


def test_clusters_that_start_share_what_is_read_about_them(
    kubernetes_site: KubernetesSite, ray: Ray, cluster: Cluster, tmp_path: Path
) -> None:
    """A list of many costs what a list of one does: clusters, pods, events."""
    assert ray.answers()
    faulty = with_fault(kubernetes_site, tmp_path, "head", {FAULT: "image-pull"})
    wanted = [spec(kubernetes_site.site, content, model=f"model-{content}") for content in "abc"]
    for one in wanted:
        faulty.apply(one)
    for one in wanted:
        wait_for(faulty, one.name, failed)
    counted = Counted.connect(cluster.kubeconfig)

    found = KubernetesClusters(counted, kubernetes_site.site).list()

    assert [path.partition("?")[0].rpartition("/")[2] for _, path in counted.asked] == ["rayservices", "pods", "events"]
    assert sorted(one.name for one in found) == sorted(one.name for one in wanted)
    assert all(failed(one) and "ImagePullBackOff" in one.reason for one in found)
    counted.close()


def test_missing_accelerators_are_counted(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray
) -> None:
    """How many, of what, and where some are free; the head's deadline is the operator's."""
    ray.behave(deploy_as="DEPLOYING")
    there = len(kubernetes_site.api.list(NODE, labelSelector=f"{GPU}.product={H200}"))
    wanted = spec(
        kubernetes_site.site,
        accelerator=H200,
        tensor_parallel=8,
        replicas=Replicas(min=there + 2, max=there + 2),
    )
    clusters.apply(wanted)

    status = wait_for(clusters, wanted.name, says(f"16 x {H200} are missing (2 pods with 8 each, on one node)"))

    assert f"of {there} nodes that takes pods has any free" in status.reason
    room = clusters.room(wanted)
    assert (room.fits, room.possible, room.replicas) == (False, True, 0)


def test_a_failed_deployment_says_what_serve_says(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray
) -> None:
    """The operator itself would stay in Initializing for ever."""
    ray.behave(deploy_as="DEPLOY_FAILED", message="Traceback:\n  File engine.py\nValueError: shard 1 is cut off")
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)

    assert wait_for(clusters, wanted.name, failed).reason == "Serve: ValueError: shard 1 is cut off"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"deploy_as": "DEPLOYING", "message": "waits for a replica"}, "Serve: waits for a replica"),
        ({"answer_status": 500}, "does not answer a completion yet"),
        ({"lists": ["other"]}, "/v1/models lists other and not tiny"),
        ({"get_status": 500}, "Ray is starting"),
    ],
)
def test_running_is_not_ready(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray, behaviour: dict[str, Any], words: str
) -> None:
    """A candidate that never answers stays a start until somebody's deadline, and says what it waits for."""
    ray.behave(**behaviour)
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)

    status = wait_for(clusters, wanted.name, says(words))

    assert status.endpoint is None


def test_a_full_quota_is_told_and_nothing_is_left(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite
) -> None:
    """Of pods by the operator's event; of objects that headway makes itself at once, and then all of them go."""
    api, namespace = kubernetes_site.api, kubernetes_site.site.namespace
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full", "namespace": namespace}}
    api.create({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}})
    wait_until(lambda: (api.get(QUOTA, "full", namespace) or {}).get("status", {}).get("hard"), "the quota counts")
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)
    wait_for(clusters, wanted.name, says("exceeded quota"))
    clusters.delete(wanted.name)
    key = "count/poddisruptionbudgets.policy"
    api.apply({**quota, "spec": {"hard": {key: "0"}}})
    wait_until(lambda: key in (api.get(QUOTA, "full", namespace) or {})["status"].get("hard", {}), "the quota counts")

    with pytest.raises(Refused, match=r"exceeded quota: full.* raise the namespace's ResourceQuota"):
        clusters.apply(wanted)

    wait_until(lambda: not api.list(RAY_SERVICE, namespace), "nothing is left")


def test_a_field_that_the_crds_do_not_know_is_refused(kubernetes_site: KubernetesSite, tmp_path: Path) -> None:
    """As those of an older KubeRay: the API server would drop it in silence, and what it is for with it."""
    shutil.copytree(kubernetes_site.site.templates, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "rayservice.yaml"
    path.write_text(path.read_text().replace("upgradeStrategy:", "upgradeStrategyOfLater:"))
    site = replace(kubernetes_site.site, templates=tmp_path)

    with pytest.raises(Refused, match=r'unknown field "spec\.upgradeStrategyOfLater".*update KubeRay.*doctor'):
        KubernetesClusters(kubernetes_site.client, site).apply(spec(site))

    assert not kubernetes_site.api.list(RAY_SERVICE, site.namespace)


def test_rights_that_are_missing_are_told_and_nothing_is_left(rig: Rig, kubernetes_site: KubernetesSite) -> None:
    """Who may make half of a cluster makes none."""
    site = kubernetes_site.site
    client = Client.connect(local_account(rig, site.namespace, "deployer", RAY, LOOKS))

    with pytest.raises(Refused, match=r"403 Forbidden: poddisruptionbudgets.*doctor --kubernetes"):
        KubernetesClusters(client, site).apply(spec(site))

    wait_until(lambda: not rig.api.list(RAY_SERVICE, site.namespace), "nothing is left")
    client.close()


# --- It serves, and then something breaks -----------------------------------------------------------------------------


@pytest.fixture
def serving(clusters: KubernetesClusters, kubernetes_site: KubernetesSite) -> str:
    """The name of a cluster with two replicas that serves."""
    wanted = spec(kubernetes_site.site, replicas=Replicas(min=2, max=3))
    clusters.apply(wanted)
    wait_for(clusters, wanted.name, ready)
    return wanted.name


def test_an_ill_application_is_not_ready_whatever_the_operator_says(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray, serving: str
) -> None:
    """Its Ready only counts endpoints. One that has served is not given up, it may recover."""
    ray.set_status("UNHEALTHY", "replica 3 does not answer its health check")

    status = wait_for(clusters, serving, says("Serve: replica 3 does not answer"))

    assert status.replicas_ready == 2
    found = kubernetes_site.api.get(RAY_SERVICE, serving, kubernetes_site.site.namespace)
    assert condition(found, "Ready") == "True"
    wait_until(lambda: [one.phase for one in clusters.list()] == ["starting"], "the operator has seen it")
    ray.set_status("RUNNING")
    wait_for(clusters, serving, ready)


def test_a_running_application_without_a_replica_does_not_serve(
    clusters: KubernetesClusters, ray: Ray, serving: str
) -> None:
    """Serve and the operator go on saying that all is well while the last worker is gone."""
    ray.behave(most_running=0)
    ray.set_status("RUNNING")

    gone = wait_for(clusters, serving, lambda status: not ready(status))

    assert (gone.phase, gone.replicas_ready) == ("starting", 0)
    assert "no replica serves" in gone.reason
    ray.behave(most_running=1)
    wait_for(clusters, serving, ready)


@pytest.mark.parametrize("fault", ["evicted", "oom", "exit"])
def test_a_worker_that_goes_is_replaced(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray, serving: str, fault: str
) -> None:
    """What is left serves meanwhile, and the cluster is never given up for it."""
    lost = pods(kubernetes_site, serving)[0]["metadata"]["name"]
    ray.behave(most_running=1)
    kubernetes_site.api.annotate(POD, lost, {FAULT: fault}, kubernetes_site.site.namespace)

    def replaced() -> bool:
        status = clusters.status(serving)
        assert status.phase in ("ready", "starting"), status
        names = [one["metadata"]["name"] for one in pods(kubernetes_site, serving) if condition(one, "Ready") == "True"]
        return lost not in names and len(names) == 2

    wait_until(replaced, "another worker", 60)
    ray.behave(most_running=9)
    assert wait_for(clusters, serving, lambda s: ready(s) and s.replicas_ready == 2).reason == ""


def test_a_head_that_is_gone_is_not_ready_until_its_successor_has_answered(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray, serving: str
) -> None:
    """All engines start anew with it, so what the former has answered proves nothing."""
    namespace = kubernetes_site.site.namespace
    (head,) = pods(kubernetes_site, serving, "head")
    ray.behave(answer_status=500)
    kubernetes_site.api.delete(POD, head["metadata"]["name"], namespace)
    ray.forget()

    wait_for(clusters, serving, says("does not answer a completion yet"))
    ray.behave(answer_status=200)

    wait_for(clusters, serving, ready)
    assert pods(kubernetes_site, serving, "head")[0]["metadata"]["uid"] != head["metadata"]["uid"]
    assert len(kubernetes_site.api.list(RAY_CLUSTER, namespace)) == 1


def test_an_operator_that_is_away_stops_nothing_that_serves(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, rig: Rig, serving: str
) -> None:
    """A new cluster says who is missing; when it is back both go on."""
    late = spec(kubernetes_site.site, "b", model="other")
    rig.kill("operator")
    try:
        clusters.apply(late)
        assert ready(clusters.status(serving))
        clusters.floor(serving, Replicas(min=3, max=3))
        hurried = KubernetesClusters(kubernetes_site.client, kubernetes_site.site, clock=lambda: FAR_FUTURE_S)
        assert "KubeRay's operator has not looked at it" in hurried.status(late.name).reason
    finally:
        rig.restart("operator")
    wait_for(clusters, late.name, ready)
    wait_for(clusters, serving, lambda s: ready(s) and s.replicas_ready == 3)


@pytest.fixture
def frail(kubernetes_site: KubernetesSite, rig: Rig) -> Iterator[Machine]:
    """A kind of machine of which there is one, with local volumes."""
    machine = replace(H100, product="NVIDIA-H100-FRAIL")
    for one in local_volume(kubernetes_site.site, machine.product):
        kubernetes_site.api.create(one)
    rig.add_nodes(nodes(machine, "frail", 1))
    yield machine
    rig.api.delete(NODE, "frail-0")
    site = kubernetes_site.site
    rig.api.delete(VOLUME, f"{site.namespace}-{site.claim(machine.product)}")


def test_a_node_that_is_lost_is_told_and_its_successor_brings_the_cluster_back(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, rig: Rig, ray: Ray, frail: Machine
) -> None:
    """First not ready, then deleted; another of its kind joins."""
    wanted = spec(kubernetes_site.site, accelerator=frail.product, replicas=Replicas(min=1, max=1))
    clusters.apply(wanted)
    wait_for(clusters, wanted.name, ready)
    ray.set_status("UNHEALTHY", "no replica")

    rig.fault("frail-0", "not-ready")
    wait_for(clusters, wanted.name, says("frail-0 takes no pods: not ready", f"2 x {frail.product} are missing"))
    assert "not ready" in clusters.room(wanted).detail
    rig.api.delete(NODE, "frail-0")
    wait_for(clusters, wanted.name, says("no node has this accelerator"))
    assert not clusters.room(wanted).possible

    rig.add_nodes(nodes(frail, "frail", 1))
    ray.set_status("RUNNING")
    wait_for(clusters, wanted.name, ready)


def test_an_api_server_that_restarts_is_waited_for(clusters: KubernetesClusters, rig: Rig, serving: str) -> None:
    """Away it is an error that is tried again; back, everything is as it was."""
    rig.kill("api")
    try:
        with pytest.raises(BackendUnavailable, match="does not answer"):
            clusters.status(serving)
    finally:
        rig.restart("api")

    def looks() -> bool:
        try:
            return ready(clusters.status(serving))
        except BackendUnavailable:
            return False

    wait_until(looks, "the cluster serves as before", 60)


# --- Others change it -------------------------------------------------------------------------------------------------


def test_somebody_elses_object_under_our_name_stays_as_it_is(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite
) -> None:
    """Whatever is asked of it, the answer names it."""
    wanted, namespace = spec(kubernetes_site.site), kubernetes_site.site.namespace
    clusters.apply(wanted)
    found = kubernetes_site.api.get(RAY_SERVICE, wanted.name, namespace)
    assert found is not None
    clusters.delete(wanted.name)
    theirs = {"name": wanted.name, "namespace": namespace, "labels": {"team": "other"}}
    kubernetes_site.api.create({**found, "metadata": theirs, "status": {}})
    before = kubernetes_site.api.get(RAY_SERVICE, wanted.name, namespace)
    assert before is not None

    asks = (
        lambda: clusters.apply(wanted),
        lambda: clusters.status(wanted.name),
        lambda: clusters.floor(wanted.name, Replicas(min=2, max=2)),
        lambda: clusters.delete(wanted.name),
        lambda: clusters.scale_ups(wanted.name, EPOCH),
    )
    for ask in asks:
        with pytest.raises(Conflict, match=f"RayService {namespace}/{wanted.name} is not headway's"):
            ask()

    assert not clusters.list()
    after = kubernetes_site.api.get(RAY_SERVICE, wanted.name, namespace)
    assert after is not None
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_what_a_person_changes_is_told_and_stays(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, serving: str
) -> None:
    """Headway does not fight; its own change of the range goes on, and leaves the rest."""
    namespace = kubernetes_site.site.namespace
    change = {"spec": {"rayClusterConfig": {"autoscalerOptions": {"idleTimeoutSeconds": 999}}}}
    kubernetes_site.api.patch(RAY_SERVICE, serving, change, namespace)

    wait_for(clusters, serving, lambda s: ready(s) and s.reason.startswith("its RayService was changed by "))
    clusters.floor(serving, Replicas(min=3, max=3))

    found = kubernetes_site.api.get(RAY_SERVICE, serving, namespace)
    assert found is not None
    assert found["spec"]["rayClusterConfig"]["autoscalerOptions"]["idleTimeoutSeconds"] == 999
    assert len(kubernetes_site.api.list(RAY_CLUSTER, namespace)) == 1


def test_a_ray_cluster_that_a_person_deletes_comes_back_with_the_range_in_force(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, serving: str
) -> None:
    """The RayService has it too, and what the former has answered proves nothing for the next."""
    namespace = kubernetes_site.site.namespace
    clusters.floor(serving, Replicas(min=3, max=3))
    (live,) = kubernetes_site.api.list(RAY_CLUSTER, namespace)
    kubernetes_site.api.delete(RAY_CLUSTER, live["metadata"]["name"], namespace)

    def renewed() -> bool:
        found = kubernetes_site.api.list(RAY_CLUSTER, namespace)
        return bool(found) and all(one["metadata"]["uid"] != live["metadata"]["uid"] for one in found)

    wait_until(renewed, "another RayCluster", 60)
    wait_for(clusters, serving, lambda s: ready(s) and s.replicas_ready == 3)
    assert len(pods(kubernetes_site, serving)) == 3


def test_a_cluster_that_nobody_can_read_does_not_hide_the_others(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, serving: str
) -> None:
    """Somebody cleared its annotations; it is listed as failed, and can be deleted."""
    broken = spec(kubernetes_site.site, "b", model="other")
    clusters.apply(broken)
    kubernetes_site.api.annotate(RAY_SERVICE, broken.name, {"headway/asked": None}, kubernetes_site.site.namespace)

    found = {one.name: one for one in clusters.list()}

    assert found[serving].spec is not None
    assert (found[broken.name].phase, found[broken.name].spec) == ("failed", None)
    assert "release the model again" in found[broken.name].reason
    clusters.delete(broken.name)
    assert [one.name for one in clusters.list()] == [serving]


def test_budgets_that_are_gone_come_back_with_the_next_change(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, serving: str
) -> None:
    """A change ends in the same state whatever was there before."""
    namespace = kubernetes_site.site.namespace
    kubernetes_site.api.delete_all(BUDGET, namespace)

    clusters.floor(serving, Replicas(min=3, max=3))

    least = {
        one["metadata"]["name"]: one["spec"]["minAvailable"] for one in kubernetes_site.api.list(BUDGET, namespace)
    }
    assert least == {f"{serving}-head": 1, f"{serving}-replica": 2}
