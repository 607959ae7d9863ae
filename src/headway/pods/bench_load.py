"""One block of paired load: the same prompts at the same scheduled arrivals on both sides.

One process drives what it can; above that, worker processes share the block, and both requests of a pair are in one
share. The generator watches itself: a block that it could not drive as scheduled is void, whatever it measured.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import aiohttp

from headway.domain.bench import BenchJob, BlockSummary, RequestRecord, Side
from headway.errors import ConfigError
from headway.judge.quantiles import quantile
from headway.judge.verdict import hard_failure
from headway.pods.bench_drive import Share, ShareEnd, allow_many_connections, core_pct, drive, order_of, without_pauses
from headway.pods.bench_prompts import Ask
from headway.pods.bench_stream import Clock, make_session
from headway.pods.bench_workers import Workers

STREAMS_PER_PROCESS_S = 400.0
"""Requests a second that one process drives. `benchmarks/generator.py` measures this at two fifths of a core, with a
99th percentile of lag under 20 ms; the rest of the core is for bursts and for slower machines."""
TOKENS_PER_PROCESS_S = 12_800.0
"""The same for tokens: every one of a stream is an event to read."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU in each period of so many (Linux, control groups 2)."""
MAX_CPU_PCT = 90.0
"""Of one core. A process that is busier measures its own queue."""


def processes_needed(job: BenchJob, mean_tokens: float, live_rate_per_s: float = 0.0) -> int:
    """Return how many generator processes this load needs.

    Args:
        job: Its rate, on each side.
        mean_tokens: Of an answer.
        live_rate_per_s: Unmeasured load beside it.
    """
    rate_per_s = job.canary.rate_per_s * len(job.targets) + live_rate_per_s
    tokens_per_s = rate_per_s * mean_tokens
    return max(1, math.ceil(rate_per_s / STREAMS_PER_PROCESS_S), math.ceil(tokens_per_s / TOKENS_PER_PROCESS_S))


