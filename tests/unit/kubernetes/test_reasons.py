"""Why pods do not run, in words that a person understands, and whether waiting helps."""

import json
import re
from typing import Any

import pytest

from headway.adapters.kubernetes import reasons
from headway.adapters.kubernetes.site import GPU, PRODUCT
from tests.unit.kubernetes.test_room import H100, node

TAKEN_AWAY = "The node was low on resource: memory."


def pod(name: str = "w-1", *, phase: str = "Pending", on: str = "a", **how: Any) -> dict[str, Any]:
    """A pod with an engine and an init container, as a kubelet or a controller has left it."""
    limits = {"resources": {"limits": {"memory": "8Gi", GPU: "8"}}}
    conditions = [{"type": "Ready", "status": "True" if how.get("ready") else "False"}, *how.get("conditions", ())]
    status: dict[str, Any] = {"phase": phase, "conditions": conditions}
    for key in ("engine", "stage"):
        if key in how:
            field = "containerStatuses" if key == "engine" else "initContainerStatuses"
            status[field] = [{"name": key, "image": "registry.example/ray", "restartCount": 0, **how[key]}]
    status |= {key: how[key] for key in ("reason", "message") if key in how}
    return {
        "metadata": {"name": name, "uid": name, **({"deletionTimestamp": "now"} if how.get("going") else {})},
        "spec": {
            "nodeSelector": {PRODUCT: H100},
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "initContainers": [{"name": "stage"}],
            "containers": [{"name": "engine", **limits}],
            **({"nodeName": on} if on else {}),
        },
        "status": status,
    }


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    """The state of a container that cannot start."""
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def unplaced(name: str = "w-1", message: str = "0/3 nodes are available") -> dict[str, Any]:
    """A pod that no node takes."""
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, on="", conditions=[why])


def event(reason: str, message: str, *, name: str = "w-1", kind: str = "Pod", at: str = "1", count: int = 1) -> Any:
    """An event."""
    involved = {"kind": kind, "name": name}
    return {"involvedObject": involved, "reason": reason, "message": message, "lastTimestamp": at, "count": count}


CRASH = waits("CrashLoopBackOff", "back-off")
PROGRAM = json.dumps({"error": "shard 3 has another digest", "kind": "IntegrityError"})
SAID: dict[str, tuple[dict[str, Any], str, bool]] = {
    "oom": (pod(phase="Failed", engine={"state": ended(137, "OOMKilled")}), "killed for memory .* limit of 8Gi", False),
    "oom again and again": (
        pod(phase="Running", engine={**CRASH, "lastState": ended(137, "OOMKilled"), "restartCount": 1}),
        "killed for memory .* 2 times by now",
        False,
    ),
    "exit": (pod(phase="Failed", engine={"state": ended(1)}), "ended with exit code 1: its log has more", False),
    "killed": (pod(phase="Failed", engine={"state": ended(139)}), "exit code 139: killed by signal 11", False),
    "try again": (pod(phase="Failed", stage={"state": ended(75)}), "exit code 75", True),
    "first crash": (
        pod(phase="Running", engine={**CRASH, "lastState": ended(1), "restartCount": 1}),
        "exit code 1, 2 times",
        True,
    ),
    "crash loop": (
        pod(phase="Running", engine={**CRASH, "lastState": ended(1), "restartCount": 3}),
        "exit code 1, 4 times",
        False,
    ),
    "program": (
        pod(phase="Failed", stage={"state": ended(1, message=PROGRAM)}),
        "container stage of pod w-1 ended with exit code 1: shard 3 has another digest",
        False,
    ),
    "log": (
        pod(phase="Failed", stage={"state": ended(1, message="Traceback\n  no module")}),
        "Traceback no mod",
        False,
    ),
    "no such image": (
        pod(engine=waits("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: not found')),
        "image registry.example/ray of container engine .* does not come: ImagePullBackOff: .* not found",
        False,
    ),
    "registry away": (pod(engine=waits("ErrImagePull", "dial tcp: i/o timeout")), "does not come: Err.* timeout", True),
    "bad image": (pod(engine=waits("InvalidImageName", "couldn't parse")), "InvalidImageName", False),
    "no secret": (
        pod(stage=waits("CreateContainerConfigError", 'secret "headway-s3-stage" not found')),
        'cannot be started: CreateContainerConfigError: secret "headway-s3-stage" not found',
        False,
    ),
    "evicted": (
        pod(phase="Failed", reason="Evicted", message=TAKEN_AWAY),
        f"pod w-1 was evicted from node a: {TAKEN_AWAY}",
        True,
    ),
    "shut down": (pod(phase="Failed", reason="Terminated", message="node shutdown"), "taken away from node a: T", True),
    "preempted": (
        pod(
            phase="Failed",
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
            going=True,
        ),
        "w-1 was taken away: it made room for a pod of higher priority",
        True,
    ),
    "node away": (
        pod(
            phase="Running",
            going=True,
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}],
        ),
        "its node is not ready, or was tainted",
        True,
    ),
    "unplaced": (unplaced(message="0/3 nodes: 3 node(s) had volume node affinity conflict"), "affinity conflict", True),
    "slow": (pod(phase="Running", engine={"state": {"running": {}}}), "w-1 runs on a and is not ready", True),
}


