"""Task accuracy: a candidate that lost beyond doubt is refused, and chance refuses nobody."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.domain.bench import Side
from headway.domain.profile import Tasks
from headway.domain.task_jobs import TaskJob, TaskResult, TaskScore, scores_key, task_job
from headway.errors import ConfigError
from headway.judge.tasks import FEW_CHANGED, LEAST_PAIRS, min_recovery, recovery, task_checks
from headway.pods.task_scores import pick
from tests.factories import make_plan

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "lm_eval_0.4.13.json").read_text())
"""Results of lm-evaluation-harness 0.4.13 on the example's tasks: stable knew all capitals, the candidate 17 of 20."""

yes_or_no = st.sampled_from([0.0, 1.0])
pairs = st.lists(st.tuples(yes_or_no, yes_or_no), min_size=2, max_size=200)
numbers = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=50)


def score(values: Sequence[float], side: Side = "candidate", task: str = "t", **changes: Any) -> TaskScore:
    given: dict[str, Any] = {"metric": "acc", "higher_is_better": True, "samples_digest": "same", **changes}
    return TaskScore(task=task, side=side, values=tuple(map(float, values)), **given)


def result(*scores: TaskScore) -> TaskResult:
    return TaskResult(release="r", scores=scores, records_sha256="0" * 64)


def both(candidate: Sequence[float], stable: Sequence[float], task: str = "t") -> tuple[TaskScore, TaskScore]:
    return score(candidate, task=task), score(stable, "stable", task)


def changed(n: int, *, solved: int, lost: int, won: int = 0) -> tuple[TaskScore, TaskScore]:
    """Two sides with `n` samples; stable solved some, of which the candidate lost some, and it won others."""
    stable = [1.0] * solved + [0.0] * (n - solved)
    candidate = [0.0] * lost + [1.0] * (solved - lost) + [1.0] * won + [0.0] * (n - solved - won)
    return both(candidate, stable)


def test_the_same_answers_recover_everything_without_doubt() -> None:
    found = recovery(*[[s] for s in changed(50, solved=30, lost=0)])

    assert found is not None
    assert (found.value, found.stderr, found.at_most, found.low) == (1.0, 0.0, 1.0, 1.0)


def test_pairs_tell_more_than_two_scores() -> None:
    """Four lost of 400: the pairs know that the rest is the same, the two scores do not."""
    candidate, stable = changed(400, solved=300, lost=4)
    paired = recovery([candidate], [stable])
    apart = recovery([candidate], [stable.model_copy(update={"samples_digest": "others"})])

    assert paired is not None
    assert apart is not None
    assert paired.value == apart.value
    assert paired.stderr == pytest.approx(0.0066, abs=2e-4)
    assert apart.stderr > 5 * paired.stderr


def test_the_standard_error_is_the_delta_methods() -> None:
    """By hand: `sqrt(var(c - R b) / n) / mean(b)`."""
    candidate, stable = both([3, 1, 4, 1, 5, 9, 2, 6], [2, 2, 5, 3, 5, 8, 3, 7])
    ratio = 31 / 35
    rest = [c - ratio * b for c, b in zip(candidate.values, stable.values, strict=True)]
    by_hand = math.sqrt(sum(r * r for r in rest) / 7 / 8) / (35 / 8)
    found = recovery([candidate], [stable])

    assert found is not None
    assert found.value == pytest.approx(ratio)
    assert found.stderr == pytest.approx(by_hand)
    assert found.low < found.value < found.at_most < found.high


@given(pairs)
def test_bounds_hold_the_estimate(values: list[tuple[float, float]]) -> None:
    candidate, stable = both([c for c, _ in values], [b for _, b in values])
    found = recovery([candidate], [stable])

    assert (found is None) == (stable.value == 0)
    if found is not None:
        assert found.low <= found.value <= found.at_most <= found.high
        assert found.stderr >= 0
        assert found.lost == sum(b > c for c, b in values)


@given(numbers, st.floats(0.1, 10))
def test_the_unit_of_a_metric_does_not_matter(values: list[tuple[float, float]], factor: float) -> None:
    stable = [b for _, b in values]
    assume(sum(stable) > 1)
    one = recovery(*[[s] for s in both([c for c, _ in values], stable)])
    other = recovery(*[[s] for s in both([c * factor for c, _ in values], [b * factor for b in stable])])

    assert one is not None
    assert other is not None
    assert other.value == pytest.approx(one.value)
    assert other.stderr == pytest.approx(one.stderr, abs=1e-6)


