"""The node itself: what the tests of releases rest on is there, and real."""

import urllib.request
from typing import Any

import pytest

from tests.cluster.rig.api import JOB, POD, ApiError, Kind, condition, wait_until

from .machine.node import Node
from .machine.stock import Stock
from .machine.volumes import places
from .pods import container, pod

SERVICE = Kind("v1", "Service")
SOON_S = 60
ANSWER_S = 10

Object = dict[str, Any]


def _status(node: Node, name: str, namespace: str) -> Object:
    found: Object = (node.api.get(POD, name, namespace) or {}).get("status") or {}
    return found


def _state(node: Node, name: str, namespace: str) -> Object:
    """Return the state of a pod's container, as in `{"terminated": {...}}`."""
    first: Object = (_status(node, name, namespace).get("containerStatuses") or [{}])[0]
    return first.get("state") or {}


def _ends(node: Node, name: str, namespace: str) -> Object:
    """Return how a pod's container has ended, once it has."""

    def ended() -> Object:
        return _state(node, name, namespace).get("terminated") or {}

    return wait_until(ended, f"{name} has ended", SOON_S)


def test_a_pod_serves_behind_its_service(node: Node, stock: Stock, namespace: str) -> None:
    """Init container, shared folder, probe, Service and names work: from this machine and from another pod."""
    shared = [{"name": "shared", "mountPath": "/shared"}]
    web = container(
        stock.pods.name,
        "cd /shared && exec python -m http.server 8000",
        volumeMounts=shared,
        readinessProbe={"httpGet": {"path": "/greeting", "port": 8000}, "periodSeconds": 1},
    )
    init = container(stock.base.name, "echo hello > /shared/greeting", volumeMounts=shared)
    node.api.create(
        pod(
            "web",
            namespace,
            web,
            volumes=[{"name": "shared", "emptyDir": {}}],
            initContainers=[{**init, "name": "init"}],
        )
    )
    ports = [{"port": 80, "targetPort": 8000}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace}}
    created = node.api.create({**service, "spec": {"selector": {"app": "web"}, "ports": ports}})
    wait_until(lambda: condition(node.api.get(POD, "web", namespace), "Ready") == "True", "web is ready", SOON_S)

    def asked() -> str:
        try:
            with urllib.request.urlopen(f"http://{created['spec']['clusterIP']}/greeting", timeout=ANSWER_S) as answer:
                return str(answer.read().decode().strip())
        except OSError:
            return ""

    assert wait_until(asked, "the Service answers this machine") == "hello"
    ask = f"wget -q -O - http://web.{namespace}.svc.cluster.local/greeting http://web/greeting"
    node.api.create(pod("asker", namespace, container(stock.base.name, ask)))
    assert _ends(node, "asker", namespace)["exitCode"] == 0
    assert node.kubectl("logs", "-n", namespace, "asker").split() == ["hello", "hello"]
    assert node.kubectl("exec", "-n", namespace, "web", "--", "id", "-un").strip() == "headway"


def test_a_pod_reaches_nothing_outside(node: Node, stock: Stock, namespace: str) -> None:
    """Pods are offline: what they use has come with the image or the node."""
    ask = "timeout 5 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80'"
    node.api.create(pod("outside", namespace, container(stock.base.name, ask)))

    assert _ends(node, "outside", namespace)["exitCode"] != 0
    assert "default" not in node.run("ip", "route")


def test_environments_are_there_and_cannot_be_written(node: Node, stock: Stock, namespace: str) -> None:
    """The policy mounts them into pods of headway's images alone, read-only, and `restricted` admits such pods."""
    roots = [str(path) for path in places().values()]
    look = f"! touch {roots[0]}/x && python -c 'import boto3, headway.pods.stage'"
    node.api.create(pod("own", namespace, container(stock.pods.name, look)))
    node.api.create(pod("other", namespace, container(stock.base.name, f"! test -e {roots[0]}")))

    assert _ends(node, "own", namespace)["exitCode"] == 0, node.kubectl("logs", "-n", namespace, "own")
    assert _ends(node, "other", namespace)["exitCode"] == 0


def test_restricted_is_enforced(node: Node, stock: Stock, namespace: str) -> None:
    """A pod that asks for more than `restricted` allows is refused, as in headway's namespace of a real cluster."""
    bare = container(stock.base.name, "true")
    bare.pop("securityContext")

    with pytest.raises(ApiError, match="violates PodSecurity"):
        node.api.create(pod("bare", namespace, bare))
    host = {"name": "host", "hostPath": {"path": "/"}}
    with pytest.raises(ApiError, match="hostPath"):
        node.api.create(pod("host", namespace, container(stock.base.name, "true"), volumes=[host]))


def test_faults_look_as_on_any_node(node: Node, stock: Stock, namespace: str) -> None:
    """Out of memory, an image that is not there and a job that runs are told as the kubelet tells them."""
    eat = container(
        stock.base.name, "x=$(head -c 300000000 /dev/zero | tr '\\0' x)", resources={"limits": {"memory": "64Mi"}}
    )
    node.api.create(pod("eater", namespace, eat))
    node.api.create(pod("absent", namespace, container("localhost/none:1", "true")))
    template = pod("job", namespace, container(stock.base.name, "echo done"))["spec"]
    metadata = {"name": "job", "namespace": namespace}
    spec = {"backoffLimit": 0, "template": {"spec": template}}
    node.api.create({"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": metadata, "spec": spec})

    ended = _ends(node, "eater", namespace)
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    wait_until(
        lambda: (_state(node, "absent", namespace).get("waiting") or {}).get("reason") == "ImagePullBackOff",
        "the image is missing",
        SOON_S,
    )
    wait_until(lambda: condition(node.api.get(JOB, "job", namespace), "Complete") == "True", "the job is done", SOON_S)
    assert node.kubectl("logs", "-n", namespace, "job/job").strip() == "done"
