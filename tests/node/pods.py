"""Small pods that pass the Pod Security level `restricted`."""

from typing import Any

Object = dict[str, Any]

POD_SECURITY: Object = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def container(image: str, script: str, **rest: Any) -> Object:
    """Return a container that runs a line of bash."""
    return {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", script],
        "securityContext": CONTAINER_SECURITY,
        **rest,
    }


def pod(name: str, namespace: str, *containers: Object, **rest: Any) -> Object:
    """Return a pod that is not started again."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": POD_SECURITY,
            "containers": list(containers),
            **rest,
        },
    }
