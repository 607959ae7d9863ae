"""What a cluster has before headway comes to it: CRDs, the operator's role, KWOK's stages, as plain objects.

`make rig` takes the files out of the pinned modules once (`collect`); from then on no module cache and no network is
needed.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from .annotations import GATEWAY_CONTROLLER
from .build import run_go
from .programs import GATEWAY_API, KUBERAY, KWOK, Module, RigNotBuiltError, build_folder
from .stages import gateway_stages, node_stages, pod_stages

Object = dict[str, Any]

FILES: dict[Module, tuple[str, ...]] = {
    KUBERAY: ("config/crd/bases/*.yaml", "config/rbac/role.yaml"),
    KWOK: (
        "kustomize/crd/bases/kwok.x-k8s.io_stages.yaml",
        "kustomize/crd/bases/kwok.x-k8s.io_logs.yaml",
        "kustomize/stage/node/fast/node-initialize.yaml",
        "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    ),
    GATEWAY_API: ("config/crd/standard/gateway.networking.k8s.io_*s.yaml",),
}
WANTED = ("CustomResourceDefinition", "ClusterRole", "Stage")
OPERATOR_NAMESPACE, OPERATOR_ACCOUNT = "kuberay-system", "kuberay-operator"
GATEWAY_CLASS_NAME = "rig"


def collect() -> None:
    """Keep the upstream objects of each module beside its programs, where they are not kept yet."""
    for module, patterns in FILES.items():
        target = _file(module)
        if target.exists():
            continue
        run_go(module, "mod", "download", module.path)
        folder = Path(run_go(module, "list", "-m", "-f", "{{.Dir}}", module.path).strip())
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found = [
            content
            for pattern in patterns
            for path in sorted(folder.glob(pattern))
            for content in yaml.load_all(path.read_text(), loader)
            if content and content["kind"] in WANTED
        ]
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(target)
        print(f"{module.name:<24} {module.version:<9} {len(found)} manifests", flush=True)


def objects() -> list[Object]:
    """Return everything to create, in order: definitions first.

    Raises:
        RigNotBuiltError: The upstream objects are not collected yet.
    """
    upstream = [one for module in FILES for one in _upstream(module)]
    definitions = [_without_prose(one) for one in upstream if one["kind"] == "CustomResourceDefinition"]
    stages = [*pod_stages(), *node_stages([one for one in upstream if one["kind"] == "Stage"]), *gateway_stages()]
    role = next(one for one in upstream if one["kind"] == "ClusterRole")
    return [*definitions, *stages, *_operator(role), _gateway_class()]


def _upstream(module: Module) -> list[Object]:
    path = _file(module)
    if not path.exists():
        raise RigNotBuiltError(f"the manifests of {module.name} {module.version} are not collected; run `make rig`")
    found: list[Object] = json.loads(path.read_text())
    return found


def _file(module: Module) -> Path:
    patterns = hashlib.sha256("\n".join(FILES[module]).encode()).hexdigest()[:12]
    return build_folder(module) / f"manifests-{patterns}.json"


def _without_prose(definition: Object) -> Object:
    """Return a definition without descriptions: most of its bytes, and of the time that the API server needs for it."""
    definition.pop("status", None)
    stripped: Object = _strip(definition, fields=False)
    return stripped


def _strip(content: Any, *, fields: bool) -> Any:
    """Drop descriptions, but no field that is called `description` (`fields`: the keys are names of fields)."""
    if isinstance(content, dict):
        return {
            key: _strip(value, fields=key == "properties" and not fields)
            for key, value in content.items()
            if fields or key != "description"
        }
    return [_strip(one, fields=False) for one in content] if isinstance(content, list) else content


def _operator(role: Object) -> list[Object]:
    """Return the operator's identity, with upstream's own role: what it may do is what it may do on a real cluster."""
    metadata = {"name": OPERATOR_ACCOUNT, "namespace": OPERATOR_NAMESPACE}
    name = role["metadata"]["name"]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**role, "metadata": {"name": name}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    ]


def _gateway_class() -> Object:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": GATEWAY_CLASS_NAME},
        "spec": {"controllerName": GATEWAY_CONTROLLER},
    }
