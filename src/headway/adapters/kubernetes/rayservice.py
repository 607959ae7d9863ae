"""Builds the objects of a cluster from what was asked: a RayService, and budgets of how many pods a drain must leave.

The base is `k8s/templates/rayservice.yaml`, where a platform sets requests, selectors and tolerations. One worker is
one replica: it has the accelerators of one, so Serve's replica range is the range of workers. `ray_service` is the
whole object; `with_range` is the one change that a running one gets.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from headway.adapters.kubernetes import programs
from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.objects import (
    ASKED,
    LONGEST_RAY_SERVICE,
    annotation,
    is_ours,
    labels,
    patched,
    template,
)
from headway.adapters.kubernetes.ray_pods import CLUSTER, CPU_REPLICA_PROCESSORS, PART, SERVING_SECURITY, is_cpu, pod
from headway.adapters.kubernetes.site import SERVE_PORT, Site
from headway.domain.cluster import ClusterSpec, replica_override, serve_config
from headway.domain.profile import Replicas
from headway.domain.value import slug
from headway.errors import ConfigError

ANSWERED = "headway/answered"
"""Annotation of a RayService: in which life of it the endpoint has answered a completion."""
SCALING = "headway/scaling"
"""Annotation of a RayService: what looks at it have seen of scale-ups, as JSON."""


def pod_selector(name: str, part: str = "") -> str:
    """Return the label selector of a cluster's pods, or of one part of them."""
    return f"{CLUSTER}={name}" + (f",{PART}={part}" if part else "")


def ray_service(spec: ClusterSpec, site: Site) -> Object:
    """Build the RayService of a cluster.

    Args:
        spec: What is asked for.
        site: The cluster's settings and templates.

    Raises:
        ConfigError: It cannot be named, has no image, or its model lies where no pod sees it.
    """
    _check(spec, site)
    base = _base(site)
    own = labels("cluster", model=spec.model, release=spec.release, digest=spec.cluster_digest)
    cluster = base["spec"]["rayClusterConfig"]
    head, group = cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]
    return patched(
        base,
        {
            "metadata": {
                "name": spec.name,
                "namespace": site.namespace,
                "labels": own,
                "annotations": {ASKED: asked(spec)},
            },
            "spec": {
                "serveConfigV2": served(serve_config(spec, cpu=is_cpu(spec.accelerator), http_port=SERVE_PORT)),
                "rayClusterConfig": {
                    "autoscalerOptions": {
                        "securityContext": dict(SERVING_SECURITY),
                        "imagePullPolicy": site.image_pull_policy,
                    },
                    "headGroupSpec": {"template": pod(spec, site, head["template"], "head")},
                    "workerGroupSpecs": [_worker_group(spec, site, group)],
                },
            },
        },
    )


