"""Clusters on a real control plane with the real KubeRay operator: how they come up, change, serve and go."""

import pytest

from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.domain.profile import Replicas
from headway.errors import Conflict

from .cluster_cases import BUDGET, Counted, completions, pods, ready, spec, wait_for
from .conftest import Cluster
from .rig.api import POD, RAY_CLUSTER, RAY_SERVICE, wait_until
from .rig.nodes import GPU
from .rig.ray import Ray
from .sites import KubernetesSite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def clusters(kubernetes_site: KubernetesSite, ray: Ray) -> KubernetesClusters:
    """The adapter on a prepared namespace, with Ray played."""
    assert ray.answers()
    return KubernetesClusters(kubernetes_site.client, kubernetes_site.site)


# --- How it goes well -------------------------------------------------------------------------------------------------


def test_a_cluster_comes_up_where_its_accelerators_are_and_answers(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray
) -> None:
    """Admitted under Pod Security `restricted`, one worker a replica, asked for one completion and no more."""
    wanted = spec(kubernetes_site.site, replicas=Replicas(min=2, max=4))
    first = clusters.apply(wanted)
    assert (first.phase, first.endpoint) == ("starting", None)

    status = wait_for(clusters, wanted.name, ready)

    assert (status.replicas_ready, status.replicas_target, status.reason) == (2, 2, "")
    assert status.endpoint == f"http://{wanted.name}-serve-svc.{kubernetes_site.site.namespace}.svc:8000"
    assert status.spec == wanted
    workers = pods(kubernetes_site, wanted.name)
    assert [one["spec"]["containers"][0]["resources"]["limits"][GPU] for one in workers] == ["2", "2"]
    assert all(one["spec"]["nodeName"].startswith(("h100", "spot")) for one in workers)
    asked = completions(ray)
    for _ in range(3):
        assert ready(clusters.status(wanted.name))
    assert completions(ray) == asked == 1


def test_applying_again_adopts_and_another_digest_is_refused(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite
) -> None:
    """What runs is not replaced, whoever asks."""
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)
    before = kubernetes_site.api.get(RAY_SERVICE, wanted.name, kubernetes_site.site.namespace)

    again = clusters.apply(wanted.model_copy(update={"release": "r2", "replicas": Replicas(min=3, max=3)}))
    with pytest.raises(Conflict, match="delete it first"):
        clusters.apply(wanted.model_copy(update={"cluster_digest": "f" * 64}))

    after = kubernetes_site.api.get(RAY_SERVICE, wanted.name, kubernetes_site.site.namespace)
    assert again.spec == wanted
    assert before is not None
    assert after is not None
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_the_floor_moves_in_place(clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray) -> None:
    """The same RayCluster, the same pods and more of them; the budget of a drain follows."""
    wanted, namespace = spec(kubernetes_site.site), kubernetes_site.site.namespace
    clusters.apply(wanted)
    wait_for(clusters, wanted.name, ready)
    before = {one["metadata"]["name"] for one in pods(kubernetes_site, wanted.name)}

    clusters.floor(wanted.name, Replicas(min=3, max=5))
    clusters.floor(wanted.name, Replicas(min=3, max=5))
    status = wait_for(clusters, wanted.name, lambda s: ready(s) and s.replicas_ready == 3 and s.reason == "")

    assert status.spec == wanted.model_copy(update={"replicas": Replicas(min=3, max=5)})
    wait_until(lambda: len(pods(kubernetes_site, wanted.name)) == 3, "three workers")
    assert before < {one["metadata"]["name"] for one in pods(kubernetes_site, wanted.name)}
    (live,) = kubernetes_site.api.list(RAY_CLUSTER, namespace)
    group = live["spec"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["maxReplicas"]) == (3, 5)
    (config,) = ray.configs().values()
    assert config["applications"][0]["deployments"][0]["autoscaling_config"]["min_replicas"] == 3
    budget = kubernetes_site.api.get(BUDGET, f"{wanted.name}-replica", namespace)
    assert budget is not None
    assert budget["spec"]["minAvailable"] == 2


