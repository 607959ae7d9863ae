"""What every object of headway carries: who made it, for which model, from which digest."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headway.adapters.kubernetes.client import MANAGER, Object
from headway.domain.value import short, slug
from headway.errors import ConfigError

MANAGED_BY, COMPONENT = "app.kubernetes.io/managed-by", "app.kubernetes.io/component"
MODEL, RELEASE, DIGEST = "headway/model", "headway/release", "headway/digest"
"""Labels: slugs of model and release, and the 12 hex digits by which the object is named."""
ASKED = "headway/asked"
"""Annotation: what the object was made from, as JSON."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is there: ten times as quick."""
LONGEST_LABEL = 63
LONGEST_RAY_SERVICE = 47
"""Characters: KubeRay names pods and Services after a RayService."""


def labels(component: str, *, model: str = "", release: str = "", digest: str = "") -> dict[str, str]:
    """Return the labels of an object.

    Args:
        component: What it is for: `cluster`, `job`, `stage`, `route` or `pause`.
        model: The served model, as its users name it.
        release: Id of the release that made it.
        digest: What it is named by, whole.
    """
    found = {MANAGED_BY: MANAGER, COMPONENT: component}
    if model:
        found[MODEL] = slug(model)
    if release:
        found[RELEASE] = slug(release, LONGEST_LABEL)
    if digest:
        found[DIGEST] = short(digest)
    return found


def selector(component: str, **wanted: str) -> str:
    """Return the label selector of headway's objects of a component; `model`, `release` and `digest` narrow it."""
    return ",".join(f"{key}={value}" for key, value in labels(component, **wanted).items())


def is_ours(found: Object) -> bool:
    """Tell whether headway made an object."""
    return bool((found["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER)


def annotation(found: Object, key: str) -> str | None:
    """Return an annotation of an object, none if it has none of the kind."""
    value = (found["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def condition(found: Object, name: str) -> Object | None:
    """Return a condition of an object's status; `status.conditions` may be absent or null."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == name), None)


def template(folder: Path, name: str) -> Object:
    """Read a template: one valid object as YAML, to be patched.

    Raises:
        ConfigError: There is none, or it is not one object.
    """
    path = folder / f"{name}.yaml"
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), LOADER)  # noqa: S506 - both loaders are safe ones
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"the template {path} cannot be read: {' '.join(str(error).split())}; put the one of this version back",
            path=str(path),
        ) from error
    if not isinstance(content, dict) or not {"apiVersion", "kind", "metadata"} <= content.keys():
        raise ConfigError(f"the template {path} is not one Kubernetes object; put the one of this version back")
    return content


def patched(base: Object, changes: Mapping[str, Any]) -> Object:
    """Return a copy of an object with changes merged in, key by key; lists are replaced, None takes a key away."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key] = patched(merged[key], value)
        else:
            merged[key] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)
    return merged
