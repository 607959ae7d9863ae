"""Why pods do not run, in words that a person understands.

`of_pods` reads pods (and, where they are needed, events, nodes and what other pods ask for) and returns the one reason
that matters most. `of_owner` does it for what could not even make its pods. Both return None where nothing is wrong.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from headway.adapters.kubernetes import room
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.errors import POD_SECURITY, QUOTA
from headway.adapters.kubernetes.kinds import EVENT, NODE, POD
from headway.adapters.kubernetes.objects import condition
from headway.adapters.kubernetes.site import GPU, PRODUCT, Site
from headway.domain.job import EXIT_RETRY
from headway.errors import BackendError

MOST_LIVES = 3
"""A container that ended this often will not do better by itself."""
TELLING_CHARACTERS = 400
OOM_KILLED = "OOMKilled"
NEVER_COMES = re.compile(r"not found|manifest unknown|does not exist|denied|unauthorized|authentication required")
"""What a registry says of an image that no second try brings."""
BAD_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
BAD_CONTAINER = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
LOST = {
    "PreemptionByScheduler": "it made room for a pod of higher priority",
    "DeletionByTaintManager": "its node is not ready, or was tainted",
    "EvictionByEvictionAPI": "somebody drained its node",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ran short of something or shut down",
}
"""Reasons of the condition DisruptionTarget: the pod was taken away, and did nothing wrong."""
NOT_CREATED = ("FailedCreate", "FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayCluster")


REPLACED = ("DeletedWorkerPod", "DeletedHeadPod")
POD_FAILED = re.compile(r"Pod status: Failed")
CONTAINER_ENDED = re.compile(r"ContainerStateTerminated\{ExitCode:(?P<code>\d+),.*?Reason:(?P<why>[A-Za-z]*)")
"""As Go prints it in the message of KubeRay's event."""


class Reason(NamedTuple):
    """Why something does not run."""

    words: str
    retryable: bool
    """Whether it may run later without anybody changing anything."""


class _Finding(NamedTuple):
    """What is wrong with one pod."""

    weight: int
    """What matters more has more."""
    kind: str
    words: str
    retryable: bool = True


ENDED, WAITS, UNPLACED, STARTS = 40, 30, 20, 10
"""Weights: a container that ended, one that cannot start, a pod without a node, one that only takes its time."""
FINAL = 100
"""Added where waiting changes nothing."""


def of_pods(client: Client, site: Site, selector: str) -> Reason | None:
    """Return why pods do not run or are not ready; None if all are, or there are none.

    Args:
        client: Access to the API server.
        site: The cluster.
        selector: Label selector of the pods, in the site's namespace.

    Raises:
        HeadwayError: The API server refused or did not answer.
    """
    return of_found(client, site, client.list(POD, site.namespace, labelSelector=selector))


def of_found(
    client: Client, site: Site, pods: Sequence[Object], events: Sequence[Object] | None = None
) -> Reason | None:
    """Return the same of pods that were read already, and perhaps their events."""
    if all(_is_well(pod) for pod in pods):
        return None
    if events is None:
        events = client.list(EVENT, site.namespace, fieldSelector="type=Warning")
    unplaced = [pod for pod in pods if _unplaced(pod)]
    missing = _missing(client, unplaced) if any(GPU in room.requests(pod) for pod in unplaced) else ""
    return told(pods, events, missing)


def of_owner(client: Client, site: Site, kind: str, name: str) -> Reason | None:
    """Return why pods of an object were not made: quota, admission or rights; None if nothing was refused.

    Args:
        client: Access to the API server.
        site: The cluster.
        kind: Of the object, such as `Job`, `DaemonSet` or `RayCluster`.
        name: Its name.
    """
    return refused(events_of(client, site, kind, name))


def events_of(client: Client, site: Site, kind: str, name: str) -> Sequence[Object]:
    """Return the events of an object that are still kept (an hour, by default)."""
    selector = f"involvedObject.kind={kind},involvedObject.name={name}"
    return client.list(EVENT, site.namespace, fieldSelector=selector)


def deaths(events: Sequence[Object]) -> Reason | None:
    """Return why pods of a RayCluster ended that the operator has replaced since; None if it replaced none.

    Ray's workers are not restarted in place, so a failed one is gone a moment later; the operator's events stay.
    """
    found = [one for one in events if one.get("reason") in REPLACED and POD_FAILED.search(one.get("message") or "")]
    if not found:
        return None
    count = sum(int(one.get("count") or 1) for one in found)
    last = max(found, key=_seen)
    ended = CONTAINER_ENDED.search(last["message"])
    code, why = (int(ended["code"]), ended["why"]) if ended else (0, "")
    which = "head" if last["reason"] == "DeletedHeadPod" else "worker"
    if why == OOM_KILLED:
        how = "was killed for memory (OOMKilled): give it more in k8s/templates/rayservice.yaml"
    elif ended:
        how = f"ended with exit code {code}{f' ({why})' if why and why != 'Error' else ''}"
    else:
        how = "failed before Ray ran: it was evicted, or the program that stages the model failed"
    times = f"{count} pods failed and were replaced" if count > 1 else "a pod failed and was replaced"
    return Reason(f"{times}; the last one, a {which}, {how}", why != OOM_KILLED and count < MOST_LIVES)


