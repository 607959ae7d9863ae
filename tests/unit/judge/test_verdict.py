"""What users may rely on: nothing slow, broken or unmeasured is promoted."""

import random
from collections import Counter

import pytest

from headway.domain.bench import RequestRecord
from headway.domain.release import Check
from headway.domain.value import canonical_json
from headway.judge.verdict import Analysis, analyse, judge
from tests.unit.judge.data import Alter, failed, make_canary, make_run

CANARY = make_canary()
RUNS = 200


def _decide(**run: object) -> Analysis:
    return analyse(*make_run(CANARY, **run), CANARY)  # type: ignore[arg-type]


def _decisions(**run: object) -> Counter[str]:
    return Counter(_decide(seed=seed, **run).verdict.decision for seed in range(RUNS))


def test_an_equal_candidate_is_nearly_always_promoted() -> None:
    decisions = _decisions()

    assert decisions["PROMOTE"] >= 0.97 * RUNS
    assert decisions["ROLLBACK"] <= 0.01 * RUNS


def test_a_candidate_twice_as_slow_is_nearly_always_rolled_back() -> None:
    decisions = _decisions(slower=2.0)

    assert decisions["ROLLBACK"] >= 0.99 * RUNS
    assert decisions["PROMOTE"] == 0


def test_a_candidate_at_the_margin_is_rarely_promoted() -> None:
    """Both medians lie exactly at their margin: at most alpha, and rarer because both must pass."""
    assert _decisions(slower=1.5)["PROMOTE"] <= 0.05 * RUNS


def test_a_slow_one_is_stopped_early() -> None:
    assert _decide(slower=3.0).verdict.blocks_used <= 5


def test_no_records_hold() -> None:
    verdict = judge([], [], CANARY)

    assert verdict.decision == "HOLD"


def _drop(share: float, seed: int) -> Alter:
    rng = random.Random(seed)  # noqa: S311
    return lambda record: None if rng.random() < share else record


def _drop_candidate(record: RequestRecord) -> RequestRecord | None:
    return None if record.side == "candidate" else record


def _no_usage(record: RequestRecord) -> RequestRecord:
    return record.model_copy(update={"output_tokens": None})


@pytest.mark.parametrize("share", [0.02, 0.2, 0.9])
def test_missing_data_never_promotes(share: float) -> None:
    for seed in range(40):
        verdict = _decide(seed=seed, alter=_drop(share, seed)).verdict
        if "sample ratio" in verdict.sentence or "has only" in verdict.sentence or verdict.decision == "HOLD":
            continue
        # A handful of lost pairs in one block of ten is within the tenth that may be unusable.
        assert verdict.decision != "PROMOTE" or share == 0.02


def test_a_silent_candidate_never_promotes() -> None:
    assert _decide(alter=_drop_candidate).verdict.decision == "HOLD"


def test_answers_without_token_counts_hold() -> None:
    verdict = _decide(alter=_no_usage).verdict

    assert verdict.decision == "HOLD"
    assert "tpot" in verdict.sentence


def test_a_promotion_needs_a_look() -> None:
    """Three blocks decide nothing, however good they look."""
    analysis = _decide(blocks=3)

    assert (analysis.verdict.decision, analysis.decided) == ("HOLD", False)


@pytest.mark.parametrize(("void", "decision"), [(1, "PROMOTE"), (2, "HOLD")])
def test_more_than_a_tenth_of_void_blocks_holds(void: int, decision: str) -> None:
    records, summaries = make_run(CANARY, shared=0.05, spread=0.1)
    summaries = [s.model_copy(update={"void": s.block < void, "reason": "late"}) for s in summaries]

    assert judge(records, summaries, CANARY).decision == decision


def _failing(side: str, which: object) -> Alter:
    return lambda r: failed(r) if r.side == side and r.block == 2 and which(r.index) else r  # type: ignore[operator]


@pytest.mark.parametrize("which", [lambda k: k < 5, lambda k: k % 2 == 0, lambda k: True])
def test_a_candidate_that_fails_hard_is_rolled_back_at_once(which: object) -> None:
    verdict = _decide(alter=_failing("candidate", which), spread=0.01).verdict

    assert (verdict.decision, verdict.blocks_used) == ("ROLLBACK", 3)
    assert "HTTP 500" in verdict.sentence