@given(pairs)
def test_a_candidate_that_solves_as_much_is_never_refused(values: list[tuple[float, float]]) -> None:
    """Whatever it lost, it won as much elsewhere."""
    stable = [b for _, b in values]
    candidate = sorted(stable)
    checks = task_checks(result(*both(candidate, stable)), Tasks(names=("t",)))

    assert all(check.passed for check in checks)


@given(st.integers(2, 400), st.data())
def test_few_samples_and_few_changes_refuse_nobody(n: int, data: st.DataObject) -> None:
    """Below 20 samples nothing is decided, and four changed answers are chance however few were right before."""
    solved = data.draw(st.integers(1, n))
    lost = data.draw(st.integers(0, min(solved, 4 if n >= LEAST_PAIRS else solved)))
    [check, *_] = task_checks(result(*changed(n, solved=solved, lost=lost)), Tasks(names=("t",)))

    assert check.passed, check.sentence
    assert check.measured is not None
    assert ("undecided" in check.sentence) == (check.measured < 0.99)


@pytest.mark.parametrize(("n", "solved", "lost"), [(20, 20, 20), (20, 5, 5), (200, 150, 20), (1000, 500, 30)])
def test_what_is_lost_beyond_doubt_is_refused(n: int, solved: int, lost: int) -> None:
    """Also where the candidate solves nothing and so has no spread of its own."""
    [check, *_] = task_checks(result(*changed(n, solved=solved, lost=lost)), Tasks(names=("t",)))

    assert not check.passed
    assert check.measured == pytest.approx(1 - lost / solved)
    assert "below the limit of 99.0 %" in check.sentence
    assert "undecided" not in check.sentence


def test_a_loss_that_may_be_chance_is_named_undecided() -> None:
    candidate, stable = changed(200, solved=150, lost=FEW_CHANGED, won=4)
    [check, *_] = task_checks(result(candidate, stable), Tasks(names=("t",)))

    assert check.passed
    assert "below the limit of 99.0 % but undecided: more samples (quality.tasks.limit)" in check.sentence


def test_limits_follow_the_bits_and_the_profile() -> None:
    plain = Tasks(names=("t",))

    assert [min_recovery(plain, scheme) for scheme in ("none", "fp8-dynamic", "w4a16-gptq", "nvfp4")] == [
        *(0.99, 0.99, 0.98, 0.98)
    ]
    assert min_recovery(Tasks(names=("t",), min_recovery=0.9), "w4a16-awq") == 0.9


def test_the_mean_decides_and_single_tasks_only_where_asked() -> None:
    """One task may lose what another wins; a limit of its own catches it."""
    half = [1.0] * 50 + [0.0] * 50
    good, bad = both([1.0] * 60 + [0.0] * 40, half, "good"), both([1.0] * 40 + [0.0] * 60, half, "bad")
    told = result(*good, *bad)

    free = task_checks(told, Tasks(names=("good", "bad")))
    held = task_checks(told, Tasks(names=("good", "bad"), min_task_recovery=0.95))

    assert [c.name for c in free][:3] == ["task accuracy", "task accuracy: good", "task accuracy: bad"]
    assert free[0].measured == pytest.approx(1.0)
    assert all(check.passed for check in free)
    assert [c.name for c in held if not c.passed] == ["task accuracy: bad"]


def test_what_should_be_small_recovers_by_being_small() -> None:
    """An error rate that doubled is half recovered."""
    worse = score([1.0] * 40 + [0.0] * 60, higher_is_better=False)
    stable = score([1.0] * 20 + [0.0] * 80, "stable", higher_is_better=False)
    [check, *_] = task_checks(result(worse, stable), Tasks(names=("t",)))

    assert check.measured == pytest.approx(0.5)
    assert not check.passed


def test_a_score_of_zero_decides_nothing_and_says_so() -> None:
    [check, *_] = task_checks(result(*both([0.0] * 50, [0.0] * 50)), Tasks(names=("t",)))

    assert (check.passed, check.measured) == (True, None)
    assert "undecided, because a score of t is nothing to divide by" in check.sentence


