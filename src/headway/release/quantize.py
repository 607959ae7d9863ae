"""Step 4: the artifact is made by its recipe, and it must be worth a rollout (design rule 13.6).

Part two (source against stable's source) and part three (absolute limit) of the quality gate are here, and whether the
serving environment takes the artifact at all. Part one (what is served against its source) is the canary's, which asks
the running candidate; in a race it is here too, since somebody has to win before anything is rolled out.

The step goes from job to job: quantize, then the question to the serving environment; in a race that pair for one
contender after another, the smallest first, until one passes. `advance` finds out from the world how far it is.
"""

from collections.abc import Iterator

from pydantic import Field

from headway.domain import texts
from headway.domain.job import Job, JobStatus
from headway.domain.release import Check, QualityFigures, Reference, ReleasePlan
from headway.domain.value import Value, digest, short
from headway.domain.weight_jobs import LAYER_ERRORS, LayerError, LayerErrors, QuantizeJob, QuantizeResult
from headway.domain.weights import BUILDABLE, Scheme
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
from headway.release import quality
from headway.release.plan import choose
from headway.release.quality import reference, reference_key

KINDS: dict[str, type[HeadwayError]] = {
    kind.__name__: kind for kind in (BackendUnavailable, ConfigError, Conflict, IntegrityError, NotFound, Refused)
}
"""Errors of pod programs that keep their class; of all others the text is enough."""


LOST = frozenset({"ConfigError", "IntegrityError", "ModelRejected"})
"""Errors of a program that say something about the scheme on this model. Any other ends the race without a winner."""


LOADED_TIMES = 2.5
"""Main memory that calibration takes, in sizes of the source (`headway.pods.compress` has what was measured)."""
DISK_TIMES = 3
"""The source, what was made of it, and what that is rewritten to lie in the program's folder together."""


class Contest(Value):
    """How one scheme did in the step."""

    scheme: Scheme
    size_bytes: int | None = None
    """Of the artifact; none if it could not be made."""
    passed: bool
    reason: str
    """Why not, in words; or what was found."""
    checks: tuple[Check, ...] = ()


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
    race: tuple[Contest, ...] = ()
    """Each scheme that was tried, in its order, the winner last; empty without a race."""
    layer_errors: tuple[LayerError, ...] = ()
    """How far each layer is from the source's."""
    seconds: dict[str, float] = Field(default_factory=dict)


def race_key(plan: ReleasePlan) -> str:
    """Return the ledger key under which a race's winner is remembered: by all contenders, limits and texts."""
    contenders = [contender.cluster_digest for contender in plan.contenders]
    mark = digest([contenders, plan.profile.quality.to_json(), texts.prompt_set_digest()])
    return f"races/{short(plan.selection.source_digest)}/{mark}.json"


def advance(
    plan: ReleasePlan, jobs: Jobs, weights: WeightStore, stable_reference: Reference | None, *, again: bool = False
) -> JobStatus:
    """Start what is due, or adopt it, and tell where it stands. The step has ended when that has.

    Args:
        plan: The plan.
        jobs: Runs the programs.
        weights: Where artifacts and references are.
        stable_reference: Figures of stable's source; lets the program stop before it quantizes what cannot pass.
        again: Whether jobs that failed are started anew, as a retried step wants.

    Raises:
        ConfigError: This version cannot build the plan's scheme.
    """
    stable = stable_reference.figures if stable_reference else None
    status = JobStatus(name="", phase="absent")
    for one in contenders(plan):
        status = _make(one, jobs, weights, stable, again=again)
        measured = reference(one.selection.source_digest, weights)
        if measured is not None and _why_not(one, measured, stable) is not None:
            return status
        if status.phase == "succeeded" and weights.manifest(one.artifact_digest) is not None:
            status = quality.advance(one, jobs, weights, again=again)
        if not plan.contenders or not (status.phase == "succeeded" or _has_lost(status)):
            return status
        if _contest(one, jobs, weights).passed:
            return status
    # Everybody lost, or failed for good: there is nothing to wait for, and `finish` says why.
    return status


