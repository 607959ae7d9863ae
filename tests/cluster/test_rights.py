"""Who may do what: each account what it needs and nothing more, by the API server's own word."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.kubernetes import rayservice, rights
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.doctor import Needs, examine
from headway.adapters.kubernetes.jobs import KubernetesJobs
from headway.adapters.kubernetes.kinds import (
    CONFIG_MAP,
    GATEWAY,
    JOB,
    LEASE,
    NODE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
)
from headway.adapters.kubernetes.lease import KubernetesLease
from headway.adapters.kubernetes.site import (
    BATCH_ACCOUNT,
    CONTROLLER_ACCOUNT,
    SERVING_ACCOUNT,
    STAGE_ACCOUNT,
    Site,
)
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.adapters.kubernetes.warm import KubernetesWarm
from headway.domain.cluster import ClusterSpec
from headway.domain.job import Job
from headway.domain.traffic import Backend, Route
from headway.errors import Refused
from tests.factories import make_plan

from .platform import Act, Platform, Recording, volumes
from .rig.api import POD as PODS
from .rig.api import Api, wait_until
from .rig.ray import Ray
from .rig.rig import Rig
from .sites import serve_service

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NOW = datetime(2026, 12, 1, tzinfo=UTC)
H100 = "NVIDIA-H100-80GB-HBM3"
PROGRAMS = (STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT)
EVERYBODY = {"authorization.k8s.io", "authentication.k8s.io"}
"""API groups in which every account may ask about itself."""
ROLE = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
SELDOM: set[Act] = {
    # A pod whose node is gone is forgotten, a stage that is asked for anew has its pods replaced (test_jobs).
    ("", "pods", "delete"),
    # Events tell why something does not run; nothing failed here (test_jobs, test_clusters).
    ("", "events", "list"),
    # A gateway that does not take a route is looked at (test_traffic).
    ("gateway.networking.k8s.io", "gateways", "get"),
}
SELDOM_ELSEWHERE: set[Act] = {("", "nodes", "get")}
"""What only a failure makes headway do (a node that is gone); the tests in brackets bring it about."""
NOT_GIVEN: set[Act] = {("", "secrets", "get")}
"""What the doctor asks for, and tells an engineer of; headway's own account may not."""


def account(platform: Platform, name: str) -> Path:
    return platform.rig.account_kubeconfig(name, platform.site.namespace)


