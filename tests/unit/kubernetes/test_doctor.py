"""`headway doctor --kubernetes` names what a cluster lacks and what to do, one line each, and never raises."""

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.doctor import Needs, examine
from headway.adapters.kubernetes.kinds import (
    CLAIM,
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    GATEWAY,
    GATEWAY_CLASS,
    NAMESPACE,
    NODE,
    PRIORITY_CLASS,
    QUOTA,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
)
from headway.adapters.kubernetes.site import Site
from headway.domain.finding import Finding
from headway.errors import BackendUnavailable, HeadwayError, Refused
from tests.fakes import FakeMetrics

NOW = datetime(2026, 12, 1, tzinfo=UTC)
H100 = "NVIDIA-H100-80GB-HBM3"
SITE = Site(templates=Path("k8s/templates"))
HERE = SITE.namespace
Key = tuple[str, str]


class Cluster(Client):
    """A cluster in memory that answers the doctor's questions."""

    def __init__(self, objects: Mapping[Key, Object]) -> None:
        self.objects = dict(objects)
        self.version: str = "v1.35.4"
        self.refused: Callable[[str, str], HeadwayError | None] = lambda verb, kind: None
        """What goes wrong with a verb on a kind."""

    @property
    def host(self) -> str:
        """Of no server."""
        return "https://cluster"

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        self._may("get", kind)
        return self.objects.get((kind.name, name))

    def exists(self, kind: Kind, name: str, namespace: str | None = None) -> bool:
        return self.get(kind, name, namespace) is not None

    def list(self, kind: Kind, namespace: str | None = None, **selectors: str) -> Sequence[Object]:
        self._may("list", kind)
        return [one for (name, _), one in self.objects.items() if name == kind.name]

    def allowed(
        self, verb: str, kind: Kind, namespace: str | None = None, *, name: str = "", subresource: str = ""
    ) -> bool:
        return self.refused(verb, f"{kind.plural}/{subresource}" if subresource else kind.plural) is None

    def request(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        if error := self.refused(method, path):
            raise error
        if path == "/version":
            return {"gitVersion": self.version}
        return {"status": {"userInfo": {"username": "engineer"}}}

    def _may(self, verb: str, kind: Kind) -> None:
        if error := self.refused(verb, kind.plural):
            raise error


def found(kind: Kind, name: str, **content: Any) -> tuple[Key, Object]:
    return (kind.name, name), {"metadata": {"name": name, "namespace": HERE}, **content}


def ready(**more: Any) -> Object:
    return {"conditions": [{"type": name, "status": "True"} for name in ("Ready", "Accepted", "Programmed")], **more}


def definition(name: str, version: str = "v1") -> tuple[Key, Object]:
    return found(CRD, name, spec={"versions": [{"name": version, "served": True}]})


def operator(image: str, *arguments: str, available: int = 1) -> tuple[Key, Object]:
    pod = {"spec": {"containers": [{"image": image, "args": list(arguments)}]}}
    return found(DEPLOYMENT, "kuberay-operator", spec={"template": pod}, status={"availableReplicas": available})


def node(name: str, product: str, gpus: int) -> tuple[Key, Object]:
    key, content = found(NODE, name, status=ready(allocatable={"nvidia.com/gpu": str(gpus)}))
    content["metadata"]["labels"] = {"nvidia.com/gpu.product": product}
    return key, content


def everything() -> dict[Key, Object]:
    """Return all that headway needs."""
    namespace = found(NAMESPACE, HERE)
    namespace[1]["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    listeners = [{"name": "public"}, {"name": "internal"}]
    return dict(
        [
            *(
                definition(name)
                for name in (
                    "rayservices.ray.io",
                    "rayclusters.ray.io",
                    "gatewayclasses.gateway.networking.k8s.io",
                    "gateways.gateway.networking.k8s.io",
                    "httproutes.gateway.networking.k8s.io",
                    "podmonitors.monitoring.coreos.com",
                    "prometheusrules.monitoring.coreos.com",
                )
            ),
            operator("quay.io/kuberay/operator:v1.6.0", "--feature-gates=RayClusterStatusConditions=true"),
            namespace,
            found(GATEWAY_CLASS, "envoy", spec={"controllerName": "envoy/controller"}, status=ready()),
            found(GATEWAY, "headway", spec={"gatewayClassName": "envoy", "listeners": listeners}, status=ready()),
            node("h100-0", H100, 8),
            found(
                CLAIM,
                SITE.claim(H100),
                spec={"accessModes": ["ReadWriteMany"], "volumeName": "nvme"},
                status={"phase": "Bound"},
            ),
            *(
                found(PRIORITY_CLASS, name, value=value)
                for name, value in (("headway-serving", 1000), ("headway-batch", 100), ("headway-pause", -10))
            ),
            *(found(SERVICE_ACCOUNT, f"headway-{name}") for name in ("stage", "batch", "serving")),
            *(found(SECRET, f"headway-s3-{name}") for name in ("quantize", "stage", "bench")),
            found(SECRET, "headway-signing-key"),
            found(CONFIG_MAP, "headway-artifact-keys"),
        ]
    )


def needs(**accelerators: int) -> Needs:
    return Needs(accelerators or {H100: 2}, FakeMetrics(began=NOW), NOW)


def wrong(client: Client, asked: Needs | None = None) -> list[Finding]:
    return [one for one in examine(client, SITE, asked or needs()) if one.level != "ok"]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(copy.deepcopy(everything()))


def test_a_cluster_that_has_all_is_told_so(cluster: Cluster) -> None:
    assert wrong(cluster) == []
    assert [one.found for one in examine(cluster, SITE, needs()) if one.what == "account"] == ["engineer"]


@pytest.mark.parametrize("key", everything(), ids="/".join)
def test_whatever_is_not_there_is_one_line_that_names_it_and_says_what_to_do(cluster: Cluster, key: Key) -> None:
    """Nothing may be found out by a release that fails."""
    del cluster.objects[key]

    findings = wrong(cluster)

    assert len(findings) == 1, findings
    assert findings[0].level == ("note" if "monitoring" in key[1] else "missing")
    assert findings[0].remedy
    kind, name = key
    said = f"{findings[0].what} {findings[0].found}".lower()
    told = {"CustomResourceDefinition": name.split(".")[0][:-2], "Node": H100.lower(), "Gateway": "gateway"}
    assert told.get(kind, name) in said


def test_a_server_that_knows_no_such_account_is_the_only_line(cluster: Cluster) -> None:
    """A wrong kubeconfig or an old token makes everything else fail: one line is clearer than twenty."""
    cluster.refused = lambda verb, kind: Refused("the token has expired; get a new one", status=401)

    (finding,) = examine(cluster, SITE, needs())

    assert (finding.what, finding.level) == ("API server", "missing")
    assert "get a new one" in finding.found


def test_a_server_that_does_not_answer_is_the_only_line(cluster: Cluster) -> None:
    cluster.refused = lambda verb, kind: BackendUnavailable("the API server does not answer")

    assert [one.found for one in examine(cluster, SITE, needs())] == ["the API server does not answer"]


def test_what_an_account_may_not_see_is_a_note(cluster: Cluster) -> None:
    """Somebody else may look."""
    cluster.refused = lambda verb, kind: Refused("no", status=403) if kind == "secrets" else None

    assert [(one.what, one.level) for one in wrong(cluster)] == [("secrets", "note")]


def test_rights_that_lack_are_named(cluster: Cluster) -> None:
    lacking = {("create", "jobs"), ("get", "pods/log"), ("list", "nodes")}

    class Reviews(Cluster):
        def allowed(
            self, verb: str, kind: Kind, namespace: str | None = None, *, name: str = "", subresource: str = ""
        ) -> bool:
            return (verb, f"{kind.plural}/{subresource}" if subresource else kind.plural) not in lacking

    (finding,) = wrong(Reviews(cluster.objects))

    assert finding.what == "rights"
    assert finding.found == "this account may not create jobs, get pods/log, list nodes of all namespaces"


@pytest.mark.parametrize(
    ("image", "arguments", "level", "said"),
    [
        ("quay.io/kuberay/operator:v1.5.1", (), "missing", "too old"),
        ("quay.io/kuberay/operator:v1.7.0", (), "note", "1.6 was tried"),
        ("mirror:5000/operator@sha256:0123", (), "note", "no version"),
        ("kuberay/operator:v1.6.2", ("--feature-gates", "RayServiceIncrementalUpgrade=true"), "note", "leave it off"),
    ],
)
def test_the_operators_version_and_gates_are_told(
    cluster: Cluster, image: str, arguments: tuple[str, ...], level: str, said: str
) -> None:
    cluster.objects |= dict([operator(image, *arguments)])

    (finding,) = wrong(cluster)

    assert (finding.what, finding.level) == ("KubeRay operator", level)
    assert image in finding.found
    assert said in finding.remedy


def test_an_operator_without_a_pod_is_missing(cluster: Cluster) -> None:
    cluster.objects |= dict([operator("quay.io/kuberay/operator:v1.6.0", available=0)])

    assert [one.level for one in wrong(cluster)] == ["missing"]


@pytest.mark.parametrize(
    ("product", "gpus", "said"),
    [
        ("NVIDIA-L4", 8, "there are NVIDIA-L4"),
        ("", 8, "no node has the label"),
        (H100, 0, "no node offers"),
        (H100, 1, "a replica takes 2"),
    ],
)
def test_nodes_that_do_not_do_are_told_apart(cluster: Cluster, product: str, gpus: int, said: str) -> None:
    """No such nodes, no labels, no device plugin, nodes that are too small: each has another remedy."""
    cluster.objects |= dict([node("h100-0", product, gpus)])

    (finding,) = wrong(cluster)

    assert (finding.what, finding.level) == (H100, "missing")
    assert said in finding.found


def test_nodes_that_are_not_ready_are_no_small_nodes(cluster: Cluster) -> None:
    """Larger ones would not help."""
    key, content = node("h100-0", H100, 8)
    content["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    cluster.objects[key] = content

    (finding,) = wrong(cluster)

    assert finding.found == "0 of 1 nodes ready, 0 accelerators"
    assert "describe nodes" in finding.remedy


def test_models_on_processors_need_no_accelerator(cluster: Cluster) -> None:
    findings = wrong(cluster, needs(**{H100: 2, "cpu": 1}))

    assert [(one.what, one.level) for one in findings] == [("claim headway-nvme-cpu", "note")]


def changed(cluster: Cluster, kind: Kind, name: str, change: Mapping[str, Any]) -> None:
    cluster.objects[kind.name, name] |= change


@pytest.mark.parametrize(
    ("kind", "name", "change", "said"),
    [
        (GATEWAY, "headway", {"status": {}}, "no controller of class envoy has seen it"),
        (
            GATEWAY,
            "headway",
            {"status": {"conditions": [{"type": "Programmed", "status": "False", "reason": "No", "message": "room"}]}},
            "not programmed: No room",
        ),
        (
            GATEWAY,
            "headway",
            {"spec": {"gatewayClassName": "envoy", "listeners": [{"name": "public"}]}},
            "no listener internal",
        ),
        (GATEWAY_CLASS, "envoy", {"status": None}, "nobody has accepted it"),
        (CLAIM, SITE.claim(H100), {"status": {"phase": "Pending"}}, "not bound"),
        (CLAIM, SITE.claim(H100), {"spec": {"accessModes": ["ReadWriteOnce"]}}, "access modes ReadWriteOnce"),
        (PRIORITY_CLASS, "headway-pause", {"value": 5000}, "headway-pause 5000"),
        (CRD, "rayservices.ray.io", {"spec": {"versions": [{"name": "v1alpha1", "served": True}]}}, "there: v1alpha1"),
    ],
)
def test_what_is_there_and_does_not_do_is_told(
    cluster: Cluster, kind: Kind, name: str, change: Mapping[str, Any], said: str
) -> None:
    changed(cluster, kind, name, change)

    (finding,) = wrong(cluster)

    assert finding.level == "missing"
    assert said in finding.found


def test_a_namespace_that_admits_more_is_a_note(cluster: Cluster) -> None:
    cluster.objects["Namespace", HERE]["metadata"]["labels"] = {}

    assert [(one.level, one.found) for one in wrong(cluster)] == [("note", "Pod Security level privileged")]


def test_a_full_quota_is_a_note(cluster: Cluster) -> None:
    """A candidate would be refused; a release says so too, later."""
    amounts = {"requests.nvidia.com/gpu": "8"}
    cluster.objects |= dict([found(QUOTA, "headway", status={"hard": amounts, "used": amounts})])

    assert [one.found for one in wrong(cluster)] == ["8 of 8 accelerators are taken"]


def test_metrics_that_nobody_gives_are_missing(cluster: Cluster) -> None:
    assert [one.found for one in wrong(cluster, Needs({H100: 2}, None, NOW))] == ["no Prometheus is named"]
    assert [one.what for one in wrong(cluster, Needs({H100: 2}, FakeMetrics(began=None), NOW))] == ["metrics"]


@pytest.mark.parametrize("version", ["v1.28.0", "v1.36.1", "v1.31.2-eks-1234", "nonsense"])
def test_the_version_of_kubernetes_is_told(cluster: Cluster, version: str) -> None:
    cluster.version = version

    levels = [one.level for one in examine(cluster, SITE, needs()) if one.what == "API server"]

    assert levels == [{"v1.36.1": "note", "v1.31.2-eks-1234": "ok"}.get(version, "missing")]