def test_a_cluster_that_grows_stays_ready(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, ray: Ray
) -> None:
    """Serve calls it deploying meanwhile; its users are served, and a shift must not take it for broken."""
    wanted = spec(kubernetes_site.site)
    clusters.apply(wanted)
    wait_for(clusters, wanted.name, ready)
    ray.behave(most_running=1)

    clusters.floor(wanted.name, Replicas(min=2, max=3))

    status = wait_for(clusters, wanted.name, lambda s: s.replicas_target == 2)
    assert (status.phase, status.replicas_ready, status.reason) == ("ready", 1, "Serve: deploying")


def test_delete_returns_when_nothing_is_left(clusters: KubernetesClusters, kubernetes_site: KubernetesSite) -> None:
    """No pod, no RayCluster, no budget; and again is fine."""
    wanted, namespace = spec(kubernetes_site.site), kubernetes_site.site.namespace
    clusters.apply(wanted)
    wait_for(clusters, wanted.name, ready)

    clusters.delete(wanted.name)

    assert clusters.status(wanted.name).phase == "absent"
    assert not kubernetes_site.api.list(POD, namespace)
    assert not kubernetes_site.api.list(RAY_CLUSTER, namespace)
    wait_until(lambda: not kubernetes_site.api.list(BUDGET, namespace), "the budgets are gone")
    clusters.delete(wanted.name)


def test_clusters_that_serve_are_listed_with_one_request(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite, cluster: Cluster
) -> None:
    """A thousand of them cost two pages, whatever each of them would say."""
    one, two = spec(kubernetes_site.site), spec(kubernetes_site.site, "b", model="other")
    for wanted in (one, two):
        clusters.apply(wanted)
    for wanted in (one, two):
        wait_for(clusters, wanted.name, ready)

    counted = Counted.connect(cluster.kubeconfig)
    counting = KubernetesClusters(counted, kubernetes_site.site)

    def brief() -> bool:
        counted.asked.clear()
        found = counting.list()
        assert {status.name: status.phase for status in found} == {one.name: "ready", two.name: "ready"}
        return len(counted.asked) == 1

    wait_until(brief, "the operator's own status has caught up")
    counted.close()
    assert [status.spec for status in clusters.list("other")] == [two]
    assert [status.replicas_ready for status in clusters.list()] == [1, 1]


def test_inside_of_the_cluster_services_are_asked_by_their_names(
    kubernetes_site: KubernetesSite, ray: Ray, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod, headway needs no proxy of the API server; here the played Ray is the environment's own proxy."""
    monkeypatch.setenv("HTTP_PROXY", ray.proxy_url)
    monkeypatch.setenv("http_proxy", ray.proxy_url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    client = Counted.connect(cluster.kubeconfig)
    client.in_cluster = True
    clusters, wanted = KubernetesClusters(client, kubernetes_site.site), spec(kubernetes_site.site)
    clusters.apply(wanted)
    ray.behave(answer_status=500)

    wait_for(clusters, wanted.name, lambda s: "-serve-svc" in s.reason and "answered HTTP 500: " in s.reason)
    ray.behave(answer_status=200)
    wait_for(clusters, wanted.name, ready)

    assert not [path for _, path in client.asked if "/proxy/" in path]
    client.close()


def test_models_whose_labels_are_the_same_are_kept_apart(
    clusters: KubernetesClusters, kubernetes_site: KubernetesSite
) -> None:
    """A label is cut and changed where it must be; the annotation has the name."""
    one = spec(kubernetes_site.site, model="Org/Llama_3@x")
    clusters.apply(one)

    assert [status.name for status in clusters.list("Org/Llama_3@x")] == [one.name]
    assert not clusters.list("Org/Llama_3_x")
