"""Is a pod, or what makes pods, coherent, and is it admitted under the Pod Security level `restricted`? Told offline.

    assert incoherent(made) == []
    assert not_restricted(made) == []

The rules are those of Kubernetes' page "Pod Security Standards" (1.35); `tests/cluster/test_rights.py` asks the real
admission the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.kubernetes_schema import label_faults

Object = Mapping[str, Any]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP = {"RuntimeDefault", "Localhost"}
HOST = ("hostNetwork", "hostPID", "hostIPC")
SELECTING = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet")


def pod_templates(content: Object) -> list[tuple[str, Object]]:
    """Return every pod of an object, with its place: of a Pod, of what makes pods, of a RayService or a RayCluster."""
    if content.get("kind") == "Pod":
        return [("", content)]
    return list(_templates(content, ""))


def _templates(part: Any, path: str) -> Iterator[tuple[str, Object]]:
    if isinstance(part, Mapping):
        if isinstance(part.get("spec"), Mapping) and isinstance(part["spec"].get("containers"), list):
            yield path, part
            return
        for name, one in part.items():
            yield from _templates(one, f"{path}.{name}" if path else str(name))
    elif isinstance(part, list):
        for index, one in enumerate(part):
            yield from _templates(one, f"{path}[{index}]")


def containers(pod: Object) -> list[Object]:
    """Return init containers and containers of a pod or of its template."""
    spec = pod["spec"]
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def incoherent(content: Object) -> list[str]:
    """Return what an API server would refuse in the pods of an object though each part by itself is right."""
    found = []
    for path, pod in pod_templates(content):
        where = f"{content['kind']} {content['metadata'].get('name', '')}: {path or 'pod'}"
        found += [f"{where}: {fault}" for fault in _incoherent(pod)]
        found += [f"{where}: {fault}" for fault in label_faults((pod.get("metadata") or {}).get("labels"), "labels")]
    if content["kind"] in SELECTING:
        wanted = content["spec"]["selector"].get("matchLabels") or {}
        labels = content["spec"]["template"]["metadata"].get("labels") or {}
        if not wanted.items() <= labels.items():
            found.append(f"{content['kind']}: the selector {wanted} does not select the template's labels {labels}")
    return found


def _incoherent(pod: Object) -> Iterator[str]:
    spec = pod["spec"]
    volumes = [one["name"] for one in spec.get("volumes") or []]
    names = [one["name"] for one in containers(pod)]
    for kind, given in (("volume", volumes), ("container", names)):
        for name in sorted({name for name in given if given.count(name) > 1}):
            yield f"two {kind}s are called {name}"
    for container in containers(pod):
        mounts = container.get("volumeMounts") or []
        for mount in mounts:
            if mount["name"] not in volumes:
                yield f"container {container['name']} mounts {mount['name']}, which is no volume of the pod"
        paths = [mount["mountPath"] for mount in mounts]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield f"container {container['name']} mounts {path} twice"
        variables = [one["name"] for one in container.get("env") or []]
        for name in sorted({name for name in variables if variables.count(name) > 1}):
            yield f"container {container['name']} sets {name} twice"


def not_restricted(content: Object) -> list[str]:
    """Return what the Pod Security level `restricted` forbids in the pods of an object."""
    return [
        f"{content['kind']} {content['metadata'].get('name', '')}: {path or 'pod'}: {fault}"
        for path, pod in pod_templates(content)
        for fault in [*_pod_faults(pod["spec"]), *_container_faults(pod)]
    ]


def _pod_faults(spec: Object) -> Iterator[str]:
    for key in HOST:
        if spec.get(key):
            yield f"{key} is set"
    for volume in spec.get("volumes") or []:
        for kind in volume.keys() - {"name"} - VOLUMES:
            yield f"volume {volume['name']} is of type {kind}"
    if (spec.get("securityContext") or {}).get("sysctls"):
        yield "sysctls are set"


def _container_faults(pod: Object) -> Iterator[str]:
    of_pod = pod["spec"].get("securityContext") or {}
    if of_pod.get("runAsUser") == 0:
        yield "the pod runs as user 0"
    for container in containers(pod):
        own = container.get("securityContext") or {}
        capabilities = own.get("capabilities") or {}
        seccomp = (own.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type")
        forbidden = {
            "is privileged": own.get("privileged"),
            "has no allowPrivilegeEscalation: false": own.get("allowPrivilegeEscalation") is not False,
            "does not drop ALL capabilities": "ALL" not in (capabilities.get("drop") or []),
            "adds capabilities": set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"},
            "has no runAsNonRoot: true": own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True,
            "runs as user 0": own.get("runAsUser") == 0,
            "has no seccompProfile of type RuntimeDefault": seccomp not in SECCOMP,
            "takes a port of the host": any(port.get("hostPort") for port in container.get("ports") or []),
            "has a probe or a hook with a host": any(_hosts(container)),
            "has another procMount": own.get("procMount", "Default") != "Default",
        }
        yield from (f"container {container['name']} {what}" for what, holds in forbidden.items() if holds)


def _hosts(container: Object) -> Iterator[object]:
    """Yield the hosts that a kubelet would ask in place of the pod."""
    lifecycle = container.get("lifecycle") or {}
    asked = [container.get(f"{kind}Probe") for kind in ("liveness", "readiness", "startup")]
    for one in [*asked, *lifecycle.values()]:
        for how in ("httpGet", "tcpSocket"):
            yield ((one or {}).get(how) or {}).get("host")


__all__ = ["containers", "incoherent", "not_restricted", "pod_templates"]
