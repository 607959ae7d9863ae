"""Local volumes of the machine's Python environments, and the policy that lets pods of headway's images mount them.

On a real cluster the environment is inside of the image. Here it is a local volume at the same path, read-only, so that
pods pass the Pod Security level `restricted`; the API server adds it at admission, and headway's objects stay as they
are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .stock import environment, python_home

Object = dict[str, Any]

IMAGES = "localhost/headway-"
"""How the names of images begin whose environment is not in them."""
ADMISSION = "admissionregistration.k8s.io/v1beta1"
POLICY = "headway-environments"
SIZE = "100Gi"


def places() -> Mapping[str, Path]:
    """Return name and place of what pods mount: environments, and the Python below them."""
    return {
        "environment-serve": environment("serve"),
        "environment-pods": environment("airflow"),
        "python": python_home(),
    }


def local_volume(namespace: str, name: str, path: Path, node: str) -> tuple[Object, Object]:
    """Return a local volume and its claim.

    Args:
        namespace: Of the claim.
        name: Of both; the volume's has the namespace in front.
        path: The folder on the node.
        node: The one that has it.
    """
    shape: Object = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    volume = volume_name(namespace, name)
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **shape,
                "capacity": {"storage": SIZE},
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": str(path)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**shape, "volumeName": volume, "resources": {"requests": {"storage": SIZE}}},
        },
    )


def volume_name(namespace: str, name: str) -> str:
    """Return the name of the volume of a claim: volumes belong to no namespace."""
    return f"{namespace}-{name}"


def policy() -> tuple[Object, Object]:
    """Return the admission policy and its binding."""
    volumes, mounts = [], []
    for name, path in places().items():
        claim = f'Object.spec.volumes.persistentVolumeClaim{{claimName: "{name}", readOnly: true}}'
        volumes.append(f'Object.spec.volumes{{name: "{name}", persistentVolumeClaim: {claim}}}')
        mounts.append((name, path))

    def containers(field: str) -> str:
        own = ", ".join(
            f'Object.spec.{field}.volumeMounts{{name: "{name}", mountPath: "{path}", readOnly: true}}'
            for name, path in mounts
        )
        return f"object.spec.{field}.map(one, Object.spec.{field}{{name: one.name, volumeMounts: [{own}]}})"

    expression = (
        f"Object{{spec: Object.spec{{volumes: [{', '.join(volumes)}], containers: {containers('containers')}, "
        f"initContainers: has(object.spec.initContainers) ? {containers('initContainers')} : []}}}}"
    )
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    ours = f"object.spec.containers.exists(one, one.image.startsWith('{IMAGES}'))"
    return (
        {
            "apiVersion": ADMISSION,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [{"name": "ours", "expression": ours}],
                "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
            },
        },
        {
            "apiVersion": ADMISSION,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY},
            "spec": {"policyName": POLICY},
        },
    )
