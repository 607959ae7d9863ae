"""Metrics follow vLLM's definitions; what was not measured is missing, never 0."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.bench import RequestRecord, Side
from headway.domain.profile import Goodput
from headway.judge.metrics import Distribution, good, goodput_rate, summary
from tests.unit.judge.data import failed, make_canary, make_run

LIMITS = Goodput(ttft_ms=200, tpot_ms=50, e2e_ms=2000)


def record(
    *,
    block: int = 0,
    side: Side = "candidate",
    at_s: float = 10.0,
    ttft_ms: float = 100,
    tokens: int | None = 11,
    e2e_ms: float = 500,
    itl_ms: tuple[float, ...] = (40.0,) * 10,
) -> RequestRecord:
    return RequestRecord(
        block=block,
        side=side,
        index=0,
        prompt_sha256="p",
        scheduled_s=at_s,
        sent_s=at_s,
        first_token_s=at_s + ttft_ms / 1e3,
        ended_s=at_s + e2e_ms / 1e3,
        output_tokens=tokens,
        status=200,
        itl_ms=itl_ms,
    )


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (record(), True),
        (record(ttft_ms=201), False),
        (record(ttft_ms=100, e2e_ms=611, tokens=11), False),  # 51.1 ms a token
        (record(ttft_ms=100, e2e_ms=2001, tokens=200), False),
        (record(ttft_ms=150, e2e_ms=160, tokens=1), True),  # one token has no time between tokens
        (record(tokens=None), False),  # nobody knows its time per token
        (failed(record()), False),
    ],
)
def test_a_good_request_keeps_every_limit(found: RequestRecord, kept: bool) -> None:
    assert good(found, LIMITS) is kept


def test_goodput_counts_what_was_sent() -> None:
    """Failures are not good: a side that fails fast must not look better for it."""
    records = [record(), record(ttft_ms=300), failed(record())]

    assert goodput_rate(records, LIMITS) == (2, 3)
    side = summary(records, LIMITS).candidate
    assert side is not None
    assert side.good == 1
    assert side.good_pct == pytest.approx(100 / 3)


def test_throughput_is_over_the_time_of_the_blocks() -> None:
    """Two blocks of half a second each, however long the pause between them."""
    side = summary([record(block=0, at_s=10), record(block=1, at_s=500)]).candidate

    assert side is not None
    assert side.duration_s == pytest.approx(1.0)
    assert side.requests_per_s == pytest.approx(2.0)
    assert side.output_tokens_per_s == pytest.approx(22.0)


def test_gaps_are_pooled_over_requests() -> None:
    """As vLLM's `itl`: a long answer counts with each of its gaps."""
    side = summary([record(itl_ms=(10.0, 20.0, 30.0)), record(itl_ms=(100.0,))]).candidate

    assert side is not None
    assert (side.itl.count, side.itl.mean_ms, side.itl.p50_ms) == (4, 40.0, 25.0)


def test_nothing_measured_is_missing_not_zero() -> None:
    """A side that answers nothing has no latency; tools that say 0 ms call it the fastest of all."""
    side = summary([failed(record()), failed(record())], LIMITS).candidate

    assert side is not None
    assert side.ttft == side.tpot == side.e2e == side.itl.model_copy(update={"count": 0}) == Distribution()
    assert side.output_tokens is None
    assert side.output_tokens_per_s is None
    assert (side.requests_per_s, side.good_per_s, side.error_pct) == (0.0, 0.0, 100.0)
    assert summary([record()]).stable is None


def test_an_answer_without_a_count_leaves_the_sum_unknown() -> None:
    side = summary([record(), record(tokens=None)]).candidate

    assert side is not None
    assert side.output_tokens is None
    assert side.requests_per_s is not None


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_figures_are_those_of_numpy(seed: int) -> None:
    """The definitions, written down a second time."""
    records, _ = make_run(make_canary(requests_per_block=12), seed=seed, blocks=2)
    both = summary(records, LIMITS)

    for side in (both.stable, both.candidate):
        assert side is not None
        own = [r for r in records if r.side == ("stable" if side is both.stable else "candidate")]
        ttft = [(r.first_token_s or 0) - r.scheduled_s for r in own]
        tpot = [((r.ended_s or 0) - (r.first_token_s or 0)) / ((r.output_tokens or 0) - 1) for r in own]
        assert side.ttft.p95_ms == pytest.approx(np.percentile(ttft, 95) * 1e3)
        assert side.tpot.p99_ms == pytest.approx(np.percentile(tpot, 99) * 1e3)
        assert side.e2e.mean_ms == pytest.approx(np.mean([(r.ended_s or 0) - r.scheduled_s for r in own]) * 1e3)
        assert side.good == sum(good(r, LIMITS) for r in own)
