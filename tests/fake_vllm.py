"""A server that answers like vLLM's, with set latencies, and ways of failing.

As a program: `python -m tests.fake_vllm --port 8000 --ttft-ms 40 --itl-ms 4`. In a test: `with FakeVllm() as server`.
"""

import argparse
import asyncio
import json
import math
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from headway.domain.bench import QUESTIONS

MODES = (
    *("ok", "silent", "hang", "http_500", "http_503", "http_429", "sse_error", "role_only", "reasoning", "empty"),
    *("reset", "cut", "wrong_model", "no_usage", "not_json", "no_logprobs", "nan"),
)


VOCABULARY = 64
"""Token ids below this have a probability."""


def head(token: int, nll: float, width: int) -> dict[int, float]:
    """Return the log-probabilities of the `width` most probable tokens, and of `token`.

    The distribution: `token` has probability `exp(-nll)`, and of what is left each next id half of the one before.
    """
    others = [(token + step) % VOCABULARY for step in range(1, VOCABULARY)]
    left, whole = 1 - math.exp(-nll), 1 - 0.5 ** len(others)
    logs = {token: -nll, **{id_: math.log(left / whole * 0.5 ** (k + 1)) for k, id_ in enumerate(others)}}
    first = sorted(logs, key=lambda id_: -logs[id_])[:width]
    return {id_: logs[id_] for id_ in dict.fromkeys([token, *first])}


@dataclass
class Behaviour:
    """How the server answers; may be changed while it runs."""

    model: str = "m"
    release: str = "r1"
    ttft_ms: float = 20.0
    itl_ms: float = 2.0
    sigma: float = 0.0
    """Spread of each latency: the logarithm's standard deviation."""
    mode: str = "ok"
    mode_after: int = 0
    """How many streams are answered well before `mode` begins."""
    nll_per_token: float = 2.0
    answer: str = ""
    """To every question; empty: the right one to each of headway's fixed questions."""
    finish_reason: str = "stop"
    prompt_tokens: int = 20
    """Of a question, as its tokenizer counts."""


