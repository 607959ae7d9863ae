"""How many more pods of a shape fit on the nodes now: what nodes can give, less what is asked of them.

All of it is pure, from nodes and pods as the API server has them. Pause pods count as free, because they give way to
serving pods; pods that wait for a node count as placed, because they were first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from headway.adapters.kubernetes import programs
from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.objects import condition
from headway.adapters.kubernetes.site import GPU, PAUSE_PRIORITY, PRODUCT
from headway.domain.cluster import Room
from headway.units import format_bytes

Amounts = dict[str, Decimal]

SUFFIXES: Mapping[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
"""Of Kubernetes' quantities; a bare `E` is never an exponent there without a sign or digits after it."""
ENDED = ("Succeeded", "Failed")
NAMED_NODES = 3


class NodeRoom(NamedTuple):
    """What one node of the wanted kind has."""

    name: str
    total: Amounts
    free: Amounts
    """Less than nothing where more is asked of a node than it has."""
    held: Amounts
    """Part of what is free: pause pods hold it until it is needed."""
    away: str
    """Why no new pod comes there; empty: it may."""


def quantity(text: object) -> Decimal:
    """Return a quantity as a number: `500m` is 0.5, `2Gi` is 2147483648."""
    plain = str(text).strip()
    for length in (2, 1):
        if plain[-length:] in SUFFIXES and len(plain) > length:
            return Decimal(plain[:-length]) * SUFFIXES[plain[-length:]]
    return Decimal(plain)


def requests(pod: Object) -> Amounts:
    """Return what the scheduler sets aside for a pod.

    Init containers run one after another before the others; those that restart always stay beside them.

    Args:
        pod: The pod, or the template of one.
    """
    spec = pod["spec"]
    beside: Amounts = {}
    most: Amounts = {}
    for one in spec.get("initContainers") or ():
        at_once = _sum((beside, _requested(one)))
        most = _larger(most, at_once)
        if one.get("restartPolicy") == "Always":
            beside = at_once
    running = _sum((beside, *(_requested(one) for one in spec.get("containers") or ())))
    return _sum((_larger(running, most), _amounts(spec.get("overhead") or {})))


def of_nodes(nodes: Sequence[Object], pods: Sequence[Object], shape: Object) -> list[NodeRoom]:
    """Return what each node has that a pod of a shape selects, those first that hold most more of them.

    Args:
        nodes: All nodes.
        pods: All pods of all namespaces.
        shape: Template of the pod: its node selector, tolerations and requests.
    """
    spec, need = shape["spec"], requests(shape)
    selector, tolerations = spec.get("nodeSelector") or {}, spec.get("tolerations") or []
    wanted = [node for node in nodes if _selected(node, selector)]
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ENDED]
    by_node: dict[str, list[Object]] = {}
    for pod in alive:
        by_node.setdefault(pod["spec"].get("nodeName") or "", []).append(pod)
    found = [_room_of(node, by_node.get(node["metadata"]["name"], ()), need, tolerations) for node in wanted]
    for pod in by_node.get("", ()):
        if not _is_pause(pod) and _competes(pod, selector):
            found = _place(found, requests(pod), need)
    return sorted(found, key=lambda one: (bool(one.away), -_fit(one.free, need), one.name))


def fitting(rooms: Sequence[NodeRoom], need: Amounts) -> int:
    """Return how many pods fit on the nodes that take any."""
    return sum(_fit(one.free, need) for one in rooms if not one.away)


def room(rooms: Sequence[NodeRoom], shape: Object, count: int, known: Sequence[Object]) -> Room:
    """Judge whether so many pods of a shape fit.

    Args:
        rooms: As `of_nodes` returns them.
        shape: Template of one pod, which is one replica.
        count: How many must fit.
        known: All nodes, to say which accelerators there are instead.
    """
    need = requests(shape)
    fit = fitting(rooms, need)
    possible = any(_fit(one.total, need) for one in rooms)
    wanted = f"needs {count} x {_shown(need, shape)}, each replica on one node"
    if not rooms:
        products = sorted({product_of(one) for one in known if product_of(one)})
        there = ", ".join(products) or "none"
        detail = f"{wanted}; no node has this accelerator, nodes have: {there}"
        return Room(fits=False, possible=False, replicas=0, detail=detail)
    if need.get(GPU) and not any(one.total.get(GPU) for one in rooms):
        detail = (
            f"{wanted}; {_counted(Decimal(len(rooms)), 'node')} of the kind, none offers {GPU}: no device plugin runs"
        )
        return Room(fits=False, possible=False, replicas=0, detail=detail)
    if not possible:
        largest = max(rooms, key=lambda one: _fit_share(one.total, need))
        detail = f"{wanted}; the largest node, {largest.name}, has {_shown(largest.total, shape, need)}"
        return Room(fits=False, possible=False, replicas=0, detail=detail)
    return Room(fits=fit >= count, possible=True, replicas=fit, detail=f"{wanted}; {free_words(rooms, shape)}")


