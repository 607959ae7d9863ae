"""One block of paired load: the same prompts at the same scheduled arrivals on both sides, open loop.

A request is sent when its time has come, whether or not earlier ones have ended, and its latency counts from the
scheduled arrival: a server that stalls cannot slow the load down and so hide its stall.
"""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from headway.domain.bench import BenchJob, BlockSummary, RequestRecord, Side, SideTarget
from headway.judge.quantiles import quantile
from headway.judge.verdict import hard_failure

CONNECT_TIMEOUT_S = 10.0
READ_BUFFER_BYTES = 2**20
"""A line of a stream may be this long; aiohttp's default refuses long ones."""
SAMPLED_EVERY = 4
"""One request in so many is sampled: greedy decoding alone would never run the engine's sampler."""
TOPICS = (
    "a lighthouse keeper",
    "the water cycle",
    "how bread rises",
    "a city at night",
    "the history of paper",
    "why ships float",
    "a letter to a friend",
    "the first railway",
    "mountains in winter",
    "how to repair a bicycle",
)


class Ask(NamedTuple):
    """One request that both sides get."""

    number: int
    """Position in the block."""
    at_s: float
    """Scheduled arrival, from the start of the block."""
    prompt: str
    sampled: bool
    seed: int


class Clock:
    """Seconds since the start of the run, monotonic, going on where an earlier try of the run ended."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._origin = time.perf_counter() - start_s

    def now(self) -> float:
        """Return the run's time."""
        return time.perf_counter() - self._origin


def make_prompt(rng: random.Random) -> str:
    """Return a prompt that no server has seen: it starts with a nonce, so that no cached prefix flatters a side."""
    nonce = f"{rng.getrandbits(64):016x}"
    topics = rng.sample(TOPICS, rng.randint(1, 4))
    return f"{nonce} Write a short text about {', then about '.join(topics)}. Begin at once and use plain words."


def schedule(job: BenchJob, block: int, *, phase: str = "block") -> list[Ask]:
    """Return a block's requests: Poisson arrivals and prompts that follow from seed and block number."""
    rng = random.Random(f"{job.seed}/{phase}/{block}")  # noqa: S311 - reproducible load, not a secret
    at = 0.0
    asks = []
    count = job.canary.requests_per_block if phase == "block" else job.canary.warmup_requests
    for index in range(count):
        at += rng.expovariate(job.canary.rate_per_s)
        asks.append(Ask(index, at, make_prompt(rng), index % SAMPLED_EVERY == 1, rng.getrandbits(31)))
    return asks