class FakeVllm:
    """The server, in a thread of its own.

    Attributes:
        behaviour: How it answers.
        seen: Counts of requests by path.
        bodies: The completion requests, in order.
    """

    def __init__(self, *, port: int = 0, seed: int = 0, port_file: Path | None = None, **behaviour: Any) -> None:
        self.behaviour = Behaviour(**behaviour)
        self.seen: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.port = port
        self._port_file = port_file
        self._random = random.Random(seed)  # noqa: S311 - reproducible latencies
        self._streams = 0
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
        assert self._ready.wait(10), "the fake server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def serve(self) -> None:
        """Serve until told to stop."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/stats", self._stats)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        if self._port_file:
            fresh = self._port_file.with_suffix(".new")
            fresh.write_text(str(self.port))
            fresh.replace(self._port_file)
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.behaviour.model, "object": "model"}]})

    async def _stats(self, request: web.Request) -> web.Response:
        """Answer as Envoy's admin does for the one cluster `stable`."""
        self.seen["/stats"] += 1
        rows = [
            {"name": "cluster.stable.upstream_rq_total", "value": self.total},
            {"name": "cluster.stable.upstream_rq_active", "value": self.active},
        ]
        return web.json_response({"stats": rows})

    total = 0
    active = 0

    async def _chat(self, request: web.Request) -> web.Response:
        self.seen["/v1/chat/completions"] += 1
        b = self.behaviour
        mode = "ok" if b.mode_after else b.mode
        if mode.startswith("http_"):
            return self._refusal(int(mode[5:]))
        question = str((await request.json())["messages"][-1]["content"])
        message = {"role": "assistant", "content": "" if mode == "empty" else b.answer or right_answer(question)}
        choices = [{"message": message, "finish_reason": b.finish_reason}]
        usage = {"prompt_tokens": b.prompt_tokens, "completion_tokens": 5}
        return self._json({"model": b.model, "choices": choices, "usage": usage})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        self.seen["/v1/completions"] += 1
        body = await request.json()
        if not body.get("stream"):
            return self._whole(body)
        self.bodies.append(body)
        self._streams += 1
        mode = self.behaviour.mode if self._streams > self.behaviour.mode_after else "ok"
        if mode.startswith("http_"):
            return self._refusal(int(mode[5:]))
        if mode == "hang":
            await asyncio.sleep(3600)
        return await self._stream(request, body, mode)

    async def _stream(self, request: web.Request, body: dict[str, Any], mode: str) -> web.StreamResponse:
        b = self.behaviour
        due = time.perf_counter() + self._draw(b.ttft_ms)
        headers = {"content-type": "text/event-stream", "x-headway-release": b.release}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        if mode == "silent":
            await asyncio.sleep(3600)
        model = "another" if mode == "wrong_model" else b.model

        async def say(**event: Any) -> None:
            await response.write(f"data: {json.dumps({'model': model, **event})}\n\n".encode())

        if mode == "role_only":
            await say(choices=[{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        await _until(due)
        word = "" if mode == "empty" else "word "
        text: dict[str, Any] = {"delta": {"reasoning_content": word}} if mode == "reasoning" else {"text": word}
        for number in range(int(body["max_tokens"])):
            if number:
                due += self._draw(b.itl_ms)
                await _until(due)
            if number == 1 and await _break_off(request, response, mode):
                return response
            await say(choices=[{**text, "finish_reason": None}])
        await say(choices=[{"text": "", "finish_reason": "length"}])
        if mode != "no_usage":
            await say(choices=[], usage={"prompt_tokens": 9, "completion_tokens": int(body["max_tokens"])})
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
            choice["prompt_logprobs"] = [
                None,
                *(
                    {
                        str(id_): {"logprob": v, "rank": 1 + sum(w > v for w in found.values())}
                        for id_, v in found.items()
                    }
                    for found in scored
                ),
            ]
        return self._json({"model": b.model, "choices": [choice]})

    def _json(self, body: dict[str, Any]) -> web.Response:
        return web.json_response(body, headers={"x-headway-release": self.behaviour.release})

    def _refusal(self, status: int) -> web.Response:
        return web.json_response({"error": {"message": f"refused with {status}"}}, status=status)

    def _draw(self, mean_ms: float) -> float:
        sigma = self.behaviour.sigma
        return mean_ms / 1e3 * (self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0)


def right_answer(question: str) -> str:
    """Return a sentence with the fact that is asked for, if it is one of headway's fixed questions."""
    facts = next((asked.facts for asked in QUESTIONS if asked.prompt == question), ("word",))
    return f"It is {facts[0]}."


async def _break_off(request: web.Request, response: web.StreamResponse, mode: str) -> bool:
    """Fail after the first text, as the mode says; return whether the stream is over."""
    if mode == "sse_error":
        error = {"message": "EngineDeadError", "type": "internal", "code": 500}
        await response.write(f"data: {json.dumps({'error': error})}\n\n".encode())
    elif mode == "not_json":
        await response.write(b"data: {oops\n\n")
    elif mode == "reset":
        assert request.transport is not None
        request.transport.abort()
    return mode in ("sse_error", "not_json", "reset", "cut")


async def _until(due: float) -> None:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file", type=Path, help="written with the port once the server answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="m")
    parser.add_argument("--release", default="r1")
    parser.add_argument("--ttft-ms", type=float, default=20)
    parser.add_argument("--itl-ms", type=float, default=2)
    parser.add_argument("--sigma", type=float, default=0)
    parser.add_argument("--mode", choices=MODES, default="ok")
    given = vars(parser.parse_args())
    server = FakeVllm(port_file=given.pop("port_file"), **given)
    asyncio.run(server.serve())


if __name__ == "__main__":
    main()