def free_words(rooms: Sequence[NodeRoom], shape: Object) -> str:
    """Say what is free on which nodes, and what keeps pods from the others."""
    need = requests(shape)
    main = GPU if GPU in need else "cpu"
    unit = "free" if main == GPU else "CPUs free"
    open_rooms = [one for one in rooms if not one.away]
    alike = Counter(_plain(one.free[main]) for one in open_rooms if one.free[main] > 0)
    parts = [
        f"{nodes} {'node has' if nodes == 1 else 'nodes have'} {amount} {unit}"
        for amount, nodes in sorted(alike.items(), key=lambda item: -Decimal(item[0]))
    ]
    if not parts:
        parts = [f"none of {_counted(Decimal(len(open_rooms)), 'node')} that takes pods has any {unit}"]
    held = sum((one.held[main] for one in open_rooms), Decimal(0))
    if held:
        parts.append(f"{_plain(held)} of these are held by pause pods, which give way")
    short = [(one, _lacking(one, need, main)) for one in open_rooms if one.free[main] >= need[main]]
    parts += [f"{one.name} lacks {' and '.join(lacks)} for it" for one, lacks in short if lacks][:NAMED_NODES]
    parts += [f"{one.name} takes no pods: {one.away}" for one in rooms if one.away][:NAMED_NODES]
    return ", ".join(parts)


def product_of(node: Object) -> str:
    """Return the accelerator that a node is labelled with; empty: none."""
    return str((node["metadata"].get("labels") or {}).get(PRODUCT) or "")


def away(node: Object, tolerations: Sequence[Object]) -> str:
    """Return why a pod with such tolerations does not come to a node, in words; empty: it may."""
    ready = condition(node, "Ready")
    if ready is None or ready["status"] != "True":
        return f"not ready ({(ready or {}).get('message') or 'its kubelet has not reported'})"
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return "cordoned"
    for taint in spec.get("taints") or ():
        if not programs.tolerated({"spec": {"taints": [taint]}}, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint['key']}{value}:{taint['effect']}"
    return ""


def _room_of(node: Object, pods: Sequence[Object], need: Amounts, tolerations: Sequence[Object]) -> NodeRoom:
    name = node["metadata"]["name"]
    total = _amounts((node.get("status") or {}).get("allocatable") or {})
    used = _sum(requests(pod) for pod in pods if not _is_pause(pod))
    held = _sum(requests(pod) for pod in pods if _is_pause(pod))
    keys = {*need, GPU, "cpu", "memory"}
    free = {key: total.get(key, Decimal(0)) - used.get(key, Decimal(0)) for key in keys}
    return NodeRoom(name, total, free, {key: held.get(key, Decimal(0)) for key in keys}, away(node, tolerations))


def _place(rooms: Sequence[NodeRoom], asked: Amounts, need: Amounts) -> list[NodeRoom]:
    """Put a waiting pod on the fullest node that takes it, as a scheduler that packs would."""
    takers = [one for one in rooms if not one.away and _fit(one.free, asked)]
    if not takers:
        return list(rooms)
    chosen = min(takers, key=lambda one: (_fit(one.free, need), one.name))
    free = {key: amount - asked.get(key, Decimal(0)) for key, amount in chosen.free.items()}
    return [one._replace(free=free) if one is chosen else one for one in rooms]


def _competes(pod: Object, selector: Mapping[str, str]) -> bool:
    """Tell whether a waiting pod waits for the same kind of node."""
    asked = pod["spec"].get("nodeSelector") or {}
    return asked.get(PRODUCT) == selector.get(PRODUCT)


def _is_pause(pod: Object) -> bool:
    return bool(pod["spec"].get("priorityClassName") == PAUSE_PRIORITY)


def _selected(node: Object, selector: Mapping[str, str]) -> bool:
    has = node["metadata"].get("labels") or {}
    return all(has.get(key) == value for key, value in selector.items())


def _fit(free: Amounts, need: Amounts) -> int:
    """Return how many times the need is in what is free."""
    counts = [int(free.get(key, Decimal(0)) // amount) for key, amount in need.items() if amount > 0]
    return max(0, min(counts, default=0))


def _fit_share(total: Amounts, need: Amounts) -> Decimal:
    """Return which share of the need a node could give at most: of what it has least."""
    return min((total.get(key, Decimal(0)) / amount for key, amount in need.items() if amount > 0), default=Decimal(0))


def _lacking(one: NodeRoom, need: Amounts, main: str) -> list[str]:
    """Return what a node has too little of beside the main thing, in words."""
    names = {"cpu": "CPUs", "memory": "memory"}
    return [names.get(key, key) for key in sorted(need) if key != main and one.free.get(key, Decimal(0)) < need[key]]


def _requested(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(quantities: Mapping[str, object]) -> Amounts:
    return {key: quantity(value) for key, value in quantities.items()}


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        for key, amount in part.items():
            total[key] = total.get(key, Decimal(0)) + amount
    return total


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return {key: max(one.get(key, Decimal(0)), other.get(key, Decimal(0))) for key in {*one, *other}}


def _shown(amounts: Amounts, shape: Object, only: Amounts | None = None) -> str:
    """Return amounts in words: accelerators by the name that the shape selects, then processors and memory."""
    product = (shape["spec"].get("nodeSelector") or {}).get(PRODUCT, "GPU")
    parts = []
    if amounts.get(GPU):
        parts.append(f"{_plain(amounts[GPU])} {product}")
    if amounts.get("cpu") and (only is None or "cpu" in only):
        parts.append(_counted(amounts["cpu"], "CPU"))
    if amounts.get("memory") and (only is None or "memory" in only):
        parts.append(format_bytes(int(amounts["memory"])))
    return " with ".join([parts[0], " and ".join(parts[1:])]) if len(parts) > 1 else "".join(parts) or "nothing"


def _counted(count: Decimal, thing: str) -> str:
    return f"{_plain(count)} {thing}{'' if count == 1 else 's'}"


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
