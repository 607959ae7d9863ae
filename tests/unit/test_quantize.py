"""The step finds what is there, stops what cannot pass, and says why."""

from typing import Any

import pytest

from headway.domain import texts
from headway.domain.job import JobStatus
from headway.domain.quality_jobs import QualityResult
from headway.domain.release import QualityFigures, Reference, ReleasePlan
from headway.domain.weights import Manifest, Recipe, WeightFile
from headway.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    IntegrityError,
    ModelRejected,
    QualityRejected,
)
from headway.release import quality, quantize
from tests.factories import make_plan, make_profile, make_selection
from tests.fakes import FakeJobs, FakeWeightStore
from tests.unit.judge.test_source import figures

MADE = JobStatus(
    name="x",
    phase="succeeded",
    result={
        "outcome": "made",
        "artifact_digest": "a",
        "content_digest": "c",
        "source_bytes": 20,
        "artifact_bytes": 10,
        "seconds": {"quantize": 2.0},
    },
)


def of_texts(perplexity: float) -> QualityFigures:
    """Figures on the texts of this version."""
    return figures(perplexity).model_copy(update={"prompt_set_digest": texts.prompt_set_digest()})


def store(plan: ReleasePlan, *, perplexity: float | None = None, artifact: bool = False) -> FakeWeightStore:
    """A store with the plan's reference, or its artifact, or both."""
    weights = FakeWeightStore()
    source = plan.selection.source_digest
    if perplexity is not None:
        measured = Reference(
            source_digest=source, figures=of_texts(perplexity), token_ids=((1, 2),), top_sha256="0" * 64
        )
        weights.documents[quality.reference_key(source)] = measured.to_json()
    if artifact:
        file = WeightFile(path="model.safetensors", size_bytes=10, sha256="b" * 64, parts=("b" * 64,))
        weights.manifests[plan.artifact_digest] = Manifest(artifact_digest=plan.artifact_digest, files=(file,))
    return weights


def advance(
    plan: ReleasePlan, jobs: FakeJobs, weights: FakeWeightStore, stable_reference: Reference | None = None
) -> JobStatus:
    """Begin the step, or try it again."""
    return quantize.advance(plan, jobs, weights, stable_reference, again=True)


def accept(plan: ReleasePlan, weights: FakeWeightStore, *findings: str) -> None:
    """Let the serving environment take the artifact, or refuse it."""
    said = QualityResult(
        depth="accepts",
        artifact_digest=plan.artifact_digest,
        scheme=plan.recipe.scheme,
        artifact_bytes=10,
        versions={"vllm": "0.29.0"},
        findings=findings,
    )
    weights.documents[quality.result_key(plan)] = said.to_json()


def stable(perplexity: float) -> Reference:
    """Stable's reference."""
    return Reference(source_digest="s", figures=of_texts(perplexity), token_ids=())


def test_a_job_is_named_by_its_artifact_and_started_once() -> None:
    """A retried step adopts what the first try began."""
    plan, jobs = make_plan(), FakeJobs()

    first = advance(plan, jobs, FakeWeightStore())
    second = advance(plan, jobs, FakeWeightStore())

    assert first.name == second.name == f"quantize-{plan.artifact_digest[:12]}"
    assert jobs.starts == [first.name]
    assert jobs.jobs[first.name].environment == "quantize"


def test_no_job_is_needed_when_all_is_there() -> None:
    """A changed engine setting releases without quantizing."""
    plan, jobs = make_plan(), FakeJobs()
    weights = store(plan, perplexity=14, artifact=True)
    accept(plan, weights)

    status = advance(plan, jobs, weights)
    outcome = quantize.finish(plan, jobs, weights, None)

    assert (status.phase, jobs.starts) == ("succeeded", [])
    assert outcome.reused
    assert outcome.perplexity == pytest.approx(14)
    assert outcome.size_bytes == 10


def test_an_artifact_without_its_reference_still_needs_the_job() -> None:
    """The canary compares what is served with the reference."""
    plan, jobs = make_plan(), FakeJobs()

    assert advance(plan, jobs, store(plan, artifact=True)).phase == "running"


def test_an_artifact_that_was_deleted_is_made_again() -> None:
    """The job that made it ended well, and would be adopted for ever."""
    plan, jobs = make_plan(), FakeJobs(endings={"quantize": MADE})
    advance(plan, jobs, FakeWeightStore())
    jobs.endings.clear()

    again = advance(plan, jobs, FakeWeightStore())
    adopted = advance(plan, jobs, FakeWeightStore())

    assert again.phase == "running"
    assert again.name == adopted.name == f"quantize-{plan.artifact_digest[:12]}-2"


def test_a_source_far_worse_than_stables_is_refused() -> None:
    """Design rule 13.6, second part: broken before quantizing."""
    plan = make_plan()
    with pytest.raises(QualityRejected, match=r"stable's source has 14\.0") as caught:
        quantize.finish(plan, FakeJobs(), store(plan, perplexity=20, artifact=True), stable(14))
    assert "tiny version 1" in caught.value.message
    assert caught.value.facts["report"]["checks"]


