"""One request to one side: sent when it is due, its stream read to the end, and one record of how it went."""

import asyncio
import errno
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from headway.domain.bench import RequestRecord, SideTarget
from headway.pods.bench_prompts import Ask

CONNECT_TIMEOUT_S = 10.0
READ_BUFFER_BYTES = 2**20
MAX_LINE_BYTES = 2**22
"""Of a stream; longer ones are no tokens."""
MAX_TEXT = 200
"""Characters of what a server says that are kept in a record."""
MAX_COUNT = 10_000_000
"""Tokens that a server may claim; more is nonsense."""
GOOD_ENDS = frozenset({"stop", "length", "tool_calls"})
"""Finish reasons of a whole answer; `abort`, `error` and what else there is are failures."""
ITL_DIGITS = 3
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""The machine of the generator ran out of something: the request never left, and no side is to blame."""


class Clock:
    """Seconds since the start of the run, monotonic.

    Linux has one monotonic clock for the whole machine, so processes that share an origin share the time.

    Args:
        start_s: The run's time now; a restarted run goes on where it ended.
        origin_s: Instead of it: the origin of another process's clock.
    """

    def __init__(self, start_s: float = 0.0, *, origin_s: float | None = None) -> None:
        self.origin_s = time.monotonic() - start_s if origin_s is None else origin_s

    def now(self) -> float:
        """Return the run's time."""
        return time.monotonic() - self.origin_s

    async def wait_until(self, at_s: float) -> None:
        """Return at that time of the run, at once if it is past."""
        wait_s = at_s - self.now()
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class NeverLeftError(Exception):
    """The generator could not send a request that was due."""


class StreamError(Exception):
    """The stream did not end as a good answer does."""


