"""How a pod runs one of headway's programs: its job in a ConfigMap, its folders, its identity, its container.

```
config_map(site, name, payload, labels)  the ConfigMap `name` with the payload, mounted at /headway/job
container(site, program, name=, job=)    runs `headway.pods.run PROGRAM`; also as an init container of serving pods
volumes(site, program, name, accel.)     what that container mounts
pod(site, job, name)                     spec of the pod around it, without containers
POD_SECURITY, place(site, accelerator)   parts of that, for pods that others make
```

The program works in /headway/work, an empty folder of the pod, as its root file system is read-only. What it came to is
the container's termination message: one JSON object, or where a larger one lies in the store.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.objects import LONGEST_LABEL, is_ours
from headway.adapters.kubernetes.site import (
    ARTIFACT_KEYS,
    BATCH_ACCOUNT,
    BATCH_PRIORITY,
    GPU,
    S3_SECRETS,
    SIGNING_SECRET,
    STAGE_ACCOUNT,
    Site,
)
from headway.domain.job import Job, Program
from headway.domain.value import slug
from headway.errors import ConfigError, Conflict
from headway.units import GIB, MIB

JOB_DIR, WORK_DIR, KEY_DIR, TMP_DIR = "/headway/job", "/headway/work", "/headway/keys", "/tmp"  # noqa: S108 - of the pod
CODE_DIR = "/headway/code"
JOB_FILE = "job.json"
MESSAGE_PATH = "/dev/termination-log"
"""What Kubernetes itself takes by default."""
RESULTS = "s3://headway/jobs"
"""Where results lie that no termination message takes."""
LARGEST_PAYLOAD_BYTES = 1_000_000
"""A ConfigMap may hold 1 MiB, with its metadata."""

JOB_VOLUME, WORK_VOLUME, TMP_VOLUME, NODE_VOLUME, KEY_VOLUME, CODE_VOLUME = (
    "headway-job",
    "headway-work",
    "headway-tmp",
    "headway-node",
    "headway-keys",
    "headway-code",
)
COPY_CODE = """\
import os, shutil, sys
import headway
shutil.copytree(os.path.dirname(headway.__file__), sys.argv[1], dirs_exist_ok=True)
"""
SECRET_OF: Mapping[Program, str] = {
    "quantize": S3_SECRETS["quantize"],
    "quality": S3_SECRETS["quantize"],
    "stage": S3_SECRETS["stage"],
    "bench": S3_SECRETS["bench"],
    "tasks": S3_SECRETS["bench"],
}
"""Who each program is to the store: the least that it needs."""
ON_THE_NODE: frozenset[Program] = frozenset({"stage", "quality"})
"""Programs that write artifacts to the node; they mount the claim of its volumes."""
LIGHT: frozenset[Program] = frozenset({"stage", "bench"})
"""Programs of the light image."""
OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
CPU_REQUEST: Mapping[Program, str] = {"quantize": "2", "quality": "2", "stage": "250m", "bench": "1", "tasks": "500m"}
"""What a program needs to get on; there is no limit, so it takes what its node has to spare."""
MEMORY: Mapping[Program, tuple[int, int]] = {
    "quantize": (8 * GIB, 8 * GIB),
    "quality": (8 * GIB, 8 * GIB),
    "stage": (512 * MIB, 2 * GIB),
    "bench": (1 * GIB, 4 * GIB),
    "tasks": (4 * GIB, 4 * GIB),
}
"""Request and limit of a program itself, in bytes; what its model takes comes on top. Of the large ones both are the
same, so that no other pod is pushed out for what was not asked for."""

USER_ID = 1000
"""User and group of every container, also of the serving ones, as Ray's images have it: they share files of a node."""
POD_SECURITY: Mapping[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    # A whole disk of weights is not walked through at each start of a pod.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
TOLERATIONS: tuple[Mapping[str, str], ...] = ({"key": GPU, "operator": "Exists", "effect": "NoSchedule"},)
"""Of every pod that belongs on nodes with accelerators; platforms keep other pods away from these by this taint."""
_OF_KUBERNETES = "node.kubernetes.io/"
"""Taints of this prefix say how a node is (not ready, unreachable, cordoned), and not whom it is for."""


def config_map(
    site: Site,
    name: str,
    payload: Mapping[str, Any],
    labels: Mapping[str, str],
    *,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return the ConfigMap that carries a program's input.

    Args:
        site: The cluster.
        name: Of the ConfigMap; `volumes` gets the same.
        payload: The program's JSON input, no secret in it.
        labels: As `objects.labels` gives them.
        annotations: As `objects.ASKED`, if any.

    Raises:
        ConfigError: The input is larger than a ConfigMap may be.
    """
    content = json.dumps(payload, ensure_ascii=False, sort_keys=True)
    size_bytes = len(content.encode())
    if size_bytes > LARGEST_PAYLOAD_BYTES:
        raise ConfigError(
            f"the input of {name} has {size_bytes} bytes, a ConfigMap takes {LARGEST_PAYLOAD_BYTES}; put what is large "
            "(texts, prompts) into the store and give its address",
            size_bytes=size_bytes,
        )
    metadata: Object = {"name": name, "namespace": site.namespace, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {JOB_FILE: content}}


def owner_reference(owner: Object) -> Object:
    """Return the reference by which an object goes when its owner goes."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def container(
    site: Site,
    program: Program,
    *,
    name: str = "main",
    job: str,
    image: str = "",
    accelerators: int = 0,
    memory_bytes: int = 0,
    disk_bytes: int = 0,
) -> Object:
    """Return the container that runs a program.

    Args:
        site: The cluster.
        program: Which.
        name: Of the container.
        job: Name of the job: results that are too large for the message lie below it in the store.
        image: Instead of the site's image for the program. It need not have headway's code: `code_container` brings it.
        accelerators: How many GPUs it needs for itself.
        memory_bytes: Main memory that it needs for its model, beside what the program itself takes.
        disk_bytes: Space that it needs in its work folder.

    Raises:
        ConfigError: The site names no image for the program.
    """
    image_of_site = site.pods_image if program in LIGHT else site.quantize_image
    if not image and not image_of_site:
        setting = "HEADWAY_PODS_IMAGE" if program in LIGHT else "HEADWAY_QUANTIZE_IMAGE"
        raise ConfigError(f"the program {program} has no image; set {setting} (docs/settings.md)", setting=setting)
    request, limit = (_quantity(size + memory_bytes) for size in MEMORY[program])
    requests: Object = {"cpu": CPU_REQUEST[program], "memory": request}
    limits: Object = {"memory": limit}
    if disk_bytes:
        requests["ephemeral-storage"] = _quantity(disk_bytes)
    if accelerators:
        requests[GPU] = limits[GPU] = str(accelerators)
    return {
        "name": name,
        "image": image or image_of_site,
        "imagePullPolicy": site.image_pull_policy,
        "command": ["python", "-m", "headway.pods.run", program],
        "args": [
            f"--job={JOB_DIR}/{JOB_FILE}",
            f"--work={WORK_DIR}",
            f"--message={MESSAGE_PATH}",
            f"--results={RESULTS}/{job}",
        ],
        "workingDir": WORK_DIR,
        "env": [*environment(site, program), *([{"name": "PYTHONPATH", "value": CODE_DIR}] if image else [])],
        "volumeMounts": [
            *mounts(site, program),
            *([{"name": CODE_VOLUME, "mountPath": CODE_DIR, "readOnly": True}] if image else []),
        ],
        "resources": {"requests": requests, "limits": limits},
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePath": MESSAGE_PATH,
        # A program that cannot even be imported says why in its log only.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def code_container(site: Site) -> Object:
    """Return the init container that brings headway's code into an image that has none; it needs CODE_VOLUME."""
    return {
        "name": "code",
        "image": site.pods_image,
        "imagePullPolicy": site.image_pull_policy,
        "command": ["python", "-c", COPY_CODE, f"{CODE_DIR}/headway"],
        "volumeMounts": [{"name": CODE_VOLUME, "mountPath": CODE_DIR}],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": dict(CONTAINER_SECURITY),
    }


def environment(site: Site, program: Program) -> list[Object]:
    """Return the environment of a program: where the store is, and as whom. Secrets come from their Secret."""
    plain = {
        "HOME": WORK_DIR,
        "TMPDIR": TMP_DIR,
        "PYTHONUNBUFFERED": "1",
        "AWS_REGION": site.region,
        "AWS_DEFAULT_REGION": site.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    if site.s3_endpoint:
        plain["HEADWAY_S3_ENDPOINT"] = site.s3_endpoint
    if program == "quantize":
        plain |= {"HEADWAY_SIGNING_KEY": f"{KEY_DIR}/signing.pem", "TORCHDYNAMO_DISABLE": "1"}
    if program in ON_THE_NODE:
        plain["HEADWAY_ARTIFACT_KEY"] = f"{KEY_DIR}/artifact.pem"
    if program not in LIGHT:
        plain |= OFFLINE
    secret = SECRET_OF[program]
    return [
        *({"name": key, "value": value} for key, value in plain.items()),
        *(
            {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        ),
    ]


def mounts(site: Site, program: Program) -> list[Object]:
    """Return what a program's container mounts, by the names that `volumes` gives."""
    found: list[Object] = [
        {"name": JOB_VOLUME, "mountPath": JOB_DIR, "readOnly": True},
        {"name": WORK_VOLUME, "mountPath": WORK_DIR},
        {"name": TMP_VOLUME, "mountPath": TMP_DIR},
    ]
    if program in ON_THE_NODE:
        found.append({"name": NODE_VOLUME, "mountPath": site.node_root})
    if program == "quantize" or program in ON_THE_NODE:
        found.append({"name": KEY_VOLUME, "mountPath": KEY_DIR, "readOnly": True})
    return found


def volumes(site: Site, program: Program, config_map_name: str, *, accelerator: str) -> list[Object]:
    """Return the volumes of a pod that runs a program, NODE_VOLUME among them for those that write to the node.

    Args:
        site: The cluster.
        program: Which.
        config_map_name: Of the ConfigMap with its input.
        accelerator: Whose nodes' claim is mounted.
    """
    found: list[Object] = [
        {"name": JOB_VOLUME, "configMap": {"name": config_map_name}},
        {"name": WORK_VOLUME, "emptyDir": {}},
        {"name": TMP_VOLUME, "emptyDir": {}},
    ]
    if program in ON_THE_NODE:
        found.append({"name": NODE_VOLUME, "persistentVolumeClaim": {"claimName": site.claim(accelerator)}})
        found.append({"name": KEY_VOLUME, "configMap": {"name": ARTIFACT_KEYS}})
    elif program == "quantize":
        found.append({"name": KEY_VOLUME, "secret": {"secretName": SIGNING_SECRET, "defaultMode": 0o440}})
    return found


def place(site: Site, accelerator: str) -> Object:
    """Return the part of a pod's spec that says where it may run: `nodeSelector`, and `tolerations` on accelerators."""
    found: Object = {"nodeSelector": site.node_selector(accelerator)}
    if accelerator not in ("", "cpu"):
        found["tolerations"] = [dict(one) for one in TOLERATIONS]
    return found


def tolerated(node: Object, tolerations: Sequence[Mapping[str, str]] = TOLERATIONS) -> bool:
    """Tell whether pods with these tolerations may be put on a node, as far as its taints say whom it is for."""
    taints = node.get("spec", {}).get("taints") or []
    return all(
        taint["effect"] == "PreferNoSchedule"
        or taint["key"].startswith(_OF_KUBERNETES)
        or any(_tolerates(one, taint) for one in tolerations)
        for taint in taints
    )


def pod(site: Site, job: Job, config_map_name: str) -> Object:
    """Return the spec of a pod that runs a job, without its containers."""
    found = volumes(site, job.program, config_map_name, accelerator=job.accelerator)
    if job.image:
        found.append({"name": CODE_VOLUME, "emptyDir": {}})
    spec: Object = {
        **place(site, job.accelerator),
        "serviceAccountName": STAGE_ACCOUNT if job.program == "stage" else BATCH_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": BATCH_PRIORITY,
        "securityContext": dict(POD_SECURITY),
        "volumes": found,
    }
    if site.pull_secret:
        spec["imagePullSecrets"] = [{"name": site.pull_secret}]
    return spec


def checked_name(name: str) -> str:
    """Return the name of a job if Kubernetes takes it as it is.

    Raises:
        ConfigError: It does not.
    """
    if not name or slug(name, LONGEST_LABEL) != name:
        raise ConfigError(
            f"`{name}` cannot name a Job: it needs lower-case letters, digits and hyphens, at most {LONGEST_LABEL}",
            name=name,
        )
    return name


def devices(job: Job) -> int:
    """Return how many accelerators a job's container asks for: a processor is none."""
    return 0 if job.accelerator in ("", "cpu") else job.accelerators


def require_ours(found: Object | None) -> None:
    """Raise Conflict if an object is there and not headway's."""
    if found is None or is_ours(found):
        return
    metadata = found["metadata"]
    name = f"{found['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
    raise Conflict(
        f"{name} is there and not headway's, and was left as it is; delete it, or give headway a namespace of its own",
        name=metadata["name"],
    )


def age_s(found: Object) -> float:
    """Return how many seconds ago an object was made."""
    return seconds_since(found["metadata"]["creationTimestamp"])


def seconds_since(stamp: str) -> float:
    """Return how many seconds ago a moment of the API server was."""
    return time.time() - datetime.fromisoformat(stamp).timestamp()


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    key, effect = toleration.get("key", ""), toleration.get("effect", "")
    if (key and key != taint["key"]) or (effect and effect != taint["effect"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _quantity(size_bytes: int) -> str:
    """Return bytes as people write them in a manifest, rounded up to whole MiB."""
    mebibytes = -(-size_bytes // MIB)
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 else f"{mebibytes}Mi"
