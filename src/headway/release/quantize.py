"""Step 4: the artifact is made by its recipe, and its source must answer well enough (design rule 13.6).

Part two (source against stable's source) and part three (absolute limit) of the quality gate are here; part one
(what is served against its source) is the canary's, which asks the running candidate.
"""

from pydantic import Field

from headway.domain import texts
from headway.domain.job import Job, JobStatus
from headway.domain.release import Check, QualityFigures, Reference, ReleasePlan
from headway.domain.value import Value, short
from headway.domain.weight_jobs import QuantizeJob, QuantizeResult
from headway.domain.weights import BUILDABLE
from headway.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    Conflict,
    HeadwayError,
    IntegrityError,
    ModelRejected,
    NotFound,
    QualityRejected,
    Refused,
)
from headway.judge.source import refusal, say, source_checks
from headway.ports import Jobs, WeightStore

KINDS: dict[str, type[HeadwayError]] = {
    kind.__name__: kind for kind in (BackendUnavailable, ConfigError, Conflict, IntegrityError, NotFound, Refused)
}
"""Errors of pod programs that keep their class; of all others the text is enough."""


class QuantizeOutcome(Value):
    """What the step made, and how good its source is."""

    artifact_digest: str
    artifact_uri: str
    content_digest: str
    files: int
    size_bytes: int
    source_bytes: int
    scheme: str
    reference: QualityFigures
    perplexity: float
    """Of the source on the fixed texts."""
    checks: tuple[Check, ...]
    reused: bool = False
    """Whether an earlier release had made it."""
    seconds: dict[str, float] = Field(default_factory=dict)


def reference_key(source_digest: str) -> str:
    """Return where the reference of a source is kept, for the texts of this version."""
    return f"references/{source_digest}/{texts.prompt_set_digest()}.json"


def reference(source_digest: str, weights: WeightStore) -> Reference | None:
    """Return the stored reference of a source, none if it was never measured on these texts."""
    found = weights.json(reference_key(source_digest))
    return Reference.model_validate(dict(found)) if found is not None else None


def begin(plan: ReleasePlan, jobs: Jobs, weights: WeightStore, stable_reference: Reference | None = None) -> JobStatus:
    """Start the job, or adopt the one of this artifact. If all is there, no job is needed and the status says so.

    Args:
        plan: The plan.
        jobs: Runs the program.
        weights: Where artifacts and references are.
        stable_reference: Figures of stable's source; lets the program stop before it quantizes what cannot pass.

    Raises:
        ConfigError: This version cannot build the plan's scheme.
    """
    if plan.recipe.scheme not in BUILDABLE:
        built = ", ".join(sorted(BUILDABLE))
        raise ConfigError(f"scheme {plan.recipe.scheme} cannot be built by this version; it builds {built}")
    figures = stable_reference.figures if stable_reference else None
    status = _latest(plan, jobs)
    measured = reference(plan.selection.source_digest, weights)
    if measured is not None and weights.manifest(plan.artifact_digest) is not None:
        return JobStatus(name=status.name, phase="succeeded", reason="the artifact is there", progress_pct=100)
    if status.phase == "succeeded":
        if _was_refused(status) and measured is not None and _why_not(plan, measured, figures) is not None:
            return status
        # What that job left is gone, or the limits have changed. It would be adopted for ever, so this is another one.
        return jobs.submit(_job(plan, weights, figures, _number(status.name) + 1))
    return jobs.submit(_job(plan, weights, figures, _number(status.name)))


