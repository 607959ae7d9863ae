"""What a release's own benchmark says a replica sustains, against engines whose limit is known."""

import math
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.engine_series import PREFIX_HITS, PREFIX_QUERIES
from headway.domain.profile import Profile
from headway.domain.release import record_key
from headway.errors import ConfigError, IntegrityError
from headway.prescale.throughput import RECORD, Sustained, cached_share, recorded, sustained
from tests.factories import make_profile
from tests.fakes import FakeLedger, FakeMetrics

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TOKENS, TOGETHER = 30, 16


class Engine(NamedTuple):
    """An engine that gives a token to each of its requests at each step, as continuous batching does."""

    step_s: float
    """What a step takes."""
    each_s: float
    """What each request in it adds."""

    def sustains(self, together: int = TOGETHER) -> float:
        """Return how many requests a second it finishes with so many in flight all the time."""
        return together / (TOKENS * (self.step_s + self.each_s * together))

    def serve(self, arrivals_s: list[float]) -> list[float]:
        """Return when each request ends."""
        left: dict[int, int] = {}
        ended_s = [0.0] * len(arrivals_s)
        now_s, next_one = 0.0, 0
        while next_one < len(arrivals_s) or left:
            if not left:
                now_s = max(now_s, arrivals_s[next_one])
            while next_one < len(arrivals_s) and arrivals_s[next_one] <= now_s:
                left[next_one] = TOKENS
                next_one += 1
            now_s += self.step_s + self.each_s * len(left)
            for one in list(left):
                left[one] -= 1
                if not left[one]:
                    ended_s[one] = now_s
                    del left[one]
        return ended_s


def request(
    index: int, sent_s: float, ended_s: float | None, block: int = 0, side: Side = "candidate"
) -> RequestRecord:
    return RequestRecord(
        block=block,
        side=side,
        index=index,
        prompt_sha256="",
        scheduled_s=sent_s,
        sent_s=sent_s,
        ended_s=ended_s,
        prompt_tokens=100,
        output_tokens=TOKENS,
    )


def benchmark(
    engine: Engine, *, share: float, seed: int = 0, blocks: int = 10, requests: int = 15
) -> tuple[list[RequestRecord], list[BlockSummary]]:
    """Run the canary's open loop at a share of what the engine sustains."""
    rng = np.random.default_rng(seed)
    records: list[RequestRecord] = []
    summaries: list[BlockSummary] = []
    start_s = 0.0
    for block in range(blocks):
        arrivals_s = np.cumsum(rng.exponential(1 / (share * engine.sustains()), requests)).tolist()
        ended_s = engine.serve(arrivals_s)
        records += [
            request(index, start_s + sent, start_s + ended, block)
            for index, (sent, ended) in enumerate(zip(arrivals_s, ended_s, strict=True))
        ]
        summaries.append(
            BlockSummary(
                block=block,
                lag_p99_ms=0,
                started_at=(AT + timedelta(seconds=start_s)).isoformat(),
                started_s=start_s,
                ended_s=start_s + max(ended_s),
            )
        )
        start_s += max(ended_s) + 1
    return records, summaries


def profile(**replicas: int) -> Profile:
    return make_profile(
        engine={"max_model_len": 512, "max_num_seqs": 64, "kv_cache_gib": 0.1},
        replicas={"min": 1, "max": 4, "target_ongoing": TOGETHER, **replicas},
    )


@settings(max_examples=25)
@given(st.floats(0.005, 0.1), st.floats(0.02, 1.0), st.floats(0.1, 0.4), st.integers(0, 10**6))
def test_a_light_load_tells_what_a_full_replica_does(step_s: float, relative: float, share: float, seed: int) -> None:
    """Where a request's time at that load alone would promise up to eight times of it."""
    engine = Engine(step_s, step_s * relative)

    found = sustained(*benchmark(engine, share=share, seed=seed), profile())

    assert 0.8 < found.requests_per_s / engine.sustains() < 1.2
    assert found.measured_in_flight < TOGETHER
    assert found.measured_requests_per_s < found.requests_per_s


def test_an_engine_whose_steps_are_full_is_not_promised_more() -> None:
    """Two cores that compute token after token: beside others a request takes as many times longer."""
    engine = Engine(step_s=0.002, each_s=0.05)
    records, blocks = benchmark(engine, share=0.3, blocks=20)

    found = sustained(records, blocks, profile())

    alone_s = float(np.mean([(r.ended_s or 0.0) - r.sent_s for r in records]))
    assert TOGETHER / alone_s > 6 * engine.sustains(), "what Little's law gives without the slope"
    assert found.requests_per_s == pytest.approx(engine.sustains(), rel=0.2)
    assert "extrapolated to 16 in flight" in found.sentence
    assert "prescale.requests_per_s" in found.sentence


def test_an_engine_is_not_thought_to_hold_more_than_it_runs_at_once() -> None:
    """The rest would wait in its queue."""
    run = benchmark(Engine(0.02, 0.001), share=0.2)
    narrow = profile().model_copy(update={"engine": profile().engine.model_copy(update={"max_num_seqs": 4})})

    assert sustained(*run, narrow).in_flight == 4
    assert sustained(*run, narrow).requests_per_s < sustained(*run, profile()).requests_per_s


