"""How far staging is, from the nodes of a kind of accelerator and the pods of a set. Nothing is asked here."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from headway.adapters.kubernetes import program_results as results
from headway.adapters.kubernetes import reasons, room
from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.objects import condition
from headway.domain.job import EXIT_DONE, EXIT_FAILED

STAGE, WAIT = "stage", "wait"
"""Containers of a set's pods: the program, and the one that only waits."""
NAMED = 3
"""Nodes that a sentence names; a fleet would fill a screen."""


class Failure(NamedTuple):
    """Why the program has given up on a node."""

    node: str
    message: str
    """Its termination message."""


class View(NamedTuple):
    """Where the nodes stand."""

    wanted: tuple[str, ...]
    """Nodes that are ready and may have serving pods: all of them must have the artifact."""
    done: tuple[str, ...]
    """Those of them that have it, verified."""
    away: Mapping[str, str]
    """Why the others do not count, by node: not ready, cordoned, kept for others by a taint."""
    failure: Failure | None
    behind: tuple[Object, ...]
    """Pods of wanted nodes that do not have it yet."""
    stuck: tuple[Object, ...]
    """Those of them whose program has failed."""
    emptied: tuple[Object, ...]
    """Those of them that had it once: it made room for others, and only a new pod brings it back."""
    finished: tuple[Object, ...]
    """Pods of wanted nodes that have it."""

    @property
    def without_pod(self) -> bool:
        """Whether a wanted node has not even a pod of the set."""
        return len(self.finished) + len(self.behind) < len(self.wanted)

    @property
    def whole(self) -> bool:
        """Whether every node that counts has it, and one does count."""
        return bool(self.wanted) and len(self.done) == len(self.wanted)

    @property
    def words(self) -> str:
        """How far it is, and which nodes are left out."""
        total = len(self.wanted)
        far = f"{len(self.done)} of {total} {'node has' if total == 1 else 'nodes have'} it"
        return f"{far}{self.left_out}" if total else f"no node can take it now{self.left_out}"

    @property
    def left_out(self) -> str:
        """Which nodes do not count, and why; empty if all do."""
        if not self.away:
            return ""
        named = "; ".join(f"{node} does not count: {why}" for node, why in sorted(self.away.items())[:NAMED])
        more = len(self.away) - NAMED
        return f"; {named}{f'; and {more} more' if more > 0 else ''}"


def look(
    nodes: Sequence[Object], pods: Sequence[Object], tolerations: Sequence[Object], now_s: float, patience_s: float
) -> View:
    """Return where the nodes stand.

    Args:
        nodes: Those of the accelerator.
        pods: Of the set.
        tolerations: Of these pods.
        now_s: Unix time.
        patience_s: After so long a pod's readiness has been asked for sure.
    """
    why = {node["metadata"]["name"]: room.away(node, tolerations) for node in nodes}
    wanted = tuple(sorted(name for name, reason in why.items() if not reason))
    on_node: dict[str, Object] = {}
    for pod in sorted(pods, key=lambda one: str(one["metadata"].get("creationTimestamp") or "")):
        if (name := node_of(pod)) in wanted and not pod["metadata"].get("deletionTimestamp"):
            on_node[name] = pod
    finished = {name: pod for name, pod in on_node.items() if is_ready(pod)}
    behind = {name: pod for name, pod in on_node.items() if name not in finished}
    failures = (Failure(name, said) for name, pod in sorted(behind.items()) if (said := gave_up(pod)) is not None)
    return View(
        wanted=wanted,
        done=tuple(sorted(finished)),
        away={name: reason for name, reason in why.items() if reason},
        failure=next(failures, None),
        behind=tuple(behind.values()),
        stuck=tuple(pod for pod in behind.values() if has_failed(pod)),
        emptied=tuple(pod for pod in behind.values() if has_lost_it(pod, now_s, patience_s)),
        finished=tuple(finished.values()),
    )


def node_of(pod: Object) -> str:
    """Return the node of a pod. One of a set is for a certain node before the scheduler has put it there."""
    if placed := pod["spec"].get("nodeName"):
        return str(placed)
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in affinity.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name":
                return str(field["values"][0])
    return ""


def is_ready(pod: Object) -> bool:
    """Tell whether a node has the artifact: the pod's readiness asks for its directory."""
    return bool((condition(pod, "Ready") or {}).get("status") == "True")


def gave_up(pod: Object) -> str | None:
    """Return the termination message of a program that will not do better by itself; none if it has not given up."""
    how = results.ended(results.container_status(pod, STAGE), before=True)
    if how is None or how.reason == reasons.OOM_KILLED or how.code != EXIT_FAILED:
        return None
    return how.message


def has_failed(pod: Object) -> bool:
    """Tell whether the program has failed in a pod, now or before it was started again."""
    how = results.ended(results.container_status(pod, STAGE), before=True)
    return how is not None and how.code != EXIT_DONE


def has_lost_it(pod: Object, now_s: float, patience_s: float) -> bool:
    """Tell whether the program has ended well in a pod that is not ready, though its readiness was asked since."""
    how = results.ended(results.container_status(pod, STAGE))
    running = (results.container_status(pod, WAIT).get("state") or {}).get("running")
    if how is None or how.code != EXIT_DONE or running is None:
        return False
    return now_s - datetime.fromisoformat(running["startedAt"]).timestamp() > patience_s