def body_of(ask: Ask, model: str, max_tokens: int) -> dict[str, Any]:
    """Return the completion request; `ignore_eos` makes all answers equally long, so that sides are comparable."""
    return {
        "model": model,
        "prompt": ask.prompt,
        "max_tokens": max_tokens,
        "temperature": 0.8 if ask.sampled else 0.0,
        "seed": ask.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def make_session() -> aiohttp.ClientSession:
    """Return the load's client: connections without limit, none kept as long as servers keep them (vLLM: 5 s)."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=READ_BUFFER_BYTES)


class StreamError(Exception):
    """The stream did not end as a good answer does."""


class _Answer:
    """What a stream has said so far."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.first_token_s: float | None = None
        self.model: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finished = False
        self.done = False

    def take(self, line: bytes) -> None:
        """Take in one line of the stream.

        Raises:
            StreamError: If it is an error, or no JSON.
        """
        line = line.strip()
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise StreamError(f"the stream holds a line that is no JSON: {data[:80]!r}") from None
        if "error" in event or event.get("object") == "error":
            raise StreamError(f"error after HTTP 200: {_error_text(event)}")
        self.model = event.get("model") or self.model
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice
            text = delta.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
            if text and self.first_token_s is None:
                self.first_token_s = self.clock.now()
            self.finished = self.finished or choice.get("finish_reason") is not None
        usage = event.get("usage")
        if usage:
            self.prompt_tokens, self.output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")

    def close(self, expected_model: str) -> None:
        """Check the whole answer.

        Raises:
            StreamError: If it is not a good one.
        """
        if not self.done or not self.finished:
            raise StreamError("the stream was cut: it ended without a finish reason or without [DONE]")
        if self.first_token_s is None:
            raise StreamError("empty completion: the stream ended well and held no text")
        if self.model is not None and self.model != expected_model:
            raise StreamError(f"answered as model {self.model!r}, asked for {expected_model!r}")


async def send(
    session: aiohttp.ClientSession,
    target: SideTarget,
    ask: Ask,
    *,
    block: int,
    start_s: float,
    clock: Clock,
    max_tokens: int,
    timeout_s: float,
) -> RequestRecord:
    """Send one request now, read its stream to the end, and say how it went; never raises for a bad answer."""
    sent_s = clock.now()
    answer = _Answer(clock)
    status: int | None = None
    release: str | None = None
    error: str | None = None
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            async with session.post(
                f"{target.base_url}/v1/completions",
                json=body_of(ask, target.served_model, max_tokens),
                headers=target.headers,
            ) as response:
                status = response.status
                release = response.headers.get("x-headway-release")
                await _consume(response, answer, target)
    except StreamError as fault:
        error = str(fault)
    except aiohttp.ServerTimeoutError as problem:
        error = f"no connection: {problem}"
    except TimeoutError:
        timed_out = True
        state = "no answer" if status is None else "no text" if answer.first_token_s is None else "no end of the stream"
        error = f"{state} within {timeout_s:g} s"
    except (aiohttp.ClientError, ValueError, OSError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    return RequestRecord(
        block=block,
        side=target.side,
        index=ask.number,
        prompt_sha256=hashlib.sha256(ask.prompt.encode()).hexdigest(),
        scheduled_s=start_s + ask.at_s,
        sent_s=sent_s,
        release=target.release,
        sampled=ask.sampled,
        first_token_s=answer.first_token_s,
        ended_s=clock.now(),
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        status=status,
        served_model=answer.model,
        served_release=release,
        error=error,
        timed_out=timed_out,
    )


async def _consume(response: aiohttp.ClientResponse, answer: _Answer, target: SideTarget) -> None:
    """Read a stream to its end. Raises StreamError if it is not a good answer of the target."""
    if response.status != 200:
        text = (await response.content.read(300)).decode(errors="replace")
        raise StreamError(f"HTTP {response.status}: {' '.join(text.split())}")
    async for line in response.content:
        answer.take(line)
    answer.close(target.served_model)
    release = response.headers.get("x-headway-release", target.release)
    if release != target.release:
        raise StreamError(f"answered by release {release!r}, asked for {target.release!r}")


async def run_block(
    session: aiohttp.ClientSession,
    job: BenchJob,
    block: int,
    clock: Clock,
    *,
    asks: Sequence[Ask],
    stop_early: bool = True,
) -> tuple[list[RequestRecord], BlockSummary]:
    """Drive one block on all sides and return its records and summary.

    A side that fails hard ends the block: requests that had not ended by then are given up and leave no record.
    """
    order = sorted(job.targets, key=lambda t: t.side, reverse=block % 2 == 0)
    done: dict[Side, list[RequestRecord]] = {t.side: [] for t in order}
    stopped = asyncio.Event()
    reason = ""
    lags_ms: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    start_s, cpu_s = clock.now(), time.process_time()
    under_way: dict[tuple[Side, int], float] = {}

    async def one(target: SideTarget, ask: Ask) -> None:
        nonlocal reason
        under_way[target.side, ask.number] = clock.now()
        record = await send(
            session,
            target,
            ask,
            block=block,
            start_s=start_s,
            clock=clock,
            max_tokens=job.canary.max_tokens,
            timeout_s=job.canary.request_timeout_s,
        )
        del under_way[target.side, ask.number]
        lags_ms.append((record.sent_s - record.scheduled_s) * 1e3)
        done[target.side].append(record)
        failed = hard_failure(done[target.side], len(asks), partial=True) if stop_early else ""
        if failed and not stopped.is_set():
            reason = f"{target.side}: {failed}"
            stopped.set()

    for ask in asks:
        if await _stopped_before(stopped, start_s + ask.at_s - clock.now()):
            break
        # Both sides leave in one turn of the loop; who is first alternates by block.
        tasks.update(asyncio.create_task(one(target, ask)) for target in order)
    await _settle(tasks, stopped)
    lag_p99 = quantile(lags_ms, 99) or 0.0
    wall_s = max(clock.now() - start_s, 1e-9)
    void = lag_p99 > job.canary.max_lag_ms
    if void:
        reason = f"requests left up to {lag_p99:.0f} ms late, above {job.canary.max_lag_ms:g} ms; {reason}".rstrip("; ")
    summary = BlockSummary(
        block=block,
        planned=len(asks),
        sent_first=order[0].side,
        started_s=start_s,
        ended_s=start_s + wall_s,
        lag_p99_ms=round(lag_p99, 3),
        cpu_pct=round((time.process_time() - cpu_s) / wall_s * 100, 1),
        void=void,
        stopped=stopped.is_set(),
        stable_oldest_s=round(
            max((clock.now() - s for (side, _), s in under_way.items() if side == "stable"), default=0.0), 3
        ),
        reason=reason,
    )
    records = [r for side in sorted(done) for r in sorted(done[side], key=lambda r: r.index)]
    return records, summary


async def _stopped_before(stopped: asyncio.Event, wait_s: float) -> bool:
    """Wait that long for the event; return whether it came."""
    if wait_s <= 0:
        await asyncio.sleep(0)
        return stopped.is_set()
    try:
        async with asyncio.timeout(wait_s):
            await stopped.wait()
    except TimeoutError:
        return False
    return True


async def _settle(tasks: set[asyncio.Task[None]], stopped: asyncio.Event) -> None:
    """Wait until all requests have ended, or give up the rest once a side has failed hard."""
    halt = asyncio.create_task(stopped.wait())
    pending: set[asyncio.Task[Any]] = set(tasks)
    try:
        while pending and not stopped.is_set():
            finished, pending = await asyncio.wait({*pending, halt}, return_when=asyncio.FIRST_COMPLETED)
            pending.discard(halt)
            for task in finished - {halt}:
                task.result()
    finally:
        for task in (*pending, halt):
            task.cancel()
        await asyncio.gather(*pending, halt, return_exceptions=True)


def _error_text(event: Mapping[str, Any]) -> str:
    error = event.get("error", event)
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:200]