def finish(plan: ReleasePlan, jobs: Jobs, weights: WeightStore, stable_reference: Reference | None) -> QuantizeOutcome:
    """Check what came of the jobs, and put source and artifact to the gate.

    Args:
        plan: The plan.
        jobs: Tells why a job failed, if it did.
        weights: Where artifacts and references are.
        stable_reference: Figures of stable's source; none for a first release.

    Raises:
        QualityRejected: The source answers worse than the limits allow, or no contender of a race passes.
        IntegrityError: The serving environment refuses the artifact.
        ModelRejected: transformers cannot load the source.
        HeadwayError: A job failed, as its class says.
    """
    measured = reference(plan.selection.source_digest, weights)
    if measured is None:
        raise job_error(_latest(next(contenders(plan)), jobs), "quantize")
    checks = _source_gate(plan, measured, stable_reference)
    tried: list[Contest] = []
    for one in contenders(plan):
        if not plan.contenders:
            own = _accepted(one, jobs, weights, measured)
            return _outcome(one, jobs, weights, measured, [*checks, *own])
        unfinished = _unfinished(one, jobs, weights)
        if unfinished is not None and not _has_lost(unfinished[1]):
            raise job_error(unfinished[1], unfinished[0])
        tried.append(_contest(one, jobs, weights))
        if tried[-1].passed:
            return _outcome(one, jobs, weights, measured, [*checks, *tried[-1].checks], race=tried)
    listing = "\n".join(f"  - {contest.scheme}: {contest.reason}" for contest in tried)
    raise QualityRejected(
        f"{plan.model} version {plan.selection.model.version}: no scheme of the profile passes the quality gate:\n"
        f"{listing}\nAdd a scheme with more bits to `weights.schemes`, or look at the limits under `quality`",
        report={"race": [contest.to_json() for contest in tried]},
    )


def contenders(plan: ReleasePlan) -> Iterator[ReleasePlan]:
    """Yield the plan of each contender, the fewest bytes first; without a race the plan itself."""
    if not plan.contenders:
        yield plan
    for contender in plan.contenders:
        yield choose(plan, contender.recipe.scheme)


def _make(
    plan: ReleasePlan, jobs: Jobs, weights: WeightStore, stable: QualityFigures | None, *, again: bool
) -> JobStatus:
    """Start the quantize job of one artifact, or adopt it; if all is there, none is needed and the status says so."""
    if plan.recipe.scheme not in BUILDABLE:
        built = ", ".join(sorted(BUILDABLE))
        raise ConfigError(f"scheme {plan.recipe.scheme} cannot be built by this version; it builds {built}")
    status = _latest(plan, jobs)
    measured = reference(plan.selection.source_digest, weights)
    if measured is not None and measured.complete and weights.manifest(plan.artifact_digest) is not None:
        return JobStatus(name=status.name, phase="succeeded", reason="the artifact is there", progress_pct=100)
    if status.phase == "succeeded":
        if _was_refused(status) and measured is not None and _why_not(plan, measured, stable) is not None:
            return status
        # What that job left is gone, or the limits have changed. It would be adopted for ever, so this is another one.
        return jobs.submit(_job(plan, weights, stable, _number(status.name) + 1))
    if status.phase in ("failed", "retryable") and not again:
        return status
    return jobs.submit(_job(plan, weights, stable, _number(status.name)))


def _source_gate(plan: ReleasePlan, measured: Reference, stable: Reference | None) -> list[Check]:
    figures = stable.figures if stable else None
    checks = source_checks(measured.figures, figures, plan.profile.quality)
    why = refusal(checks)
    if why is None:
        return checks
    report = {
        "perplexity": say(measured.figures.perplexity),
        "stable_perplexity": say(figures.perplexity) if figures else None,
        "checks": [check.to_json() for check in checks],
    }
    raise QualityRejected(f"{plan.model} version {plan.selection.model.version}: {why}", report=report)