def cores() -> int:
    """Return how many cores this process may use: those of its affinity, or fewer in a container with a quota."""
    found = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no control group of the second version, or `max`
        quota, period = map(int, CPU_QUOTA.read_text().split())
        found = min(found, max(1, quota // period))
    return found


def check_rate(job: BenchJob, mean_tokens: float) -> None:
    """Refuse a load that this machine cannot generate; see `processes_needed`.

    Raises:
        ConfigError: Says the limit.
    """
    needed, have = processes_needed(job, mean_tokens), cores()
    if needed > have:
        sides = len(job.targets)
        most = min(STREAMS_PER_PROCESS_S, TOKENS_PER_PROCESS_S / mean_tokens) * have / sides
        raise ConfigError(
            f"`canary.rate_per_s` is {job.canary.rate_per_s:g}, with {mean_tokens:g} tokens an answer on {sides} "
            f"side(s); on {have} core(s) the generator keeps up with {most:.4g} (measured: {STREAMS_PER_PROCESS_S:g} "
            f"requests and {TOKENS_PER_PROCESS_S:g} tokens a second on each core): lower the rate or the tokens, or "
            "give the benchmark more cores",
            limit_per_s=most,
        )


class Load:
    """Drives blocks; an async context manager, because it holds connections and perhaps processes.

    Args:
        job: What to drive.
        clock: The run's clock.
        processes: How many drive; by default what the load needs.
    """

    def __init__(self, job: BenchJob, clock: Clock, *, processes: int | None = None) -> None:
        self._job, self._clock, self._processes = job, clock, processes
        self._stack = AsyncExitStack()
        self._workers: Workers | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The client of this process."""
        return self._session

    async def __aenter__(self) -> Self:
        allow_many_connections()
        self._session = await self._stack.enter_async_context(make_session())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run_block(
        self, block: int, asks: Sequence[Ask], *, live_rate_per_s: float = 0.0, stop_early: bool = True
    ) -> tuple[list[RequestRecord], BlockSummary]:
        """Drive one block on all sides and return its records and summary.

        Args:
            block: Its number.
            asks: What all sides get.
            live_rate_per_s: Unmeasured load to put on the candidate meanwhile.
            stop_early: Whether a side that fails hard ends the block: requests that had not ended by then are given up
                and leave no record.
        """
        mean_tokens = sum(ask.max_tokens for ask in asks) / max(len(asks), 1)
        processes = self._processes or processes_needed(self._job, mean_tokens, live_rate_per_s)
        if self._processes is None and processes > cores():
            reason = (
                f"stable's users send {live_rate_per_s:.0f} requests a second, and the generator cannot add as many to "
                f"the candidate on {cores()} core(s)"
            )
            return [], self.void(block, len(asks), reason)
        watch = _Watch(self._job, len(asks), stop_early=stop_early)
        started_at = _now()
        shares = [
            Share(
                block=block,
                asks=tuple(asks[number::processes]),
                live_rate_per_s=live_rate_per_s / processes,
                number=number,
            )
            for number in range(processes)
        ]
        start_s, ends = await self._drive(shares, watch)
        return watch.records(), watch.summary(
            block=block,
            started_at=started_at,
            start_s=start_s,
            ended_s=self._clock.now(),
            processes=processes,
            ends=ends,
        )

    def void(self, block: int, planned: int, reason: str) -> BlockSummary:
        """Return the summary of a block that was not driven at all."""
        now_s = self._clock.now()
        return BlockSummary(
            block=block,
            planned=planned,
            started_at=_now(),
            started_s=now_s,
            ended_s=now_s,
            lag_p99_ms=0,
            void=True,
            reason=reason,
        )

    async def _drive(self, shares: Sequence[Share], watch: "_Watch") -> tuple[float, list[ShareEnd]]:
        if len(shares) == 1:
            with without_pauses():
                start_s = self._clock.now()
                end = await drive(
                    self._session,
                    self._job,
                    self._clock,
                    shares[0],
                    start_s=start_s,
                    on_record=watch.take,
                    stop=watch.stop,
                )
            return start_s, [end]
        if self._workers is None:
            self._workers = await self._stack.enter_async_context(Workers(self._job, self._clock))
        cpu_s, before_s = time.thread_time(), self._clock.now()
        start_s, ends = await self._workers.drive(shares, on_record=watch.take, stop=watch.stop)
        own_pct = core_pct(time.thread_time() - cpu_s, self._clock.now() - before_s)
        return start_s, [*ends, ShareEnd(cpu_pct=round(own_pct, 1))]


class _Watch:
    """Sees every record of a block as it ends, and says when there is no point in going on."""

    def __init__(self, job: BenchJob, planned: int, *, stop_early: bool) -> None:
        self._job, self._planned, self._stop_early = job, planned, stop_early
        self._done: dict[Side, list[RequestRecord]] = {target.side: [] for target in job.targets}
        self._why_stopped = ""
        self.stop = asyncio.Event()

    def take(self, record: RequestRecord) -> None:
        """Look at a request that has ended."""
        done = self._done[record.side]
        done.append(record)
        # Only a failure can make a side fail hard.
        if record.error is None or not self._stop_early or self.stop.is_set():
            return
        failed = hard_failure(done, self._planned, partial=True)
        if failed:
            self._why_stopped = f"{record.side}: {failed}"
            self.stop.set()

    def records(self) -> list[RequestRecord]:
        """Return all, in one order."""
        return [r for side in sorted(self._done) for r in sorted(self._done[side], key=lambda r: r.index)]

    def summary(
        self,
        *,
        block: int,
        started_at: str,
        start_s: float,
        ended_s: float,
        processes: int,
        ends: Sequence[ShareEnd],
    ) -> BlockSummary:
        """Return how the block went, and whether the generator drove it."""
        records = self.records()
        lag_ms = quantile(((r.sent_s - r.scheduled_s) * 1e3 - r.injected_ms for r in records), 99) or 0.0
        dropped = sum(end.dropped for end in ends)
        busiest_pct = max(end.cpu_pct for end in ends)
        limit_ms = self._job.canary.max_lag_ms
        faults = []
        if dropped:
            why = next((end.why_dropped for end in ends if end.why_dropped), "unknown")
            faults.append(f"{dropped} requests never left: {why}")
        if lag_ms > limit_ms:
            faults.append(f"requests left up to {lag_ms:.0f} ms late, above {limit_ms:g} ms")
        if busiest_pct > MAX_CPU_PCT:
            faults.append(f"a generator process used {busiest_pct:.0f} % of a core, above {MAX_CPU_PCT:g} %")
        return BlockSummary(
            block=block,
            planned=self._planned,
            sent_first=order_of(self._job, block)[0].side,
            started_at=started_at,
            started_s=start_s,
            ended_s=max(ended_s, start_s),
            dropped=dropped,
            processes=processes,
            lag_p99_ms=round(lag_ms, 3),
            cpu_pct=round(sum(end.cpu_pct for end in ends), 1),
            live_sent=sum(end.live_sent for end in ends),
            void=bool(faults),
            stopped=self.stop.is_set(),
            stable_oldest_s=max(end.stable_oldest_s for end in ends),
            # What a side did comes first: `bench` reads it from there.
            reason="; ".join([*([self._why_stopped] if self._why_stopped else []), *faults]),
        )


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
