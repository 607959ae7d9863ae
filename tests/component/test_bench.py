"""The bench program against servers that answer well, badly or not at all: none of the bad ones is ever promoted."""

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.domain.bench import QUESTIONS, BenchJob, BenchResult, RequestRecord, SideTarget
from headway.domain.profile import Canary
from headway.domain.release import QualityFigures, SourceAnswer, TopLogprobs
from headway.errors import BackendUnavailable
from headway.judge.records import Run, faults, parse
from headway.judge.verdict import Analysis, analyse
from headway.pods import bench
from headway.pods.bench_prompts import Prompts
from headway.pods.bench_quality import Yardstick, of_job
from tests.fake_vllm import FakeVllm, head, right_answer

pytestmark = pytest.mark.component


@pytest.fixture
def stable() -> Iterator[FakeVllm]:
    with FakeVllm(release="stable-1", ttft_ms=10, itl_ms=1) as server:
        yield server


@pytest.fixture
def candidate() -> Iterator[FakeVllm]:
    with FakeVllm(release="candidate-1", ttft_ms=10, itl_ms=1) as server:
        yield server


def make_job(stable: FakeVllm | None, candidate: FakeVllm, **changes: Any) -> BenchJob:
    canary: dict[str, Any] = {
        "blocks": 5,
        "requests_per_block": 10,
        "rate_per_s": 60,
        "max_tokens": 4,
        "warmup_requests": 2,
        # Wide, because these tests are about failures, and the machine that runs them may be busy.
        "p50_margin": 2,
        "p95_margin": 2,
        "p99_guard": 2,
        "error_margin_pct": 15,
        "max_lag_ms": 5000,
        "request_timeout_s": 10,
        "first_ttft_p95_ms": 5000,
        "first_tpot_p95_ms": 5000,
        **changes.pop("canary", {}),
    }
    targets = [SideTarget(side="candidate", base_url=candidate.url, served_model="m", release="candidate-1")]
    if stable:
        targets.insert(0, SideTarget(side="stable", base_url=stable.url, served_model="m", release="stable-1"))
    return BenchJob(
        release="candidate-1", targets=tuple(targets), canary=Canary.model_validate(canary), seed=7, **changes
    )


def measure(job: BenchJob, folder: Path, yardstick: Yardstick | None = None) -> tuple[BenchResult, Run, Analysis]:
    """Run the benchmark and judge its records as the release does."""
    result = asyncio.run(bench.run(job, folder, lambda percent, message: None, yardstick))
    run = parse((folder / job.records_path).read_bytes())
    yardstick = yardstick or of_job(job)
    checks = bench.quality_checks(job, yardstick, result.answers, result.served, result.quality_error)
    return result, run, analyse(run.records, run.summaries, job.canary, checks, paired=job.paired)


def side(run: Run, name: str) -> list[RequestRecord]:
    return [r for r in run.records if r.side == name]


