"""What users may rely on: nothing slow, broken or unmeasured is promoted."""

import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary, Goodput
from headway.domain.release import Check
from headway.domain.value import canonical_json
from headway.judge.blocks import measure
from headway.judge.verdict import Analysis, analyse, judge
from tests.unit.judge.data import Alter, failed, make_canary, make_run

CANARY = make_canary()
RUNS = 100


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


@pytest.mark.parametrize(
    ("kind", "measured", "decision", "words"),
    [
        ("guard", 30.0, "ROLLBACK", "engine does worse"),
        ("guard", None, "HOLD", "figure of the engines is missing"),
        ("contract", None, "HOLD", "does not report what it must"),
        ("contract", 2.0, "HOLD", "does not report what it must"),
    ],
)
def test_checks_of_the_engine_decide_before_any_statistics(
    kind: str, measured: float | None, decision: str, words: str
) -> None:
    """Whoever cannot be watched is not promoted, and is no proof of a fault either."""
    check = Check.model_validate(
        {"name": "c", "measured": measured, "limit": 10, "passed": False, "sentence": "kv cache", "kind": kind}
    )
    verdict = judge(*make_run(CANARY), CANARY, [check])

    assert verdict.decision == decision
    assert words in verdict.sentence
    assert "kv cache" in verdict.sentence


@pytest.mark.parametrize("kind", ["guard", "contract"])
def test_a_candidate_that_crashed_or_is_slower_goes_back_though_its_engine_reports_nothing(kind: str) -> None:
    """A dead engine is silent; that must not turn its crash into a question for a person."""
    silent = Check.model_validate(
        {"name": "c", "measured": None, "limit": 10, "passed": False, "sentence": "no readings", "kind": kind}
    )
    records, summaries = make_run(CANARY)
    crashed = [failed(r) if r.side == "candidate" and r.block == 2 else r for r in records]

    assert "the candidate failed in block 3" in judge(crashed, summaries, CANARY, [silent]).sentence
    assert judge(crashed, summaries, CANARY, [silent]).decision == "ROLLBACK"
    assert judge(*make_run(CANARY, slower=5.0), CANARY, [silent]).decision == "ROLLBACK"


def test_a_fault_that_was_measured_outweighs_what_is_missing() -> None:
    missing = Check(name="a", measured=None, limit=1, passed=False, sentence="no series", kind="contract")
    failed_one = Check(name="b", measured=9.0, limit=1, passed=False, sentence="nine preemptions", kind="guard")

    assert judge(*make_run(CANARY), CANARY, [missing, failed_one]).decision == "ROLLBACK"


def test_checks_that_passed_decide_nothing() -> None:
    checks = [
        Check.model_validate(
            {"name": kind, "measured": measured, "limit": 1, "passed": True, "sentence": "fine", "kind": kind}
        )
        for kind in ("quality", "guard", "contract")
        for measured in (0.5, None)
    ]

    assert judge(*make_run(CANARY), CANARY, checks).decision == "PROMOTE"


GOOD = make_canary(goodput=Goodput(e2e_ms=2500, margin_pct=10))


def test_fewer_good_requests_take_back_where_no_latency_metric_tells() -> None:
    """A third of the answers is longer by 12 %, within all margins of latencies, and beyond the service level."""
    canary = make_canary(goodput=Goodput(e2e_ms=1200, margin_pct=10))

    def long(r: RequestRecord) -> RequestRecord:
        if r.side == "stable" or r.index % 3 or r.ended_s is None or r.first_token_s is None:
            return r
        return r.model_copy(update={"ended_s": r.first_token_s + 1.12 * (r.ended_s - r.first_token_s)})

    verdict = judge(*make_run(canary, spread=0.02, shared=0.01, alter=long), canary)

    assert verdict.decision == "ROLLBACK"
    assert "share of requests within their limits" in verdict.sentence
    effect = next(e for e in verdict.effects if e.metric == "goodput")
    assert effect.stable is not None
    assert effect.stable > 99
    assert effect.candidate is not None
    assert effect.candidate < 70
    assert effect.difference_low is not None
    assert effect.difference_high is not None
    assert effect.margin is not None
    assert effect.difference_low <= effect.candidate - effect.stable <= effect.difference_high < effect.margin / 2 < 0


