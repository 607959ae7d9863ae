"""A namespace as headway finds it on a prepared cluster: accounts, priorities, local volumes, a gateway.

`k8s/base` and `k8s/platform` bring the same to a real one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.adapters.kubernetes import kinds, objects
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.site import (
    BATCH_ACCOUNT,
    BATCH_PRIORITY,
    CONTROLLER_ACCOUNT,
    PAUSE_PRIORITY,
    SERVING_ACCOUNT,
    SERVING_PRIORITY,
    STAGE_ACCOUNT,
    Site,
)

from .rig.api import DEPLOYMENT, GATEWAY, GATEWAY_CLASS, NAMESPACE, NODE, Api, Kind, condition, wait_until
from .rig.nodes import GPU
from .rig.rig import Rig
from .roles import controller

Object = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[2]
CLAIM, VOLUME = Kind("v1", "PersistentVolumeClaim"), Kind("v1", "PersistentVolume")
PRIORITY_CLASS = Kind("scheduling.k8s.io/v1", "PriorityClass")
ACCOUNTS = (STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT, CONTROLLER_ACCOUNT)
PRIORITIES = {SERVING_PRIORITY: 1000, BATCH_PRIORITY: 100, PAUSE_PRIORITY: -10}
LISTENERS = {"public": 80, "internal": 8080}
PREPARED_WITHIN_S = 90
"""On a real cluster the gateway's proxies start first."""


@dataclass(frozen=True)
class KubernetesSite:
    """A prepared namespace, and who acts in it.

    Attributes:
        client: Of the administrator, or of headway's own account; adapters under test take it.
        site: What adapters know of the cluster.
        api: The test's own access.
        rig: The rig, where it is one.
    """

    client: Client
    site: Site
    api: Api
    rig: Rig | None


@contextmanager
def prepared_site(
    kubeconfig: Path, api: Api, rig: Rig | None, namespace: str, *, as_headway: bool = False
) -> Iterator[KubernetesSite]:
    """Prepare an empty namespace, and take away afterwards what does not go with it.

    Args:
        kubeconfig: The administrator's.
        api: The administrator's client.
        rig: The rig, where it is one.
        namespace: An empty one.
        as_headway: Whether its client is of headway's own account, with the rights of `k8s/base`; on the rig only.

    Yields:
        The prepared namespace.
    """
    site = Site(templates=CHECKOUT / "k8s" / "templates", namespace=namespace)
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.patch(NAMESPACE, namespace, restricted)
    products = sorted({one["metadata"]["labels"].get(f"{GPU}.product", "cpu") for one in api.list(NODE)} | {"cpu"})
    client = Client.connect(kubeconfig)
    volumes: list[str] = []
    try:
        for one in (*_priorities(api), *_accounts(namespace), gateway(site, _gateway_class(api))):
            api.create(one)
        volumes.extend(_bound(client, *local_volume(site, product)) for product in products)
        wait_until(lambda: _is_ready(api, site), f"{namespace} is prepared", PREPARED_WITHIN_S)
        with _adapters_client(client, rig if as_headway else None, namespace) as theirs:
            yield KubernetesSite(theirs, site, api, rig)
    finally:
        client.close()
        for name in volumes:
            api.delete(VOLUME, name)


@contextmanager
def _adapters_client(administrator: Client, rig: Rig | None, namespace: str) -> Iterator[Client]:
    """Give the client that adapters take: of headway's own account on a rig, of the administrator without one."""
    if rig is None:
        yield administrator
        return
    with controller(rig, namespace) as kubeconfig:
        client = Client.connect(kubeconfig)
        try:
            yield client
        finally:
            client.close()


def local_volume(site: Site, accelerator: str) -> tuple[Object, Object]:
    """Return the local volume of a group of nodes and the claim for it, as a platform engineer makes them."""
    claim = site.claim(accelerator)
    volume = f"{site.namespace}-{claim}"
    shape: Object = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    places = [
        {"key": key, "operator": "In", "values": [value]} for key, value in site.node_selector(accelerator).items()
    ]
    bound = {"apiVersion": "v1", "kind": CLAIM.name, "namespace": site.namespace, "name": claim}
    return (
        {
            "apiVersion": "v1",
            "kind": VOLUME.name,
            "metadata": {"name": volume},
            "spec": {
                **shape,
                "capacity": {"storage": "4Ti"},
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": "/var/lib/headway/node"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": places}]}},
                "claimRef": bound,
            },
        },
        {
            "apiVersion": "v1",
            "kind": CLAIM.name,
            "metadata": {"name": claim, "namespace": site.namespace},
            "spec": {**shape, "volumeName": volume, "resources": {"requests": {"storage": "4Ti"}}},
        },
    )


