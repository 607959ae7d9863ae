"""What tests know of CRDs: their schemas without what a check offline has no use for, one small file a kind.

    python -m tests.kubernetes_crds --write [FOLDER...]      after a version in local/rig has changed

A folder has the CRDs, as YAML, of what the rig does not install: Envoy Gateway's (1.9.1, of its Go module
`charts/gateway-helm/charts/crds/crds/generated`) and the Prometheus operator's (0.85.0, of its module
`example/prometheus-operator-crd`).

Descriptions, defaults and CEL rules are left out, and so is the status, which is the controllers' own. Parts that
Kubernetes itself has (pod templates, Services) become references `$core` to the model of the package `kubernetes`.
`tests/cluster/test_platform.py` proves the files to be what the rig's API server has.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

FOLDER = Path(__file__).parent / "data" / "crds"
KINDS = ("GatewayClass", "Gateway", "HTTPRoute", "RayCluster", "RayService")
"""Kinds of which headway makes or reads objects, of all that the rig has."""
OTHERS = (
    "BackendTrafficPolicy",
    "ClientTrafficPolicy",
    "EnvoyProxy",
    "HTTPRouteFilter",
    "PodMonitor",
    "PrometheusRule",
    "ServiceMonitor",
)
"""Kinds of `k8s/` whose CRDs the rig does not have."""
KEPT = (
    "type",
    "format",
    "required",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "nullable",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
)
CORE: Mapping[str, tuple[str, ...]] = {
    "V1PodTemplateSpec": ("metadata", "spec.containers"),
    "V1Container": ("image", "command", "volumeMounts"),
    "V1Affinity": ("nodeAffinity", "podAffinity"),
    "V1Volume": ("emptyDir", "hostPath"),
    "V1PodSecurityContext": ("fsGroup", "runAsNonRoot"),
    "V2MetricSpec": ("containerResource", "external"),
    "V1Service": ("metadata", "spec.clusterIP"),
    "V1EnvVar": ("name", "value", "valueFrom"),
    "V1EnvFromSource": ("configMapRef", "secretRef", "prefix"),
    "V1SecurityContext": ("capabilities", "allowPrivilegeEscalation"),
    "V1VolumeMount": ("mountPath", "subPathExpr"),
    "V1ResourceRequirements": ("limits", "requests", "claims"),
}
"""Model of the package `kubernetes` to the fields by which a part of a CRD is known to be the same."""

UNUSED = ("accessLog", "tracing", "sinks")
"""Large parts of EnvoyProxy that `k8s/` leaves alone; anything is taken there."""


def pruned(definition: Mapping[str, Any]) -> dict[str, Schema]:
    """Return what is kept of a CustomResourceDefinition: file name to schema, for each version that is served."""
    names, group = definition["spec"]["names"], definition["spec"]["group"]
    found = {}
    for version in definition["spec"]["versions"]:
        if not version["served"]:
            continue
        schema = _pruned(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"$core": "V1ObjectMeta"}
        schema["properties"].pop("status", None)
        scope = definition["spec"]["scope"]
        found[file_name(f"{group}/{version['name']}", names["kind"])] = {"namespaced": scope == "Namespaced", **schema}
    return found


def file_name(api_version: str, kind: str) -> str:
    """Return the name of the file with a kind's schema."""
    return f"{api_version.replace('/', '_')}_{kind}.json"


def files(definitions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return every file for these definitions, name to content: of the kinds that are kept, the version that is stored.

    Args:
        definitions: CustomResourceDefinitions, as an API server or upstream's YAML has them.
    """
    found = {}
    for definition in definitions:
        if definition["spec"]["names"]["kind"] in (*KINDS, *OTHERS):
            schemas = pruned(definition)
            stored = next(version["name"] for version in definition["spec"]["versions"] if version["storage"])
            name = file_name(f"{definition['spec']['group']}/{stored}", definition["spec"]["names"]["kind"])
            found[name] = f"{json.dumps(schemas[name], indent=1, sort_keys=True)}\n"
    return found


def _pruned(schema: Mapping[str, Any]) -> Schema:
    for model, marks in CORE.items():
        if all(_has(schema, mark.split(".")) for mark in marks):
            return {"$core": model}
    kept: Schema = {key: schema[key] for key in KEPT if key in schema}
    if "properties" in schema:
        anything = {"x-kubernetes-preserve-unknown-fields": True}
        kept["properties"] = {
            name: anything if name in UNUSED else _pruned(one) for name, one in schema["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            kept[key] = _pruned(schema[key])
    return kept


def _has(schema: Mapping[str, Any], path: list[str]) -> bool:
    found: Any = schema
    for name in path:
        found = found.get("properties", {}).get(name) if found else None
    return found is not None


def main(arguments: list[str]) -> int:
    """Write the files from the upstream manifests that `make rig` has collected, or say which are not up to date."""
    from tests.cluster.rig.manifests import objects

    folders = [Path(argument) for argument in arguments if not argument.startswith("--")]
    found = [*objects(), *(one for folder in folders for path in sorted(folder.glob("*.yaml")) for one in _read(path))]
    made = files(one for one in found if one["kind"] == "CustomResourceDefinition")
    stale = [name for name, content in made.items() if _content(FOLDER / name) != content]
    if "--write" in arguments:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in stale:
            (FOLDER / name).write_text(made[name], encoding="utf-8")
        return 0
    print(f"not up to date: {', '.join(stale)}" if stale else "up to date")  # noqa: T201 - a command
    return bool(stale)


def _read(path: Path) -> list[dict[str, Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = path.read_text(encoding="utf-8")
    if not any(f"kind: {kind}\n" in text for kind in OTHERS):
        return []
    return [one for one in yaml.load_all(text, loader) if one]


def _content(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