def finish(plan: ReleasePlan, jobs: Jobs, weights: WeightStore, stable_reference: Reference | None) -> QuantizeOutcome:
    """Check what came of the job, and put the source to the gate.

    Args:
        plan: The plan.
        jobs: Tells why the job failed, if it did.
        weights: Where artifacts and references are.
        stable_reference: Figures of stable's source; none for a first release.

    Raises:
        QualityRejected: The source answers worse than the limits allow.
        ModelRejected: transformers cannot load the source.
        HeadwayError: The job failed, as its class says.
    """
    status = _latest(plan, jobs)
    figures = stable_reference.figures if stable_reference else None
    measured = reference(plan.selection.source_digest, weights)
    if measured is None:
        raise job_error(status, "quantize")
    checks = source_checks(measured.figures, figures, plan.profile.quality)
    why = refusal(checks)
    if why is not None:
        report = {
            "perplexity": say(measured.figures.perplexity),
            "stable_perplexity": say(figures.perplexity) if figures else None,
            "checks": [check.to_json() for check in checks],
        }
        raise QualityRejected(f"{plan.model} version {plan.selection.model.version}: {why}", report=report)
    manifest = weights.manifest(plan.artifact_digest)
    if manifest is None:
        raise job_error(status, "quantize")
    result = QuantizeResult.model_validate(status.result) if status.result and status.phase == "succeeded" else None
    return QuantizeOutcome(
        artifact_digest=plan.artifact_digest,
        artifact_uri=weights.artifact_uri(plan.artifact_digest),
        content_digest=manifest.content_digest,
        files=len(manifest.files),
        size_bytes=manifest.size_bytes,
        source_bytes=plan.selection.size_bytes,
        scheme=plan.recipe.scheme,
        reference=measured.figures,
        perplexity=measured.figures.perplexity,
        checks=tuple(checks),
        reused=result is None or result.outcome == "found",
        seconds=result.seconds if result else {},
    )


def job_error(status: JobStatus, what: str) -> HeadwayError:
    """Return the error of a job that did not do its work.

    Args:
        status: Where the job stands.
        what: Its program, for the message.
    """
    said = status.reason or "no reason was given"
    message = f"the {what} job {status.name} {status.phase}: {said}"
    facts = {"job": status.name, "phase": status.phase}
    if status.phase in ("retryable", "running", "succeeded", "absent"):
        return BackendUnavailable(f"{message}. The step starts it again when it is retried", **facts)
    result = status.result or {}
    if result.get("kind") == ModelRejected.__name__:
        return ModelRejected(message, report=[str(result.get("error", said))])
    kind = KINDS.get(str(result.get("kind")), BackendError)
    return kind(f"{message}. Its log has the details", **facts)


def _why_not(plan: ReleasePlan, measured: Reference, stable: QualityFigures | None) -> str | None:
    return refusal(source_checks(measured.figures, stable, plan.profile.quality))


def _was_refused(status: JobStatus) -> bool:
    return (status.result or {}).get("outcome") == "refused"


def _latest(plan: ReleasePlan, jobs: Jobs) -> JobStatus:
    """Return where the newest job of this artifact stands; the first one's name if there is none."""
    status, number = jobs.status(_name(plan, 1)), 1
    while (later := jobs.status(_name(plan, number + 1))).phase != "absent":
        status, number = later, number + 1
    return status


def _name(plan: ReleasePlan, number: int) -> str:
    base = f"quantize-{short(plan.artifact_digest)}"
    return base if number == 1 else f"{base}-{number}"


def _number(name: str) -> int:
    last = name.split("-")[2:]
    return int(last[0]) if last else 1


def _job(plan: ReleasePlan, weights: WeightStore, stable: QualityFigures | None, number: int) -> Job:
    artifact_uri = weights.artifact_uri(plan.artifact_digest)
    payload = QuantizeJob(
        source_digest=plan.selection.source_digest,
        files=plan.selection.files,
        recipe=plan.recipe,
        artifact_digest=plan.artifact_digest,
        artifact_uri=artifact_uri,
        reference_uri=artifact_uri.split("artifacts/")[0] + reference_key(plan.selection.source_digest),
        texts=texts.QUALITY_TEXTS,
        prompt_set_digest=texts.prompt_set_digest(),
        quality=plan.profile.quality,
        stable=stable,
    )
    return Job(
        name=_name(plan, number),
        program="quantize",
        environment="quantize",
        payload=payload.to_json(),
        deadline_s=plan.profile.deadlines.quantize_s,
    )
