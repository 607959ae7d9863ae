"""A server that answers like vLLM's, with set latencies and ways of failing: `python -m headway.pods.mock_vllm`.

It stands in for an engine where the way to it, the load on it or the judgement over it is what is tried out: time to
first token and gaps between tokens are drawn from set distributions, whoever asks.
"""

import argparse
import asyncio
import json
import math
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from headway.domain import engine_series
from headway.domain.bench import QUESTIONS
from headway.domain.engine_series import Series

MODES = (
    *("ok", "silent", "hang", "http_500", "http_503", "http_429", "sse_error", "role_only", "reasoning", "empty"),
    *("reset", "cut", "wrong_model", "no_usage", "not_json", "not_sse", "odd_json", "no_logprobs", "nan"),
)
VOCABULARY = 64
"""Token ids below this have a probability."""
PROMPT_TOKENS = 9
"""Of every streamed request."""


def head(token: int, nll: float, width: int) -> dict[int, float]:
    """Return the log-probabilities of the `width` most probable tokens, and of `token`.

    The distribution: `token` has probability `exp(-nll)`, and of what is left each next id half of the one before.
    """
    others = [(token + step) % VOCABULARY for step in range(1, VOCABULARY)]
    left, whole = 1 - math.exp(-nll), 1 - 0.5 ** len(others)
    logs = {token: -nll, **{id_: math.log(left / whole * 0.5 ** (k + 1)) for k, id_ in enumerate(others)}}
    first = sorted(logs, key=lambda id_: -logs[id_])[:width]
    return {id_: logs[id_] for id_ in dict.fromkeys([token, *first])}


def right_answer(question: str) -> str:
    """Return a sentence with the fact that is asked for, if it is one of headway's fixed questions."""
    facts = next((asked.facts for asked in QUESTIONS if asked.prompt == question), ("word",))
    return f"It is {facts[0]}."