def test_two_equal_sides_are_promoted_from_equal_requests(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    job = make_job(stable, candidate)
    result, run, analysis = measure(job, tmp_path)

    assert analysis.verdict.decision == "PROMOTE", analysis.verdict.sentence
    assert faults(run.records, run.summaries, job.canary, paired=True) == []
    assert [(r.index, r.prompt_sha256, r.scheduled_s, r.sampled) for r in side(run, "stable")] == [
        (r.index, r.prompt_sha256, r.scheduled_s, r.sampled) for r in side(run, "candidate")
    ]
    assert [s.sent_first for s in run.summaries[:3]] == ["stable", "candidate", "stable"]
    assert {r.served_release for r in side(run, "candidate")} == {"candidate-1"}
    assert {r.output_tokens for r in run.records} == {4}
    assert result.seconds.keys() >= {"quality", "warmup", "blocks"}


def test_no_prompt_is_ever_seen_twice_and_some_are_sampled(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    """A prefix cache must not flatter a side, and the engine's sampler must have run."""
    measure(make_job(stable, candidate), tmp_path)

    starts = [body["prompt"][:16] for body in candidate.bodies]
    assert len(starts) == len(set(starts)) > 40
    assert {body["temperature"] for body in candidate.bodies} == {0.0, 0.8}
    assert all(body["ignore_eos"] and body["stream_options"]["include_usage"] for body in candidate.bodies)


def test_schedules_follow_from_the_seed(stable: FakeVllm, candidate: FakeVllm) -> None:
    job = make_job(stable, candidate)

    assert Prompts(job).block(3) == Prompts(job).block(3)
    assert Prompts(job).block(3) != Prompts(job).block(4)
    assert Prompts(job).block(3) != Prompts(job.model_copy(update={"seed": 8})).block(3)


BAD_MODES = {
    "silent": "no text within",
    "hang": "no answer within",
    "http_500": "HTTP 500",
    "http_503": "HTTP 503",
    "http_429": "HTTP 429",
    "sse_error": "error after HTTP 200: EngineDeadError",
    "empty": "empty completion",
    "reset": "Error",
    "cut": "the stream was cut",
    "wrong_model": "answered as model 'another'",
    "not_json": "no JSON",
    "odd_json": "no object",
    "not_sse": "the stream was cut",
}


@pytest.mark.parametrize("mode", BAD_MODES)
def test_a_candidate_that_turns_bad_is_rolled_back_soon(
    mode: str, stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    candidate.behaviour.mode, candidate.behaviour.mode_after = mode, 16

    canary = {"request_timeout_s": 1.5} if mode in ("silent", "hang") else {}
    _, run, analysis = measure(make_job(stable, candidate, canary=canary), tmp_path)

    assert analysis.verdict.decision == "ROLLBACK", analysis.verdict.sentence
    assert len(run.summaries) <= 3
    assert any(BAD_MODES[mode] in (r.error or "") for r in side(run, "candidate"))
    assert not any(r.error for r in side(run, "stable"))


@pytest.mark.parametrize("mode", ["hang", "http_503", "reset"])
def test_a_bad_stable_holds(mode: str, stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    stable.behaviour.mode, stable.behaviour.mode_after = mode, 16

    assert (
        measure(make_job(stable, candidate, canary={"request_timeout_s": 1.5}), tmp_path)[2].verdict.decision == "HOLD"
    )


def test_both_sides_bad_hold(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    """When the way to both is broken, nothing is known about the candidate."""
    for server in (stable, candidate):
        server.behaviour.mode, server.behaviour.mode_after = "http_503", 16

    assert measure(make_job(stable, candidate), tmp_path)[2].verdict.decision == "HOLD"


def test_missing_token_counts_hold(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    candidate.behaviour.mode = "no_usage"

    assert measure(make_job(stable, candidate), tmp_path)[2].verdict.decision == "HOLD"


def test_an_answer_from_another_release_is_a_failure(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    """Otherwise stable could be measured twice, and would win against itself."""
    candidate.behaviour.release = "stable-1"

    _, run, analysis = measure(make_job(stable, candidate), tmp_path)

    assert analysis.verdict.decision == "ROLLBACK"
    assert "answered by release 'stable-1'" in (side(run, "candidate")[0].error or "")


@pytest.mark.parametrize("mode", ["role_only", "reasoning"])
def test_the_first_text_counts_not_the_first_chunk(
    mode: str, stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    candidate.behaviour.mode, candidate.behaviour.ttft_ms = mode, 60

    _, run, _ = measure(make_job(stable, candidate, canary={"blocks": 2}), tmp_path)

    assert min(r.ttft_ms or 0 for r in side(run, "candidate")) >= 59


def test_a_first_release_is_held_to_its_limits(candidate: FakeVllm, tmp_path: Path) -> None:
    result, run, analysis = measure(make_job(None, candidate), tmp_path)

    assert (analysis.verdict.decision, result.paired) == ("PROMOTE", False)
    assert len(run.summaries) == 3


def test_a_slow_first_release_is_rolled_back(candidate: FakeVllm, tmp_path: Path) -> None:
    job = make_job(None, candidate, canary={"first_ttft_p95_ms": 5})

    assert measure(job, tmp_path)[2].verdict.decision == "ROLLBACK"


REFERENCE = QualityFigures(
    prompt_set_digest="p", engine="e", tokens=5, nll=10.0, per_text_nll=(4.0, 6.0), per_text_tokens=(2, 3)
)
TOKENS = ((1, 2, 3), (4, 5, 6, 7))


def test_served_likelihoods_are_those_of_the_server(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    job = make_job(stable, candidate, reference=REFERENCE, reference_token_ids=TOKENS, engine="fake 1")

    result, _, analysis = measure(job, tmp_path)

    assert result.served is not None
    assert (result.served.per_text_nll, result.served.per_text_tokens) == ((4.0, 6.0), (2, 3))
    assert analysis.verdict.decision == "PROMOTE"


def source(nll: float = 2.0, width: int = 20) -> Yardstick:
    """What transformers would have said of a source with this log-likelihood for every token."""
    ids: list[tuple[int, ...]] = []
    logs: list[tuple[float, ...]] = []
    for text in TOKENS:
        heads = [sorted(head(token, nll, width).items(), key=lambda item: -item[1])[:width] for token in text[1:]]
        ids.append(tuple(id_ for found in heads for id_, _ in found))
        logs.append(tuple(round(value, 5) for found in heads for _, value in found))
    top = TopLogprobs(
        source_digest="s",
        prompt_set_digest="p",
        width=width,
        token_logprobs=tuple(tuple(-nll for _ in text[1:]) for text in TOKENS),
        top_ids=tuple(ids),
        top_logprobs=tuple(logs),
    )
    answers = [
        SourceAnswer(prompt=q.prompt, text=right_answer(q.prompt), finish_reason="stop", prompt_tokens=20)
        for q in QUESTIONS
    ]
    return Yardstick(REFERENCE, TOKENS, answers, top)


def test_a_server_that_says_what_the_source_says_does_not_diverge(candidate: FakeVllm, tmp_path: Path) -> None:
    """Source against source: what is left is the rounding of what is stored."""
    result, _, analysis = measure(make_job(None, candidate, reference=REFERENCE), tmp_path, source())

    assert result.served is not None
    assert result.served.kl == pytest.approx(0, abs=1e-4)
    assert result.served.top1 == 1.0
    assert analysis.verdict.decision == "PROMOTE", analysis.verdict.sentence


def test_a_server_with_another_distribution_is_rolled_back_although_its_perplexity_is_fine(
    candidate: FakeVllm, tmp_path: Path
) -> None:
    """It finds the texts even more likely than the source does, and still is another model."""
    candidate.behaviour.nll_per_token = 0.5

    result, run, analysis = measure(make_job(None, candidate, reference=REFERENCE), tmp_path, source())

    assert result.served is not None
    # By hand: cells of the token itself, and of all others in the same proportions.
    p, q = math.exp(-2.0), math.exp(-0.5)
    assert result.served.kl == pytest.approx(p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)), abs=1e-4)
    assert result.served.top1 == 0.0
    assert (analysis.verdict.decision, len(run.summaries)) == ("ROLLBACK", 0)
    assert "diverges from the source's" in analysis.verdict.sentence


def test_a_model_that_computes_nan_is_rolled_back_and_not_held(candidate: FakeVllm, tmp_path: Path) -> None:
    """VLLM cannot write NaN as JSON and answers HTTP 400; that is no missing figure, but the worst one."""
    candidate.behaviour.mode = "nan"

    result, _, analysis = measure(make_job(None, candidate, reference=REFERENCE), tmp_path, source())

    assert result.served is not None
    assert result.served.nll == 5 * 9999.0
    assert analysis.verdict.decision == "ROLLBACK"


@pytest.mark.parametrize(
    ("behaviour", "word"),
    [
        ({"answer": "Zebra xylophone."}, "lost 6"),
        ({"finish_reason": "length"}, "only 0 of these"),
        ({"prompt_tokens": 33}, "33 tokens as served"),
    ],
)
def test_what_token_ids_cannot_show_shows_in_the_answers(
    candidate: FakeVllm, tmp_path: Path, behaviour: dict[str, Any], word: str
) -> None:
    """A wrong tokenizer, chat template or stop token leaves every figure as it is."""
    for name, value in behaviour.items():
        setattr(candidate.behaviour, name, value)

    result, _, analysis = measure(make_job(None, candidate, reference=REFERENCE), tmp_path, source())

    assert result.served is not None
    assert result.served.kl == pytest.approx(0, abs=1e-4)
    assert analysis.verdict.decision == "ROLLBACK"
    assert word in analysis.verdict.sentence


def test_worse_likelihoods_are_rolled_back_without_a_block(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    candidate.behaviour.nll_per_token = 3.0
    job = make_job(stable, candidate, reference=REFERENCE, reference_token_ids=TOKENS)

    _, run, analysis = measure(job, tmp_path)

    assert (analysis.verdict.decision, len(run.summaries)) == ("ROLLBACK", 0)
    assert "perplexity" in analysis.verdict.sentence


def test_a_server_without_likelihoods_holds_and_says_what_is_missing(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    candidate.behaviour.mode = "no_logprobs"
    job = make_job(stable, candidate, reference=REFERENCE, reference_token_ids=TOKENS)

    verdict = measure(job, tmp_path)[2].verdict

    assert verdict.decision == "HOLD"
    assert "prompt_logprobs" in verdict.sentence


def test_a_candidate_that_repeats_itself_is_rolled_back(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    candidate.behaviour.answer, candidate.behaviour.finish_reason = "the " * 96, "length"

    assert measure(make_job(stable, candidate), tmp_path)[2].verdict.decision == "ROLLBACK"


def test_live_load_of_stable_is_added_to_the_candidate(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    """Users ask stable 40 times a second: the candidate gets as much on top (design rule 13.4)."""
    began = time.monotonic()

    class Counting(FakeVllm):
        @property
        def total(self) -> float:  # type: ignore[override]
            return (time.monotonic() - began) * 40

    with Counting() as envoy:
        job = make_job(stable, candidate, live_rate_url=f"{envoy.url}/stats", live_cluster="stable")
        _, run, _ = measure(job, tmp_path)

    rates = [s.live_rate_per_s for s in run.summaries]
    assert rates == pytest.approx([40] * len(rates), rel=0.35)
    extra = candidate.seen["/v1/completions"] - stable.seen["/v1/completions"]
    assert extra == pytest.approx(sum(s.live_sent for s in run.summaries), abs=8)
    assert extra > 5
    assert len(side(run, "candidate")) == len(side(run, "stable"))


def test_a_busy_stable_is_left_alone_and_the_block_is_void(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    stable.active = 9
    job = make_job(
        stable,
        candidate,
        live_rate_url=f"{stable.url}/stats",
        live_cluster="stable",
        headroom_active=8,
        headroom_wait_s=0,
    )

    _, run, analysis = measure(job, tmp_path)

    assert analysis.verdict.decision == "HOLD"
    assert run.records == ()
    assert "in flight" in run.summaries[0].reason


def test_a_restarted_job_goes_on_after_the_last_whole_block(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    """A killed generator costs the block it was in, not those before."""
    job = make_job(stable, candidate)
    _, whole, _ = measure(job, tmp_path)
    path = tmp_path / job.records_path
    lines = path.read_bytes().split(b"\n")
    second = [k for k, line in enumerate(lines) if line.startswith(b'{"block"')][1]
    path.write_bytes(b"\n".join(lines[: second + 4]) + b'\n{"request":{"blo')

    _, run, analysis = measure(job, tmp_path)

    assert analysis.verdict.decision == "PROMOTE"
    kept = [r for r in whole.records if r.block < 2]
    assert list(run.records[: len(kept)]) == kept
    assert faults(run.records, run.summaries, job.canary, paired=True) == []
    later = [r for r in run.records if r.block == 2]
    assert min(r.scheduled_s for r in later) > max(r.ended_s or 0 for r in kept)
    assert {r.prompt_sha256 for r in later} == {r.prompt_sha256 for r in whole.records if r.block == 2}


def test_records_of_another_job_are_not_continued(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    measure(make_job(stable, candidate), tmp_path)
    other = make_job(stable, candidate, canary={"max_tokens": 5})

    _, run, _ = measure(other, tmp_path)

    assert {r.output_tokens for r in run.records} == {5}


def test_an_unreachable_stable_is_tried_again_later(
    candidate: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REACH_WAIT_S", 0.1)
    gone = FakeVllm(port=1)

    with pytest.raises(BackendUnavailable, match="stable at"):
        measure(make_job(gone, candidate), tmp_path)