def told(pods: Sequence[Object], events: Sequence[Object], missing: str = "") -> Reason | None:
    """Return the reason that matters most among pods.

    Args:
        pods: As the API server has them.
        events: Warnings of the namespace.
        missing: What is missing where, for pods that no node takes; empty: the scheduler's own words.
    """
    by_pod: dict[str, list[Object]] = {}
    for event in events:
        if event["involvedObject"].get("kind") == "Pod" and event.get("type", "Warning") == "Warning":
            by_pod.setdefault(event["involvedObject"]["name"], []).append(event)
    found = [one for pod in pods for one in _findings(pod, by_pod.get(pod["metadata"]["name"], []), missing)]
    if not found:
        return None
    worst = max(found, key=lambda one: one.weight)
    alike = sum(one.kind == worst.kind for one in found)
    several = f" (and {alike - 1} more of {len(pods)} pods likewise)" if alike > 1 else ""
    return Reason(f"{worst.words}{several}", worst.retryable)


def refused(events: Sequence[Object]) -> Reason | None:
    """Return why pods were not made, from the events of what makes them; the newest counts."""
    failures = [one for one in events if one.get("reason") in NOT_CREATED]
    if not failures:
        return None
    message = _one_line(max(failures, key=_seen).get("message") or "")
    if QUOTA.search(message):
        return Reason(f"no pod was made, the namespace's quota is full: {message}", retryable=True)
    if POD_SECURITY.search(message):
        return Reason(f"no pod was made, the namespace's Pod Security level forbids it: {message}", retryable=False)
    if "forbidden" in message or "denied the request" in message:
        return Reason(f"no pod was made, admission or rights refuse it: {message}", retryable=False)
    return Reason(f"no pod was made: {message}", retryable=True)


