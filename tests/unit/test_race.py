"""A race: one scheme after another, the fewest bytes first, until one passes the quality gate."""

import pytest

from headway.domain.bench import CanaryAnswer
from headway.domain.quality_jobs import QualityResult
from headway.domain.release import ReleasePlan
from headway.domain.weights import Manifest, WeightFile
from headway.errors import BackendError, BackendUnavailable, QualityRejected
from headway.release import quality, quantize, recall
from tests.factories import make_plan, make_profile
from tests.fakes import FakeJobs, FakeWeightStore
from tests.unit.test_quantize import of_texts, store

SCHEMES = ["none", "fp8-dynamic", "w4a16-gptq"]
PERPLEXITY = 14.0


def race() -> ReleasePlan:
    """A plan with three contenders."""
    weights = {"schemes": SCHEMES, "choose": "race", "group_size": 32}
    return make_plan(make_profile(weights=weights))


def started() -> tuple[ReleasePlan, FakeJobs, FakeWeightStore]:
    """A race whose source was measured and is good."""
    plan = race()
    return plan, FakeJobs(), store(plan, perplexity=PERPLEXITY)


def make(plan: ReleasePlan, weights: FakeWeightStore, scheme: str, size_bytes: int = 10) -> ReleasePlan:
    """Let one contender's artifact be there; return its plan."""
    one = next(c for c in quantize.contenders(plan) if c.recipe.scheme == scheme)
    file = WeightFile(path="model.safetensors", size_bytes=size_bytes, sha256="b" * 64, parts=("b" * 64,))
    weights.manifests[one.artifact_digest] = Manifest(artifact_digest=one.artifact_digest, files=(file,))
    return one


def answer(one: ReleasePlan, weights: FakeWeightStore, ratio: float) -> None:
    """Let the serving environment have measured one contender."""
    said = QualityResult(
        depth="answers",
        artifact_digest=one.artifact_digest,
        scheme=one.recipe.scheme,
        artifact_bytes=10,
        served=of_texts(PERPLEXITY * ratio),
        answers=(CanaryAnswer(side="candidate", prompt="Hello?", text="Hello to you.", finish_reason="stop"),),
    )
    weights.documents[quality.result_key(one)] = said.to_json()


def order(plan: ReleasePlan) -> list[str]:
    """The contenders in their order."""
    return [one.recipe.scheme for one in quantize.contenders(plan)]


def test_the_fewest_bytes_start() -> None:
    """Whatever the order in the profile."""
    assert order(race()) == ["w4a16-gptq", "fp8-dynamic", "none"]


def test_the_step_goes_from_job_to_job() -> None:
    """Quantize, ask, lose; quantize the next one, ask, win; the largest is never made."""
    plan, jobs, weights = started()

    first = quantize.advance(plan, jobs, weights, None, again=True)
    assert jobs.jobs[first.name].payload["recipe"]["scheme"] == "w4a16-gptq"

    small = make(plan, weights, "w4a16-gptq")
    asked = quantize.advance(plan, jobs, weights, None)
    assert (jobs.jobs[asked.name].program, jobs.jobs[asked.name].payload["depth"]) == ("quality", "answers")

    answer(small, weights, 1.4)
    second = quantize.advance(plan, jobs, weights, None)
    assert jobs.jobs[second.name].payload["recipe"]["scheme"] == "fp8-dynamic"

    answer(make(plan, weights, "fp8-dynamic"), weights, 1.01)
    assert quantize.advance(plan, jobs, weights, None).phase == "succeeded"

    outcome = quantize.finish(plan, jobs, weights, None)
    assert outcome.scheme == "fp8-dynamic"
    assert [(c.scheme, c.passed) for c in outcome.race] == [("w4a16-gptq", False), ("fp8-dynamic", True)]
    assert "above the limit of 1.1" in outcome.race[0].reason
    assert len(jobs.starts) == 3


def test_what_follows_is_the_winners() -> None:
    """Stage, rollout and canary read the plan through the outcome."""
    plan, jobs, weights = started()
    small = make(plan, weights, "w4a16-gptq")
    answer(small, weights, 1.05)

    outcome = quantize.finish(plan, jobs, weights, None)
    made = recall.in_force(plan, outcome.to_json())

    assert made.recipe.scheme == "w4a16-gptq"
    assert made.artifact_digest == outcome.artifact_digest == small.artifact_digest
    assert made.cluster.artifact_digest == small.artifact_digest
    assert made.cluster.name.endswith(made.cluster_digest[:12])


def test_when_all_lose_each_says_why() -> None:
    """And the person reads what to change."""
    plan, jobs, weights = started()
    for scheme in SCHEMES:
        answer(make(plan, weights, scheme), weights, 1.4)

    assert quantize.advance(plan, jobs, weights, None).ended
    told = r"w4a16-gptq: (.|\n)*fp8-dynamic: (.|\n)*none: (.|\n)*more bits"
    with pytest.raises(QualityRejected, match=told) as caught:
        quantize.finish(plan, jobs, weights, None)
    assert len(caught.value.facts["report"]["race"]) == 3


def test_a_contender_that_cannot_be_made_has_lost() -> None:
    """A scheme that llm-compressor cannot apply to this model must not stop the others."""
    plan, jobs, weights = started()
    name = quantize.advance(plan, jobs, weights, None, again=True).name
    result = {"error": "x", "kind": "IntegrityError"}
    jobs.end(name, phase="failed", reason="not divisible by group_size", result=result)

    following = quantize.advance(plan, jobs, weights, None)
    assert jobs.jobs[following.name].payload["recipe"]["scheme"] == "fp8-dynamic"

    answer(make(plan, weights, "fp8-dynamic"), weights, 1.0)
    assert quantize.finish(plan, jobs, weights, None).race[0].reason == "not divisible by group_size"


def test_a_contender_whose_job_was_killed_has_not_lost() -> None:
    """The step is retried instead, and the race is the same whichever process dies."""
    plan, jobs, weights = started()
    name = quantize.advance(plan, jobs, weights, None, again=True).name
    jobs.end(name, phase="retryable", reason="it was killed")

    assert quantize.advance(plan, jobs, weights, None).phase == "retryable"
    with pytest.raises(BackendUnavailable, match="it was killed"):
        quantize.finish(plan, jobs, weights, None)


def test_a_job_that_failed_for_another_reason_ends_the_race() -> None:
    """An engine that starts slowly on a busy machine says nothing about the scheme."""
    plan, jobs, weights = started()
    make(plan, weights, "w4a16-gptq")
    name = quantize.advance(plan, jobs, weights, None, again=True).name
    jobs.end(name, phase="failed", reason="not healthy within 900 s", result={"error": "x", "kind": "DeadlineExceeded"})

    assert quantize.advance(plan, jobs, weights, None).phase == "failed"
    with pytest.raises(BackendError, match="not healthy within 900 s"):
        quantize.finish(plan, jobs, weights, None)
    assert quantize.advance(plan, jobs, weights, None, again=True).phase == "running"


def test_other_limits_are_another_race() -> None:
    """The winner is remembered by contenders and limits."""
    strict = make_plan(
        make_profile(weights={"schemes": SCHEMES, "choose": "race", "group_size": 32}, quality={"max_ppl_ratio": 1.01})
    )
    assert quantize.race_key(race()) != quantize.race_key(strict)
    assert quantize.race_key(race()) == quantize.race_key(race())
