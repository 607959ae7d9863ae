"""The objects of a job, from what the job says: a batch/v1 Job, or the DaemonSet that stages an artifact."""

from collections.abc import Mapping
from typing import Any

from headway.adapters.kubernetes import programs
from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.objects import ASKED, COMPONENT, MANAGED_BY, labels, patched, template
from headway.adapters.kubernetes.site import Site
from headway.adapters.kubernetes.stage_view import STAGE, WAIT
from headway.domain.job import Job
from headway.domain.value import canonical_json, short, slug

SET, ASKED_BY = "headway/stage-set", "headway/job"
"""Labels: name of the set, of its pods and of what belongs to it; and the job that a record is of."""


def batch_job(site: Site, job: Job) -> Object:
    """Return the Job object of a job."""
    tags = job_labels(job)
    init = {"initContainers": [programs.code_container(site)]} if job.image else {}
    main = programs.container(
        site,
        job.program,
        job=job.name,
        image=job.image,
        accelerators=programs.devices(job),
        memory_bytes=job.memory_bytes,
        disk_bytes=job.disk_bytes,
    )
    return patched(
        template(site.templates, "job"),
        {
            "metadata": {
                "name": job.name,
                "namespace": site.namespace,
                "labels": tags,
                "annotations": {ASKED: asked(job)},
            },
            "spec": {
                "activeDeadlineSeconds": job.deadline_s,
                "ttlSecondsAfterFinished": site.job_ttl_s,
                "template": {
                    "metadata": {"labels": tags},
                    "spec": {**programs.pod(site, job, job.name), **init, "containers": [main]},
                },
            },
        },
    )


def job_labels(job: Job) -> dict[str, str]:
    """Return the labels of a job's objects."""
    digest = str(job.payload.get("artifact_digest") or "")
    return labels("job", model=job.model, release=job.release, digest=digest)


def asked(job: Job) -> str:
    """Return what a job asks for, as JSON, without its input: that is in the ConfigMap."""
    return canonical_json(job.model_copy(update={"payload": {}})).decode()


def set_name(artifact_digest: str, accelerator: str) -> str:
    """Return the name of the set of an artifact on the nodes of an accelerator."""
    return f"stage-{short(artifact_digest)}-{slug(accelerator or 'any')}"


def stage_labels(job: Job) -> dict[str, str]:
    """Return the labels of a set and what belongs to it. A release is none of them: several share a set."""
    return labels("stage", model=job.model, digest=str(job.payload["artifact_digest"]))


def stage_set(site: Site, job: Job) -> Object:
    """Return the DaemonSet of a stage job."""
    digest = str(job.payload["artifact_digest"])
    name = set_name(digest, job.accelerator)
    base = template(site.templates, "stage")
    [waits] = base["spec"]["template"]["spec"]["containers"]
    directory = f"{site.node_root.rstrip('/')}/{digest}"
    node = {"name": programs.NODE_VOLUME, "mountPath": site.node_root, "readOnly": True}
    waiting: Mapping[str, Any] = {
        "name": WAIT,
        "image": site.pods_image,
        "imagePullPolicy": site.image_pull_policy,
        "securityContext": dict(programs.CONTAINER_SECURITY),
        "volumeMounts": [node],
        "readinessProbe": {"exec": {"command": ["test", "-d", directory]}, "periodSeconds": 10, "failureThreshold": 1},
    }
    # Its pods go by these alone, which never change: the rest may differ from one release to the next.
    identity = {MANAGED_BY: labels("stage")[MANAGED_BY], COMPONENT: "stage", SET: name}
    return patched(
        base,
        {
            "metadata": {
                "name": name,
                "namespace": site.namespace,
                "labels": {**stage_labels(job), SET: name},
                "annotations": {
                    ASKED: canonical_json({"artifact_digest": digest, "accelerator": job.accelerator}).decode()
                },
            },
            "spec": {
                "selector": {"matchLabels": identity},
                "template": {
                    "metadata": {"labels": identity},
                    "spec": {
                        **programs.pod(site, job, name),
                        "initContainers": [programs.container(site, "stage", name=STAGE, job=name)],
                        "containers": [patched(waits, waiting)],
                    },
                },
            },
        },
    )
