"""Task accuracy, an optional part of the canary: asked after the benchmark, of a candidate that has not lost yet."""

from collections.abc import Callable

from headway.domain.bench import Side
from headway.domain.job import Job, JobStatus
from headway.domain.release import Check, ReleasePlan, ReleaseRef, Verdict
from headway.domain.task_jobs import TaskResult, job_name, task_job
from headway.domain.traffic import Route
from headway.judge.tasks import task_checks
from headway.ports import Clusters, Jobs, WeightStore
from headway.release import canary


def due(plan: ReleasePlan, ref: ReleaseRef, bench: JobStatus, jobs: Jobs, judged: Callable[[], Verdict]) -> bool:
    """Tell whether tasks are asked: the profile has some, and the candidate has not lost the benchmark.

    Args:
        plan: The plan of the candidate.
        ref: The release.
        bench: Where the benchmark stands.
        jobs: Knows whether the tasks were begun before.
        judged: Makes the verdict of the ended benchmark.
    """
    if plan.profile.quality.tasks is None or bench.phase != "succeeded":
        return False
    return jobs.status(job_name(ref.release)).phase != "absent" or judged().decision != "ROLLBACK"


def begin(
    plan: ReleasePlan,
    ref: ReleaseRef,
    route: Route,
    jobs: Jobs,
    weights: WeightStore,
    *,
    clusters: Clusters,
    gateway_url: str,
) -> JobStatus:
    """Start the job, or tell where it stands.

    Args:
        plan: The plan of the candidate; its profile has `quality.tasks`.
        ref: The release.
        route: The model's route as it is now.
        jobs: Runs the program.
        weights: Where artifacts are, for the tokenizers, and where the samples go.
        clusters: Knows what stable serves.
        gateway_url: Base address of the gateway's internal listener.

    Raises:
        ConfigError: The environment of the program is not built.
        Conflict: The route does not name the plan's cluster.
    """
    name = job_name(ref.release)
    found = jobs.status(name)
    if found.phase != "absent":
        return found
    bench = canary.make_job(plan, ref, route, weights, reference=None, gateway_url=gateway_url)
    artifacts: dict[Side, str] = {"candidate": weights.artifact_uri(plan.artifact_digest)}
    stable = clusters.status(route.stable.cluster).spec if route.stable else None
    if stable is not None:
        artifacts["stable"] = weights.artifact_uri(stable.artifact_digest)
    job = task_job(
        plan,
        ref.release,
        bench.targets,
        artifact_uris=artifacts,
        records_uri=canary.beside(weights, f"tasks/{ref.release}/samples.jsonl"),
    )
    return jobs.submit(
        Job(
            name=name,
            program="tasks",
            environment="tasks",
            payload=job.to_json(),
            deadline_s=job.tasks.deadline_s,
            model=plan.model,
            release=ref.release,
        )
    )


def checks(plan: ReleasePlan, ref: ReleaseRef, jobs: Jobs) -> list[Check]:
    """Put what was answered to the limits; what could not be asked holds the release. Empty without `quality.tasks`."""
    tasks = plan.profile.quality.tasks
    if tasks is None:
        return []
    status = jobs.status(job_name(ref.release))
    if status.phase == "succeeded" and status.result:
        return task_checks(TaskResult.model_validate(status.result), tasks, plan.recipe.scheme)
    why = f"the job {status.name} is {status.phase}: {status.reason or 'no reason given'}"
    return task_checks(None, tasks, plan.recipe.scheme, why_missing=why)
