"""The bench program: `python -m headway.pods.bench job.json`.

Asks the candidate (and stable, if there is one) about quality, then drives paired blocks until the judge can decide or
the declared blocks are used up. It decides nothing itself: it stops when `headway.judge` says that further blocks could
not change the verdict, and hands the records back.
"""

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from headway.adapters.s3.client import S3Client
from headway.domain.bench import BenchJob, BenchResult, BlockSummary, CanaryAnswer, RequestRecord, SideTarget
from headway.domain.prompts import Prompt
from headway.domain.release import Check, QualityFigures
from headway.domain.value import digest
from headway.errors import BackendError, BackendUnavailable, ConfigError
from headway.judge.quality import answers_check, served_checks
from headway.judge.verdict import Analysis, analyse, planned_blocks
from headway.pods import bench_quality, bench_records, reference
from headway.pods.bench_live import LiveLoad
from headway.pods.bench_load import Load, check_rate
from headway.pods.bench_prompts import Ask, Prompts, read_set
from headway.pods.bench_stream import Clock, NeverLeftError, send
from headway.pods.io import Progress, run_program
from headway.pods.stage import connection_of

REACH_WAIT_S = 30.0
"""How long stable may be unreachable at the start before the job gives up for now."""
RESTART_GAP_S = 1.0


async def run(
    job: BenchJob,
    folder: Path,
    progress: Progress,
    yardstick: bench_quality.Yardstick | None = None,
    prompt_set: Sequence[Prompt] = (),
) -> BenchResult:
    """Run the benchmark, from the start or from where an earlier try stopped.

    Args:
        job: What to do.
        folder: Where the records are kept.
        progress: Told how far it is, in percent, and what it does.
        yardstick: What the candidate's answers are measured against; by default what the job carries itself.
        prompt_set: What is asked; empty: prompts of headway's own.

    Raises:
        ConfigError: This machine cannot generate the load that the job asks for.
        BackendUnavailable: If stable or the gateway cannot be reached at all; try again.
    """
    if job.canary.prompts and not prompt_set:
        raise ConfigError(
            f"the job asks prompts of {job.canary.prompts}, and was given none; run the program as a whole"
        )
    prompts = Prompts(job, prompt_set)
    check_rate(job, prompts.mean_tokens)
    path = folder / job.records_path
    yardstick = yardstick or bench_quality.of_job(job)
    found = bench_records.reopen(path, digest(job))
    records, summaries = list(found.records), list(found.summaries)
    ends = [s.ended_s for s in summaries]
    clock = Clock(max(ends) + RESTART_GAP_S if ends else 0.0)
    seconds: dict[str, float] = {}
    async with Load(job, clock) as load:
        progress(1, "asking the fixed questions")
        with _Timed(seconds, "quality"):
            await _reach(load.session, job)
            answers, served, why_missing = await _quality(load.session, job, yardstick, progress)
        checks = quality_checks(job, yardstick, answers, served, why_missing)
        analysis = analyse(records, summaries, job.canary, checks, paired=job.paired)
        total = planned_blocks(job.canary, paired=job.paired)
        live = LiveLoad(load.session, job, clock)
        await live.read()
        if not analysis.decided and len(summaries) < total:
            progress(5, "warming up")
            with _Timed(seconds, "warmup"):
                # Greedy and sampled requests that nobody measures; failures show in the first block.
                await load.run_block(0, prompts.warm_up())
        with _Timed(seconds, "blocks"):
            while not analysis.decided and len(summaries) < total:
                block = len(summaries)
                progress(10 + 85 * block / total, _say(block, total, analysis))
                got, summary = await _block(load, job, block, clock=clock, live=live, prompts=prompts)
                bench_records.append(path, got, summary)
                records += got
                summaries.append(summary)
                analysis = analyse(records, summaries, job.canary, checks, paired=job.paired)
    progress(96, analysis.verdict.sentence)
    content = path.read_bytes()
    return BenchResult(
        release=job.release,
        paired=job.paired,
        blocks=tuple(summaries),
        served=served,
        answers=answers,
        quality_error=why_missing,
        records_path=str(path),
        records_sha256=hashlib.sha256(content).hexdigest(),
        started_at=summaries[0].started_at if summaries else "",
        ended_at=_end_of(summaries[-1]) if summaries else "",
        seconds=seconds,
    )


def quality_checks(
    job: BenchJob,
    yardstick: bench_quality.Yardstick | None,
    answers: tuple[CanaryAnswer, ...],
    served: QualityFigures | None,
    why_missing: str,
) -> list[Check]:
    """Return the checks that the judge gets beside the records."""
    checks = [answers_check(answers, yardstick.answers if yardstick else ())]
    if yardstick is not None:
        checks += served_checks(served, yardstick.figures, job.quality, job.scheme, why_missing=why_missing)
    return checks


