"""The load generator by itself: what it sends, what it measures, and how it watches itself."""

import asyncio
import errno
import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from headway.domain import engine_series
from headway.domain.bench import BenchJob, BlockSummary, RequestRecord
from headway.domain.prompts import Prompt
from headway.errors import ConfigError
from headway.judge.records import faults
from headway.pods import bench, bench_load, bench_stream
from headway.pods.bench_load import Load
from headway.pods.bench_prompts import Ask, Prompts, common_prefix
from headway.pods.bench_stream import Clock
from tests.component.servers import wait_for
from tests.component.test_bench import make_job, measure
from tests.fake_vllm import FakeVllm

pytestmark = pytest.mark.component


@pytest.fixture
def stable() -> Iterator[FakeVllm]:
    with FakeVllm(release="stable-1", ttft_ms=10, itl_ms=5) as server:
        yield server


@pytest.fixture
def candidate() -> Iterator[FakeVllm]:
    with FakeVllm(release="candidate-1", ttft_ms=10, itl_ms=5) as server:
        yield server


def drive(
    job: BenchJob, *, processes: int | None = None, asks: Sequence[Ask] | None = None, **options: Any
) -> tuple[list[RequestRecord], BlockSummary]:
    """Drive one block."""

    async def one() -> tuple[list[RequestRecord], BlockSummary]:
        async with Load(job, Clock(), processes=processes) as load:
            return await load.run_block(0, Prompts(job).block(0) if asks is None else asks, **options)

    return asyncio.run(one())


def of(records: Sequence[RequestRecord], name: str) -> list[RequestRecord]:
    return [r for r in records if r.side == name]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_both_endpoints_are_streamed_with_usage(api: str, stable: FakeVllm, candidate: FakeVllm) -> None:
    records, summary = drive(make_job(stable, candidate, canary={"api": api, "max_tokens": 6}))

    assert [r.error for r in records] == [None] * 20
    assert {(r.prompt_tokens, r.output_tokens, len(r.itl_ms)) for r in records} == {(9, 6, 5)}
    asked = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    assert dict(candidate.seen) == {path: 10}
    assert all(asked[path] in body and body["stream_options"] == {"include_usage": True} for body in candidate.bodies)
    assert (summary.dropped, summary.processes, summary.placement, summary.void) == (0, 1, 0, False)
    assert summary.started_at.endswith("+00:00")


BAD = ("http_503", "http_429", "sse_error", "empty", "reset", "cut", "wrong_model", "not_json", "odd_json", "not_sse")


@pytest.mark.parametrize("mode", BAD)
def test_a_chat_that_fails_is_an_error_too(mode: str, candidate: FakeVllm) -> None:
    candidate.behaviour.mode = mode

    records, summary = drive(make_job(None, candidate, canary={"api": "chat"}))

    assert all(r.error for r in records)
    assert summary.stopped
    assert summary.reason.startswith("candidate: ")


@pytest.mark.parametrize("mode", ["ok", "role_only", "reasoning"])
def test_in_a_chat_the_first_text_counts_and_not_the_role(mode: str, candidate: FakeVllm) -> None:
    candidate.behaviour.mode, candidate.behaviour.ttft_ms = mode, 60

    records, _ = drive(make_job(None, candidate, canary={"api": "chat"}))

    assert not any(r.error for r in records)
    assert min(r.ttft_ms or 0 for r in records) >= 59


def test_gaps_between_tokens_are_recorded(candidate: FakeVllm) -> None:
    candidate.behaviour.itl_ms = 20
    records, _ = drive(make_job(None, candidate, canary={"max_tokens": 8}))

    gaps = [gap for r in records for gap in r.itl_ms]
    assert len(gaps) == 10 * 7
    assert statistics.median(gaps) == pytest.approx(20, rel=0.1)
    assert all(gap == round(gap, 3) for gap in gaps)
    for r in records:
        assert sum(r.itl_ms) == pytest.approx((r.tpot_ms or 0) * 7, abs=5)


