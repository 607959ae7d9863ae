"""Worker processes that share a block: `python -m headway.pods.bench_workers`, one JSON line a message on its pipes.

    to a worker     {"job": ..., "origin_s": ...}  once, then for each block {"share": ...}, {"go": <start_s>},
                    and {"stop": <block>} to end it early
    from a worker   {"ready": <block>}, a {"record": ...} for each request as it ends, {"end": ...}

All run by the machine's one monotonic clock. A worker whose pipe ends, ends.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any, Self

from headway.domain.bench import BenchJob, RequestRecord
from headway.pods.bench_drive import OnRecord, Share, ShareEnd, allow_many_connections, drive, without_pauses
from headway.pods.bench_stream import Clock, make_session

LINE_BYTES = 2**28
"""A share holds all of its prompts in one line."""
LEAD_S = 0.05
"""From the word to go to the start of a block, so that it reaches all workers before."""
START_WAIT_S = 60.0
STOP_WAIT_S = 5.0
END_WAIT_S = 30.0
"""Beyond the last arrival and the time that a request may take."""


class Workers:
    """Worker processes of one job, started when a block first needs them.

    Args:
        job: What they drive.
        clock: The run's clock; theirs tells the same time.
    """

    def __init__(self, job: BenchJob, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self._all: list[_Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(worker.end() for worker in self._all))

    async def drive(
        self, shares: Sequence[Share], *, on_record: OnRecord, stop: asyncio.Event
    ) -> tuple[float, list[ShareEnd]]:
        """Drive a block; return its start and how each share went.

        Args:
            shares: One for each worker.
            on_record: Called as requests end; it may set `stop`.
            stop: Ends the block early.
        """
        self._all = [worker for worker in self._all if worker.alive]
        missing = len(shares) - len(self._all)
        self._all += await asyncio.gather(*(_Worker.start(self._job, self._clock) for _ in range(missing)))
        crew = list(zip(self._all, shares, strict=False))
        await asyncio.gather(*(worker.prepare(share) for worker, share in crew))
        start_s = self._clock.now() + LEAD_S
        halt = asyncio.create_task(self._pass_on(stop, shares[0].block))
        try:
            ends = await asyncio.gather(
                *(worker.drive(share, start_s, on_record, self._clock) for worker, share in crew)
            )
        finally:
            halt.cancel()
            await asyncio.gather(halt, return_exceptions=True)
        return start_s, list(ends)

    async def _pass_on(self, stop: asyncio.Event, block: int) -> None:
        await stop.wait()
        for worker in self._all:
            worker.tell({"stop": block})


class _Worker:
    """One process, as seen from the parent."""

    def __init__(self, process: Process, job: BenchJob) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a worker was started without pipes")
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._timeout_s, self._sides = job.canary.request_timeout_s, len(job.targets)
        self._ready = False

    @classmethod
    async def start(cls, job: BenchJob, clock: Clock) -> Self:
        """Start a process of the same interpreter."""
        path = os.pathsep.join(part for part in sys.path if part)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headway.pods.bench_workers"),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES,
            env={**os.environ, "PYTHONPATH": path},
        )
        worker = cls(process, job)
        worker.tell({"job": job.to_json(), "origin_s": clock.origin_s})
        return worker

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.returncode is None

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message; one that has ended misses it."""
        if self.alive and not self._in.is_closing():
            self._in.write(json.dumps(message).encode() + b"\n")

    async def prepare(self, share: Share) -> None:
        """Give it its share; returns when it has read it, or has ended."""
        self.tell({"share": share.to_json()})
        try:
            async with asyncio.timeout(START_WAIT_S):
                self._ready = "ready" in await self._hear()
        except TimeoutError:
            await self.end()

    async def drive(self, share: Share, start_s: float, on_record: OnRecord, clock: Clock) -> ShareEnd:
        """Let it go, and pass on its records; a process that is lost has dropped what it did not report."""
        self.tell({"go": start_s})
        last_s = share.asks[-1].at_s if share.asks else 0.0
        deadline_s = start_s - clock.now() + last_s + self._timeout_s + END_WAIT_S
        heard = 0
        try:
            async with asyncio.timeout(deadline_s):
                while self._ready:
                    message = await self._hear()
                    if "record" in message:
                        heard += 1
                        on_record(RequestRecord.model_validate(message["record"]))
                    elif "end" in message:
                        return ShareEnd.model_validate(message["end"])
                    elif not message:
                        break
        except TimeoutError:
            pass
        await self.end()
        lost = len(share.asks) * self._sides - heard
        return ShareEnd(dropped=max(lost, 1), why_dropped=f"a generator process ended ({self._process.returncode})")

    async def end(self) -> None:
        """End the process: one that hears no more of its parent ends by itself."""
        self._in.close()
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _hear(self) -> dict[str, Any]:
        """Return the next message, an empty one when there will be none."""
        line = await self._out.readline()
        if not line.endswith(b"\n"):
            return {}
        message: dict[str, Any] = json.loads(line)
        return message


class _Pipes:
    """A worker's own ends of its pipes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls) -> Self:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        writer, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout)
        return cls(reader, writer)

    async def hear(self) -> dict[str, Any] | None:
        """Return the next message; none when the parent is gone."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def tell(self, text: str) -> None:
        """Send a message. Never waits: what the pipe does not hold is kept here."""
        self._writer.write(text.encode() + b"\n")


async def work() -> None:
    """Be a worker until the parent is gone."""
    pipes = await _Pipes.open()
    first = await pipes.hear()
    if first is None:
        return
    allow_many_connections()
    job, clock = BenchJob.model_validate(first["job"]), Clock(origin_s=first["origin_s"])
    async with make_session() as session:
        while (message := await pipes.hear()) is not None:
            if "share" not in message:
                continue
            share = Share.model_validate(message["share"])
            with without_pauses():
                pipes.tell(json.dumps({"ready": share.block}))
                # A word to stop may still come for the block before.
                while (go := await pipes.hear()) is not None and "go" not in go:
                    pass
                if go is None:
                    return
                stop = asyncio.Event()
                listener = asyncio.create_task(_listen(pipes, share.block, stop))
                end = await drive(
                    session,
                    job,
                    clock,
                    share,
                    start_s=go["go"],
                    on_record=lambda record: pipes.tell(f'{{"record":{record.model_dump_json()}}}'),
                    stop=stop,
                )
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)
            pipes.tell(f'{{"end":{end.model_dump_json()}}}')


async def _listen(pipes: _Pipes, block: int, stop: asyncio.Event) -> None:
    """Set `stop` when the parent says so for this block, or is gone."""
    while (message := await pipes.hear()) is not None:
        if message.get("stop") == block:
            break
    stop.set()


if __name__ == "__main__":
    asyncio.run(work())