def test_a_failing_stable_holds() -> None:
    """There is nothing to compare with, whatever the candidate does."""
    assert _decide(alter=_failing("stable", lambda k: True)).verdict.decision == "HOLD"


def test_a_broken_way_to_both_sides_holds() -> None:
    """The candidate's failures came first, but stable did not answer either when it was asked."""
    records, summaries = make_run(CANARY, alter=_failing("candidate", lambda k: True))
    summaries[2] = summaries[2].model_copy(update={"stopped": True, "stable_alive": False})

    assert judge(records, summaries, CANARY).decision == "HOLD"


@pytest.mark.parametrize(("stable_takes_s", "decision"), [(2.0, "ROLLBACK"), (50.0, "HOLD")])
def test_timeouts_on_a_machine_where_stable_drowns_too_hold(stable_takes_s: float, decision: str) -> None:
    """The request timeout is 60 s. A candidate that hangs alone is at fault; one that drowns beside stable is not."""

    def slow(r: RequestRecord) -> RequestRecord:
        if r.block != 1:
            return r
        if r.side == "candidate":
            return failed(r, "no end of the stream within 60 s").model_copy(update={"timed_out": True})
        return r.model_copy(update={"ended_s": r.sent_s + stable_takes_s})

    assert _decide(alter=slow).verdict.decision == decision


def test_more_errors_than_the_margin_do_not_promote() -> None:
    rng = random.Random(1)  # noqa: S311
    verdict = _decide(alter=lambda r: failed(r) if r.side == "candidate" and rng.random() < 0.15 else r).verdict

    assert verdict.decision != "PROMOTE"


def test_a_failed_quality_check_rolls_back_before_any_statistics() -> None:
    check = Check(name="q", measured=2.0, limit=1.05, passed=False, sentence="twice the perplexity")
    verdict = judge(*make_run(CANARY), CANARY, [check])

    assert verdict.decision == "ROLLBACK"
    assert "twice the perplexity" in verdict.sentence


def test_a_missing_quality_figure_holds() -> None:
    check = Check(name="q", measured=None, limit=1.05, passed=False, sentence="no log-probabilities")

    assert judge(*make_run(CANARY), CANARY, [check]).decision == "HOLD"


def test_unfit_records_hold_even_where_they_look_good() -> None:
    verdict = judge(*make_run(CANARY), CANARY, faults=["3 rows break something"])

    assert verdict.decision == "HOLD"
    assert "3 rows break something" in verdict.reasons


def test_the_same_records_give_the_same_bytes_in_any_order() -> None:
    records, summaries = make_run(CANARY)
    shuffled = random.Random(3).sample(records, len(records))  # noqa: S311

    first, second = judge(records, summaries, CANARY), judge(shuffled, summaries[::-1], CANARY)

    assert canonical_json(first) == canonical_json(second)


def test_further_blocks_do_not_change_a_decision() -> None:
    """The benchmark may stop where the judge says it is decided."""
    records, summaries = make_run(CANARY)
    used = judge(records, summaries, CANARY).blocks_used
    head = [r for r in records if r.block < used]

    early = analyse(head, summaries[:used], CANARY)

    assert early.decided
    assert early.verdict == judge(records, summaries, CANARY)


FIRST = make_canary(first_ttft_p95_ms=1000, first_tpot_p95_ms=100, first_error_pct=0.5)


def _first(**run: object) -> Analysis:
    return analyse(*make_run(FIRST, paired=False, blocks=3, **run), FIRST, paired=False)  # type: ignore[arg-type]


def test_a_first_release_within_its_limits_is_promoted() -> None:
    analysis = _first(shared=0.05, spread=0.1)

    assert (analysis.verdict.decision, analysis.decided) == ("PROMOTE", True)


def test_a_first_release_above_a_limit_is_rolled_back_and_says_which() -> None:
    verdict = _first(slower=4.0).verdict

    assert verdict.decision == "ROLLBACK"
    assert "limit 1000 ms" in verdict.sentence


def test_a_first_release_with_errors_above_its_limit_is_rolled_back() -> None:
    verdict = _first(spread=0.1, alter=lambda r: failed(r) if r.index == 3 else r).verdict

    assert verdict.decision == "ROLLBACK"
    assert "error rate" in verdict.sentence


def test_a_first_release_that_was_not_measured_holds() -> None:
    assert _first(alter=lambda r: None).verdict.decision == "HOLD"