def test_a_task_that_nobody_solves_does_not_hide_the_others() -> None:
    lost, nobody = changed(200, solved=150, lost=40), both([0.0] * 50, [0.0] * 50, "u")
    [mean, *others] = task_checks(result(*lost, *nobody), Tasks(names=("t", "u")))

    assert not mean.passed
    assert "below the limit" in mean.sentence
    assert ["undecided" in check.sentence for check in others[:2]] == [False, True]


def test_a_first_release_has_its_absolute_score_only() -> None:
    poor = score([1.0] * 30 + [0.0] * 70)

    [free] = task_checks(result(poor), Tasks(names=("t",)))
    [held] = task_checks(result(poor), Tasks(names=("t",), min_score={"t": 0.5}))
    [doubt] = task_checks(result(poor), Tasks(names=("t",), min_score={"t": 0.35}))

    assert (free.name, free.limit, free.passed) == ("score: t", None, True)
    assert not held.passed
    assert "0.300 of 100 samples (standard error 0.046), below the limit of 0.5" in held.sentence
    assert doubt.passed
    assert "undecided" in doubt.sentence


def test_the_source_served_as_it_is_may_be_the_base() -> None:
    """Paired where it was asked the same samples; stable's own scores then do not matter."""
    candidate, source = changed(200, solved=150, lost=20)
    told = result(candidate, score([1.0] * 20 + [0.0] * 180, "stable"))
    [check, *_] = task_checks(told, Tasks(names=("t",)), source=result(source.model_copy(update={"side": "candidate"})))

    assert not check.passed
    assert "of the source's" in check.sentence


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"metric": "acc_norm"}, "has acc of the candidate and acc_norm of stable's"),
        ({"samples_digest": "others"}, "were not asked the same samples"),
    ],
)
def test_what_cannot_be_compared_holds_the_release(change: dict[str, Any], why: str) -> None:
    candidate, stable = changed(50, solved=30, lost=0)
    [check, *_] = task_checks(result(candidate, stable.model_copy(update=change)), Tasks(names=("t",)))

    assert (check.passed, check.measured) == (False, None)
    assert why in check.sentence


def test_what_was_not_measured_holds_the_release() -> None:
    [none] = task_checks(None, Tasks(names=("t",)), why_missing="the job failed")
    [half] = task_checks(result(score([1.0] * 20)), Tasks(names=("t", "u")))

    assert (none.passed, none.measured, none.sentence) == (
        *(False, None),
        "task accuracy could not be measured: the job failed",
    )
    assert half.sentence == "the candidate was not asked u"


# The harness's own results


def test_a_recorded_result_of_the_harness_is_read_sample_by_sample() -> None:
    """Multiple choice and written answers: score and standard error are the harness's own."""
    sides: tuple[Side, ...] = ("stable", "candidate")
    told = result(*(pick(name, side, RECORDED[side][name], None).score for side in sides for name in RECORDED[side]))
    written, chosen = told.score("capitals_written", "candidate"), told.score("capitals", "candidate")

    assert written is not None
    assert chosen is not None
    assert (written.metric, written.value, written.n) == ("exact_match,first-word", 0.85, 20)
    assert (chosen.metric, chosen.value, chosen.higher_is_better) == ("acc", 0.85, True)
    theirs = RECORDED["candidate"]["capitals"]["results"]["capitals"]["acc_stderr,none"]
    assert chosen.stderr == pytest.approx(theirs)
    assert [s.samples_digest for s in told.scores[:2]] == [s.samples_digest for s in told.scores[2:]]
    [mean, *_] = task_checks(told, Tasks(names=("capitals", "capitals_written")))
    assert mean.measured == pytest.approx(0.85)
    assert not mean.passed, "three lost in each of two tasks, and none won"


def test_the_samples_lines_are_plain_json_with_the_question() -> None:
    measured = pick("capitals", "stable", RECORDED["stable"]["capitals"], None)
    lines = [json.loads(line)["sample"] for line in measured.lines]

    assert len(lines) == 20
    assert lines[0] | {"answers": None} == {
        "task": "capitals",
        "leaf": "capitals",
        "side": "stable",
        "metric": "acc",
        "doc_id": 0,
        "doc_hash": lines[0]["doc_hash"],
        "prompt_hash": lines[0]["prompt_hash"],
        "value": 1.0,
        "doc": {"country": "Austria", "capital": "Vienna", "choices": ["Dublin", "Vienna", "Budapest", "Cairo"]},
        "target": 1,
        "answers": None,
    }