def make_session() -> aiohttp.ClientSession:
    """Return the load's client: connections without limit, none kept as long as servers keep them (vLLM: 5 s)."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=READ_BUFFER_BYTES)


def body_of(ask: Ask, model: str, api: str) -> dict[str, Any]:
    """Return the request; `ignore_eos` makes all answers equally long, so that sides are comparable."""
    said = {"messages": [{"role": "user", "content": ask.prompt}]} if api == "chat" else {"prompt": ask.prompt}
    return {
        "model": model,
        **said,
        "max_tokens": ask.max_tokens,
        "temperature": 0.8 if ask.sampled else 0.0,
        "seed": ask.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


class Answer:
    """What a stream has said so far; all moments are of the run's clock."""

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.itl_ms: list[float] = []
        self.model: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finished = False
        self.done = False
        self._event = b""
        self._rest = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take in what has come of the stream at this moment.

        Raises:
            StreamError: An event in it is an error, or no event as the OpenAI API has them.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise StreamError(f"the stream holds a line of more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.startswith(b"event:"):
                self._event = line[6:].strip()
            elif line.startswith(b"data:"):
                self._take(line[5:].strip(), now_s)
            elif not line.strip():
                self._event = b""

    def close(self, expected_model: str, max_tokens: int, now_s: float) -> None:
        """Check the whole answer.

        Args:
            expected_model: Who was asked.
            max_tokens: How many tokens were asked for. All answers are equally long, so one that is not did other work
                than the one it is compared with.
            now_s: When the stream ended.

        Raises:
            StreamError: If it is not a good one.
        """
        self.feed(b"\n", now_s)
        if not self.done or not self.finished:
            raise StreamError("the stream was cut: it ended without a finish reason or without [DONE]")
        if self.first_token_s is None:
            raise StreamError("empty completion: the stream ended well and held no text")
        if self.model is not None and self.model != expected_model:
            raise StreamError(f"answered as model {self.model!r}, asked for {expected_model!r}")
        if self.output_tokens is not None and self.output_tokens != max_tokens:
            raise StreamError(
                f"answered with {self.output_tokens} tokens, asked for exactly {max_tokens} (`ignore_eos`)"
            )

    def _take(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise StreamError(f"the stream holds a line that is no JSON: {data[:80]!r}") from None
        if not isinstance(event, dict):
            raise StreamError(f"the stream holds an event that is no object: {data[:80]!r}")
        if event.get("error") or event.get("object") == "error" or self._event == b"error":
            raise StreamError(f"error after HTTP 200: {_error_text(event)}")
        model = event.get("model")
        if isinstance(model, str):
            self.model = _plain(model)
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise StreamError(f"the stream holds an event without choices: {data[:80]!r}")
        for choice in choices:
            self._choice(choice, now_s)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens, self.output_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")

    def _choice(self, choice: Any, now_s: float) -> None:
        if not isinstance(choice, dict):
            raise StreamError(f"the stream holds a choice that is no object: {str(choice)[:80]!r}")
        delta = choice.get("delta")
        said = delta if isinstance(delta, dict) else choice
        # Reasoning is text: the engine made those tokens, and a person may be reading them.
        if said.get("text") or said.get("content") or said.get("reasoning_content") or said.get("reasoning"):
            if self.last_token_s is None:
                self.first_token_s = now_s
            else:
                self.itl_ms.append(round((now_s - self.last_token_s) * 1e3, ITL_DIGITS))
            self.last_token_s = now_s
        reason = choice.get("finish_reason")
        if reason is not None and not (isinstance(reason, str) and reason in GOOD_ENDS):
            raise StreamError(f"the stream ended with finish reason {_plain(str(reason))!r}")
        self.finished = self.finished or reason is not None


async def send(
    session: aiohttp.ClientSession,
    target: SideTarget,
    ask: Ask,
    *,
    api: str,
    block: int,
    start_s: float,
    clock: Clock,
    timeout_s: float,
    inject_ms: float = 0.0,
) -> RequestRecord:
    """Send one request when it is due, read its stream to the end, and say how it went; never raises for a bad answer.

    Args:
        session: The client.
        target: Who is asked.
        ask: What, and when.
        api: `completions` or `chat`.
        block: For the record.
        start_s: Of the block; the ask's arrival counts from it.
        clock: The run's clock.
        timeout_s: Of the whole request, from when it is sent.
        inject_ms: Known delay after the scheduled arrival.

    Raises:
        NeverLeftError: This machine could not send it.
    """
    scheduled_s = start_s + ask.at_s
    await clock.wait_until(scheduled_s + inject_ms / 1e3)
    sent_s = clock.now()
    answer = Answer()
    status: int | None = None
    release: str | None = None
    error: str | None = None
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            async with session.post(
                target.base_url + PATHS[api],
                json=body_of(ask, target.served_model, api),
                headers=target.headers,
                allow_redirects=False,
            ) as response:
                status = response.status
                release = _plain(response.headers.get("x-headway-release", "")) or None
                await _consume(response, answer, target, ask, clock)
    except StreamError as fault:
        error = str(fault)
    except aiohttp.ServerTimeoutError as problem:
        error = f"no connection: {problem}"
    except TimeoutError:
        timed_out = True
        state = "no answer" if status is None else "no text" if answer.first_token_s is None else "no end of the stream"
        error = f"{state} within {timeout_s:g} s"
    except (aiohttp.ClientError, ValueError, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno in OWN_FAULTS:
            raise NeverLeftError(f"{type(problem).__name__}: {problem}") from problem
        error = _plain(f"{type(problem).__name__}: {problem}")
    return RequestRecord(
        block=block,
        side=target.side,
        index=ask.number,
        prompt_sha256=hashlib.sha256(ask.prompt.encode()).hexdigest(),
        scheduled_s=scheduled_s,
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
        itl_ms=tuple(answer.itl_ms),
        injected_ms=inject_ms,
        timed_out=timed_out,
    )


async def _consume(
    response: aiohttp.ClientResponse, answer: Answer, target: SideTarget, ask: Ask, clock: Clock
) -> None:
    """Read a stream to its end. Raises StreamError if it is not a good answer of the target."""
    if response.status != 200:
        text = (await response.content.read(300)).decode(errors="replace")
        raise StreamError(_plain(f"HTTP {response.status}: {' '.join(text.split())}"))
    while data := await response.content.readany():
        answer.feed(data, clock.now())
    answer.close(target.served_model, ask.max_tokens, clock.now())
    release = response.headers.get("x-headway-release", target.release)
    if release != target.release:
        raise StreamError(f"answered by release {release!r}, asked for {target.release!r}")


def _plain(text: str) -> str:
    """Return what a server wrote as text that fits into a record: halves of surrogate pairs do not."""
    return text[:MAX_TEXT].encode(errors="replace").decode()


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def _error_text(event: Mapping[str, Any]) -> str:
    error = event.get("error") or event
    text = error.get("message", error) if isinstance(error, dict) else error
    return _plain(str(text))