def program_error(message: str) -> str:
    """Return what a pod program said in a termination message, on one line; the message as it is if none of ours."""
    try:
        said = json.loads(message)
        return _one_line(str(said["error"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        return _one_line(message)


def _findings(pod: Object, events: Sequence[Object], missing: str) -> Iterator[_Finding]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        yield from _taken_away(pod)
        return
    if _is_well(pod):
        return
    if status.get("phase") == "Failed" and status.get("reason"):
        where = f" from node {pod['spec']['nodeName']}" if pod["spec"].get("nodeName") else ""
        words = f"pod {name} was taken away{where}: {status['reason']}: {_one_line(status.get('message') or '')}"
        if status["reason"] == "Evicted":
            words = f"pod {name} was evicted{where}: {_one_line(status.get('message') or 'no message')}"
        yield _Finding(ENDED, status["reason"], words, status["reason"] != "DeadlineExceeded")
        return
    yield from _taken_away(pod)
    found = list(_container_findings(pod, events))
    yield from found
    if _unplaced(pod):
        said = _one_line((condition(pod, "PodScheduled") or {}).get("message") or "")
        yield _Finding(UNPLACED, "unplaced", f"no node takes pod {name}: {missing or said}")
    elif not found:
        yield _slow(pod, events)


def _container_findings(pod: Object, events: Sequence[Object]) -> Iterator[_Finding]:
    name, status = pod["metadata"]["name"], pod["status"]
    specs = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    limits = {one["name"]: ((one.get("resources") or {}).get("limits") or {}).get("memory") for one in specs}
    for seen in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        place = f"container {seen['name']} of pod {name}"
        state = seen.get("state") or {}
        waiting, last = state.get("waiting") or {}, (seen.get("lastState") or {}).get("terminated")
        ended = state.get("terminated") or (last if waiting.get("reason") == "CrashLoopBackOff" else None)
        if ended and (ended["exitCode"] != 0 or waiting):
            yield _ended(place, ended, limits.get(seen["name"]), int(seen.get("restartCount") or 0), bool(waiting))
        elif waiting.get("reason") in (*BAD_IMAGE, *PULLING):
            yield _pulling(place, seen.get("image") or "", waiting, events)
        elif waiting.get("reason") in BAD_CONTAINER:
            words = f"{place} cannot be started: {waiting['reason']}: {_one_line(waiting.get('message') or '')}"
            yield _Finding(FINAL + WAITS, waiting["reason"], words, retryable=False)


def _ended(place: str, ended: Object, limit: str | None, restarts: int, restarting: bool) -> _Finding:
    code, why = ended["exitCode"], ended.get("reason") or "Error"
    again = f", {restarts + 1} times by now" if restarting else ""
    said = program_error(ended.get("message") or "")
    if why == OOM_KILLED:
        words = f"{place} was killed for memory (OOMKilled) at its limit of {limit or 'the node'}{again}; give it more"
        return _Finding(FINAL + ENDED, OOM_KILLED, words, retryable=False)
    if why == "ContainerStatusUnknown":
        return _Finding(ENDED, why, f"{place} was lost with its node")
    retryable = code == EXIT_RETRY or (restarting and restarts < MOST_LIVES)
    words = f"{place} ended with exit code {code}{again}: {said or _exit_words(code)}"
    return _Finding(ENDED if retryable else FINAL + ENDED, f"exit {code}", words, retryable)


def _pulling(place: str, image: str, waiting: Object, events: Sequence[Object]) -> _Finding:
    told_by_events = [one.get("message") or "" for one in events if one.get("reason") == "Failed"]
    said = " ".join([waiting.get("message") or "", *told_by_events[-1:]])
    final = waiting["reason"] in BAD_IMAGE or bool(NEVER_COMES.search(said))
    words = f"the image {image} of {place} does not come: {waiting['reason']}: {_one_line(said)}"
    return _Finding(FINAL + WAITS if final else WAITS, "image", words, retryable=not final)


def _taken_away(pod: Object) -> Iterator[_Finding]:
    target = condition(pod, "DisruptionTarget")
    if target is not None and target["status"] == "True":
        why = LOST.get(target.get("reason") or "", _one_line(target.get("message") or "no reason given"))
        yield _Finding(ENDED, "lost", f"pod {pod['metadata']['name']} was taken away: {why}")


def _slow(pod: Object, events: Sequence[Object]) -> _Finding:
    """Return what a pod waits for that has a node, and no container that failed."""
    name, where = pod["metadata"]["name"], pod["spec"].get("nodeName") or "no node yet"
    ready = condition(pod, "Ready") or {}
    if ready.get("reason") == "NodeNotReady":
        return _Finding(WAITS, "node", f"the node {where} of pod {name} is not ready")
    newest = max(events, key=_seen, default=None)
    said = f": {newest['reason']}: {_one_line(newest.get('message') or '')}" if newest else ""
    state = "runs on" if pod["status"].get("phase") == "Running" else "starts on"
    return _Finding(STARTS, "starts", f"pod {name} {state} {where} and is not ready{said}")


def _is_well(pod: Object) -> bool:
    """Tell whether a pod is ready or has ended well, and nobody takes it away."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    if (pod.get("status") or {}).get("phase") == "Succeeded":
        return True
    return (condition(pod, "Ready") or {}).get("status") == "True"


def _unplaced(pod: Object) -> bool:
    scheduled = condition(pod, "PodScheduled") or {}
    return bool(scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable")


def _missing(client: Client, unplaced: Sequence[Object]) -> str:
    """Say how many accelerators are missing where; empty if this account may not look at nodes."""
    try:
        nodes, pods = client.list(NODE), client.list(POD)
    except BackendError:
        return ""
    return missing_words(unplaced, nodes, pods)


def missing_words(unplaced: Sequence[Object], nodes: Sequence[Object], pods: Sequence[Object]) -> str:
    """Say how many accelerators are missing where.

    Args:
        unplaced: Pods that no node takes, of one shape.
        nodes: All nodes.
        pods: All pods of all namespaces.
    """
    waiting = [pod for pod in unplaced if GPU in room.requests(pod)]
    shape = waiting[0]
    product = (shape["spec"].get("nodeSelector") or {}).get(PRODUCT, "GPU")
    each = room.requests(shape)[GPU]
    others = [pod for pod in pods if pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in waiting}]
    rooms = room.of_nodes(nodes, others, shape)
    short = max(0, len(waiting) - room.fitting(rooms, room.requests(shape)))
    lacking = f"{each * short} x {product} are missing ({short} pods with {each} each, on one node)"
    if not rooms:
        return f"{lacking}; no node has this accelerator"
    if not short:
        return (
            f"{len(waiting)} pods with {each} x {product} each wait to be placed, and there is room: {_placing(rooms)}"
        )
    return f"{lacking}; {room.free_words(rooms, shape)}"


def _placing(rooms: Sequence[room.NodeRoom]) -> str:
    free = [f"{one.name} has {one.free.get(GPU, Decimal(0))} free" for one in rooms if not one.away]
    return ", ".join(free[: room.NAMED_NODES])


def _seen(event: Mapping[str, object]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def _exit_words(code: int) -> str:
    return f"killed by signal {code - 128}" if code > 128 else "its log has more"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:TELLING_CHARACTERS]
