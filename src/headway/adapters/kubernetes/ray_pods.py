"""Builds the pods of a cluster from the template: the head with Ray's own services, and one worker for each replica."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headway.adapters.kubernetes import programs
from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.objects import labels, patched
from headway.adapters.kubernetes.site import GPU, SERVING_ACCOUNT, SERVING_PRIORITY, Site
from headway.domain.cluster import CPU_ENVIRONMENT, ClusterSpec
from headway.domain.hardware import ACCELERATORS
from headway.domain.weight_jobs import StageJob
from headway.errors import ConfigError

CLUSTER, PART = "headway/cluster", "headway/part"
"""Labels of every pod of a cluster: its name, and whether it is the `head` or a `replica`."""
JOB = "headway/stage-job"
"""Annotation of a worker's pod: the job of its init container, so that no other object has to be there first."""
STAGE = "stage"
ARTIFACTS = "s3://headway/artifacts"
"""Where the store has artifacts by their digest."""
SERVING_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>m|k|[KMGTPE]i?)?")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
"""Of the engine's environment on a CPU, what holds on accelerators too."""
CPU_REPLICA_PROCESSORS = "3"
"""Logical processors of a worker on a CPU: a replica takes two, the ingress one, so a second replica does not fit."""


def is_cpu(accelerator: str) -> bool:
    """Tell whether vLLM runs on its CPU backend there."""
    known = ACCELERATORS.get(accelerator)
    return accelerator == "" or (known is not None and known.is_cpu)


def pod(spec: ClusterSpec, site: Site, base: Object, part: str) -> Object:
    """Return the pod template of a part of a cluster.

    Args:
        spec: What is asked for.
        site: The cluster's settings.
        base: The template of that part.
        part: `head` or `replica`.
    """
    own = labels("cluster", model=spec.model, release=spec.release, digest=spec.cluster_digest)
    container = base["spec"]["containers"][0]
    change: Object = {
        "metadata": {"labels": {**own, CLUSTER: spec.name, PART: part}},
        "spec": {
            "priorityClassName": SERVING_PRIORITY,
            "securityContext": dict(programs.POD_SECURITY),
            "containers": [_serving(spec, site, container, part), *base["spec"]["containers"][1:]],
            **({"imagePullSecrets": [{"name": site.pull_secret}]} if site.pull_secret else {}),
        },
    }
    made = patched(base, change)
    return made if part == "head" else patched(made, _of_a_worker(spec, site, base))


def _of_a_worker(spec: ClusterSpec, site: Site, base: Object) -> Object:
    cpu = is_cpu(spec.accelerator)
    spread = [
        {**one, "labelSelector": {"matchLabels": {CLUSTER: spec.name, PART: "replica"}}}
        for one in base["spec"].get("topologySpreadConstraints") or ()
    ]
    job = StageJob(
        artifact_digest=spec.artifact_digest,
        artifact_uri=f"{ARTIFACTS}/{spec.artifact_digest}/",
        dest_root=site.node_root,
        # Evicting is the DaemonSet's: it knows what must stay on this node.
        high_pct=100,
        low_pct=100,
    )
    return {
        "metadata": {"annotations": {JOB: json.dumps(job.to_json(), sort_keys=True)}},
        "spec": {
            "serviceAccountName": SERVING_ACCOUNT,
            "nodeSelector": {**(base["spec"].get("nodeSelector") or {}), **site.node_selector(spec.accelerator)},
            "tolerations": None if cpu else base["spec"].get("tolerations"),
            "topologySpreadConstraints": spread,
            "initContainers": [programs.container(site, "stage", name=STAGE, job=spec.name)],
            "volumes": [*(base["spec"].get("volumes") or ()), *_stage_volumes(spec, site)],
        },
    }


def _stage_volumes(spec: ClusterSpec, site: Site) -> list[Object]:
    found = programs.volumes(site, "stage", spec.name, accelerator=spec.accelerator)
    item = {"path": programs.JOB_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{JOB}']"}}
    return [
        {"name": one["name"], "downwardAPI": {"items": [item]}} if one["name"] == programs.JOB_VOLUME else one
        for one in found
    ]


def _serving(spec: ClusterSpec, site: Site, base: Object, part: str) -> Object:
    """Return the container that runs Ray: the base, with the image, and on a worker with the engine's needs."""
    change: Object = {
        "image": spec.serving_image,
        "imagePullPolicy": site.image_pull_policy,
        "securityContext": dict(SERVING_SECURITY),
        "env": [*(base.get("env") or ()), *_environment(spec)],
    }
    if part == "replica":
        node = {"name": programs.NODE_VOLUME, "mountPath": site.node_root, "readOnly": True}
        change |= {"resources": _resources(spec, base), "volumeMounts": [*(base.get("volumeMounts") or ()), node]}
    return patched(base, change)


def _environment(spec: ClusterSpec) -> list[Object]:
    wanted = CPU_ENVIRONMENT if is_cpu(spec.accelerator) else {key: CPU_ENVIRONMENT[key] for key in OFFLINE}
    return [{"name": key, "value": value} for key, value in wanted.items()]


def _resources(spec: ClusterSpec, base: Object) -> Object:
    """Return what a replica asks for: the template's for each accelerator; on a CPU the memory of the plan."""
    given = base["resources"]
    if is_cpu(spec.accelerator):
        return patched(
            given,
            {"requests": {"memory": str(spec.memory_bytes)}, "limits": {"memory": str(spec.memory_bytes * 5 // 4)}},
        )
    count = spec.tensor_parallel
    return {
        kind: {**{key: times(value, count) for key, value in given.get(kind, {}).items()}, GPU: str(count)}
        for kind in ("requests", "limits")
    }


def times(quantity: object, count: int) -> str:
    """Return a quantity of Kubernetes so many times, in its own unit: `12Gi` twice is `24Gi`.

    Raises:
        ConfigError: It is none.
    """
    found = QUANTITY.fullmatch(str(quantity).strip())
    if found is None:
        raise ConfigError(
            f"`{quantity}` in k8s/templates/rayservice.yaml is no quantity; write it as in `500m`, `3` or `12Gi`",
            quantity=str(quantity),
        )
    return f"{(Decimal(found['number']) * count).normalize():f}{found['unit'] or ''}"
