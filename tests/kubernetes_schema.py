"""Is an object what an API server takes? Told offline, as far as the schema of its kind goes.

    assert faults(made) == []

Core kinds go by the typed models of the package `kubernetes`, those of KubeRay and the Gateway API by their CRDs
(`tests/data/crds`, written by `tests/kubernetes_crds.py`). What only a server knows (CEL rules, admission, quotas) is
left to `tests/cluster`. Pods are looked at more closely by `tests/kubernetes_pods.py`.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes
from kubernetes.client.exceptions import ApiValueError

from tests.kubernetes_crds import FOLDER, file_name

Schema = dict[str, Any]
Object = Mapping[str, Any]

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
QUANTITY = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?")
LONGEST_NAME, LONGEST_LABEL = 253, 63
PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "datetime": "string"}
TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
QUANTITIES = {
    "V1LimitRangeItem",
    "V1PersistentVolumeSpec",
    "V1ResourceQuotaSpec",
    "V1ResourceRequirements",
    "V1VolumeResourceRequirements",
}
"""Models whose maps of text are amounts."""


class UnknownKindError(Exception):
    """There is no schema for a kind."""


def faults(content: Object) -> list[str]:
    """Return what an API server would refuse in an object, one sentence each; empty if nothing is found.

    Args:
        content: The whole object. A kind without a schema here is a fault.
    """
    kind, metadata = str(content.get("kind", "")), _mapping(content.get("metadata"))
    what = f"{kind or 'object'} {metadata.get('name', '')}"
    try:
        schema = schema_of(str(content.get("apiVersion", "")), kind)
    except UnknownKindError as error:
        return [f"{what}: {error}"]
    found = [*_checked(content, schema, ""), *_named(metadata, namespaced=schema["namespaced"])]
    return [f"{what}: {fault}" for fault in found]


@cache
def schema_of(api_version: str, kind: str) -> Schema:
    """Return the schema of a kind.

    Raises:
        UnknownKindError: There is none.
    """
    path = FOLDER / file_name(api_version, kind)
    if path.is_file():
        schema: Schema = json.loads(path.read_text(encoding="utf-8"))
        schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
        return schema | {"required": sorted({"apiVersion", "kind", "metadata", *schema.get("required", [])})}
    group, _, version = api_version.rpartition("/")
    words = "".join(word.capitalize() for word in group.removesuffix(".k8s.io").replace(".", "-").split("-"))
    api = getattr(kubernetes.client, f"{words or 'Core'}{version.capitalize()}Api", None)
    verb = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
    namespaced = hasattr(api, f"create_namespaced_{verb}")
    names = (f"{version.capitalize()}{kind}", f"{words or 'Core'}{version.capitalize()}{kind}")
    model = next((name for name in names if hasattr(kubernetes.client, name)), None)
    if model is None or not (namespaced or hasattr(api, f"create_{verb}")):
        raise UnknownKindError(f"there is no schema of {api_version} {kind}; see tests/kubernetes_crds.py")
    core = core_schema(model)
    required = sorted({"apiVersion", "kind", "metadata", *core.get("required", [])})
    return core | {"namespaced": namespaced, "required": required}


@cache
def core_schema(model: str) -> Schema:
    """Return the schema of a model of the package `kubernetes`, as a CRD would have it."""
    cls = getattr(kubernetes.client, model)
    properties = {cls.attribute_map[name]: _typed(kind) for name, kind in cls.openapi_types.items()}
    if model in QUANTITIES:
        amounts = {"type": "object", "additionalProperties": {"format": "quantity"}}
        properties |= {
            name: amounts
            for name, one in properties.items()
            if one.get("additionalProperties", {}).get("type") == "string"
        }
    required = [cls.attribute_map[name] for name in cls.openapi_types if _is_required(cls, name)]
    return {"type": "object", "properties": properties, "required": required}


def _is_required(cls: type[Any], name: str) -> bool:
    """Ask the model's own check: it refuses None where something must be."""
    configuration = kubernetes.client.Configuration()
    configuration.client_side_validation = False
    made = cls(local_vars_configuration=configuration)
    made.local_vars_configuration.client_side_validation = True
    try:
        setattr(made, name, None)
    except (ValueError, ApiValueError):
        return True
    except TypeError:  # an optional one with a pattern, which the model does not ask for None first
        return False
    return False


