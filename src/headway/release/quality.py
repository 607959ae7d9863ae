"""What the serving environment says of an artifact, asked in the step quantize before anything is rolled out.

For a single scheme its own validator is asked (`accepts`): seconds, no weight is loaded; what is served is measured by
the canary, on the candidate that runs anyway. In a race the answers of every contender are measured (`answers`).
"""

from headway.domain import texts
from headway.domain.job import Job, JobStatus
from headway.domain.quality_jobs import QualityJob, QualityResult
from headway.domain.release import Check, Reference, ReleasePlan
from headway.domain.value import digest, short
from headway.judge.quality import answers_check, served_checks
from headway.ports import Jobs, WeightStore

NAME = "serving environment"


def reference_key(source_digest: str) -> str:
    """Return where the reference of a source is kept, for the texts of this version."""
    return f"references/{source_digest}/{texts.prompt_set_digest()}.json"


def reference(source_digest: str, weights: WeightStore) -> Reference | None:
    """Return the stored reference of a source, none if it was never measured on these texts."""
    found = weights.json(reference_key(source_digest))
    return Reference.model_validate(dict(found)) if found is not None else None


def noise_key(plan: ReleasePlan) -> str:
    """Return where the figures of the source served as it is are kept: by all of the engine that can change them."""
    engine = plan.profile.engine
    mark = digest([plan.serving_image, plan.profile.hardware.to_json(), engine.dtype, engine.kv_cache_dtype])
    return f"{reference_key(plan.selection.source_digest).removesuffix('.json')}.noise-{short(mark)}.json"


def result_key(plan: ReleasePlan) -> str:
    """Name the answer by all that it depends on: how deep was asked, the texts, and everything that serves."""
    depth = "answers" if plan.contenders else "accepts"
    mark = digest([depth, plan.cluster_digest, texts.prompt_set_digest()])
    return f"quality/{plan.artifact_digest}/{mark}.json"


def advance(plan: ReleasePlan, jobs: Jobs, weights: WeightStore, *, again: bool) -> JobStatus:
    """Start the job if it is due, and tell where it stands; `succeeded` without a job where the result is kept.

    Args:
        plan: The plan, of one contender in a race.
        jobs: Runs the program.
        weights: Where results are kept.
        again: Whether a job that failed is started anew.
    """
    name = _name(plan)
    if _kept(plan, weights) is not None:
        return JobStatus(name=name, phase="succeeded", reason="it was asked before", progress_pct=100)
    known = jobs.status(name)
    if known.phase == "absent" or (again and known.phase in ("failed", "retryable")):
        return jobs.submit(_job(plan, weights))
    return known


def status(plan: ReleasePlan, jobs: Jobs) -> JobStatus:
    """Tell where the job stands."""
    return jobs.status(_name(plan))


def result(plan: ReleasePlan, jobs: Jobs, weights: WeightStore) -> QualityResult | None:
    """Return what was said, none if it was not asked (or the answer is lost)."""
    kept = _kept(plan, weights)
    if kept is not None:
        return kept
    known = jobs.status(_name(plan))
    return QualityResult.model_validate(known.result) if known.phase == "succeeded" and known.result else None


def checks(plan: ReleasePlan, said: QualityResult, reference: Reference) -> list[Check]:
    """Put what was said to the limits of the profile."""
    versions = " and ".join(f"{name} {version}" for name, version in sorted(said.versions.items())) or "it"
    sentence = "; ".join(said.findings) or f"{versions} accepts the weights"
    found = [Check(name=NAME, measured=None, limit=None, passed=not said.findings, sentence=sentence)]
    if said.depth == "answers" and not said.findings:
        found += served_checks(
            said.served,
            reference.figures,
            plan.profile.quality,
            said.scheme,
            why_missing=said.why_missing,
            noise=said.noise,
        )
        found.append(answers_check(said.answers, reference.answers))
    return found


def _kept(plan: ReleasePlan, weights: WeightStore) -> QualityResult | None:
    found = weights.json(result_key(plan))
    return QualityResult.model_validate(dict(found)) if found is not None else None


def _name(plan: ReleasePlan) -> str:
    return f"quality-{short(plan.artifact_digest)}-{digest(result_key(plan))[:6]}"


def _job(plan: ReleasePlan, weights: WeightStore) -> Job:
    artifact_uri = weights.artifact_uri(plan.artifact_digest)
    bucket = artifact_uri.split("artifacts/")[0]
    payload = QualityJob(
        depth="answers" if plan.contenders else "accepts",
        artifact_digest=plan.artifact_digest,
        artifact_uri=artifact_uri,
        scheme=plan.recipe.scheme,
        served_model=plan.model,
        engine=plan.profile.engine,
        tensor_parallel=plan.profile.hardware.per_replica,
        accelerator=plan.profile.hardware.accelerator,
        dest_root=plan.cluster.model_dir.rpartition("/")[0],
        reference_uri=bucket + reference_key(plan.selection.source_digest),
        noise_uri=bucket + noise_key(plan),
        request_timeout_s=plan.profile.canary.request_timeout_s,
        result_uri=bucket + result_key(plan),
    )
    return Job(
        name=_name(plan),
        program="quality",
        environment="serve",
        payload=payload.to_json(),
        deadline_s=plan.profile.deadlines.quantize_s,
        model=plan.model,
        accelerator=plan.profile.hardware.accelerator,
        # Its validators look at one; only the engine needs all.
        accelerators=plan.profile.hardware.per_replica if payload.depth == "answers" else 1,
        memory_bytes=plan.cluster.memory_bytes if payload.depth == "answers" else 0,
        # Another image would give another environment's word.
        image=plan.serving_image,
    )
