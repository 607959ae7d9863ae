"""One node for all tests of this folder; those that need the machine for a node of their own come before."""

import os
import platform
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.rig.api import NAMESPACE, SERVICE_ACCOUNT, Kind, wait_until
from tests.cluster.rig.programs import RigNotBuiltError

from .machine.node import Node
from .machine.node import leftovers as left_of_nodes
from .machine.node import node as run_node
from .machine.settings import NODE_NAME
from .machine.stock import Stock
from .machine.stock import stock as make_stock
from .machine.volumes import local_volume, places, policy, volume_name

OWN_NODE = "test_life.py"
CLAIM, VOLUME = Kind("v1", "PersistentVolumeClaim"), Kind("v1", "PersistentVolume")
BOUND_WITHIN_S = 60
TIMEOUT_S = 900
"""Of one test, the start of the node included, on two cores with other work."""
GONE_WITHIN_S = 60


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests with a node of their own first, as a machine has room for one at a time; all in the order of files.

    The tests of a release leave the node as the next one expects it.
    """
    own = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    slots = [index for index, item in enumerate(items) if item in own]
    own.sort(key=lambda item: (item.path.name != OWN_NODE, item.path.name, item.reportinfo()[1] or 0))
    for index, item in zip(slots, own, strict=True):
        items[index] = item
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def why_no_node() -> str:
    """Return why this machine cannot have a node, nothing if it can."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return (
            f"a real node takes namespaces, mounts and cgroups, hence root on Linux; this is user {os.geteuid()} on "
            f"{platform.system()}"
        )
    return ""


@pytest.fixture(scope="session")
def stock() -> Iterator[Stock]:
    """The images that pods of the node run in."""
    if reason := why_no_node():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="headway-images-") as folder:
        try:
            yield make_stock(Path(folder))
        except RigNotBuiltError as error:
            pytest.skip(f"there is no node to test on: {error}")


@pytest.fixture(scope="session")
def node(stock: Stock) -> Iterator[Node]:
    """The node, up and ready."""
    try:
        with run_node(stock.images) as running:
            for one in policy():
                running.api.create(one)
            yield running
    except RigNotBuiltError as error:
        pytest.skip(f"there is no node to test on: {error}")
    assert left_of_nodes() == []


@pytest.fixture
def namespace(node: Node) -> Iterator[str]:
    """An empty namespace at the Pod Security level `restricted`, with the environments; gone afterwards."""
    name = f"headway-test-{secrets.token_hex(4)}"
    make_namespace(node, name)
    yield name
    node.api.delete(NAMESPACE, name)
    wait_until(lambda: node.api.get(NAMESPACE, name) is None, f"{name} is gone", GONE_WITHIN_S)
    for volume in places():
        node.api.delete(VOLUME, volume_name(name, volume))


def make_namespace(node: Node, name: str) -> None:
    """Make a namespace at the Pod Security level `restricted` in which pods find the environments."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    node.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    make_environments(node, name)
    wait_until(lambda: node.api.get(SERVICE_ACCOUNT, "default", name), f"{name} has its account", BOUND_WITHIN_S)
    wait_until(lambda: _are_bound(node, name), f"the volumes of {name} are bound", BOUND_WITHIN_S)


def make_environments(node: Node, namespace: str) -> None:
    """Make the volumes of the environments in a namespace."""
    for volume, path in places().items():
        for one in local_volume(namespace, volume, path, NODE_NAME):
            node.api.create(one)


def _are_bound(node: Node, namespace: str) -> bool:
    return all(one["status"].get("phase") == "Bound" for one in node.api.list(CLAIM, namespace))