def test_equal_goodput_is_told_and_promotes() -> None:
    verdict = judge(*make_run(GOOD, spread=0.1, shared=0.05), GOOD)

    assert verdict.decision == "PROMOTE"
    assert "error rate +0.00 points (at most +" in verdict.sentence
    assert "share of requests within their limits +0.00 points (at least -" in verdict.sentence
    assert "-0.0," not in canonical_json(verdict).decode()


def test_stalls_that_only_the_99th_percentile_shows_are_taken_back() -> None:
    canary = make_canary(requests_per_block=100, p99_guard=0.5)

    def stall(r: RequestRecord) -> RequestRecord:
        if r.side == "stable" or r.index not in (7, 70) or r.first_token_s is None or r.ended_s is None:
            return r
        return r.model_copy(update={"first_token_s": r.first_token_s + 5, "ended_s": r.ended_s + 5})

    verdict = judge(*make_run(canary, spread=0.2, alter=stall), canary)

    assert verdict.decision == "ROLLBACK"
    assert "99th percentile of time to first token" in verdict.sentence
    assert "95th" not in verdict.sentence


def test_a_noisy_99th_percentile_neither_stops_nor_decorates_a_promotion() -> None:
    verdict = judge(*make_run(CANARY), CANARY)

    assert verdict.decision == "PROMOTE"
    assert "99th" not in verdict.sentence
    assert {"ttft_p99", "tpot_p99"} <= {e.metric for e in verdict.effects}


@pytest.mark.parametrize("answers", [1, 4])
def test_a_block_in_which_some_answers_are_not_counted_is_not_used(answers: int) -> None:
    """An engine that leaves out the count of its slow answers must not be judged by the others."""
    verdict = _decide(alter=lambda r: _no_usage(r) if r.side == "candidate" and r.index < answers else r).verdict

    assert verdict.decision == "HOLD"
    assert "without a token count" in verdict.sentence


@pytest.mark.parametrize(
    ("side", "blocks", "decision"), [("candidate", 1, "PROMOTE"), ("candidate", 2, "HOLD"), ("stable", 2, "PROMOTE")]
)
@pytest.mark.parametrize("kind", ["no token count", "no time between tokens"])
def test_a_candidate_that_withholds_figures_of_more_than_one_block_is_held(
    side: str, blocks: int, decision: str, kind: str
) -> None:
    """They may be the very blocks in which it was slow, and the tenth that may be unusable is no room for that."""
    canary = make_canary(blocks=20)

    def without(r: RequestRecord) -> RequestRecord:
        if r.side != side or r.block >= blocks:
            return r
        if kind == "no token count":
            return _no_usage(r) if r.index == 7 else r
        return r.model_copy(update={"ended_s": r.first_token_s})

    verdict = judge(*make_run(canary, spread=0.1, shared=0.05, alter=without), canary)

    assert verdict.decision == decision
    if decision == "HOLD":
        assert "the candidate's answers lack what stable's have: block 1 " in verdict.sentence
        assert len(verdict.reasons) == 2


def _void(summaries: list[BlockSummary], block: int) -> list[BlockSummary]:
    return [s.model_copy(update={"void": s.block == block, "reason": "late"}) for s in summaries]


@pytest.mark.parametrize("void", [False, True])
def test_failures_count_whether_or_not_their_block_is_usable(void: bool) -> None:
    """24 of 60 requests in one block of ten are four in a hundred, and nobody knows that the next block is better."""
    canary = make_canary(requests_per_block=60, goodput=Goodput(ttft_ms=5000, margin_pct=10))

    def fail(r: RequestRecord) -> RequestRecord:
        return failed(r) if r.side == "candidate" and r.block == 3 and r.index % 5 in (0, 2) else r

    records, summaries = make_run(canary, spread=0.1, shared=0.05, alter=fail)
    verdict = judge(records, _void(summaries, 3) if void else summaries, canary)

    assert verdict.decision == "HOLD"
    assert "error rate +4.00 points (at most " in verdict.sentence
    errors, goodput = (next(e for e in verdict.effects if e.metric == name) for name in ("error_rate", "goodput"))
    assert (errors.stable, errors.candidate, errors.difference) == (0, 4, 4)
    assert goodput.candidate == (100 if void else 96)


def test_swapped_hardware_is_seen_through() -> None:
    """One machine takes twice as long: enough to take back an equal release, or to promote a slow one."""
    quiet = {"spread": 0.1, "shared": 0.05, "placement": (1, 2)}

    assert _decide(hardware=2.0, **quiet).verdict.decision == "PROMOTE"
    assert _decide(hardware=2.0, slower=1.8, **quiet).verdict.decision == "ROLLBACK"
    assert _decide(hardware=0.5, slower=1.8, **quiet).verdict.decision == "ROLLBACK"
    assert _decide(hardware=2.0, spread=0.1, shared=0.05).verdict.decision == "ROLLBACK"