def _typed(kind: str) -> Schema:
    """Return the schema of a type as the package writes it, such as `dict[str, list[V1Pod]]`."""
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if kind == "object":
        return {"x-kubernetes-preserve-unknown-fields": True}
    if kind.startswith("list["):
        return {"type": "array", "items": _typed(kind[5:-1])}
    if kind.startswith("dict[str, "):
        return {"type": "object", "additionalProperties": _typed(kind[10:-1])}
    return {"$core": kind}


def _checked(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if "$core" in schema:
        schema = core_schema(schema["$core"])
    if value is None:
        if not schema.get("nullable"):
            yield f"{path}: null; leave the key away"
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not (TYPES["integer"](value) or TYPES["string"](value)):
            yield f"{path}: {value!r} is neither a whole number nor text"
        return
    wanted = schema.get("type")
    if wanted and not TYPES[wanted](value):
        yield f"{path}: {_short(value)} is not of type {wanted}"
        return
    yield from _bounded(value, schema, path)
    if isinstance(value, Mapping):
        yield from _keys(value, schema, path)
    elif isinstance(value, list) and "items" in schema:
        for index, one in enumerate(value):
            yield from _checked(one, schema["items"], f"{path}[{index}]")


def _keys(value: Mapping[Any, Any], schema: Schema, path: str) -> Iterator[str]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    anything = schema.get("x-kubernetes-preserve-unknown-fields") or not (properties or others)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_below(path, name)}: missing"
    for name, one in value.items():
        here = _below(path, str(name))
        if not isinstance(name, str):
            yield f"{here}: the key {name!r} is not text"
        elif name in properties:
            yield from _checked(one, properties[name], here)
        elif isinstance(others, Mapping):
            yield from _checked(one, dict(others), here)
        elif not anything:
            near = difflib.get_close_matches(name, properties, n=1)
            yield f"{here}: unknown key{f'; is it {near[0]}?' if near else ''}"


def _bounded(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {', '.join(map(str, schema['enum']))}"
    if schema.get("format") == "quantity" and not (TYPES["number"](value) or QUANTITY.fullmatch(str(value))):
        yield f"{path}: {_short(value)} is not an amount such as 2, 500m or 2Gi"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not fit {schema['pattern']}"
    if isinstance(value, str | list):
        kind = "Length" if isinstance(value, str) else "Items"
        if len(value) < schema.get(f"min{kind}", 0) or len(value) > schema.get(f"max{kind}", len(value)):
            yield f"{path}: length {len(value)} is not {schema.get(f'min{kind}', 0)} to {schema.get(f'max{kind}', '')}"
    elif TYPES["number"](value) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is not {schema.get('minimum', '')} to {schema.get('maximum', '')}"


def _named(metadata: Object, *, namespaced: bool) -> Iterator[str]:
    name = str(metadata.get("name", ""))
    if not name and not metadata.get("generateName"):
        yield "metadata.name: missing"
    elif name and (len(name) > LONGEST_NAME or not NAME.fullmatch(name)) and ":" not in name:  # roles may have a colon
        yield f"metadata.name: {name!r} is not a name of lower case letters, digits, - and ."
    if metadata.get("namespace") and not namespaced:
        yield "metadata.namespace: this kind belongs to no namespace"
    yield from label_faults(metadata.get("labels"), "metadata.labels")
    for key in _mapping(metadata.get("annotations")):
        if not LABEL_KEY.fullmatch(str(key)):
            yield f"metadata.annotations: {key!r} is not a key"


def label_faults(labels: object, path: str) -> Iterator[str]:
    """Yield what is wrong with labels; an API server checks them on every object and every pod template."""
    for key, value in _mapping(labels).items():
        if not LABEL_KEY.fullmatch(str(key)):
            yield f"{path}: {key!r} is not a key"
        if isinstance(value, str) and (len(value) > LONGEST_LABEL or not LABEL_VALUE.fullmatch(value)):
            yield f"{path}.{key}: {value!r} is not a label's value (at most {LONGEST_LABEL} of letters, digits, -_.)"


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a YAML file; what is no object of Kubernetes (values of a chart) is left out."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = yaml.load_all(path.read_text(encoding="utf-8"), loader)
    return [one for one in found if isinstance(one, dict) and {"apiVersion", "kind"} <= one.keys()]


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["UnknownKindError", "core_schema", "documents", "faults", "label_faults", "schema_of"]
