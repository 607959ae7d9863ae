"""Many users of a demonstration: requests that leave when their time has come, whatever became of earlier ones."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Self

import aiohttp

from headway.domain.bench import RequestRecord, SideTarget
from headway.pods.bench_prompts import TOPICS, Ask
from headway.pods.bench_stream import Clock, NeverLeftError, make_session, send

TIMEOUT_S = 60.0


class Users:
    """Sends from a thread of its own until the `with` block ends; requests that are under way then are waited for.

    Args:
        base_url: Address up to and without `/v1`, as an OpenAI client would be given it.
        model: Served name.
        release: Who must answer; an answer of another counts as failed.
        max_tokens: Length of every answer.
    """

    def __init__(self, base_url: str, model: str, *, release: str, max_tokens: int) -> None:
        self._target = SideTarget(side="stable", base_url=base_url, served_model=model, release=release)
        self._max_tokens = max_tokens
        self._ends: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._done: Future[None] = Future()
        self._began = threading.Event()
        self.records: list[RequestRecord] = []
        """Requests that have ended, well or not; moments count from the begin of the sending."""
        self.never_left: list[str] = []
        """Why requests that were due were not sent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ends is not None:
            loop, stop = self._ends
            with contextlib.suppress(RuntimeError):  # all was sent and answered, and the loop is closed
                loop.call_soon_threadsafe(stop.set)
            self._done.result()

    def follow(self, arrivals_s: Sequence[float]) -> None:
        """Begin to send one request at each of these moments, which count from now."""
        self._begin(lambda stop: self._open_loop(arrivals_s, stop))

    def saturate(self, together: int) -> None:
        """Begin to keep so many requests under way at all times."""
        self._begin(lambda stop: self._closed_loop(together, stop))

    @property
    def failures(self) -> list[str]:
        """Why requests failed, or never left."""
        return [record.error for record in self.records if record.error] + self.never_left

    def _begin(self, work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        async def whole() -> None:
            stop = asyncio.Event()
            self._ends = asyncio.get_running_loop(), stop
            self._began.set()
            await work(stop)

        def run() -> None:
            try:
                asyncio.run(whole())
            except BaseException as fault:  # noqa: BLE001 - raised where the block ends
                self._done.set_exception(fault)
            else:
                self._done.set_result(None)

        threading.Thread(target=run, name="users", daemon=True).start()
        self._began.wait()

    async def _open_loop(self, arrivals_s: Sequence[float], stop: asyncio.Event) -> None:
        clock = Clock()
        async with make_session() as session, asyncio.TaskGroup() as group:
            for number, at_s in enumerate(arrivals_s):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(at_s - clock.now(), 0.0)):
                        await stop.wait()
                if stop.is_set():
                    return
                group.create_task(self._send(session, clock, number, at_s))

    async def _closed_loop(self, together: int, stop: asyncio.Event) -> None:
        clock = Clock()

        async def one(first: int) -> None:
            number = first
            while not stop.is_set():
                await self._send(session, clock, number, clock.now())
                number += together

        async with make_session() as session, asyncio.TaskGroup() as group:
            for first in range(together):
                group.create_task(one(first))

    async def _send(self, session: aiohttp.ClientSession, clock: Clock, number: int, at_s: float) -> None:
        topic = TOPICS[number % len(TOPICS)]
        # The number comes first, so that no prompt is in the cache.
        ask = Ask(
            number, at_s, f"{number}: write about {topic}.", sampled=False, seed=number, max_tokens=self._max_tokens
        )
        try:
            record = await send(
                session, self._target, ask, api="completions", block=0, start_s=0.0, clock=clock, timeout_s=TIMEOUT_S
            )
        except NeverLeftError as fault:
            self.never_left.append(str(fault))
        else:
            self.records.append(record)
