"""The rig does what a cluster does, as far as tests of a release rely on it."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from . import examples
from .rig.annotations import EXIT_CODE, FAULT, FAULT_AFTER, RUNS_FOR
from .rig.api import (
    DEPLOYMENT,
    EVENT,
    GATEWAY,
    HTTP_ROUTE,
    JOB,
    NODE,
    POD,
    RAY_CLUSTER,
    RAY_SERVICE,
    Api,
    ApiError,
    Kind,
    condition,
    wait_until,
)
from .rig.manifests import GATEWAY_CLASS_NAME, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE
from .rig.nodes import GPU, H100, nodes
from .rig.ray import Ray
from .rig.rig import Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SERVICE = "llm"
PRIORITY = Kind("scheduling.k8s.io/v1", "PriorityClass")


def ready_service(api: Api, namespace: str, **shape: Any) -> dict[str, Any]:
    """Create a RayService and return it once the operator says Ready."""
    api.create(examples.ray_service(SERVICE, namespace, **shape))

    def look() -> dict[str, Any] | None:
        found = api.get(RAY_SERVICE, SERVICE, namespace)
        return found if condition(found, "Ready") == "True" else None

    found = wait_until(look, "the RayService is Ready", 30)
    assert found is not None
    return found


def applications(api: Api, namespace: str, which: str = "active") -> dict[str, Any]:
    """Return what the operator has copied from Ray's dashboard."""
    found = api.get(RAY_SERVICE, SERVICE, namespace) or {}
    part: dict[str, Any] = found.get("status", {}).get(f"{which}ServiceStatus", {}).get("applicationStatuses") or {}
    return part


