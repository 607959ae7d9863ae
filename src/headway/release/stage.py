"""Step 5: the artifact comes to the node, verified, and appears there by one rename."""

from headway.domain.job import Job, JobStatus
from headway.domain.release import ReleasePlan, record_key
from headway.domain.value import digest, short, slug
from headway.domain.weight_jobs import StageJob, StageResult
from headway.errors import ConfigError, IntegrityError, NotFound
from headway.ports import Clusters, Jobs, Ledger, Traffic, WeightStore
from headway.release.quantize import job_error


def pins(clusters: Clusters, traffic: Traffic, ledger: Ledger) -> tuple[str, ...]:
    """Return the artifacts that must stay on nodes: of every cluster that is there, and of every one that has a route.

    A cluster with a route that is gone, because its machine was started anew, comes back from its artifact; the record
    of its release tells which that is.
    """
    pinned = {status.name: status.spec.artifact_digest for status in clusters.list() if status.spec is not None}
    for route in traffic.routes():
        for backend in (route.stable, route.candidate, route.previous):
            if backend is not None and backend.cluster not in pinned:
                record = ledger.read(record_key(slug(route.model), backend.release, "stage"))
                if record is not None:
                    pinned[backend.cluster] = StageResult.model_validate(record["detail"]).artifact_digest
    return tuple(sorted(set(pinned.values())))


def begin(
    plan: ReleasePlan, jobs: Jobs, weights: WeightStore, *, release: str = "", pins: tuple[str, ...] = ()
) -> JobStatus:
    """Start the job, or adopt the one of this release.

    Each release asks the node anew: what an earlier one staged may have been cleared away, and a hit costs a moment.

    Args:
        plan: The plan.
        jobs: Runs the program.
        weights: Where the artifact is.
        release: Id of the release.
        pins: Artifacts that must not make way for this one.

    Raises:
        ConfigError: The plan's directory is not named by its artifact.
        NotFound: The artifact is not (or no longer) in the store.
    """
    manifest = weights.manifest(plan.artifact_digest)
    if manifest is None:
        raise NotFound(
            f"artifact {short(plan.artifact_digest)} is not in the store; run the step quantize again",
            artifact_digest=plan.artifact_digest,
        )
    return jobs.submit(_job(plan, weights, release, pins=pins, content_digest=manifest.content_digest))


def finish(plan: ReleasePlan, jobs: Jobs, weights: WeightStore, *, release: str = "") -> StageResult:
    """Check that the node has the artifact.

    Raises:
        IntegrityError: The job staged something else than the plan names.
        HeadwayError: The job failed, as its class says.
    """
    status = jobs.status(_job(plan, weights, release).name)
    if status.phase != "succeeded" or status.result is None:
        raise job_error(status, "stage")
    result = StageResult.model_validate(status.result)
    if result.artifact_digest != plan.artifact_digest or result.path != plan.cluster.model_dir:
        raise IntegrityError(
            f"job {status.name} staged {short(result.artifact_digest)} at {result.path}, the plan names "
            f"{short(plan.artifact_digest)} at {plan.cluster.model_dir}",
            path=result.path,
        )
    return result


def _job(
    plan: ReleasePlan, weights: WeightStore, release: str, *, pins: tuple[str, ...] = (), content_digest: str = ""
) -> Job:
    root, _, name = plan.cluster.model_dir.rpartition("/")
    if name != plan.artifact_digest or not root:
        raise ConfigError(f"the plan's directory {plan.cluster.model_dir} is not named by its artifact; plan again")
    payload = StageJob(
        artifact_digest=plan.artifact_digest,
        content_digest=content_digest,
        artifact_uri=weights.artifact_uri(plan.artifact_digest),
        dest_root=root,
        pins=pins,
    )
    return Job(
        name=f"stage-{short(plan.artifact_digest)}-{digest([release, root])[:6]}",
        program="stage",
        environment="airflow",
        payload=payload.to_json(),
        deadline_s=plan.profile.deadlines.stage_s,
        model=plan.model,
        accelerator=plan.profile.hardware.accelerator,
    )