def test_an_injected_delay_is_found_again(stable: FakeVllm, candidate: FakeVllm) -> None:
    """30 ms are put before every request of the candidate: the pairs must differ by that, within a tenth."""
    job = make_job(stable, candidate, inject_ms=30, canary={"requests_per_block": 60, "rate_per_s": 30})

    records, summary = drive(job)

    ours, theirs = of(records, "candidate"), of(records, "stable")
    added = [(c.ttft_ms or 0) - (s.ttft_ms or 0) for c, s in zip(ours, theirs, strict=True)]
    assert statistics.median(added) == pytest.approx(30, rel=0.1)
    assert ({r.injected_ms for r in ours}, {r.injected_ms for r in theirs}) == ({30.0}, {0.0})
    assert all(r.sent_s - r.scheduled_s >= 0.03 for r in ours)
    assert summary.lag_p99_ms < 30, "what was injected is no lag"
    assert faults(records, [summary], job.canary, paired=True) == []


def test_a_stalled_server_cannot_slow_the_load_down(candidate: FakeVllm) -> None:
    """Open loop: latency counts from the scheduled arrival, whatever became of earlier requests."""
    candidate.behaviour.mode = "silent"
    job = make_job(None, candidate, canary={"request_timeout_s": 0.5, "requests_per_block": 20, "rate_per_s": 40})

    records, _ = drive(job, stop_early=False)

    assert len(records) == 20
    assert all(r.timed_out and (r.e2e_ms or 0) >= 499 for r in records)
    assert max(r.sent_s - r.scheduled_s for r in records) < 0.25


@pytest.mark.parametrize("processes", [2, 3])
def test_workers_share_a_block_and_keep_pairs_together(processes: int, stable: FakeVllm, candidate: FakeVllm) -> None:
    job = make_job(stable, candidate, inject_ms=5)

    records, summary = drive(job, processes=processes)

    assert (summary.processes, summary.void, summary.dropped) == (processes, False, 0)
    assert faults(records, [summary], job.canary, paired=True) == []
    assert [(r.index, r.prompt_sha256) for r in of(records, "stable")] == [
        (r.index, r.prompt_sha256) for r in of(records, "candidate")
    ]
    assert len(records) == 20
    assert not any(r.error for r in records)
    assert all(r.scheduled_s >= summary.started_s and (r.ended_s or 0) <= summary.ended_s for r in records)
    assert {r.injected_ms for r in of(records, "candidate")} == {5.0}


def test_workers_send_what_one_process_would(stable: FakeVllm, candidate: FakeVllm) -> None:
    one, many = (drive(make_job(stable, candidate), processes=n) for n in (1, 2))

    def sent(found: tuple[list[RequestRecord], BlockSummary]) -> list[tuple[Any, ...]]:
        return [
            (r.side, r.index, r.prompt_sha256, r.sampled, pytest.approx(r.scheduled_s - found[1].started_s))
            for r in found[0]
        ]

    assert sent(one) == sent(many)


def test_a_side_that_fails_hard_stops_all_workers(stable: FakeVllm, candidate: FakeVllm) -> None:
    candidate.behaviour.mode, candidate.behaviour.mode_after = "http_503", 5
    job = make_job(stable, candidate, canary={"requests_per_block": 600, "rate_per_s": 20})

    records, summary = drive(job, processes=2)

    assert summary.stopped
    assert summary.reason.startswith("candidate: 5 requests in a row failed")
    assert summary.ended_s - summary.started_s < 10, "600 requests at 20/s would take half a minute"
    assert not any(r.error for r in of(records, "stable"))


def test_workers_serve_block_after_block_also_after_a_stop(stable: FakeVllm, candidate: FakeVllm) -> None:
    job = make_job(stable, candidate)

    async def three() -> list[BlockSummary]:
        summaries = []
        async with Load(job, Clock(), processes=2) as load:
            for block in range(3):
                candidate.behaviour.mode = "http_503" if block == 1 else "ok"
                summaries.append((await load.run_block(block, Prompts(job).block(block)))[1])
        return summaries

    found = asyncio.run(three())
    assert [s.stopped for s in found] == [False, True, False]
    assert [s.sent_first for s in found] == ["stable", "candidate", "stable"]