def test_a_source_beyond_the_absolute_limit_is_refused() -> None:
    """Third part; also where the job stopped before it made anything."""
    plan = make_plan()
    with pytest.raises(QualityRejected, match="absolute limit of 200"):
        quantize.finish(plan, FakeJobs(), store(plan, perplexity=500), None)


def test_a_refused_source_is_adopted_until_the_limits_change() -> None:
    """A person who raises the limit in the profile gets a new job."""
    plan = make_plan()
    weights = store(plan, perplexity=500)
    refused = MADE.model_copy(update={"result": {**(MADE.result or {}), "outcome": "refused"}})
    jobs = FakeJobs(endings={"quantize": refused})
    advance(plan, jobs, FakeWeightStore())

    assert advance(plan, jobs, weights).phase == "succeeded"
    assert len(jobs.starts) == 1

    jobs.endings.clear()
    patient = plan.model_copy(update={"profile": make_profile(quality={"max_ppl": 1000})})
    assert advance(patient, jobs, weights).phase == "running"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"phase": "failed", "reason": "boom", "result": {"error": "boom", "kind": "IntegrityError"}}, IntegrityError),
        ({"phase": "failed", "reason": "boom", "result": {"error": "boom", "kind": "ModelRejected"}}, ModelRejected),
        ({"phase": "failed", "reason": "boom"}, BackendError),
        ({"phase": "retryable", "reason": "boom"}, BackendUnavailable),
        ({"phase": "absent", "reason": "boom"}, BackendUnavailable),
    ],
)
def test_a_failed_job_says_why(status: dict[str, Any], kind: type[Exception]) -> None:
    """The program's own sentence reaches the person."""
    plan, jobs = make_plan(), FakeJobs()
    name = advance(plan, jobs, FakeWeightStore()).name
    jobs.end(name, **status)

    with pytest.raises(kind, match="boom") as caught:
        quantize.finish(plan, jobs, FakeWeightStore(), None)
    assert type(caught.value) is kind


def test_a_scheme_that_cannot_be_built_is_refused_at_once() -> None:
    """Before a job waits for its turn."""
    with pytest.raises(ConfigError, match="nvfp4"):
        advance(make_plan(recipe=Recipe(scheme="nvfp4")), FakeJobs(), FakeWeightStore())


def test_the_job_carries_no_secret_and_all_it_needs() -> None:
    """Payloads are kept in files."""
    plan, jobs = make_plan(selection=make_selection()), FakeJobs()
    job = jobs.jobs[advance(plan, jobs, FakeWeightStore(), stable(14)).name]

    assert job.payload["stable"]["tokens"] == 1000
    assert job.payload["reference_uri"] == f"s3://headway/{quality.reference_key(plan.selection.source_digest)}"
    assert not [key for key in job.payload if "secret" in key or "key" in key]


def test_the_serving_environment_is_asked_once_the_artifact_is_there() -> None:
    """Its own validator decides whether it would load what headway made."""
    plan, jobs = make_plan(), FakeJobs()
    weights = store(plan, perplexity=14, artifact=True)

    status = advance(plan, jobs, weights)

    job = jobs.jobs[status.name]
    assert (status.phase, job.program, job.environment) == ("running", "quality", "serve")
    assert job.payload["depth"] == "accepts"
    assert advance(plan, jobs, weights).name == status.name
    assert len(jobs.starts) == 1


def test_a_source_served_as_it_is_is_asked_about_too() -> None:
    """It may lack a layer, which an engine fills with whatever is in memory."""
    plan, jobs = make_plan(make_profile(weights={"schemes": ["none"]})), FakeJobs()

    status = advance(plan, jobs, store(plan, perplexity=14, artifact=True))

    assert jobs.jobs[status.name].program == "quality"


def test_what_the_serving_environment_refuses_is_never_rolled_out() -> None:
    """Its own words reach the person."""
    plan = make_plan()
    weights = store(plan, perplexity=14, artifact=True)
    accept(plan, weights, "Extra inputs are not permitted: scale_dtype")

    with pytest.raises(IntegrityError, match=r"fp8-dynamic.*scale_dtype.*serving image"):
        quantize.finish(plan, FakeJobs(), weights, None)


def test_a_question_that_failed_is_asked_again_by_a_retry_only() -> None:
    """The look at a failed job must not restart it for ever."""
    plan, jobs = make_plan(), FakeJobs()
    weights = store(plan, perplexity=14, artifact=True)
    name = advance(plan, jobs, weights).name
    jobs.end(name, phase="retryable", reason="it was killed")

    assert quantize.advance(plan, jobs, weights, None).phase == "retryable"
    with pytest.raises(BackendUnavailable, match=r"quality job .* it was killed"):
        quantize.finish(plan, jobs, weights, None)
    assert advance(plan, jobs, weights).phase == "running"