def _told(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class Behaviour:
    """How the server answers; may be changed while it runs."""

    model: str = _told("m", "name that it serves")
    release: str = _told("r1", "its answers' x-headway-release")
    ttft_ms: float = _told(20.0, "mean time to first token")
    itl_ms: float = _told(2.0, "mean gap between tokens")
    sigma: float = _told(0.0, "spread of each latency: the logarithm's standard deviation")
    stall_pct: float = _told(0.0, "share of the requests that are held up once, before a token that is drawn")
    stall_ms: float = _told(0.0, "how long these are held up")
    mode: str = _told("ok", "how it answers; all but ok, role_only, reasoning and no_usage are failures")
    mode_after: int = _told(0, "how many streams are answered well before the mode begins")
    nll_per_token: float = _told(2.0, "negative log-likelihood of every token of a prompt")
    answer: str = _told("", "to every question; empty: the right one to each of headway's fixed questions")
    finish_reason: str = _told("stop", "of the answers to questions")
    prompt_tokens: int = _told(20, "of a question, as its tokenizer counts")
    waiting: int = _told(0, "requests that wait, in /metrics")
    kv_cache_usage: float = _told(0.1, "share of the KV cache in use, in /metrics")
    preemptions: int = _told(0, "preemptions so far, in /metrics")


class MockVllm:
    """The server; as a context manager in a thread of its own.

    Attributes:
        behaviour: How it answers.
        seen: Counts of requests by path.
        bodies: The streamed requests, in order, if they are kept.

    Args:
        port: Where it listens; 0: any that is free.
        seed: Of the latencies.
        port_file: Written with the port once it answers.
        keep_bodies: Whether `bodies` are kept.
        behaviour: Fields of `Behaviour`.
    """

    def __init__(
        self, *, port: int = 0, seed: int = 0, port_file: Path | None = None, keep_bodies: bool = True, **behaviour: Any
    ) -> None:
        self.behaviour = Behaviour(**behaviour)
        self.seen: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.port = port
        self._port_file = port_file
        self._keep_bodies = keep_bodies
        self._random = random.Random(seed)  # noqa: S311 - reproducible latencies
        self._streams = self._running = self._tokens = 0
        self._seconds, self._counts = defaultdict[Series, float](float), Counter[Series]()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True)

    @property
    def url(self) -> str:
        """Base address without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the mock server did not start in 10 s")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def serve(self) -> None:
        """Serve until told to stop."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=4096)
        await site.start()
        self.port = runner.addresses[0][1]
        if self._port_file:
            fresh = self._port_file.with_suffix(".new")
            fresh.write_text(str(self.port))
            fresh.replace(self._port_file)
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.behaviour.model, "object": "model"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        """Answer with every series that headway knows of an engine, under vLLM's newest names."""
        values = {
            engine_series.RUNNING: self._running,
            engine_series.WAITING: self.behaviour.waiting,
            engine_series.KV_CACHE: self.behaviour.kv_cache_usage,
            engine_series.PREEMPTIONS: self.behaviour.preemptions,
            engine_series.PROMPT_TOKENS: self._streams * PROMPT_TOKENS,
            engine_series.GENERATION_TOKENS: self._tokens,
            engine_series.REQUESTS: self._counts[engine_series.E2E],
        }
        label = f'{{engine="0",model_name={json.dumps(self.behaviour.model)}}}'
        lines = []
        for series in engine_series.TABLE:
            name = f"vllm:{series.stems[0]}"
            lines.append(f"# TYPE {name} {series.kind}")
            if series.kind == "histogram":
                lines.append(f"{name}_sum{label} {self._seconds[series]}")
                lines.append(f"{name}_count{label} {self._counts[series]}")
            else:
                ending = "_total" if series.kind == "counter" else ""
                lines.append(f"{name}{ending}{label} {values.get(series, 0)}")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    def _took(self, tokens: int, *, first_s: float, rest_s: float) -> None:
        """Count the times of one stream."""
        took = {
            engine_series.QUEUE: (0.0, 1),
            engine_series.TTFT: (first_s, 1),
            engine_series.ITL: (rest_s, tokens - 1),
            engine_series.TPOT: (rest_s / max(tokens - 1, 1), min(tokens - 1, 1)),
            engine_series.E2E: (first_s + rest_s, 1),
        }
        for series, (seconds, count) in took.items():
            self._seconds[series] += seconds
            self._counts[series] += count

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if body.get("stream"):
            return await self._streamed(request, body, chat=False)
        return self._whole(body)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if body.get("stream"):
            return await self._streamed(request, body, chat=True)
        b = self.behaviour
        mode = "ok" if b.mode_after else b.mode
        if mode.startswith("http_"):
            return self._refusal(int(mode[5:]))
        question = str(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": "" if mode == "empty" else b.answer or right_answer(question)}
        choices = [{"message": message, "finish_reason": b.finish_reason}]
        usage = {"prompt_tokens": b.prompt_tokens, "completion_tokens": 5}
        return self._json({"model": b.model, "choices": choices, "usage": usage})

    async def _body(self, request: web.Request) -> dict[str, Any]:
        self.seen[request.path] += 1
        body = await request.json()
        if not isinstance(body, dict):
            raise web.HTTPBadRequest(text="expected a JSON object")
        return body

    async def _streamed(self, request: web.Request, body: dict[str, Any], *, chat: bool) -> web.StreamResponse:
        arrived_s = time.monotonic()
        if self._keep_bodies:
            self.bodies.append(body)
        self._streams += 1
        mode = self.behaviour.mode if self._streams > self.behaviour.mode_after else "ok"
        if mode.startswith("http_"):
            return self._refusal(int(mode[5:]))
        if mode == "hang":
            await asyncio.sleep(3600)
        if mode == "not_sse":
            return self._json({"model": self.behaviour.model, "choices": [{"text": "word", "finish_reason": "length"}]})
        self._running += 1
        try:
            return await self._stream(request, body, mode, chat=chat, arrived_s=arrived_s)
        finally:
            self._running -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any], mode: str, *, chat: bool, arrived_s: float
    ) -> web.StreamResponse:
        b = self.behaviour
        tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        due_s = arrived_s + self._draw_s(b.ttft_ms)
        stalled = self._random.randrange(tokens) if self._random.random() * 100 < b.stall_pct else -1
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-headway-release": b.release})
        await response.prepare(request)
        if mode == "silent":
            await asyncio.sleep(3600)
        first_s = arrived_s
        events = _Events("another" if mode == "wrong_model" else b.model, chat=chat)
        if chat or mode == "role_only":
            await response.write(events.role)
        word = "" if mode == "empty" else "word "
        reasoning = mode == "reasoning"
        event, last = events.text(word, reasoning=reasoning), events.text(word, reasoning=reasoning, last=True)
        for number in range(tokens):
            if number:
                due_s += self._draw_s(b.itl_ms)
            if number == stalled:
                due_s += b.stall_ms / 1e3
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if number == 1 and await _break_off(request, response, mode):
                return response
            await response.write(event if number < tokens - 1 else last)
            self._tokens += 1
            if not number:
                first_s = time.monotonic()
        self._took(tokens, first_s=first_s - arrived_s, rest_s=time.monotonic() - first_s)
        if mode != "no_usage" and (body.get("stream_options") or {}).get("include_usage"):
            await response.write(events.usage(PROMPT_TOKENS, tokens))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _whole(self, body: dict[str, Any]) -> web.Response:
        b = self.behaviour
        text = b.answer or right_answer(str(body["prompt"]))
        choice: dict[str, Any] = {"text": text, "finish_reason": b.finish_reason}
        width = body.get("prompt_logprobs")
        if width is not None and b.mode == "nan":
            error = {"message": "Out of range float values are not JSON compliant", "type": "BadRequestError"}
            return web.json_response({"error": error}, status=400)
        if width is not None and b.mode != "no_logprobs":
            scored = [head(token, b.nll_per_token, width) for token in body["prompt"][1:]]
            choice["prompt_logprobs"] = [None, *(_ranked(found) for found in scored)]
        return self._json({"model": b.model, "choices": [choice]})

    def _json(self, body: dict[str, Any]) -> web.Response:
        return web.json_response(body, headers={"x-headway-release": self.behaviour.release})

    def _refusal(self, status: int) -> web.Response:
        return web.json_response({"error": {"message": f"refused with {status}"}}, status=status)

    def _draw_s(self, mean_ms: float) -> float:
        sigma = self.behaviour.sigma
        return mean_ms / 1e3 * (self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0)