def test_a_look_over_6000_records_takes_less_than_a_second() -> None:
    canary = Canary(blocks=15, goodput=Goodput(ttft_ms=5000), error_margin_pct=1)
    records, summaries = make_run(canary)
    assert len(records) == 6000

    started = time.process_time()
    judge(records, summaries, canary)

    assert time.process_time() - started < 1.0


Records = list[RequestRecord]
Change = Callable[[Records, random.Random], Records]


def _some(records: Records, rng: random.Random, change: Alter, share: float = 0.2) -> Records:
    changed = [change(r) if rng.random() < share else r for r in records]
    return [r for r in changed if r is not None]


def _cut(records: Records, rng: random.Random) -> Records:
    return records[: rng.randrange(len(records) + 1)]


def _step(records: Records, rng: random.Random) -> Records:
    """Set the clock in the middle of the run."""
    at, by = rng.random() * 150, rng.choice([-3600.0, -0.5, 0.5, 3600.0])

    def moved(time_s: float | None) -> float | None:
        return time_s if time_s is None or time_s < at else time_s + by

    return [
        r.model_copy(
            update={key: moved(getattr(r, key)) for key in ("scheduled_s", "sent_s", "first_token_s", "ended_s")}
        )
        for r in records
    ]


CHANGES: dict[str, Change] = {
    "drop": lambda records, rng: _some(records, rng, lambda r: None),
    "drop one side": lambda records, rng: _some(records, rng, lambda r: None if r.side == "candidate" else r),
    "duplicate": lambda records, rng: records + rng.sample(records, min(3, len(records))),
    "reorder": lambda records, rng: rng.sample(records, len(records)),
    "cut": _cut,
    "foreign release": lambda records, rng: _some(
        records, rng, lambda r: r.model_copy(update={"served_release": "other-7"})
    ),
    "other model": lambda records, rng: _some(records, rng, lambda r: r.model_copy(update={"served_model": "x"})),
    "clock step": _step,
    "no tokens": lambda records, rng: _some(records, rng, _no_usage),
    "no first token": lambda records, rng: _some(records, rng, lambda r: r.model_copy(update={"first_token_s": None})),
    "not a number": lambda records, rng: _some(
        records, rng, lambda r: r.model_copy(update={"ended_s": rng.choice([float("nan"), float("inf")])})
    ),
    "other block": lambda records, rng: _some(
        records, rng, lambda r: r.model_copy(update={"block": rng.randrange(12)})
    ),
    "failures": lambda records, rng: _some(records, rng, failed),
}


def _changed(
    run: tuple[Records, list[BlockSummary]], names: Sequence[str], seed: int
) -> tuple[Records, list[BlockSummary]]:
    records, summaries = run
    rng = random.Random(seed)  # noqa: S311
    for name in names:
        if records:
            records = CHANGES[name](records, rng)
    return records, summaries


CHANGED = st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=4)
SLOW_RUN = make_run(CANARY, slower=2.5, spread=0.1, shared=0.05)
BROKEN_RUN = make_run(
    CANARY, spread=0.1, alter=lambda r: failed(r) if r.side == "candidate" and r.index % 4 == 0 else r
)
EQUAL_RUN = make_run(CANARY, spread=0.1, shared=0.05)


@settings(max_examples=120, deadline=None)
@given(names=CHANGED, seed=st.integers(0, 2**32), run=st.sampled_from([SLOW_RUN, BROKEN_RUN]))
def test_no_damage_to_the_records_promotes_a_bad_candidate(
    names: list[str], seed: int, run: tuple[Records, list[BlockSummary]]
) -> None:
    records, summaries = _changed(run, names, seed)

    assert judge(records, summaries, CANARY).decision != "PROMOTE"


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(CHANGES.keys() - {"reorder", "failures", "cut", "clock step"})),
    seed=st.integers(0, 2**32),
)
def test_damage_all_over_the_records_holds_even_an_equal_candidate(name: str, seed: int) -> None:
    """Not what may touch the last block alone, which was not looked at; and failures are data."""
    assert judge(*_changed(EQUAL_RUN, [name], seed), CANARY).decision == "HOLD"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), run=st.sampled_from([SLOW_RUN, BROKEN_RUN, EQUAL_RUN]))
