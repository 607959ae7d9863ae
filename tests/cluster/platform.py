"""`k8s/` on the rig, as `kubectl apply -k` puts it there, and who may do what with it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.site import Site
from tests.kubernetes_crds import OTHERS

from .rig.api import (
    DAEMON_SET,
    DEPLOYMENT,
    GATEWAY,
    JOB,
    NAMESPACE,
    POD,
    RAY_SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    condition,
    wait_until,
)
from .rig.manifests import GATEWAY_CLASS_NAME
from .rig.rig import Rig
from .sites import local_volume

Object = dict[str, Any]
Act = tuple[str, str, str]
"""What was done: API group, resource (with its subresource), verb."""

CHECKOUT = Path(__file__).resolve().parents[2]
MANAGER = "platform-engineer"
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io/v1", "ClusterRole")
CLUSTER_BINDING = Kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding")
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
GONE_WITHIN_S = 60


@dataclass(frozen=True)
class Platform:
    """A rig on which `k8s/base` is applied.

    Attributes:
        rig: Where.
        site: What headway knows of it.
        objects: What was applied.
        left_out: Kinds whose CRDs the rig lacks; of those only the names are known to be right.
    """

    rig: Rig
    site: Site
    objects: list[Object]
    left_out: frozenset[str]


def rendered(folder: str) -> list[Object]:
    """Return what `kubectl apply -k` sends for a folder of `k8s/`."""
    kubectl = Path(sys.prefix) / "bin" / "kubectl"
    done = subprocess.run([kubectl, "kustomize", CHECKOUT / "k8s" / folder], check=True, capture_output=True, text=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


@contextmanager
def installed(rig: Rig, overlay: str = "overlays/dev") -> Iterator[Platform]:
    """Apply an overlay on the server's side, and take it away afterwards.

    Args:
        rig: Where.
        overlay: Folder of `k8s/`.

    Yields:
        The platform.
    """
    known = [_for_the_rig(one) for one in rendered(overlay) if one["kind"] not in OTHERS]
    site = Site(templates=CHECKOUT / "k8s" / "templates")
    try:
        apply(rig, known)
        wait_until(
            lambda: condition(rig.api.get(GATEWAY, site.gateway, site.namespace), "Programmed") == "True",
            "the gateway is programmed",
        )
        wait_until(lambda: rig.api.get(SERVICE_ACCOUNT, "default", site.namespace), "the namespace has its account")
        yield Platform(rig, site, known, frozenset({one["kind"] for one in rendered(overlay)} & set(OTHERS)))
    finally:
        for one in known:
            kind = Kind(one["apiVersion"], one["kind"])
            # Classes of priority stay: pods of other tests may have them.
            if kind in (CLUSTER_ROLE, CLUSTER_BINDING) or one["kind"] == "PersistentVolume":
                rig.api.delete(kind, one["metadata"]["name"])
        # Kubernetes waits before it empties a namespace: empty it first.
        for kind in (RAY_SERVICE, DEPLOYMENT, DAEMON_SET, JOB, POD):
            rig.api.delete_all(kind, site.namespace)
        rig.api.delete(NAMESPACE, site.namespace)
        wait_until(
            lambda: not rig.api.get(NAMESPACE, site.namespace) and not rig.api.list(POD, site.namespace),
            "the namespace is gone",
            GONE_WITHIN_S,
        )


@contextmanager
def volumes(platform: Platform, *accelerators: str) -> Iterator[None]:
    """Make the local volumes and claims of nodes, as an engineer does, and take them away again."""
    api = platform.rig.api
    made = [one for accelerator in accelerators for one in local_volume(platform.site, accelerator)]
    about = [(Kind(one["apiVersion"], one["kind"]), one["metadata"]) for one in made]

    def left() -> list[str]:
        return [one["name"] for kind, one in about if api.get(kind, one["name"], one.get("namespace"))]

    try:
        for one in made:
            api.create(one)
        yield
    finally:
        for kind, one in reversed(about):
            api.delete(kind, one["name"], one.get("namespace"))
        wait_until(lambda: not left(), "the volumes are gone")


def apply(rig: Rig, objects: list[Object]) -> str:
    """Apply objects as a person does; return what kubectl said."""
    text = yaml.safe_dump_all(objects)
    return rig.kubectl("apply", "--server-side", f"--field-manager={MANAGER}", "-f", "-", stdin=text)


def _for_the_rig(content: Object) -> Object:
    """Return an object with the rig's own gateway in place of Envoy's."""
    if content["kind"] != GATEWAY.name:
        return content
    spec = {key: value for key, value in content["spec"].items() if key != "infrastructure"}
    return {**content, "spec": {**spec, "gatewayClassName": GATEWAY_CLASS_NAME}}


class Recording(Client):
    """A client that keeps what it did, by the names that rights go by."""

    acts: set[Act]
    """In a namespace."""
    everywhere: set[Act]
    """Without one."""

    @classmethod
    def of(cls, kubeconfig: Path) -> "Recording":
        """Return a client of a kubeconfig's account."""
        made = cls.connect(kubeconfig)
        assert isinstance(made, cls)
        made.acts, made.everywhere = set(), set()
        return made

    def _send(
        self, method: str, path: str, body: object, wanted: Mapping[str, str], timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        answer = super()._send(method, path, body, wanted, timeout_s)
        if not path.startswith("/api"):
            return answer  # the version, which is no object
        act, namespaced = act_of(method, path)
        (self.acts if namespaced else self.everywhere).add(act)
        if "apply-patch" in wanted["Content-Type"] and answer[0] == 201:
            self.acts.add((*act[:2], "create"))
        return answer


def act_of(method: str, path: str) -> tuple[Act, bool]:
    """Return what a request does, and whether in a namespace."""
    parts = urlsplit(path).path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespaced = rest[:1] == ["namespaces"] and len(rest) > 2
    resource, *more = rest[2:] if namespaced else rest
    subresource = f"/{more[1]}" if len(more) > 1 else ""
    verb = VERBS.get(method) or ("get" if more else "list")
    return (group, f"{resource}{subresource}", verb), namespaced
