"""How many more pods of a shape fit, from what nodes can give and what is asked of them."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.kubernetes import room
from headway.adapters.kubernetes.site import GPU, PAUSE_PRIORITY, PRODUCT
from headway.domain.cluster import Room

H100, L40S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


def node(name: str, gpus: int = 8, *, product: str = H100, cpu: str = "192", **how: Any) -> dict[str, Any]:
    """A node with accelerators, tainted as platforms do."""
    ready = {"type": "Ready", "status": how.get("ready", "True"), "message": how.get("message", "")}
    return {
        "metadata": {"name": name, "labels": {PRODUCT: product}},
        "spec": {"taints": [TAINT, *how.get("taints", ())], "unschedulable": how.get("cordoned", False)},
        "status": {"allocatable": {GPU: str(gpus), "cpu": cpu, "memory": "2Ti"}, "conditions": [ready]},
    }


def pod(gpus: int, on: str = "", *, product: str = H100, cpu: str = "1", **how: Any) -> dict[str, Any]:
    """A pod that asks for accelerators."""
    resources = {"requests": {GPU: str(gpus), "cpu": cpu, "memory": "1Gi"}, "limits": {GPU: str(gpus)}}
    return {
        "metadata": {"name": "pod"},
        "spec": {
            "nodeSelector": {PRODUCT: product},
            "tolerations": [TOLERATION],
            "containers": [{"name": "one", "resources": resources}],
            "priorityClassName": how.get("priority", "headway-serving"),
            **({"nodeName": on} if on else {}),
        },
        "status": {"phase": how.get("phase", "Running" if on else "Pending")},
    }


def judged(nodes: list[Any], pods: list[Any], gpus: int, count: int, **how: Any) -> Room:
    """What room there is for replicas of so many accelerators."""
    shape = pod(gpus, **how)
    return room.room(room.of_nodes(nodes, pods, shape), shape, count, nodes)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8),
        ("500m", "0.5"),
        ("2Gi", 2 * 2**30),
        ("1.5Ti", 3 * 2**39),
        ("3M", 3_000_000),
        ("1e3", 1000),
        ("7k", 7000),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, number: object) -> None:
    """Binary and decimal suffixes, fractions, exponents."""
    assert room.quantity(text) == Decimal(str(number))


def test_a_pod_takes_the_larger_of_its_first_and_its_lasting_containers() -> None:
    """As the scheduler counts: init containers run before the others, those that always restart beside them."""

    def asks(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "one", "resources": {"requests": {"cpu": cpu}}, **more}

    content = {
        "initContainers": [asks("8"), asks("1", restartPolicy="Always"), asks("4")],
        "containers": [asks("2"), asks("3"), {"name": "none"}],
        "overhead": {"cpu": "250m"},
    }

    assert room.requests({"spec": content}) == {"cpu": Decimal("8.25")}
    content["initContainers"] = [asks("1", restartPolicy="Always"), asks("4")]
    assert room.requests({"spec": content}) == {"cpu": Decimal("6.25")}


def test_replicas_need_whole_nodes_and_the_words_say_what_is_free() -> None:
    """Accelerators of two nodes make no replica that spans them."""
    nodes = [node("a"), node("b"), node("c")]
    pods = [pod(5, "a"), pod(5, "b"), pod(8, "c", priority=PAUSE_PRIORITY)]

    found = judged(nodes, pods, gpus=8, count=2)

    assert (found.fits, found.possible, found.replicas) == (False, True, 1)
    assert found.detail == (
        f"needs 2 x 8 {H100} with 1 CPU and 1.0 GiB, each replica on one node; 1 node has 8 free, 2 nodes have 3 "
        "free, 8 of these are held by pause pods, which give way"
    )
    assert judged(nodes, pods, gpus=3, count=4).fits


def test_nodes_that_take_no_pods_do_not_count_and_are_named() -> None:
    """Cordoned, not ready, tainted for somebody else."""
    spot = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    nodes = [
        node("cordoned", cordoned=True),
        node("lost", ready="Unknown", message="Kubelet stopped posting node status."),
        node("spot", taints=[spot]),
        node("soft", 1, taints=[{**spot, "effect": "PreferNoSchedule"}]),
        node("other", product=L40S),
    ]

    found = judged(nodes, [], gpus=1, count=2)

    assert (found.fits, found.replicas) == (False, 1)
    for words in (
        "cordoned takes no pods: cordoned",
        "lost takes no pods: not ready (Kubelet",
        "taint spot=true:NoSch",
    ):
        assert words in found.detail


def test_ended_pods_free_their_accelerators_and_waiting_ones_take_them() -> None:
    """Two releases at once do not both count on the same node."""
    nodes = [node("a"), node("b")]

    assert judged(nodes, [pod(8, "a", phase="Succeeded")], gpus=8, count=2).fits
    assert judged(nodes, [pod(8)], gpus=8, count=2).replicas == 1
    assert judged(nodes, [pod(8, product=L40S)], gpus=8, count=2).fits, "it waits for another kind of node"
    assert judged(nodes, [pod(8, priority=PAUSE_PRIORITY)], gpus=8, count=2).fits


def test_a_replica_larger_than_any_node_is_impossible_and_the_largest_is_named() -> None:
    """Nobody waits for it."""
    found = judged([node("small", 4), node("large")], [], gpus=16, count=1)

    assert (found.fits, found.possible) == (False, False)
    assert f"the largest node, large, has 8 {H100}" in found.detail


def test_nodes_that_offer_none_of_their_accelerators_are_told() -> None:
    """Labelled by NVIDIA's feature discovery, and the device plugin does not run."""
    found = judged([node("a", 0), node("b", 0)], [], gpus=2, count=1)

    assert not found.possible
    assert found.detail.endswith(f"2 nodes of the kind, none offers {GPU}: no device plugin runs")


def test_an_accelerator_that_no_node_has_is_impossible_and_the_others_are_named() -> None:
    """A name that is spelled wrong shows at once."""
    found = judged([node("a", product=L40S)], [], gpus=1, count=1)

    assert not found.possible
    assert found.detail.endswith(f"no node has this accelerator, nodes have: {L40S}")


def test_what_is_short_beside_accelerators_is_said() -> None:
    """A node full of other pods has accelerators free that nobody can use."""
    found = judged([node("a", cpu="8"), node("b", cpu="2")], [], gpus=1, count=20, cpu="4")

    assert (found.fits, found.replicas) == (False, 2)
    assert "b lacks CPUs for it" in found.detail


AMOUNTS = st.lists(st.integers(0, 8), min_size=1, max_size=5)


@given(
    totals=AMOUNTS, used=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 8)), max_size=6), per=st.integers(1, 8)
)
def test_what_is_said_to_fit_can_be_placed_and_one_more_cannot(
    totals: list[int], used: list[tuple[int, int]], per: int
) -> None:
    """Placing so many leaves room for none, and placing them never asks more of a node than it has."""
    nodes = [node(f"n{index}", gpus) for index, gpus in enumerate(totals)]
    pods = [pod(gpus, f"n{index}") for index, gpus in used if index < len(nodes)]

    fit = judged(nodes, pods, gpus=per, count=1).replicas

    free = {f"n{index}": gpus for index, gpus in enumerate(totals)}
    for one in pods:
        free[one["spec"]["nodeName"]] -= int(one["spec"]["containers"][0]["resources"]["limits"][GPU])
    assert fit == sum(max(0, left) // per for left in free.values())
    waiting = [pod(per) for _ in range(fit)]
    assert judged(nodes, [*pods, *waiting], gpus=per, count=1).replicas == 0
