"""Two hundred nodes and a thousand clusters: a look at all of them costs seconds, and few requests.

The clusters are objects with the status that the operator would have written. The operator itself is off: its requeue
of two seconds would keep both cores of a small machine busy with a thousand of them.
"""

import resource
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, time
from types import SimpleNamespace
from typing import Any

import pytest

from headway.adapters.kubernetes import rayservice, routes
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.lease import KubernetesLease
from headway.adapters.kubernetes.objects import patched, template
from headway.adapters.kubernetes.site import Site
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.domain.cluster import ClusterSpec
from headway.domain.profile import Profile
from headway.domain.traffic import Backend, Route
from headway.domain.value import digest, short
from operators.hook import HeadwayHook
from operators.reconcile import ReconcileOperator
from tests.factories import make_plan, make_profile
from tests.unit.airflow import conftest as airflow_of_its_own
from tests.unit.airflow.fake_backend import FakeBackend

from .rig.nodes import H100, nodes
from .rig.programs import RigNotBuiltError
from .rig.rig import Rig
from .rig.rig import rig as run_rig
from .sites import CHECKOUT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
__all__ = ["airflow_of_its_own"]

NODES, MODELS, EXPIRED = 200, 500, 3
"""Two clusters a model: stable and previous."""
AT_ONCE = 4
LOOK_S = 10.0
NAMESPACE = "headway"
NOW = datetime.fromtimestamp(time(), UTC)
IMAGE = f"registry.example/ray-llm@sha256:{'5e' * 32}"


class CountingClient(Client):
    """Counts the requests to the API server, by method."""

    counted: Counter[str]

    def request(self, method: str, path: str, *arguments: Any, **keywords: Any) -> Any:
        """Count, and go on."""
        self.counted[method] += 1
        return super().request(method, path, *arguments, **keywords)


@dataclass
class Fleet:
    """A rig full of objects.

    Attributes:
        client: Counts what is asked.
        profiles: Of all models.
    """

    rig: Rig
    client: CountingClient
    site: Site
    profiles: dict[str, Profile]


def spec_of(model: str, version: int) -> ClusterSpec:
    """Return a cluster of a model, as a plan would name it."""
    base = make_plan(make_profile(model=model)).cluster
    mark = digest([model, version])
    return base.model_copy(
        update={
            "name": f"{model}-{short(mark)}",
            "model": model,
            "version": version,
            "release": f"{model}-v{version}",
            "cluster_digest": mark,
            "artifact_digest": digest(["artifact", mark]),
            "model_dir": f"/var/lib/headway/node/{digest(['artifact', mark])}",
            "accelerator": "NVIDIA-H100-80GB-HBM3",
            "serving_image": IMAGE,
        }
    )


def backend_of(spec: ClusterSpec) -> Backend:
    """Return a cluster as a route names it."""
    return Backend(cluster=spec.name, release=spec.release, version=spec.version, cluster_digest=spec.cluster_digest)


def ray_cluster_of(spec: ClusterSpec) -> str:
    """Return the name that the operator gives to a cluster's RayCluster."""
    return f"{spec.name}-abcde"