@pytest.mark.parametrize("case", SAID)
def test_a_reason_says_what_where_and_whether_waiting_helps(case: str) -> None:
    """Each as a kubelet writes it."""
    content, words, retryable = SAID[case]

    found = reasons.told([content], [])

    assert found is not None
    assert re.search(words, found.words), found.words
    assert found.retryable == retryable


@pytest.mark.parametrize("going", [True, False])
def test_pods_that_are_well_have_no_reason(going: bool) -> None:
    """One that somebody deletes on purpose has none either."""
    assert reasons.told([pod(ready=True, phase="Running", going=going), pod(phase="Succeeded")], []) is None


def test_the_reason_that_matters_most_comes_first_and_others_like_it_are_counted() -> None:
    """What waiting does not heal, before what is only late."""
    pods = [
        pod("w-1", phase="Running"),
        unplaced("w-2"),
        *(pod(f"w-{i}", phase="Failed", engine={"state": ended(137, "OOMKilled")}) for i in (3, 4, 5)),
    ]

    found = reasons.told(pods, [])

    assert found is not None
    assert found.words.endswith("(and 2 more of 5 pods likewise)")
    assert "OOMKilled" in found.words


def test_what_a_kubelet_said_last_is_part_of_it() -> None:
    """Volumes and probes leave only events."""
    events = [
        event("FailedMount", 'configmap "x" not found', at="1"),
        event("Unhealthy", "Startup probe failed", at="2"),
        event("FailedMount", "of another pod", name="other", at="3"),
    ]

    found = reasons.told([pod()], events)

    assert found is not None
    assert found.words.endswith("is not ready: Unhealthy: Startup probe failed")


def test_a_registrys_no_in_an_event_is_as_good() -> None:
    """Older kubelets say it only there."""
    content = pod(engine=waits("ImagePullBackOff", "Back-off pulling image"))

    found = reasons.told([content], [event("Failed", "Failed to pull image: manifest unknown")])

    assert found is not None
    assert not found.retryable


def test_missing_accelerators_are_counted_per_node() -> None:
    """How many are missing, and where some are free."""
    waiting = [unplaced("w-1"), unplaced("w-2"), unplaced("w-3")]
    busy = pod("busy", phase="Running", on="b")

    words = reasons.missing_words(waiting, [node("a"), node("b"), node("c", 4)], [*waiting, busy])

    assert words == (f"16 x {H100} are missing (2 pods with 8 each, on one node); 1 node has 8 free, 1 node has 4 free")


@pytest.mark.parametrize(
    ("message", "words", "retryable"),
    [
        ('pods "x" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8', "quota is full", True),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath', "Pod Security level", False),
        ('pods "x" is forbidden: User "operator" cannot create resource', "admission or rights refuse", False),
        ('admission webhook "policy.example" denied the request: no', "admission or rights refuse", False),
        ("etcdserver: request timed out", "no pod was made: Failed to create worker Pod, etcdserver", True),
    ],
)
def test_pods_that_were_not_made_say_why(message: str, words: str, retryable: bool) -> None:
    """Quota, Pod Security, rights and webhooks leave no pod behind, only an event of what should have made it."""
    old = event("FailedCreate", "old", at="1", kind="Job")
    newest = event("FailedToCreateWorkerPod", f"Failed to create worker Pod, {message}", at="2", kind="RayCluster")

    found = reasons.refused([old, newest, event("Created", "other", at="3")])

    assert found is not None
    assert words in found.words
    assert found.retryable == retryable
    assert reasons.refused([event("Created", "other")]) is None


def test_pods_that_were_replaced_say_how_they_ended() -> None:
    """A Ray worker that failed is gone a moment later; the operator's event has the container's end."""
    state = "&ContainerStateTerminated{ExitCode:%d,Signal:0,Reason:%s,Message:,StartedAt:now"
    start = "Deleted worker Pod ns/w; Pod status: Failed; Pod restart policy: Never; Ray container terminated status: "
    scaled = event("DeletedWorkerPod", "Deleted pod ns/w", kind="RayCluster")
    crash = event("DeletedWorkerPod", start + state % (1, "Error"), kind="RayCluster")
    oom = event("DeletedWorkerPod", start + state % (137, "OOMKilled"), kind="RayCluster", at="2")
    early = event("DeletedWorkerPod", start + "nil", kind="RayCluster", count=3)

    assert reasons.deaths([scaled]) is None
    once, killed, often = reasons.deaths([scaled, crash]), reasons.deaths([crash, oom]), reasons.deaths([early])
    assert once == ("a pod failed and was replaced; the last one, a worker, ended with exit code 1", True)
    assert killed is not None
    assert not killed.retryable
    assert "2 pods failed and were replaced; the last one, a worker, was killed for memory" in killed.words
    assert often is not None
    assert not often.retryable
    assert "failed before Ray ran" in often.words