def test_a_block_whose_worker_dies_is_void_and_the_next_one_is_not(stable: FakeVllm, candidate: FakeVllm) -> None:
    """What a lost process should have sent was never sent: that is no fault of a side."""
    job = make_job(stable, candidate, canary={"requests_per_block": 40, "rate_per_s": 40})

    async def two() -> tuple[BlockSummary, list[RequestRecord], BlockSummary]:
        async with Load(job, Clock(), processes=2) as load:
            under_way = asyncio.create_task(load.run_block(0, Prompts(job).block(0)))
            await asyncio.to_thread(wait_for, lambda: len(stable.bodies) >= 4, "the load")
            assert load._workers is not None
            os.kill(load._workers._all[0]._process.pid, signal.SIGKILL)
            records, summary = await under_way
            return summary, records, (await load.run_block(1, Prompts(job).block(1)))[1]

    first, records, second = asyncio.run(two())
    assert first.void
    assert first.dropped > 0
    assert first.dropped + len(records) == 80
    assert "a generator process ended (-9)" in first.reason
    assert (second.void, second.dropped) == (False, 0)


def test_requests_that_could_not_leave_are_dropped_and_blame_nobody(
    stable: FakeVllm, candidate: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator without file handles must not look like a candidate that refuses connections."""

    class Exhausted(aiohttp.TCPConnector):
        async def connect(self, *_: Any, **__: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(bench_stream, "make_session", lambda: aiohttp.ClientSession(connector=Exhausted()))
    monkeypatch.setattr(bench_load, "make_session", bench_stream.make_session)

    records, summary = drive(make_job(stable, candidate))

    assert records == []
    assert (summary.dropped, summary.void, summary.stopped) == (20, True, False)
    assert "20 requests never left" in summary.reason
    assert "Too many open files" in summary.reason


def test_a_refused_connection_is_the_sides_own_failure(stable: FakeVllm, candidate: FakeVllm) -> None:
    job = make_job(stable, candidate)
    gone = job.targets[1].model_copy(update={"base_url": "http://127.0.0.1:1"}) if job.paired else None
    assert gone is not None

    records, summary = drive(job.model_copy(update={"targets": (job.targets[0], gone)}))

    assert summary.dropped == 0
    assert summary.reason.startswith("candidate: 5 requests in a row failed")
    assert all(r.error for r in of(records, "candidate"))


def test_a_block_that_left_late_is_void(candidate: FakeVllm) -> None:
    """Twenty requests that were due before the block began: the generator was late, and says so."""
    job = make_job(None, candidate, canary={"max_lag_ms": 50})
    asks = [ask._replace(at_s=-1.0) for ask in Prompts(job).block(0)]

    _, summary = drive(job, asks=asks)

    assert summary.void
    assert summary.lag_p99_ms > 999
    assert "ms late, above 50 ms" in summary.reason


def test_a_generator_that_is_busy_itself_voids_the_block(candidate: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_load, "MAX_CPU_PCT", 0.01)

    _, summary = drive(make_job(None, candidate))

    assert summary.void
    assert summary.cpu_pct > 0.01
    assert "% of a core" in summary.reason


def test_a_redirect_is_not_followed(stable: FakeVllm) -> None:
    """What answers elsewhere is not the side that was asked."""

    class Elsewhere(FakeVllm):
        async def _completions(self, request: web.Request) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(f"{stable.url}/v1/completions")

    with Elsewhere() as server:
        records, _ = drive(make_job(None, server))

    assert all((r.error or "").startswith("HTTP 307") for r in records)
    assert not stable.seen


def test_load_that_needs_workers_gets_them_by_itself(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_load, "STREAMS_PER_PROCESS_S", 100.0)
    monkeypatch.setattr(bench_load, "cores", lambda: 2)

    result, run, analysis = measure(make_job(stable, candidate), tmp_path)

    assert {s.processes for s in run.summaries} == {2}
    assert analysis.verdict.decision == "PROMOTE", analysis.verdict.sentence
    assert result.started_at == run.summaries[0].started_at
    assert result.started_at < run.summaries[-1].started_at < result.ended_at


def test_a_rate_beyond_the_generator_is_refused_before_anything_is_sent(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="the generator keeps up with"):
        measure(make_job(stable, candidate, canary={"rate_per_s": 1e5}), tmp_path)

    assert not stable.seen
    assert not candidate.seen


def test_users_that_the_generator_cannot_match_void_the_block(stable: FakeVllm, candidate: FakeVllm) -> None:
    """A candidate with less load than stable would look faster than it is."""
    records, summary = drive(make_job(stable, candidate), live_rate_per_s=1e5)

    assert (records, summary.void) == ([], True)
    assert "the generator cannot add as many to the candidate" in summary.reason


@pytest.mark.parametrize("processes", [1, 2])
def test_live_load_is_put_on_the_candidate_alone(processes: int, stable: FakeVllm, candidate: FakeVllm) -> None:
    job = make_job(stable, candidate, canary={"requests_per_block": 60, "rate_per_s": 30})

    records, summary = drive(job, processes=processes, live_rate_per_s=40)

    took_s = summary.ended_s - summary.started_s
    assert summary.live_sent == pytest.approx(40 * took_s, rel=0.5)
    assert candidate.seen["/v1/completions"] - stable.seen["/v1/completions"] == pytest.approx(summary.live_sent, abs=8)
    assert len(of(records, "candidate")) == len(of(records, "stable")) == 60
    prompts = [body["prompt"] for body in candidate.bodies]
    assert len(prompts) == len(set(prompts)), "load without prompts that were seen before"
    assert {text.split(" ", 1)[1] for text in prompts} <= {body["prompt"].split(" ", 1)[1] for body in stable.bodies}


def test_prompts_come_from_the_set_and_the_share_has_one_prefix(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    prompts = tuple(Prompt(f"Tell me of number {k}.", 3) for k in range(20))
    job = make_job(stable, candidate, canary={"prompts": "s3://b/p", "shared_prefix_pct": 50, "warmup_requests": 0})

    asyncio.run(bench.run(job, tmp_path, lambda percent, message: None, prompt_set=prompts))

    asked = [body["prompt"] for body in candidate.bodies]
    assert all(any(text.endswith(prompt.text) for prompt in prompts) for text in asked)
    assert 0.3 < sum(text.startswith(common_prefix(job.seed)) for text in asked) / len(asked) < 0.7
    assert {body["max_tokens"] for body in candidate.bodies} == {3}
    assert sorted(asked) == sorted(body["prompt"] for body in stable.bodies)


def test_a_job_with_a_prompt_set_does_not_run_without_it(candidate: FakeVllm, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was given none"):
        measure(make_job(None, candidate, canary={"prompts": "s3://b/p"}), tmp_path)


def test_a_candidate_that_is_slower_by_stalls_shows_it_in_the_tail(stable: FakeVllm, candidate: FakeVllm) -> None:
    candidate.behaviour.stall_pct, candidate.behaviour.stall_ms = 100, 150

    records, _ = drive(make_job(stable, candidate))

    assert min(r.e2e_ms or 0 for r in of(records, "candidate")) >= 150
    assert statistics.median(r.e2e_ms or 0 for r in of(records, "stable")) < 150


def test_the_mock_server_has_every_series_of_an_engine(candidate: FakeVllm) -> None:
    candidate.behaviour.kv_cache_usage, candidate.behaviour.preemptions = 0.75, 3
    drive(make_job(None, candidate))

    async def text() -> str:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{candidate.url}/health") as response:
                assert response.status == 200
            async with session.get(f"{candidate.url}/metrics") as response:
                return await response.text()

    lines = [line for line in asyncio.run(text()).splitlines() if line[0] != "#"]
    series = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    stored = {found.stored for name in series if (found := engine_series.known(name))}
    assert stored == {name for one in engine_series.TABLE for name in one.stored}, "the whole contract"
    assert series["vllm:kv_cache_usage_perc"] == 0.75
    assert series["vllm:num_preemptions_total"] == 3
    assert series["vllm:num_requests_running"] == 0
    assert series["vllm:request_success_total"] == 10
    assert series["vllm:generation_tokens_total"] == 40
    mean_s = series["vllm:time_to_first_token_seconds_sum"] / series["vllm:time_to_first_token_seconds_count"]
    assert 0.01 <= mean_s < 0.1
    assert series["vllm:inter_token_latency_seconds_count"] == 30