async def _reach(session: aiohttp.ClientSession, job: BenchJob) -> None:
    """Wait until stable (or else the candidate) answers at all; a dead candidate is for the blocks to show."""
    target = job.target("stable") if job.paired else job.target("candidate")
    until = time.monotonic() + REACH_WAIT_S
    while True:
        try:
            async with asyncio.timeout(10):
                async with session.get(f"{target.base_url}/v1/models", headers=target.headers) as response:
                    if response.status < 500:
                        return
                    last = f"HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            last = f"{type(problem).__name__}: {problem}"
        if time.monotonic() > until:
            raise BackendUnavailable(f"{target.side} at {target.base_url} did not answer in {REACH_WAIT_S:g} s: {last}")
        await asyncio.sleep(1.0)


async def _quality(
    session: aiohttp.ClientSession, job: BenchJob, yardstick: bench_quality.Yardstick | None, progress: Progress
) -> tuple[tuple[CanaryAnswer, ...], QualityFigures | None, str]:
    timeout_s = job.canary.request_timeout_s
    answers = await bench_quality.answers(session, job.targets, timeout_s)
    if yardstick is None:
        return answers, None, ""
    if any(answer.error for answer in answers if answer.side == "candidate"):
        return answers, None, "the fixed questions failed before"
    progress(3, "measuring the served perplexity")
    try:
        return (
            answers,
            await bench_quality.served_figures(
                session, job.target("candidate"), yardstick, engine=job.engine, timeout_s=timeout_s
            ),
            "",
        )
    except BackendError as error:
        return answers, None, error.message


async def _block(
    load: Load, job: BenchJob, block: int, *, clock: Clock, live: LiveLoad, prompts: Prompts
) -> tuple[list[RequestRecord], BlockSummary]:
    rate_per_s = await live.read()
    busy = await live.wait_for_headroom()
    asks = prompts.block(block)
    if busy:
        return [], load.void(block, len(asks), busy)
    records, summary = await load.run_block(block, asks, live_rate_per_s=rate_per_s)
    update: dict[str, Any] = {"live_rate_per_s": round(rate_per_s, 3)}
    if summary.stopped and job.paired and summary.reason.startswith("candidate: "):
        update["stable_alive"] = await _alive(load.session, job, job.target("stable"), clock)
    return records, summary.model_copy(update=update)


async def _alive(session: aiohttp.ClientSession, job: BenchJob, target: SideTarget, clock: Clock) -> bool:
    """Ask one short question, to tell a dead candidate from a dead way to both."""
    ask = Ask(0, 0.0, "Are you there?", sampled=False, seed=0, max_tokens=2)
    timeout_s = min(30.0, job.canary.request_timeout_s)
    try:
        record = await send(
            session, target, ask, api=job.canary.api, block=0, start_s=clock.now(), clock=clock, timeout_s=timeout_s
        )
    except NeverLeftError:
        return False
    return record.error is None


def _end_of(summary: BlockSummary) -> str:
    took = timedelta(seconds=summary.ended_s - summary.started_s)
    return (datetime.fromisoformat(summary.started_at) + took).isoformat(timespec="milliseconds")


def _say(block: int, total: int, analysis: Analysis) -> str:
    text = f"block {block + 1} of {total}"
    last = analysis.ratios[-1] if analysis.ratios else {}
    shown = [f"{name} x{last[name]:.2f}" for name in ("ttft_p50", "tpot_p50") if last.get(name)]
    return f"{text}; last block, candidate over stable: {', '.join(shown)}" if shown else text


class _Timed:
    """Adds the seconds of a `with` block to a table."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name, self._start = seconds, name, time.monotonic()

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._start
        self._seconds[self._name] = round(self._seconds.get(self._name, 0.0) + took, 3)


def upload(result: BenchResult, uri: str, client: S3Client) -> BenchResult:
    """Put the records where the judge reads them, and beside them the same as a table.

    Raises:
        BackendUnavailable: The store does not answer; the next try finds the records on the disk.
    """
    from headway.pods import records_parquet

    started = time.monotonic()
    content = Path(result.records_path).read_bytes()
    client.put(uri, content, sha256=result.records_sha256)
    parquet_uri = f"{uri.removesuffix('.jsonl')}.parquet"
    client.put(parquet_uri, records_parquet.write(content))
    seconds = {**result.seconds, "upload": round(time.monotonic() - started, 3)}
    return result.model_copy(update={"records_uri": uri, "parquet_uri": parquet_uri, "seconds": seconds})


def main(arguments: list[str]) -> int:
    """Run the program in the current folder; return its exit code."""

    def work(job: BenchJob, progress: Progress) -> BenchResult:
        stored = job.records_uri or job.reference_uri or job.canary.prompts
        client = S3Client(connection_of(os.environ)) if stored else None
        yardstick, prompt_set = None, tuple[Prompt, ...]()
        if client and job.reference_uri:
            yardstick = bench_quality.of_reference(*reference.load(client, job.reference_uri, job.reference_digest))
        if client and job.canary.prompts:
            prompt_set = read_set(client.read(job.canary.prompts), job)
        result = asyncio.run(run(job, Path.cwd(), progress, yardstick, prompt_set))
        if client:
            noise = bench_quality.noise(client, job.noise_uri, job.scheme, result.served)
            result = result.model_copy(update={"noise": noise})
        if client and job.records_uri:
            progress(98, "handing over the records")
            result = upload(result, job.records_uri, client)
        progress(100, "done")
        return result

    return run_program(arguments, BenchJob, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
