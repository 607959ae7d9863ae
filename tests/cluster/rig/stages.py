"""What KWOK does in place of kubelets and of a gateway's controller: stages that move objects on (`annotations.py`)."""

from typing import Any

from . import templates
from .annotations import (
    COMPONENT,
    ENDS_IN,
    FAULT,
    FAULT_AFTER,
    GATEWAY_CONTROLLER,
    HANDED_COMPONENTS,
    READY_AFTER,
    RUNS_FOR,
)

Stage = dict[str, Any]

EVICTED = "The node was low on resource: memory."
BACK_OFF = "back-off 10s restarting failed container"

# Conditions in jq. One that fails on an object does not hold for it.
_FAULT = f'(.metadata.annotations["{FAULT}"] // "")'
_READY = '([.status.conditions[]? | select(.type == "Ready") | .status] == ["True"])'
_ALIVE = ".metadata.deletionTimestamp == null"
_STARTING = f'{_ALIVE} and .status.phase == "Pending" and ({_READY} | not)'
_RUNNING = f'{_ALIVE} and .status.phase == "Running"'
_WAITING = "([.status.containerStatuses[]?, .status.initContainerStatuses[]? | .state.waiting.reason] | any(. != null))"
_HANDED = (
    f'((.metadata.labels["{COMPONENT}"] // "" | '
    + " or ".join(f'. == "{one}"' for one in HANDED_COMPONENTS)
    + f') and {_FAULT} == "")'
)
_IS_JOB = '([.metadata.ownerReferences[]?.kind] | any(. == "Job"))'


def _is(*faults: str) -> str:
    return "(" + " or ".join(f'{_FAULT} == "{fault}"' for fault in faults) + ")"


def _not(condition: str) -> str:
    return f"({condition} | not)"


def stage(name: str, resource: tuple[str, str], when: list[str], then: Stage, after: str | None = None) -> Stage:
    """Return a stage.

    Args:
        name: Its own.
        resource: API version and kind of what it moves.
        when: Conditions that must all hold.
        then: What happens.
        after: The annotation that says how long to wait first.
    """
    spec: Stage = {
        "resourceRef": {"apiGroup": resource[0], "kind": resource[1]},
        "selector": {"matchExpressions": [{"key": " and ".join(when), "operator": "In", "values": ["true"]}]},
        "next": then,
    }
    if after:
        wait = {"expressionFrom": f'.metadata.annotations["{after}"]'}
        spec["delay"] = {"durationMilliseconds": 0, "durationFrom": wait}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _pod(
    name: str, when: list[str], status: str, *, after: str | None = None, event: tuple[str, str] = ("", "")
) -> Stage:
    then: Stage = {"statusTemplate": status}
    if event[0]:
        then["event"] = {"type": "Warning", "reason": event[0], "message": event[1]}
    return stage(f"pod-{name}", ("v1", "Pod"), when, then, after)


def pod_stages() -> list[Stage]:
    """Return how pods come up, fail, end and go."""
    return [*_first_stages(), *_later_stages()]


def _first_stages() -> list[Stage]:
    kept_down = ("image-pull", "init-crash", "unready")
    crashed = ("BackOff", "Back-off restarting failed container")
    pull = "Back-off pulling image"
    return [
        _pod("up", [_STARTING, _not(_is(*kept_down)), _not(_HANDED)], templates.up(ready=True), after=READY_AFTER),
        _pod("up-unready", [_STARTING, _is("unready")], templates.up(ready=False)),
        _pod(
            "image-pull",
            [_STARTING, _is("image-pull"), _not(_WAITING)],
            templates.pulling("ImagePullBackOff", pull),
            event=("Failed", "Failed to pull image: not found"),
        ),
        _pod(
            "init-crash",
            [_STARTING, _is("init-crash"), _not(_WAITING)],
            templates.init_crash(BACK_OFF),
            event=crashed,
        ),
    ]