def rules(kubeconfig: Path, namespace: str) -> set[Act]:
    """Return what the API server lets an account do in a namespace, but ask about itself."""
    api = Api(kubeconfig)
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    answer = api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    api.close()
    assert not answer["status"]["incomplete"]
    return {
        (group, resource, verb)
        for rule in answer["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group not in EVERYBODY
    }


def wanted(asked: tuple[rights.Right, ...]) -> set[Act]:
    return {(one.kind.group, one.resource, verb) for one in asked for verb in one.verbs}


# --- What each may ----------------------------------------------------------------------------------------------------


def test_headways_account_has_its_rights_and_no_other(platform: Platform) -> None:
    """In its namespace those of the Role, elsewhere those of the ClusterRole alone."""
    kubeconfig = account(platform, CONTROLLER_ACCOUNT)

    here, elsewhere = (rules(kubeconfig, name) for name in (platform.site.namespace, "kube-system"))

    assert here == wanted(rights.IN_NAMESPACE) | wanted(rights.EVERYWHERE)
    assert elsewhere == wanted(rights.EVERYWHERE)


@pytest.mark.parametrize("name", [*PROGRAMS, "default"])
def test_accounts_of_programs_may_nothing(platform: Platform, name: str) -> None:
    """Whoever breaks out of a model's process has no right in the cluster."""
    kubeconfig = account(platform, name)

    assert rules(kubeconfig, platform.site.namespace) == set()


@pytest.mark.parametrize("name", [CONTROLLER_ACCOUNT, *PROGRAMS])
@pytest.mark.parametrize("namespace", ["headway", "kube-system"])
def test_nobody_reads_secrets(platform: Platform, name: str, namespace: str) -> None:
    client = Client.connect(account(platform, name))

    assert not any(client.allowed(verb, SECRET, namespace) for verb in ("get", "list", "watch", "create", "delete"))
    with pytest.raises(Refused, match="secrets"):
        client.get(SECRET, "headway-s3-quantize", namespace)
    client.close()


@pytest.mark.parametrize(
    ("verb", "kind", "subresource"),
    [
        ("create", POD, ""),
        ("create", POD, "exec"),
        ("create", POD, "portforward"),
        ("patch", NODE, ""),
        ("create", ROLE, ""),
        ("create", SERVICE_ACCOUNT, "token"),
        ("impersonate", SERVICE_ACCOUNT, ""),
        ("patch", GATEWAY, ""),
        ("delete", LEASE, ""),
    ],
)
def test_headway_cannot_become_more_than_it_is(platform: Platform, verb: str, kind: Kind, subresource: str) -> None:
    """No shell in a pod, no token of another, no role for itself, and the gateway is the engineer's."""
    client = Client.connect(account(platform, CONTROLLER_ACCOUNT))

    assert not client.allowed(verb, kind, platform.site.namespace, subresource=subresource)
    client.close()


def test_what_it_may_at_home_it_may_not_elsewhere(platform: Platform) -> None:
    client = Client.connect(account(platform, CONTROLLER_ACCOUNT))

    assert client.allowed("create", JOB, platform.site.namespace)
    assert not client.allowed("create", JOB, "default")
    assert not client.allowed("get", CONFIG_MAP, "kube-system")
    client.close()


# --- What headway does ------------------------------------------------------------------------------------------------


def test_headway_does_all_that_it_may_and_needs_no_more(platform: Platform, ray: Ray) -> None:
    """A release's way through every adapter, as the account of `k8s/base`: a right that nobody uses is too much."""
    client = Recording.of(account(platform, CONTROLLER_ACCOUNT))
    site = replace(platform.site, node_root="/nodes")
    try:
        with volumes(platform, "cpu", H100):
            run_jobs(client, site, platform.rig)
            run_a_cluster(client, site)
            move_traffic(client, site, platform)
            hold(client, site)
            findings = examine(client, site, Needs({H100: 2}, None, NOW))
    finally:
        client.close()

    asked_of_itself = {act for act in client.everywhere if act[0] in EVERYBODY}
    here, elsewhere = client.acts - NOT_GIVEN | SELDOM, client.everywhere - asked_of_itself | SELDOM_ELSEWHERE
    given_here, given_elsewhere = wanted(rights.IN_NAMESPACE), wanted(rights.EVERYWHERE)
    assert (sorted(given_here - here), sorted(given_elsewhere - elsewhere)) == ([], []), "given and never used"
    assert (sorted(here - given_here), sorted(elsewhere - given_elsewhere)) == ([], []), "used and not given"
    assert [one.found for one in findings if one.what == "rights"] == [f"all {count()} that headway uses"]


def count() -> int:
    return len(wanted(rights.IN_NAMESPACE)) + len(wanted(rights.EVERYWHERE))


def run_jobs(client: Client, site: Site, rig: Rig) -> None:
    """Run a program and stage an artifact; both are taken away again."""
    jobs = KubernetesJobs(client, site, lambda uri: b"")
    job = Job(name="bench-1", program="bench", environment="airflow", payload={}, deadline_s=60)
    jobs.submit(job)
    for pod in wait_until(lambda: rig.api.list(PODS, site.namespace), "the job has its pod"):
        rig.fault(pod["metadata"]["name"], "recovered", namespace=site.namespace)  # and so the rig lets it run and end
    wait_until(lambda: jobs.status(job.name).ended, "the job has ended", 30)
    jobs.log_tail(job.name)
    jobs.cancel(job.name)
    payload = {
        "artifact_digest": "a" * 64,
        "artifact_uri": f"s3://headway/artifacts/{'a' * 64}/",
        "dest_root": site.node_root,
        "high_pct": 90,
        "low_pct": 80,
    }
    stage = Job(
        name="stage-1", program="stage", environment="airflow", payload=payload, deadline_s=60, accelerator=H100
    )
    jobs.submit(stage)
    jobs.status(stage.name)
    jobs.cancel(stage.name)
    jobs.submit(stage)
    jobs.stages.remove("a" * 64)


def run_a_cluster(client: Client, site: Site) -> None:
    """Bring up a cluster, move its floor, take it away."""
    clusters, spec = KubernetesClusters(client, site), cluster_spec()
    clusters.room(spec)
    clusters.apply(spec)
    wait_until(lambda: clusters.status(spec.name).phase == "ready", "the cluster is ready", 60)
    clusters.floor(spec.name, spec.replicas.model_copy(update={"min": 2, "max": 3}))
    assert [one.name for one in clusters.list()] == [spec.name]
    clusters.delete(spec.name)


def cluster_spec() -> ClusterSpec:
    return make_plan().cluster


def move_traffic(client: Client, site: Site, platform: Platform) -> None:
    """Give traffic to a cluster and to another one, then to none."""
    for name in ("a", "b"):
        platform.rig.api.create(serve_service(name, site.namespace))
    traffic = KubernetesTraffic(client, site)
    stable, candidate = (
        Backend(cluster=name, release=f"r-{name}", version=1, cluster_digest=name * 64) for name in ("a", "b")
    )
    traffic.shift(Route(model="tiny", stable=stable))
    traffic.shift(Route(model="tiny", stable=stable, candidate=candidate, candidate_pct=10))
    assert len(traffic.routes()) == 1
    traffic.remove("tiny")


def hold(client: Client, site: Site) -> None:
    """Take a lease and hold room."""
    lease = KubernetesLease(client, site)
    lease.acquire("tiny", "one", 60, NOW)
    lease.acquire("tiny", "one", 60, NOW)
    lease.release("tiny", "one", NOW)
    warm = KubernetesWarm(client, site)
    warm.hold("tiny", H100, 8, 1)
    warm.held()
    warm.hold("tiny", H100, 8, 0)


# --- What pods get ----------------------------------------------------------------------------------------------------


def serving_pods(site: Site) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pods of a cluster, as KubeRay would create them."""
    config = rayservice.ray_service(cluster_spec(), site)["spec"]["rayClusterConfig"]
    yield "head", config["headGroupSpec"]["template"]
    for group in config["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def test_serving_pods_are_admitted_and_get_no_token(platform: Platform) -> None:
    """Under `restricted`, the init container that stages included."""
    for name, template in serving_pods(replace(platform.site, node_root="/nodes")):
        made = admitted(platform, name, template)
        assert not tokens(made), name


@pytest.mark.parametrize("name", PROGRAMS)
def test_pods_of_a_programs_account_get_no_token(platform: Platform, name: str) -> None:
    """Even one that forgets to say so."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "example.invalid/program", "securityContext": security}

    made = admitted(platform, "one", {"spec": {"serviceAccountName": name, "containers": [container]}})

    assert not tokens(made)


def admitted(platform: Platform, name: str, template: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as the API server would keep it; nothing is kept."""
    namespace = platform.site.namespace
    metadata = {**template.get("metadata", {}), "name": name, "namespace": namespace}
    content = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}
    made: dict[str, Any] = platform.rig.api.request("POST", f"{POD.path(namespace)}?dryRun=All", content)
    return made


def tokens(pod: dict[str, Any]) -> list[str]:
    """Return the containers of a pod that can act as its account, but for Ray's autoscaler."""
    volumes = {one["name"] for one in pod["spec"].get("volumes", []) if "serviceAccountToken" in json.dumps(one)}
    return [
        one["name"]
        for one in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        if volumes & {mount["name"] for mount in one.get("volumeMounts", [])}
    ]