def containers(content: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a pod's first container."""
    found: dict[str, Any] = (content["status"].get("containerStatuses") or [{}])[0]
    return found


# --- Ray --------------------------------------------------------------------------------------------------------------


def test_a_ray_service_becomes_ready(rig: Rig, ray: Ray, namespace: str) -> None:
    """The real operator makes the cluster, asks the dashboard and says Ready; workers are where their GPUs are."""
    found = ready_service(rig.api, namespace, workers=2)
    cluster = found["status"]["activeServiceStatus"]["rayClusterName"]
    assert ray.configs()[f"{namespace}/{cluster}"]["applications"][0]["name"] == "llm"
    workers = rig.api.list(POD, namespace, labelSelector="ray.io/node-type=worker")
    products = [rig.api.get(NODE, one["spec"]["nodeName"]) for one in workers]
    assert [one["metadata"]["labels"][f"{GPU}.product"] for one in products if one] == [H100.product] * 2


def test_a_serve_configuration_changes_in_place(rig: Rig, ray: Ray, namespace: str) -> None:
    """A changed floor reaches the running cluster, and Ready never goes away."""
    before = ready_service(rig.api, namespace)["status"]["activeServiceStatus"]["rayClusterName"]
    rig.api.patch(RAY_SERVICE, SERVICE, {"spec": {"serveConfigV2": examples.serve_config(3)}}, namespace)

    def floor() -> bool:
        assert condition(rig.api.get(RAY_SERVICE, SERVICE, namespace), "Ready") == "True"
        applied = ray.configs()[f"{namespace}/{before}"]["applications"][0]["args"]
        return bool(applied["min_replicas"] == 3)

    wait_until(floor, "the floor is applied")
    assert len(rig.api.list(RAY_CLUSTER, namespace)) == 1


def test_a_failed_deployment_shows_with_its_message(rig: Rig, ray: Ray, namespace: str) -> None:
    """What Serve says about a failed start is in the status, where a release can read it."""
    ray.behave(f"{namespace}/*", deploy_as="DEPLOY_FAILED", message="CUDA out of memory")
    rig.api.create(examples.ray_service(SERVICE, namespace))
    failed = wait_until(lambda: applications(rig.api, namespace, "pending").get("llm"), "the failure shows", 30)
    assert failed is not None
    wait_until(lambda: applications(rig.api, namespace, "pending")["llm"]["status"] == "DEPLOY_FAILED", "it has failed")
    assert "CUDA out of memory" in applications(rig.api, namespace, "pending")["llm"]["message"]
    assert condition(rig.api.get(RAY_SERVICE, SERVICE, namespace), "Ready") != "True"


def test_a_refused_configuration_is_an_event(rig: Rig, ray: Ray, namespace: str) -> None:
    """A dashboard that refuses leaves its mark, and the operator tries until it takes it."""
    ray.behave(f"{namespace}/*", put_status=400)
    rig.api.create(examples.ray_service(SERVICE, namespace))
    wait_until(
        lambda: [one for one in rig.api.list(EVENT, namespace) if one["reason"] == "FailedToUpdateServeApplications"],
        "the event",
        30,
    )
    ray.behave(f"{namespace}/*", put_status=200)
    wait_until(
        lambda: condition(rig.api.get(RAY_SERVICE, SERVICE, namespace), "Ready") == "True", "Ready after all", 60
    )


def test_a_head_that_forgets_is_told_again(rig: Rig, ray: Ray, namespace: str) -> None:
    """A dashboard that has lost its applications gets them again."""
    ready_service(rig.api, namespace)
    ray.forget(f"{namespace}/*")
    assert not any(key.startswith(namespace) for key in ray.configs())
    wait_until(lambda: any(key.startswith(namespace) for key in ray.configs()), "the configuration is back")


def test_a_set_status_shows_and_ends_with_the_next_configuration(rig: Rig, ray: Ray, namespace: str) -> None:
    """A running application can fall ill; Ready stays, only the application's status says so."""
    ready_service(rig.api, namespace)
    assert ray.set_status("UNHEALTHY", "replica died", cluster=f"{namespace}/*") == 1
    wait_until(lambda: applications(rig.api, namespace)["llm"]["status"] == "UNHEALTHY", "the illness shows")
    rig.api.patch(RAY_SERVICE, SERVICE, {"spec": {"serveConfigV2": examples.serve_config(2)}}, namespace)
    wait_until(lambda: applications(rig.api, namespace)["llm"]["status"] == "RUNNING", "the health is back")


@pytest.fixture
def real_server() -> Iterator[str]:
    """A server that stands for a real Ray Serve; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"real answer to {self.path}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_requests_are_handed_on_to_a_real_server(rig: Rig, ray: Ray, namespace: str, real_server: str) -> None:
    """The API server's own proxy of Services ends at a real Ray Serve, where one is named."""
    ready_service(rig.api, namespace)
    ray.forward({"llm-serve-svc.*": real_server})
    path = f"/api/v1/namespaces/{namespace}/services/llm-serve-svc:8000/proxy/v1/models"
    assert "real answer to" in rig.api.request("GET", path)


# --- Faults -----------------------------------------------------------------------------------------------------------

SHOWN: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "image-pull": ("Pending", lambda pod: containers(pod)["state"]["waiting"]["reason"] == "ImagePullBackOff"),
    "init-crash": (
        "Pending",
        lambda pod: pod["status"]["initContainerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 3,
    ),
    "unready": ("Running", lambda pod: condition(pod, "Ready") == "False"),
    "exit": ("Failed", lambda pod: containers(pod)["state"]["terminated"]["exitCode"] == 3),
    "oom": ("Failed", lambda pod: containers(pod)["state"]["terminated"]["reason"] == "OOMKilled"),
    "crash-loop": ("Running", lambda pod: containers(pod)["lastState"]["terminated"]["reason"] == "OOMKilled"),
    "evicted": ("Failed", lambda pod: pod["status"]["reason"] == "Evicted"),
}


@pytest.mark.parametrize("fault", SHOWN)
def test_a_pod_fails_as_its_annotation_says(rig: Rig, namespace: str, fault: str) -> None:
    """A pod template can order a fault; the status is the one that a kubelet writes."""
    phase, holds = SHOWN[fault]
    rig.api.create(examples.pod("one", namespace, {FAULT: fault, EXIT_CODE: "3"}))

    def shows() -> bool:
        found = rig.api.get(POD, "one", namespace) or {}
        reached = found.get("status", {}).get("phase") == phase and containers(found) != {}
        return reached and (condition(found, "Ready") == "False") and bool(holds(found))

    wait_until(shows, f"{fault} shows")


def test_a_running_pod_fails_later_and_recovers(rig: Rig, namespace: str) -> None:
    """A test breaks a healthy pod at the moment it chooses, and heals it."""
    rig.api.create(examples.pod("one", namespace))

    def is_ready() -> str:
        return condition(rig.api.get(POD, "one", namespace), "Ready")

    wait_until(lambda: is_ready() == "True", "the pod is ready")
    rig.fault("one", "unready", namespace=namespace)
    wait_until(lambda: is_ready() == "False", "the pod is not ready")
    rig.fault("one", "recovered", namespace=namespace)
    wait_until(lambda: is_ready() == "True", "the pod is ready again")


def test_the_operator_replaces_a_worker_that_was_killed_for_memory(rig: Rig, ray: Ray, namespace: str) -> None:
    """A fault of one pod goes its whole way through the operator."""
    ready_service(rig.api, namespace)
    worker = rig.api.list(POD, namespace, labelSelector="ray.io/node-type=worker")[0]["metadata"]["name"]
    rig.fault(worker, "oom", namespace=namespace)

    def replaced() -> bool:
        names = [
            one["metadata"]["name"] for one in rig.api.list(POD, namespace, labelSelector="ray.io/node-type=worker")
        ]
        return len(names) == 1 and worker not in names

    wait_until(replaced, "another worker")


def test_jobs_end_well_or_badly(rig: Rig, namespace: str) -> None:
    """A Job takes the time that it is told, and a failed one counts as failed at once."""
    rig.api.create(examples.job("good", namespace, {RUNS_FOR: "500ms"}))
    rig.api.create(examples.job("bad", namespace, {FAULT: "exit", EXIT_CODE: "42", FAULT_AFTER: "500ms"}))
    wait_until(lambda: condition(rig.api.get(JOB, "good", namespace), "Complete") == "True", "the good one is complete")
    wait_until(lambda: condition(rig.api.get(JOB, "bad", namespace), "Failed") == "True", "the bad one has failed")


def test_a_job_ends_for_an_exit_code_without_another_try(rig: Rig, namespace: str) -> None:
    """`podFailurePolicy` sees the exit code that the fault gives."""
    policy = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    rig.api.create(
        examples.job("one", namespace, {FAULT: "exit", EXIT_CODE: "42"}, backoffLimit=6, podFailurePolicy=policy)
    )
    wait_until(lambda: condition(rig.api.get(JOB, "one", namespace), "Failed") == "True", "the Job has failed")
    assert len(rig.api.list(POD, namespace)) == 1


def test_a_pod_has_a_log(rig: Rig, namespace: str) -> None:
    """What a test lets a pod say is what the API server gives, as it comes from a kubelet."""
    rig.api.create(examples.pod("one", namespace))
    wait_until(lambda: condition(rig.api.get(POD, "one", namespace), "Ready") == "True", "the pod runs")
    rig.say("one", namespace, "first", "second")

    def log() -> str:
        try:
            return str(rig.api.request("GET", f"/api/v1/namespaces/{namespace}/pods/one/log"))
        except ApiError as error:
            return str(error)

    wait_until(lambda: log() == "first\nsecond\n", f"the log: {log()}")
    rig.say("one", namespace, "third")
    assert log() == "first\nsecond\nthird\n"


def test_a_node_fails_and_its_pods_leave(rig: Rig, namespace: str) -> None:
    """A node that is not ready loses its pods after the toleration, and comes back when it is healed."""
    rig.add_nodes(nodes(H100, "lost", 1))
    try:
        rig.api.create(examples.pod("one", namespace, nodeName="lost-0"))
        wait_until(lambda: condition(rig.api.get(POD, "one", namespace), "Ready") == "True", "the pod runs")
        rig.fault("lost-0", "not-ready")
        wait_until(lambda: condition(rig.api.get(NODE, "lost-0"), "Ready") == "False", "the node is not ready")
        wait_until(lambda: rig.api.get(POD, "one", namespace) is None, "the pod has left", 30)
        rig.fault("lost-0", None)
        wait_until(lambda: condition(rig.api.get(NODE, "lost-0"), "Ready") == "True", "the node is back")
    finally:
        rig.api.delete(NODE, "lost-0")


def test_the_scheduler_preempts_pause_pods(rig: Rig, ray: Ray, namespace: str) -> None:
    """Pods that only hold room give way to those that serve."""
    rig.api.apply(examples.priority("rig-pause", -10))
    rig.api.apply(examples.priority("rig-serve", 1000))
    count = len(rig.api.list(NODE, labelSelector=f"{GPU}.product=NVIDIA-H200"))
    rig.api.create(examples.pause_pods("pause", namespace, count, product="NVIDIA-H200", priority_class="rig-pause"))

    def holding() -> int:
        return int((rig.api.get(DEPLOYMENT, "pause", namespace) or {})["status"].get("readyReplicas", 0))

    wait_until(lambda: holding() == count, "the room is held")
    service = examples.ray_service(SERVICE, namespace, product="NVIDIA-H200")
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["priorityClassName"] = "rig-serve"
    rig.api.create(service)
    wait_until(lambda: condition(rig.api.get(RAY_SERVICE, SERVICE, namespace), "Ready") == "True", "it serves", 30)
    wait_until(lambda: holding() == count - 1, "one pause pod waits")
    rig.api.delete(RAY_SERVICE, SERVICE, namespace)
    wait_until(lambda: holding() == count, "the room is held again")


def test_a_gateway_and_a_route_are_accepted_or_refused(rig: Rig, namespace: str) -> None:
    """Every change of a route is answered at its own generation."""

    def verdict(kind: str) -> tuple[str, int]:
        found = rig.api.get(HTTP_ROUTE, "route", namespace) or {}
        parents = found.get("status", {}).get("parents") or [{"conditions": []}]
        told = [one for one in parents[0]["conditions"] if one["type"] == kind]
        return (told[0]["status"], told[0]["observedGeneration"]) if told else ("", 0)

    rig.api.create(examples.gateway("front", namespace, GATEWAY_CLASS_NAME))
    wait_until(lambda: condition(rig.api.get(GATEWAY, "front", namespace), "Programmed") == "True", "the gateway")
    rig.api.create(examples.route("route", namespace, "front", stable=100, candidate=0))
    wait_until(lambda: verdict("Accepted") == ("True", 1), "the route is accepted")
    rig.fault("route", "unresolved", namespace=namespace, kind=HTTP_ROUTE)
    rig.api.apply(examples.route("route", namespace, "front", stable=90, candidate=10))
    wait_until(lambda: verdict("ResolvedRefs") == ("False", 2), "the change is refused")


# --- Programs ---------------------------------------------------------------------------------------------------------


def test_programs_are_killed_and_come_back(rig: Rig, ray: Ray, namespace: str) -> None:
    """The API server and the operator can go away in the middle of things; the cluster is as it was."""
    before = ready_service(rig.api, namespace)["status"]["activeServiceStatus"]["rayClusterName"]
    rig.kill("api")
    with pytest.raises(ConnectionError, match="does not answer"):
        rig.api.get(RAY_SERVICE, SERVICE, namespace)
    rig.restart("api")
    rig.restart("operator")
    found = rig.api.get(RAY_SERVICE, SERVICE, namespace) or {}
    assert condition(found, "Ready") == "True"
    assert found["status"]["activeServiceStatus"]["rayClusterName"] == before
    rig.api.patch(RAY_SERVICE, SERVICE, {"spec": {"serveConfigV2": examples.serve_config(4)}}, namespace)
    wait_until(
        lambda: ray.configs()[f"{namespace}/{before}"]["applications"][0]["args"]["min_replicas"] == 4,
        "the operator works again",
        30,
    )


def test_an_account_may_do_what_its_role_says_and_no_more(rig: Rig, namespace: str) -> None:
    """Kubeconfigs of ServiceAccounts are real identities: the operator's own role holds for it."""
    own = Api(rig.account_kubeconfig(OPERATOR_ACCOUNT, OPERATOR_NAMESPACE))
    assert own.list(RAY_SERVICE, namespace) == []
    with pytest.raises(ApiError) as refused:
        own.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "not-allowed"}})
    assert refused.value.status == 403
    unknown = Api(rig.user_kubeconfig("nobody", "no-such-token"))
    with pytest.raises(ApiError) as unauthorised:
        unknown.list(POD, namespace)
    assert unauthorised.value.status == 401
    own.close()
    unknown.close()


def test_kubectl_speaks_to_the_rig_and_versions_are_stamped(rig: Rig) -> None:
    """The programs answer with the versions that `go.mod` pins."""
    from .rig.programs import KUBERNETES

    said = rig.kubectl("version")
    assert said.count(KUBERNETES.version) == 2, said