def test_requests_that_never_met_promise_what_was_seen_and_no_more() -> None:
    """Nobody knows then how a request's time grows beside others."""
    alone = [request(i, 10.0 * i, 10.0 * i + 2) for i in range(40)]

    found = sustained(alone, [BlockSummary(block=0, lag_p99_ms=0)], profile())

    assert found.requests_per_s == found.measured_requests_per_s == pytest.approx(40 / 392)


def test_the_load_of_several_replicas_counts_for_each() -> None:
    records, blocks = benchmark(Engine(0.02, 0.005), share=0.4)

    one, two = sustained(records, blocks, profile()), sustained(records, blocks, profile(min=2))

    assert two.measured_in_flight == pytest.approx(one.measured_in_flight / 2)
    assert two.measured_requests_per_s == pytest.approx(one.measured_requests_per_s / 2)


def test_only_whole_blocks_and_good_answers_of_the_candidate_count() -> None:
    """Void blocks, failures and stable's requests say nothing of a replica of the candidate."""
    records, blocks = benchmark(Engine(0.02, 0.005), share=0.3)
    more = [
        *(request(i, 1e4 + i / 100, 1e4 + 500, block=10) for i in range(50)),
        *(request(i, 2e4 + i / 100, 2e4 + 500, block=11) for i in range(50)),
        *(r.model_copy(update={"side": "stable", "ended_s": r.sent_s + 99}) for r in records),
    ]
    summaries = [
        *blocks,
        BlockSummary(block=10, lag_p99_ms=0, void=True),
        BlockSummary(block=11, lag_p99_ms=0, stopped=True),
    ]

    assert sustained([*more, *records], summaries, profile()) == sustained(records, blocks, profile())
    failed = [r.model_copy(update={"error": "HTTP 500"}) for r in records[:140]]
    with pytest.raises(ConfigError, match="10 of 150 requests of the benchmark ended well"):
        sustained([*failed, *records[140:]], blocks, profile())


@pytest.mark.parametrize("change", [{"ended_s": None}, {"output_tokens": None}, {"output_tokens": 0}, {"ended_s": 0.0}])
def test_answers_without_an_end_or_a_length_are_no_measurement(change: dict[str, float | None]) -> None:
    """Too few are left, and that is said; no division by nothing."""
    records, blocks = benchmark(Engine(0.02, 0.005), share=0.3)

    with pytest.raises(ConfigError, match=r"0 of 150 .* set prescale.requests_per_s"):
        sustained([r.model_copy(update=change) for r in records], blocks, profile())
    with pytest.raises(ConfigError, match="0 of 0"):
        sustained([], [], profile())


def test_a_clock_that_went_back_is_no_measurement() -> None:
    """Requests that were due after they had ended would make a rate below zero."""
    records, blocks = benchmark(Engine(0.02, 0.005), share=0.3)
    late = [r.model_copy(update={"scheduled_s": 1e6}) for r in records]

    with pytest.raises(ConfigError, match="clock makes no sense"):
        sustained(late, blocks, profile())


def test_the_prefix_cache_is_seen_by_the_engine() -> None:
    """A cached prompt is little work; users with other prompts need more replicas than the benchmark's rate says."""
    _, blocks = benchmark(Engine(0.02, 0.005), share=0.1)
    metrics, own = FakeMetrics(), {"model": "tiny", "cluster": "tiny-1"}
    end = AT + timedelta(seconds=math.ceil(blocks[-1].ended_s))
    for at, queries, hits in ((AT - timedelta(seconds=60), 1e6, 9e5), (AT, 1e6, 9e5), (end, 1.004e6, 9.01e5)):
        metrics.put(PREFIX_QUERIES.name, own, at, queries)
        metrics.put(PREFIX_HITS.name, own, at, hits)

    assert cached_share(metrics, "tiny", "tiny-1", blocks) == pytest.approx(0.25, abs=0.05)
    assert cached_share(metrics, "tiny", "another", blocks) == 0.0
    assert cached_share(metrics, "tiny", "tiny-1", []) == 0.0


def test_what_was_found_is_read_again_and_a_damaged_record_says_what_to_do() -> None:
    """The next tick plans by it."""
    ledger, found = FakeLedger(), sustained(*benchmark(Engine(0.02, 0.005), share=0.3), profile(), cached_share=0.5)
    assert recorded(ledger, "tiny", "r1") is None
    ledger.append(record_key("tiny", "r1", RECORD), found.to_json())
    ledger.append(record_key("tiny", "r2", RECORD), {**found.to_json(), "requests_per_s": -1.0})

    read = recorded(ledger, "tiny", "r1")

    assert isinstance(read, Sustained)
    assert read == found
    assert (read.throughput.prompt_tokens, read.throughput.output_tokens, read.throughput.cached_share) == (
        100,
        TOKENS,
        0.5,
    )
    with pytest.raises(IntegrityError, match=r"throughput.json is not what headway wrote.*set prescale.requests_per_s"):
        recorded(ledger, "tiny", "r2")