def replica_shape(spec: ClusterSpec, site: Site) -> Object:
    """Return the template of the pod that is one replica, as the scheduler will see it."""
    found: Object = ray_service(spec, site)["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]
    return found


def disruption_budgets(spec: ClusterSpec, site: Site, owner: Object) -> list[Object]:
    """Build the budgets of a cluster: its head stays, and of its replicas one may go at a time, but never the last.

    Args:
        spec: What is asked for.
        site: The cluster's settings and templates.
        owner: The RayService as the API server returned it; the budgets go when it goes.
    """
    own = labels("cluster", model=spec.model, release=spec.release, digest=spec.cluster_digest)
    base = template(site.templates, "disruption_budget")
    return [
        patched(
            base,
            {
                "metadata": {
                    "name": f"{spec.name}-{part}",
                    "namespace": site.namespace,
                    "labels": own,
                    "ownerReferences": [programs.owner_reference(owner)],
                },
                "spec": {"minAvailable": least, "selector": {"matchLabels": {CLUSTER: spec.name, PART: part}}},
            },
        )
        for part, least in (("head", 1), ("replica", least_replicas(spec.replicas)))
    ]


def least_replicas(replicas: Replicas) -> int:
    """Return how many replicas a drain must leave."""
    return max(1, replicas.min - 1)


def with_range(found: Object, replicas: Replicas) -> Object:
    """Return the change that gives a running RayService another replica range, and nothing else.

    The `deployments:` override of the Serve configuration, the bounds of the worker group, and what was asked for. The
    `resourceVersion` is in it, so it fails where somebody changed the object meanwhile. None of it makes KubeRay start
    a new cluster: it leaves bounds out of the hash by which it compares.

    Args:
        found: The RayService as the API server has it.
        replicas: The new range.
    """
    spec = spec_of(found)
    config = _read(found["spec"]["serveConfigV2"])
    override = replica_override(spec.model, replicas)
    for application in config["applications"]:
        application["deployments"] = [
            {**one, **override} if one.get("name") == override["name"] else one
            for one in application.get("deployments") or ()
        ]
    groups = [{**one, **bounds(replicas)} for one in found["spec"]["rayClusterConfig"]["workerGroupSpecs"]]
    return {
        "metadata": {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "annotations": {ASKED: asked(spec.model_copy(update={"replicas": replicas}))},
        },
        "spec": {"serveConfigV2": served(config), "rayClusterConfig": {"workerGroupSpecs": groups}},
    }


def bounds(replicas: Replicas) -> dict[str, int]:
    """Return the bounds of a worker group."""
    return {"minReplicas": replicas.min, "maxReplicas": replicas.max}


def served(config: Mapping[str, Any]) -> str:
    """Return a Serve configuration as a RayService carries it; JSON is YAML too."""
    return json.dumps(config, sort_keys=True)


def _read(text: str) -> dict[str, Any]:
    """Return a Serve configuration: JSON as headway writes it, or YAML as a person may have left it."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        found = yaml.safe_load(text)
    return found


def asked(spec: ClusterSpec) -> str:
    """Return the annotation that says what a cluster was made from."""
    return json.dumps(spec.to_json(), sort_keys=True)


def spec_of(found: Object) -> ClusterSpec:
    """Return what a RayService was made from.

    Raises:
        ConfigError: It is headway's, and its annotation is missing or cannot be read.
    """
    text = annotation(found, ASKED)
    try:
        return ClusterSpec.model_validate_json(text or "")
    except ValueError as error:
        name = f"{found['metadata'].get('namespace')}/{found['metadata']['name']}"
        raise ConfigError(
            f"RayService {name} is headway's, but its annotation {ASKED} does not say what it was made from; delete "
            "it, and release the model again",
            name=name,
        ) from error


def foreign_managers(found: Object) -> list[str]:
    """Return who else has set fields of an object's spec or labels, sorted; KubeRay's own status does not count."""
    own = {"headway"} if is_ours(found) else set()
    return sorted(
        {
            str(one.get("manager"))
            for one in found["metadata"].get("managedFields") or ()
            if not one.get("subresource") and "f:spec" in (one.get("fieldsV1") or {}) and one.get("manager") not in own
        }
    )


def _base(site: Site) -> Object:
    """Return the template, which a platform may have edited, if all is there that is built upon."""
    base = template(site.templates, "rayservice")
    try:
        config = base["spec"]["rayClusterConfig"]
        for group in (config["headGroupSpec"], config["workerGroupSpecs"][0]):
            made = group["template"]
            _ = made["metadata"], made["spec"]["containers"][0]["resources"]["requests"], group["rayStartParams"]
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"the template {site.templates}/rayservice.yaml lacks {error} of the head or of its first worker group; "
            "compare it with the one of this version",
            path=str(site.templates / "rayservice.yaml"),
        ) from error
    return base


def _worker_group(spec: ClusterSpec, site: Site, group: Object) -> Object:
    params = {"num-cpus": CPU_REPLICA_PROCESSORS} if is_cpu(spec.accelerator) else {}
    made = patched(group, {"replicas": spec.replicas.min, **bounds(spec.replicas), "rayStartParams": params})
    return {**made, "template": pod(spec, site, group["template"], "replica")}


def _check(spec: ClusterSpec, site: Site) -> None:
    if slug(spec.name, LONGEST_RAY_SERVICE) != spec.name or not spec.name[0].isalpha():
        raise ConfigError(
            f"`{spec.name}` cannot name a RayService: it needs lower-case letters, digits and hyphens, a letter first, "
            f"at most {LONGEST_RAY_SERVICE}; plan again",
            name=spec.name,
        )
    if not spec.serving_image:
        raise ConfigError(
            f"the plan of {spec.model} names no serving image; set `serving_image` of its profile to one by digest",
            model=spec.model,
        )
    if spec.model_dir != f"{site.node_root.rstrip('/')}/{spec.artifact_digest}":
        raise ConfigError(
            f"the plan has the artifact at {spec.model_dir}, and pods see the node's artifacts below {site.node_root}; "
            "plan again with the settings of this cluster",
            model_dir=spec.model_dir,
        )


__all__ = [
    "ANSWERED",
    "CLUSTER",
    "PART",
    "SCALING",
    "asked",
    "bounds",
    "disruption_budgets",
    "foreign_managers",
    "least_replicas",
    "pod_selector",
    "ray_service",
    "replica_shape",
    "served",
    "spec_of",
    "with_range",
]