def test_a_metric_that_is_no_mean_of_the_samples_is_refused() -> None:
    found = json.loads(json.dumps(RECORDED["stable"]["capitals"]))
    found["results"]["capitals"]["acc,none"] = 0.5

    with pytest.raises(ConfigError, match="not the mean of its 20 samples"):
        pick("capitals", "stable", found, None)
    found["samples"]["capitals"][3]["acc"] = [1, 2]
    with pytest.raises(ConfigError, match="which is no number"):
        pick("capitals", "stable", found, "acc")
    with pytest.raises(ConfigError, match="has no metric f1; it has acc,none"):
        pick("capitals", "stable", found, "f1")


def test_a_group_is_one_pool_of_samples() -> None:
    one, other = RECORDED["stable"]["capitals"], RECORDED["candidate"]["capitals"]
    found = {
        "results": {"a": one["results"]["capitals"], "b": other["results"]["capitals"]},
        "higher_is_better": {"a": {"acc": True}, "b": {"acc": True}},
        "samples": {"a": one["samples"]["capitals"], "b": other["samples"]["capitals"]},
    }
    pooled = pick("geography", "candidate", found, None).score

    assert (pooled.task, pooled.n) == ("geography", 40)
    assert pooled.value == pytest.approx(0.925)


# The job and the profile


def test_a_job_is_made_of_plan_and_targets() -> None:
    plan = make_plan()
    tasks = Tasks(names=("t",), concurrency=1)
    quality = plan.profile.quality.model_copy(update={"tasks": tasks})
    plan = plan.model_copy(update={"profile": plan.profile.model_copy(update={"quality": quality})})
    job = task_job(
        plan,
        "r",
        TaskJob.model_validate(_bare()).targets,
        artifact_uris={"candidate": "s3://headway/artifacts/x/", "stable": "s3://headway/artifacts/y/"},
        records_uri="s3://headway/tasks/r/samples.jsonl",
    )

    assert job.tasks == tasks
    assert job.max_length == plan.profile.engine.max_model_len
    assert dict(job.tokenizer_uris) == {"candidate": "s3://headway/artifacts/x/"}


def test_a_job_without_a_tokenizer_is_for_chat() -> None:
    bare = {**_bare(), "tokenizer_uris": {}}

    with pytest.raises(ValidationError, match="there is no tokenizer for candidate"):
        TaskJob.model_validate(bare)
    assert TaskJob.model_validate({**bare, "tasks": {"names": ["t"], "chat": True}}).tasks.chat


def test_stored_scores_are_named_by_what_they_depend_on() -> None:
    """Limits do not change a score; samples, files and the engine do."""
    plain = Tasks(names=("t",))
    name = scores_key("d" * 64, plain, "vllm 1")

    assert scores_key("d" * 64, Tasks(names=("t",), min_recovery=0.5, concurrency=9), "vllm 1") == name
    assert scores_key("d" * 64, Tasks(names=("t",), limit=50), "vllm 1") != name
    assert scores_key("d" * 64, plain, "vllm 2") != name


@pytest.mark.parametrize(
    ("faulty", "why"),
    [
        ({"names": []}, "at least 1 item"),
        ({"names": ["a", "a"]}, "each task may be there once"),
        ({"names": ["a"], "min_score": {"b": 1}}, "a metric or a score for b"),
        ({"names": ["a"], "include_sha256": "0" * 64}, "without an include_uri"),
        ({"names": ["a"], "limit": 5}, "greater than or equal to 20"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(faulty: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Tasks.model_validate(faulty)


def _bare() -> dict[str, Any]:
    target = {"side": "candidate", "base_url": "http://g/m", "served_model": "m", "release": "r"}
    return {
        "release": "r",
        "targets": [target],
        "tasks": {"names": ["t"]},
        "tokenizer_uris": {"candidate": "s3://headway/artifacts/x/"},
        "max_length": 512,
    }