def test_the_same_records_give_the_same_bytes_in_any_order(seed: int, run: tuple[Records, list[BlockSummary]]) -> None:
    records, summaries = run
    rng = random.Random(seed)  # noqa: S311

    again = judge(rng.sample(records, len(records)), rng.sample(summaries, len(summaries)), CANARY)

    assert canonical_json(again) == canonical_json(judge(records, summaries, CANARY))


SMALL = make_canary(requests_per_block=12, goodput=Goodput(e2e_ms=1e6))
SMALL_RUNS = {slower: make_run(SMALL, slower=slower, spread=0.02, shared=0.01) for slower in (1.0, 4.0)}
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 5e-324, -5e-324, 1e-308, 1e9, -1e9, 1e300, 1e308, -1e308, sys.float_info.max]),
)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(["scheduled_s", "sent_s", "first_token_s", "ended_s", "itl_ms", "injected_ms"]),
        NUMBERS,
        min_size=1,
        max_size=4,
    ),
    whom=st.sampled_from(["all", "stable", "candidate", "one of stable", "one of candidate"]),
    times=st.booleans(),
    slower=st.sampled_from(sorted(SMALL_RUNS)),
)
@example(changes={"ended_s": 1e308}, whom="stable", times=False, slower=4.0)
@example(changes={"ended_s": 1e308}, whom="candidate", times=False, slower=4.0)
@example(changes={"first_token_s": 1e308, "ended_s": 1e308}, whom="stable", times=False, slower=4.0)
@example(changes={"scheduled_s": -1e308}, whom="stable", times=False, slower=4.0)
@example(changes={"ended_s": 1e308}, whom="one of stable", times=False, slower=4.0)
@example(changes={"itl_ms": 1e308, "first_token_s": 5e-324}, whom="one of candidate", times=True, slower=1.0)
def test_any_finite_numbers_give_a_verdict(changes: dict[str, float], whom: str, times: bool, slower: float) -> None:
    """As a replacement or as a factor, of one request or of all of a side: HOLD, or what is right, but no traceback."""
    records, summaries = SMALL_RUNS[slower]

    def garbage(r: RequestRecord) -> RequestRecord:
        if whom not in ("all", r.side) and not (whom == f"one of {r.side}" and (r.block, r.index) == (2, 1)):
            return r
        new = {
            key: (getattr(r, key) or 1.0) * value if times and key != "itl_ms" else value
            for key, value in changes.items()
        }
        new = {key: value if math.isfinite(value) else sys.float_info.max for key, value in new.items()}
        return r.model_copy(update={**new, **({"itl_ms": (new["itl_ms"],)} if "itl_ms" in new else {})})

    verdict = judge([garbage(r) for r in records], summaries, SMALL)

    json.loads(canonical_json(verdict), parse_constant=pytest.fail)
    assert verdict.decision != "PROMOTE" or slower == 1 or whom in ("all", "stable")


def test_sides_that_are_too_far_apart_for_a_ratio_are_not_compared() -> None:
    """Each figure is a number, and their ratio is none."""

    def instant(r: RequestRecord) -> RequestRecord:
        if r.side == "candidate":
            return r
        return r.model_copy(update={"scheduled_s": 0.0, "sent_s": 0.0, "first_token_s": 5e-324, "ended_s": 1e-300})

    pair = measure(BlockSummary(block=0, planned=15, lag_p99_ms=1), _sides(instant), CANARY)

    assert pair.ratios["ttft_p50"] is None
    assert "too far apart to compare" in pair.unusable


def _sides(alter: Alter) -> dict[Side, list[RequestRecord]]:
    records, _ = make_run(CANARY, blocks=1, alter=alter)
    return {side: [r for r in records if r.side == side] for side in ("stable", "candidate")}


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


def test_failures_of_a_first_release_count_in_a_void_block_too() -> None:
    records, summaries = make_run(
        FIRST, paired=False, blocks=3, spread=0.1, alter=lambda r: failed(r) if (r.block, r.index) == (1, 3) else r
    )
    verdict = judge(records, _void(summaries, 1), FIRST, paired=False)

    assert verdict.decision == "ROLLBACK"
    assert "error rate 2.222 % (limit 0.5 %)" in verdict.sentence


def test_a_first_release_that_was_not_measured_holds() -> None:
    assert _first(alter=lambda r: None).verdict.decision == "HOLD"