def _unfinished(plan: ReleasePlan, jobs: Jobs, weights: WeightStore) -> tuple[str, JobStatus] | None:
    """Return the program that has not done its part, and where its job stands; none if all is there."""
    if weights.manifest(plan.artifact_digest) is None:
        return "quantize", _latest(plan, jobs)
    if quality.result(plan, jobs, weights) is None:
        return "quality", quality.status(plan, jobs)
    return None


def _has_lost(status: JobStatus) -> bool:
    """Tell whether a job failed for a reason that lies in the scheme; a slow start or a full disk is none."""
    return status.phase == "failed" and (status.result or {}).get("kind") in LOST


def _accepted(plan: ReleasePlan, jobs: Jobs, weights: WeightStore, measured: Reference) -> list[Check]:
    """Return the checks of what the serving environment said; raise if it refuses, or could not be asked."""
    unfinished = _unfinished(plan, jobs, weights)
    if unfinished is not None:
        raise job_error(unfinished[1], unfinished[0])
    said = quality.result(plan, jobs, weights)
    checks = quality.checks(plan, said, measured) if said else []
    if broken := [check.sentence for check in checks if not check.passed]:
        raise IntegrityError(
            f"the serving environment refuses artifact {short(plan.artifact_digest)} ({plan.recipe.scheme}): "
            f"{'; '.join(broken)}. Take a serving image that fits what headway quantizes with, or another scheme",
            findings=broken,
        )
    return checks


def _contest(plan: ReleasePlan, jobs: Jobs, weights: WeightStore) -> Contest:
    """Say how one contender of a race did; one whose job failed for good has lost, with its reason."""
    scheme, manifest = plan.recipe.scheme, weights.manifest(plan.artifact_digest)
    size_bytes = manifest.size_bytes if manifest else None
    unfinished = _unfinished(plan, jobs, weights)
    measured, said = reference(plan.selection.source_digest, weights), quality.result(plan, jobs, weights)
    if unfinished is not None or measured is None or said is None:
        reason = unfinished[1].reason if unfinished else "there is no reference of its source"
        return Contest(scheme=scheme, size_bytes=size_bytes, passed=False, reason=reason or "its job failed")
    checks = quality.checks(plan, said, measured)
    broken = [check.sentence for check in checks if not check.passed]
    return Contest(
        scheme=scheme,
        size_bytes=size_bytes,
        passed=not broken,
        reason="; ".join(broken) or "it passes the quality gate",
        checks=tuple(checks),
    )


def _outcome(
    plan: ReleasePlan,
    jobs: Jobs,
    weights: WeightStore,
    measured: Reference,
    checks: list[Check],
    *,
    race: list[Contest] | None = None,
) -> QuantizeOutcome:
    status, manifest = _latest(plan, jobs), weights.manifest(plan.artifact_digest)
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
        race=tuple(race or ()),
        layer_errors=_layer_errors(plan, weights),
        seconds=result.seconds if result else {},
    )


def _layer_errors(plan: ReleasePlan, weights: WeightStore) -> tuple[LayerError, ...]:
    """Return what was measured when the artifact was made, whichever release made it."""
    uri = weights.artifact_uri(plan.artifact_digest)
    kept = weights.json(f"{uri[uri.index('artifacts/') :]}{LAYER_ERRORS}")
    return LayerErrors.model_validate(dict(kept)).layers if kept is not None else ()


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
        calibration_uri=plan.calibration_uri,
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
        model=plan.model,
        accelerator=plan.profile.hardware.accelerator,
        accelerators=plan.profile.hardware.per_replica,
        memory_bytes=int(plan.selection.size_bytes * (LOADED_TIMES if plan.recipe.calibration_digest else 1)),
        disk_bytes=plan.selection.size_bytes * DISK_TIMES,
    )
