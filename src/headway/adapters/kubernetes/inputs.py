"""ConfigMaps that belong to another object: they are there before it, and go when it goes."""

from headway.adapters.kubernetes import programs
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.kinds import CONFIG_MAP
from headway.adapters.kubernetes.objects import labels


def put(client: Client, content: Object, owner: Object | None = None) -> None:
    """Make a ConfigMap, or bring ours of that name up to date.

    One whose owner is gone is made anew: Kubernetes is about to collect it, whatever it says by then.

    Args:
        client: Access to the API server.
        content: The ConfigMap, without an owner.
        owner: What it belongs to, if that is there already.

    Raises:
        Conflict: There is one of that name that is not headway's.
    """
    name, namespace = content["metadata"]["name"], content["metadata"]["namespace"]
    kept = client.get(CONFIG_MAP, name, namespace)
    programs.require_ours(kept)
    if kept is not None:
        owners = {one["uid"] for one in kept["metadata"].get("ownerReferences") or ()}
        if owners - {owner["metadata"]["uid"] if owner else ""}:
            client.delete(CONFIG_MAP, name, namespace, uid=kept["metadata"]["uid"])
    client.apply(CONFIG_MAP, content, force=True)
    if owner is not None:
        own(client, name, owner)


def drop(client: Client, name: str, namespace: str) -> None:
    """Delete the input of a job that was never made, because whoever made it died in between; others' stay."""
    kept = client.get(CONFIG_MAP, name, namespace)
    if kept is not None and (kept["metadata"].get("labels") or {}).items() >= labels("job").items():
        client.delete(CONFIG_MAP, name, namespace, uid=kept["metadata"]["uid"])


def own(client: Client, name: str, owner: Object) -> None:
    """Let a ConfigMap go when its owner goes; what is in it stays as it is."""
    namespace = owner["metadata"]["namespace"]
    kept = client.get(CONFIG_MAP, name, namespace)
    wanted = programs.owner_reference(owner)
    if kept is not None and wanted not in (kept["metadata"].get("ownerReferences") or ()):
        client.merge(CONFIG_MAP, name, {"metadata": {"ownerReferences": [wanted]}}, namespace)