class _Events:
    """The events of one stream; those that are sent for every token are written once."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model, self._chat = model, chat
        self._id = "chatcmpl-0" if chat else "cmpl-0"

    @property
    def role(self) -> bytes:
        """The first chunk of a chat, which holds no text."""
        return self._event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def text(self, word: str, *, reasoning: bool, last: bool = False) -> bytes:
        """Return a chunk of text; the last one says why the stream ends."""
        said: dict[str, Any] = {"delta": {"content": word}} if self._chat else {"text": word}
        if reasoning:
            said = {"delta": {"reasoning_content": word}}
        return self._event(
            choices=[{"index": 0, **said, "logprobs": None, "finish_reason": "length" if last else None}]
        )

    def usage(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """Return the chunk of usage."""
        total = prompt_tokens + completion_tokens
        counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
        return self._event(choices=[], usage=counts)

    def _event(self, **content: Any) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        event = {"id": self._id, "object": kind, "created": 0, "model": self._model, **content}
        return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _ranked(found: dict[int, float]) -> dict[str, dict[str, float]]:
    return {
        str(id_): {"logprob": value, "rank": 1 + sum(other > value for other in found.values())}
        for id_, value in found.items()
    }


async def _break_off(request: web.Request, response: web.StreamResponse, mode: str) -> bool:
    """Fail after the first text, as the mode says; return whether the stream is over."""
    if mode == "sse_error":
        error = {"message": "EngineDeadError", "type": "internal", "code": 500}
        await response.write(f"data: {json.dumps({'error': error})}\n\n".encode())
    elif mode == "not_json":
        await response.write(b"data: {oops\n\n")
    elif mode == "odd_json":
        await response.write(b'data: ["word"]\n\n')
    elif mode == "reset" and request.transport is not None:
        request.transport.abort()
    return mode in ("sse_error", "not_json", "odd_json", "reset", "cut")


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="where it listens on 127.0.0.1; 0: any that is free")
    parser.add_argument("--port-file", type=Path, help="written with the port once the server answers")
    parser.add_argument("--seed", type=int, default=0, help="of the latencies")
    for one in fields(Behaviour):
        choices = MODES if one.name == "mode" else None
        name = f"--{one.name.replace('_', '-')}"
        kind = type(one.default)
        parser.add_argument(name, type=kind, default=one.default, choices=choices, help=one.metadata["help"])
    given = vars(parser.parse_args())
    server = MockVllm(port_file=given.pop("port_file"), keep_bodies=False, **given)
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