def status_of(spec: ClusterSpec) -> dict[str, Any]:
    """Return the status that the operator writes for a cluster that serves."""
    at = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    deployment = {f"LLMServer:{spec.model}": {"status": "HEALTHY", "message": ""}}
    application = {"status": "RUNNING", "message": "", "serveDeploymentStatuses": deployment}
    workers = {"desiredWorkerReplicas": 1, "availableWorkerReplicas": 1, "readyWorkerReplicas": 1}
    active = {
        "rayClusterName": ray_cluster_of(spec),
        "rayClusterStatus": workers,
        "applicationStatuses": {"llm": application},
    }
    ready = {"type": "Ready", "status": "True", "reason": "NonZeroServeEndpoints", "message": ""}
    return {
        "observedGeneration": 1,
        "serviceStatus": "Running",
        "numServeEndpoints": 2,
        "activeServiceStatus": active,
        "pendingServiceStatus": {},
        "conditions": [{**ready, "lastTransitionTime": at}],
    }


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The rig with 200 nodes, and a thousand clusters and their routes as objects."""
    try:
        with run_rig(nodes(H100, "h100", NODES), operator=False) as running:
            client = CountingClient.connect(running.kubeconfig)
            assert isinstance(client, CountingClient)
            client.counted = Counter()
            site = Site(templates=CHECKOUT / "k8s" / "templates", namespace=NAMESPACE)
            running.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            profiles = {f"model-{n:03d}": make_profile(model=f"model-{n:03d}") for n in range(MODELS)}
            began = monotonic()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda item: _fill(running, site, *item), enumerate(profiles)))
            print(f"{2 * MODELS} clusters and {2 * MODELS} routes created in {monotonic() - began:.0f} s")
            yield Fleet(running, client, site, profiles)
            client.close()
    except RigNotBuiltError as error:
        pytest.skip(f"there is no control plane to test on: {error}")


def _fill(rig: Rig, site: Site, number: int, model: str) -> None:
    stable, previous = spec_of(model, 2), spec_of(model, 1)
    for spec in (stable, previous):
        answered = {rayservice.ANSWERED: f"{ray_cluster_of(spec)}/uid"}
        made = rig.api.create(patched(rayservice.ray_service(spec, site), {"metadata": {"annotations": answered}}))
        path = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayservices/{spec.name}/status"
        rig.api.request("PUT", path, {**made, "status": status_of(spec)})
    until = NOW + timedelta(days=-1 if number < EXPIRED else 1)
    route = Route(
        model=model,
        stable=backend_of(stable),
        previous=backend_of(previous),
        keep_previous_until=until.isoformat(),
    )
    base = template(site.templates, "httproute")
    for listener in routes.LISTENERS:
        rig.api.create(routes.manifest(site, base, route, listener))


def counted(fleet: Fleet) -> Counter[str]:
    """Return what was asked since the last call."""
    seen = Counter(fleet.client.counted)
    fleet.client.counted.clear()
    return seen


def test_a_thousand_clusters_are_listed_in_a_few_requests(fleet: Fleet) -> None:
    """A look must not cost a request for each cluster, or a pass would take minutes."""
    counted(fleet)
    began = monotonic()

    found = KubernetesClusters(fleet.client, fleet.site).list()

    took_s, asked = monotonic() - began, counted(fleet)
    print(f"list: {took_s:.1f} s, {dict(asked)}, {_memory()}")
    assert len(found) == 2 * MODELS
    assert {one.spec.model for one in found if one.spec} == set(fleet.profiles)
    assert took_s < LOOK_S
    assert asked.total() < 50


def test_a_pass_asks_for_what_changes_and_for_no_more(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconciling pass over all models ends the clusters whose time is over, and costs requests only for those."""
    backend: Any = FakeBackend()
    backend.kept_profiles = fleet.profiles
    backend.clusters = KubernetesClusters(fleet.client, fleet.site)
    backend.traffic = KubernetesTraffic(fleet.client, fleet.site)
    backend.lease = KubernetesLease(fleet.client, fleet.site)
    monkeypatch.setattr(HeadwayHook, "connect", staticmethod(lambda: backend))
    operator = ReconcileOperator(task_id="reconcile")
    counted(fleet)

    done, took_s, asked = _pass(operator, fleet)
    print(f"pass with {EXPIRED} changes: {took_s:.1f} s, {dict(asked)}, {_memory()}")
    assert len([line for line in done if "kept warm" in line]) == EXPIRED
    assert took_s < LOOK_S

    again, took_s, quiet = _pass(operator, fleet)
    print(f"pass without a change: {took_s:.1f} s, {dict(quiet)}")
    assert again == []
    assert quiet.total() < 50
    assert asked.total() - quiet.total() < 40 * EXPIRED
    assert len(backend.clusters.list()) == 2 * MODELS - EXPIRED


def _pass(operator: ReconcileOperator, fleet: Fleet) -> tuple[list[str], float, Counter[str]]:
    began = monotonic()
    done = operator.execute({"dag_run": SimpleNamespace(run_id="pass")})
    return done, monotonic() - began, counted(fleet)


def _memory() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most in this process"