def _bound(client: Client, volume: Object, claim: Object) -> str:
    """Create a volume and its claim, bound to each other; return the volume's name.

    The controller that does it takes up to a second where it sees the two in the wrong order, and leaves them alone
    where it is done.
    """
    claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    metadata = client.create(kinds.CLAIM, claim)["metadata"]
    volume["spec"]["claimRef"]["uid"] = metadata["uid"]
    name = str(client.create(kinds.VOLUME, volume)["metadata"]["name"])
    client.merge(kinds.VOLUME, name, {"status": {"phase": "Bound"}}, subresource="status")
    size = {key: volume["spec"][key] for key in ("accessModes", "capacity")}
    change = {"status": {"phase": "Bound", **size}}
    client.merge(kinds.CLAIM, metadata["name"], change, metadata["namespace"], subresource="status")
    return name


def gateway(site: Site, gateway_class: str) -> Object:
    """Return the Gateway with its two listeners."""
    listeners = [{"name": name, "protocol": "HTTP", "port": port} for name, port in LISTENERS.items()]
    return {
        "apiVersion": GATEWAY.api_version,
        "kind": GATEWAY.name,
        "metadata": {"name": site.gateway, "namespace": site.gateway_namespace or site.namespace},
        "spec": {"gatewayClassName": gateway_class, "listeners": listeners},
    }


def serve_service(cluster: str, namespace: str) -> Object:
    """Return the Service that KubeRay makes for a cluster, without a cluster behind it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{cluster}-serve-svc", "namespace": namespace},
        "spec": {"selector": {"ray.io/cluster": cluster}, "ports": [{"name": "serve", "port": 8000}]},
    }


def restart_api(site: KubernetesSite) -> None:
    """Start the API server again, and return when controllers, scheduler and kubelets are back as well.

    They look for it at growing intervals, so for a while nothing would move.
    """
    assert site.rig is not None
    site.rig.restart("api")
    template = objects.template(site.site.templates, "pause")
    name, namespace = "after-restart", site.site.namespace
    pod = template["spec"]["template"]["spec"]
    container = objects.patched(pod["containers"][0], {"resources": None})
    shape = {"priorityClassName": None, "containers": [container]}
    made = {"metadata": {"name": name, "namespace": namespace}, "spec": {"template": {"spec": shape}}}
    site.api.create(objects.patched(template, made))

    def runs() -> bool:
        found = site.api.get(DEPLOYMENT, name, namespace) or {}
        return bool(found.get("status", {}).get("availableReplicas") == 1)

    wait_until(runs, "pods are made, placed and run", PREPARED_WITHIN_S)
    site.api.delete(DEPLOYMENT, name, namespace)


def local_account(rig: Rig, namespace: str, name: str, *rules: Object) -> Path:
    """Give an account of a namespace just these rights, in place of those it had; return its kubeconfig.

    Returns when they are in force: the API server learns of a change a moment later.
    """
    group = "rbac.authorization.k8s.io"
    metadata = {"name": name, "namespace": namespace}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": group, "kind": "Role", "name": name}
    rig.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    rig.api.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": list(rules)})
    rig.api.apply(
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata}
        | {"roleRef": reference, "subjects": [subject]}
    )
    kubeconfig = rig.account_kubeconfig(name, namespace)
    account = Api(kubeconfig)
    try:
        wait_until(lambda: _rights(account, namespace) == _flat(rules), "the rights count")
    finally:
        account.close()
    return kubeconfig


Right = tuple[str, str, str, str]


def _rights(account: Api, namespace: str) -> set[Right]:
    """Return what the API server lets an account do in a namespace with objects of others than itself."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    found = account.request("POST", path, review)["status"]["resourceRules"]
    return {one for one in _flat(found) if one[0] not in ("authorization.k8s.io", "authentication.k8s.io")}


def _flat(rules: Iterable[Object]) -> set[Right]:
    return {
        (group, resource, verb, name)
        for one in rules
        for group in one["apiGroups"]
        for resource in one["resources"]
        for verb in one["verbs"]
        for name in one.get("resourceNames") or [""]
    }


def _gateway_class(api: Api) -> str:
    """Return a class that a controller has accepted."""

    def accepted() -> str:
        found = (one["metadata"]["name"] for one in api.list(GATEWAY_CLASS) if condition(one, "Accepted") == "True")
        return str(next(found, ""))

    return wait_until(accepted, "a GatewayClass is accepted")


def _priorities(api: Api) -> list[Object]:
    """Return the priority classes that are not there yet: they belong to no namespace."""
    there = {one["metadata"]["name"] for one in api.list(PRIORITY_CLASS)}
    return [
        {"apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.name, "metadata": {"name": name}, "value": at}
        for name, at in PRIORITIES.items()
        if name not in there
    ]


def _accounts(namespace: str) -> list[Object]:
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        for name in ACCOUNTS
    ]


def _is_ready(api: Api, site: Site) -> bool:
    claims = api.list(CLAIM, site.namespace)
    programmed = condition(api.get(GATEWAY, site.gateway, site.gateway_namespace or site.namespace), "Programmed")
    return programmed == "True" and all(one["status"].get("phase") == "Bound" for one in claims)
