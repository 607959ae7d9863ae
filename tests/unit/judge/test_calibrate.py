"""What is published of a canary's errors, and when it is worth nothing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headway.domain.bench import RequestRecord
from headway.domain.profile import Canary, Evidence, Goodput, Trials
from headway.judge.calibrate import (
    DECIDES,
    DECIDES_NOTHING,
    EVERY_REQUEST,
    FIRST_TOKEN,
    SLOW_REQUESTS,
    clopper_pearson,
    flaw,
    recovered,
    rule_digest,
)
from headway.judge.records import Run
from headway.judge.sequential import looks_of
from tests.unit.judge.data import make_canary, make_run

CANARY = make_canary(p50_margin=0.075, p95_margin=0.10)
AT_P50: dict[str, Any] = {"metric": EVERY_REQUEST, "slower_pct": 7.5}


def evidence(canary: Canary = CANARY, **changes: Any) -> Evidence:
    data: dict[str, Any] = {
        "hardware": "cpu",
        "measured_at": "2026-11-30T12:00:00+00:00",
        "method": "resampled",
        "rule": rule_digest(canary),
        "recorded_blocks": 30,
        "trials": (
            Trials(promoted=9900, held=100, mean_blocks=12),
            Trials(**AT_P50, promoted=170, rolled_back=9000, held=830, mean_blocks=15),
        ),
        **changes,
    }
    return Evidence(**data)


def with_evidence(**changes: Any) -> Canary:
    return CANARY.model_copy(update={"evidence": evidence(**changes)})


@given(st.integers(1, 400), st.data())
def test_the_interval_is_that_of_clopper_and_pearson(of: int, data: st.DataObject) -> None:
    """As scipy computes it, which is another program."""
    count = data.draw(st.integers(0, of))
    expected = stats.binomtest(count, of).proportion_ci(0.95, method="exact")

    assert clopper_pearson(count, of) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_nothing_tried_says_nothing() -> None:
    assert clopper_pearson(0, 0) == (0.0, 1.0)


def test_every_key_of_the_canary_is_placed() -> None:
    """A new key either decides, and then evidence without it is old, or it does not."""
    assert sorted([*DECIDES, *DECIDES_NOTHING]) == sorted(Canary.model_fields)


@pytest.mark.parametrize(
    "change",
    [
        {"p50_margin": 0.08},
        {"p95_margin": 0.08},
        {"p99_guard": 0.5},
        {"error_margin_pct": 1.0},
        {"goodput": Goodput(ttft_ms=100)},
        {"blocks": 11},
        {"looks": (5, 10)},
        {"requests_per_block": 16},
        {"rate_per_s": 5.0},
        {"api": "chat"},
        {"arrivals": "gamma"},
        {"max_tokens": 32},
    ],
)
def test_what_decides_is_in_the_digest(change: dict[str, Any]) -> None:
    assert rule_digest(CANARY.model_copy(update=change)) != rule_digest(CANARY)


def test_evidence_does_not_change_what_it_is_of() -> None:
    assert rule_digest(with_evidence()) == rule_digest(CANARY)


def test_looks_that_are_written_out_are_the_same_looks() -> None:
    """A profile that declares the looks which follow anyway needs no new evidence."""
    plain = make_canary(blocks=10)

    assert rule_digest(make_canary(blocks=10, looks=looks_of(plain))) == rule_digest(plain)


def test_good_evidence_has_no_flaw() -> None:
    assert flaw(with_evidence(), "cpu") == ""


@pytest.mark.parametrize(
    ("canary", "word"),
    [
        (CANARY, "no evidence"),
        (with_evidence(hardware="NVIDIA-L4"), "NVIDIA-L4"),
        (with_evidence(rule="another"), "other margins"),
        (with_evidence(trials=()), "says nothing"),
        (with_evidence(trials=(Trials(**{**AT_P50, "slower_pct": 15.0}, promoted=0, held=9999),)), "says nothing"),
        (with_evidence(trials=(Trials(**AT_P50, promoted=600, held=9400),)), "600 of 10000"),
        (with_evidence(trials=(Trials(**AT_P50, promoted=0, held=20),)), "up to 16.8 %"),
        (
            with_evidence(
                trials=(
                    Trials(**AT_P50, promoted=0, held=1000),
                    Trials(metric=SLOW_REQUESTS, slower_pct=10.0, promoted=99, held=901),
                )
            ),
            "p95",
        ),
    ],
)
def test_each_flaw_is_named(canary: Canary, word: str) -> None:
    """Nobody takes margins for proven that are not."""
    assert word in flaw(canary, "cpu")


@pytest.mark.parametrize(
    ("share", "at"), [(0.97, False), (0.98, True), (1.0, True), (1.02, True), (1.03, False), (1.25, False)]
)
def test_only_a_candidate_at_the_margin_is_evidence_for_it(share: float, at: bool) -> None:
    """One that is worse by more is easier to take back: it would make the margin look safer than it is."""
    trials = (Trials(metric=EVERY_REQUEST, slower_pct=7.5 * share, promoted=0, rolled_back=10_000, mean_blocks=9),)

    assert (flaw(with_evidence(trials=trials), "cpu") == "") is at


def test_real_trials_count_as_evidence() -> None:
    """A delay before every request makes the first token late by the margin of the median."""
    trials = (Trials(metric=FIRST_TOKEN, slower_pct=7.6, promoted=1, rolled_back=140, held=9, mean_blocks=8),)

    assert flaw(with_evidence(method="trials", trials=trials), "cpu") == ""


def _delayed(by_ms: float) -> Run:
    def later(r: RequestRecord) -> RequestRecord:
        if r.side == "stable" or r.first_token_s is None or r.ended_s is None:
            return r
        shift = by_ms / 1e3
        return r.model_copy(
            update={"first_token_s": r.first_token_s + shift, "ended_s": r.ended_s + shift, "injected_ms": 40.0}
        )

    records, summaries = make_run(make_canary(requests_per_block=60), alter=later, spread=0.1)
    return Run("d", tuple(records), tuple(summaries))


def test_a_known_delay_is_found_again() -> None:
    seen = recovered([_delayed(40)], 40)

    assert seen.found
    assert seen.low_ms < 40 < seen.high_ms
    assert seen.measured_ms == pytest.approx(40, abs=10)


@pytest.mark.parametrize("really_ms", [0, 10, 100])
def test_a_delay_of_another_size_is_not(really_ms: float) -> None:
    """A generator that measures half of what it injected measures nothing that may decide."""
    assert not recovered([_delayed(really_ms)], 40).found


def test_without_blocks_nothing_is_found() -> None:
    seen = recovered([], 40)

    assert not seen.found
    assert math.isnan(seen.measured_ms)
