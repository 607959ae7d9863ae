"""The account of `k8s/base` in any namespace: what adapters may under test is what they may on a real cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.adapters.kubernetes import rights
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.site import CONTROLLER_ACCOUNT
from tests.kubernetes_schema import documents

from .rig.api import Kind, wait_until
from .rig.rig import Rig

Object = dict[str, Any]

ROLES = Path(__file__).resolve().parents[2] / "k8s" / "base" / "roles.yaml"


@contextmanager
def controller(rig: Rig, namespace: str) -> Iterator[Path]:
    """Give headway's account of a namespace the rights of `k8s/base`, and take away afterwards what stays of them.

    Args:
        rig: Where.
        namespace: With the account.

    Yields:
        The account's kubeconfig. The rights are in force: the API server learns of a change a moment later.
    """
    made = [_renamed(one, namespace) for one in documents(ROLES)]
    try:
        for one in made:
            rig.api.apply(one)
        kubeconfig = rig.account_kubeconfig(CONTROLLER_ACCOUNT, namespace)
        client = Client.connect(kubeconfig)
        try:
            wait_until(lambda: _in_force(client, namespace), "the rights count")
        finally:
            client.close()
        yield kubeconfig
    finally:
        for one in made:
            if "namespace" not in one["metadata"]:
                rig.api.delete(Kind(one["apiVersion"], one["kind"]), one["metadata"]["name"])


def _in_force(client: Client, namespace: str) -> bool:
    here, elsewhere = rights.IN_NAMESPACE[-1], rights.EVERYWHERE[-1]
    return client.allowed(here.verbs[0], here.kind, namespace) and client.allowed(elsewhere.verbs[0], elsewhere.kind)


def _renamed(content: Object, namespace: str) -> Object:
    """Return a role or binding for a namespace; what belongs to none is called after it."""
    metadata = dict(content["metadata"])
    if "namespace" in metadata:
        metadata["namespace"] = namespace
    else:
        metadata["name"] = f"headway-{namespace}"
    renamed = {**content, "metadata": metadata}
    if "roleRef" in content:
        role = "headway" if "namespace" in metadata else metadata["name"]
        renamed["roleRef"] = {**content["roleRef"], "name": role}
        renamed["subjects"] = [{**one, "namespace": namespace} for one in content["subjects"]]
    return renamed