def _later_stages() -> list[Stage]:
    oom = templates.over("Failed", templates.OOM_CODE, "OOMKilled")
    why = f'reason: Evicted\nmessage: "{EVICTED}"'
    evicted = templates.over("Failed", templates.OOM_CODE, "ContainerStatusUnknown", why)
    kept_from_end = ("unready", "exit", "oom", "evicted", "crash-loop", "hang")
    return [
        _pod("unready", [_RUNNING, _READY, _is("unready")], templates.up(ready=False), after=FAULT_AFTER),
        # Only when told so: a pod may be unready because the node controller has said so.
        _pod("recovered", [_RUNNING, _not(_READY), _is("recovered")], templates.up(ready=True)),
        _pod("exit", [_RUNNING, _is("exit")], templates.over("Failed", templates.CODE, "Error"), after=FAULT_AFTER),
        _pod("oom", [_RUNNING, _is("oom")], oom, after=FAULT_AFTER),
        _pod("evicted", [_RUNNING, _is("evicted")], evicted, after=FAULT_AFTER, event=("Evicted", EVICTED)),
        _pod(
            "crash-loop",
            [_RUNNING, _is("crash-loop"), _not(_WAITING)],
            templates.crash_loop(BACK_OFF),
            after=FAULT_AFTER,
            event=("BackOff", "Back-off restarting failed container"),
        ),
        _pod(
            "done",
            [_RUNNING, _IS_JOB, _not(_is(*kept_from_end)), _not(_HANDED)],
            templates.over("Succeeded", "0", "Completed"),
            after=RUNS_FOR,
        ),
        stage("pod-gone", ("v1", "Pod"), [_not(_ALIVE)], {"delete": True}, ENDS_IN),
    ]


def node_stages(upstream: list[Stage]) -> list[Stage]:
    """Return how nodes come up and fail: KWOK's own stages, which leave a node alone that has a fault, and the fault.

    Args:
        upstream: KWOK's stages for nodes.
    """
    for one in upstream:
        one["spec"]["selector"]["matchExpressions"].append({"key": _is(""), "operator": "In", "values": ["true"]})
    status = {"statusTemplate": templates.node_not_ready("container runtime is down")}
    return [*upstream, stage("node-not-ready", ("v1", "Node"), [_READY, _is("not-ready")], status)]


def gateway_stages() -> list[Stage]:
    """Return what a gateway's controller would write into statuses. No request is ever routed."""
    group = "gateway.networking.k8s.io/v1"
    gateway, route = (group, "Gateway"), (group, "HTTPRoute")
    stale, route_stale = (
        f"(.metadata.generation as $now | [{where}.observedGeneration] | all(. != $now))"
        for where in (".status.conditions[]?", ".status.parents[]?.conditions[]?")
    )
    good, bad = (True, "Accepted"), (False, "Invalid")
    ready = templates.verdicts(Accepted=good, Programmed=(True, "Programmed"))
    address = "addresses:\n- {type: IPAddress, value: 10.250.0.1}"
    ours = f'.spec.controllerName == "{GATEWAY_CONTROLLER}"'
    return [
        stage("gateway-class", (group, "GatewayClass"), [ours, stale], _status(templates.verdicts(Accepted=good))),
        stage("gateway-up", gateway, [stale, _not(_is("refused"))], _status(f"{ready}\n{address}")),
        stage(
            "gateway-refused",
            gateway,
            [stale, _is("refused")],
            _status(templates.verdicts(Accepted=bad, Programmed=bad)),
        ),
        stage(
            "route-up",
            route,
            [route_stale, _not(_is("refused", "unresolved"))],
            _status(templates.route(accepted=True, resolved=True)),
        ),
        stage(
            "route-refused",
            route,
            [route_stale, _is("refused")],
            _status(templates.route(accepted=False, resolved=True)),
        ),
        stage(
            "route-unresolved",
            route,
            [route_stale, _is("unresolved")],
            _status(templates.route(accepted=True, resolved=False)),
        ),
    ]


def _status(template: str) -> Stage:
    return {"patches": [{"subresource": "status", "root": "status", "type": "merge", "template": template}]}
