"""One process's share of a block, open loop: a request leaves when its time has come, whatever became of earlier ones.

A server that stalls cannot slow the load down and so hide its stall.
"""

import asyncio
import gc
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from headway.domain.bench import BenchJob, RequestRecord, Side, SideTarget
from headway.domain.value import Value
from headway.pods.bench_prompts import Ask
from headway.pods.bench_stream import Clock, NeverLeftError, send

OnRecord = Callable[[RequestRecord], None]


class Share(Value):
    """What one process drives of a block. Both requests of a pair are in one share."""

    block: int
    asks: tuple[Ask, ...]
    live_rate_per_s: float = 0.0
    """Unmeasured requests to the candidate, beside those that are measured."""
    number: int = 0
    """Of the process."""


SHORT_S = 0.1
"""Over less than this, the share of a core says nothing."""


class ShareEnd(Value):
    """How a share went on the generator's own side."""

    dropped: int = 0
    """Requests that were due and never left."""
    why_dropped: str = ""
    cpu_pct: float = 0.0
    """Of one core."""
    live_sent: int = 0
    stable_oldest_s: float = 0.0
    """Age of stable's oldest request that was given up."""


@contextmanager
def without_pauses() -> Iterator[None]:
    """Collect garbage before and not during: a collection would show as lag of whatever it interrupts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def allow_many_connections() -> None:
    """Raise this process's limit of open files as far as it may: each stream holds a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def drive(
    session: aiohttp.ClientSession,
    job: BenchJob,
    clock: Clock,
    share: Share,
    *,
    start_s: float,
    on_record: OnRecord,
    stop: asyncio.Event,
) -> ShareEnd:
    """Send a share to all sides; returns when every request has ended, or soon after `stop` was set.

    Args:
        session: The client.
        job: Says who is asked.
        clock: The run's clock.
        share: What, and when.
        start_s: Of the block.
        on_record: Called as requests end; it may set `stop`.
        stop: Ends the share: requests that are under way are given up, and leave no record.
    """
    cpu_s = time.thread_time()
    driver = _Driver(session, job, clock, share, start_s=start_s, on_record=on_record)
    live = asyncio.create_task(driver.live())
    try:
        await driver.measured(stop)
    finally:
        live.cancel()
        [fault] = await asyncio.gather(live, return_exceptions=True)
    if isinstance(fault, Exception):
        raise fault
    return driver.end(core_pct(time.thread_time() - cpu_s, clock.now() - start_s))


def core_pct(cpu_s: float, wall_s: float) -> float:
    """Return which share of a core was used; 0 over a moment that is too short to tell."""
    return 0.0 if wall_s < SHORT_S else cpu_s / wall_s * 100


class _Driver:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        job: BenchJob,
        clock: Clock,
        share: Share,
        *,
        start_s: float,
        on_record: OnRecord,
    ) -> None:
        self._session, self._job, self._clock, self._share = session, job, clock, share
        self._start_s, self._on_record = start_s, on_record
        # Both sides leave in one turn of the loop; who is first alternates by block.
        self._order = order_of(job, share.block)
        self._under_way: dict[tuple[Side, int], float] = {}
        self._dropped, self._why_dropped, self._live_sent, self._oldest_s = 0, "", 0, 0.0

    async def measured(self, stop: asyncio.Event) -> None:
        """Send the asks as they become due, and wait for their ends."""
        tasks: set[asyncio.Task[None]] = set()
        launched = 0
        for ask in self._share.asks:
            if await _stopped_before(stop, self._start_s + ask.at_s - self._clock.now()):
                break
            tasks.update(asyncio.create_task(self._one(target, ask)) for target in self._order)
            launched += 1
        overdue_s = self._clock.now() - self._start_s - self._job.canary.max_lag_ms / 1e3
        overdue = sum(ask.at_s < overdue_s for ask in self._share.asks[launched:])
        if overdue:
            self._drop(overdue * len(self._order), "the generator had not come to them")
        await self._settle(tasks, stop)

    async def live(self) -> None:
        """Send unmeasured requests to the candidate at the live rate, until cancelled."""
        rate_per_s, asks = self._share.live_rate_per_s, self._share.asks
        if rate_per_s <= 0 or not asks:
            return
        name = f"{self._job.seed}/live/{self._share.block}/{self._share.number}"
        rng = random.Random(name)  # noqa: S311 - reproducible load, not a secret
        target, at_s = self._job.target("candidate"), 0.0
        async with asyncio.TaskGroup() as group:
            while True:
                at_s += rng.expovariate(rate_per_s)
                await self._clock.wait_until(self._start_s + at_s)
                self._live_sent += 1
                # What users ask is not known; it is taken to be like what the benchmark asks.
                ask = rng.choice(asks).again(rng)._replace(at_s=at_s)
                group.create_task(self._unmeasured(target, ask))

    def end(self, cpu_pct: float) -> ShareEnd:
        """Return how the share went."""
        return ShareEnd(
            dropped=self._dropped,
            why_dropped=self._why_dropped,
            cpu_pct=round(cpu_pct, 1),
            live_sent=self._live_sent,
            stable_oldest_s=round(self._oldest_s, 3),
        )

    async def _one(self, target: SideTarget, ask: Ask) -> None:
        self._under_way[target.side, ask.number] = self._clock.now()
        inject_ms = self._job.inject_ms if target.side == "candidate" else 0.0
        try:
            record = await self._send(target, ask, inject_ms)
        except NeverLeftError as fault:
            self._drop(1, str(fault))
        else:
            self._on_record(record)
        del self._under_way[target.side, ask.number]

    async def _unmeasured(self, target: SideTarget, ask: Ask) -> None:
        try:
            await self._send(target, ask, 0.0)
        except NeverLeftError as fault:
            self._drop(1, str(fault))

    async def _send(self, target: SideTarget, ask: Ask, inject_ms: float) -> RequestRecord:
        return await send(
            self._session,
            target,
            ask,
            api=self._job.canary.api,
            block=self._share.block,
            start_s=self._start_s,
            clock=self._clock,
            timeout_s=self._job.canary.request_timeout_s,
            inject_ms=inject_ms,
        )

    def _drop(self, count: int, why: str) -> None:
        self._dropped += count
        self._why_dropped = self._why_dropped or why

    async def _settle(self, tasks: set[asyncio.Task[None]], stop: asyncio.Event) -> None:
        """Wait until all requests have ended, or give up the rest once the share is to stop."""
        halt = asyncio.create_task(stop.wait())
        pending: set[asyncio.Task[Any]] = set(tasks)
        try:
            while pending and not stop.is_set():
                finished, pending = await asyncio.wait({*pending, halt}, return_when=asyncio.FIRST_COMPLETED)
                pending.discard(halt)
                for task in finished - {halt}:
                    task.result()
        finally:
            now_s = self._clock.now()
            self._oldest_s = max((now_s - s for (side, _), s in self._under_way.items() if side == "stable"), default=0)
            for task in (*pending, halt):
                task.cancel()
            await asyncio.gather(*pending, halt, return_exceptions=True)


def order_of(job: BenchJob, block: int) -> list[SideTarget]:
    """Return the sides in the order in which a block asks them."""
    return sorted(job.targets, key=lambda target: target.side, reverse=block % 2 == 0)


async def _stopped_before(stop: asyncio.Event, wait_s: float) -> bool:
    """Wait that long for the event; return whether it came."""
    if wait_s <= 0:
        await asyncio.sleep(0)
        return stop.is_set()
    try:
        async with asyncio.timeout(wait_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True
