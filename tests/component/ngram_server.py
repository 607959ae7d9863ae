"""A served language model that fits on a page: it continues a text as its corpus does.

It speaks OpenAI's completions with `echo` and `logprobs` as vLLM does, takes texts or token ids of the tokenizer
that it is given, and always answers the same, so that scores can be foretold.
"""

import json
import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

LONGEST, SHORTEST = 48, 4
"""Tokens of context that are looked up in the corpus, the longest stretch that it has first."""
SPARE = 0.05
"""Probability that is spread over all tokens."""


@dataclass
class Seen:
    """What clients did."""

    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0


class NgramServer:
    """The server, in a thread of its own.

    Args:
        corpus: What the model knows.
        tokenizer: `tokenizer.json`.
        release: What the header `x-headway-release` says.
        refuse: Path to HTTP status, for servers that lack something.
    """

    def __init__(
        self, corpus: str, tokenizer: Path, *, release: str = "r1", refuse: dict[str, int] | None = None
    ) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.corpus = "," + ",".join(map(str, self.tokenizer.encode(corpus, add_special_tokens=False).ids)) + ","
        self.release = release
        self.refuse = refuse or {}
        self.fail_after: int | None = None
        """Requests that are answered before all others get HTTP 503."""
        self.echoes = True
        """Whether `echo` brings log-probabilities of the prompt."""
        self.seen = Seen()
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], Counter[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Base address without `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        if path.endswith("/chat/completions"):
            text = self._write("\n".join(m["content"] for m in body["messages"]), body)
            choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
            return {"model": body["model"], "choices": [{**choice, "finish_reason": "stop"}]}
        prompts = body["prompt"]
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        choices = [{"index": number, **self._choice(prompt, body)} for number, prompt in enumerate(prompts)]
        return {"model": body["model"], "choices": choices}

    def _choice(self, prompt: str | list[int], body: dict[str, Any]) -> dict[str, Any]:
        if not body.get("echo"):
            return {"text": self._write(prompt, body), "finish_reason": "stop"}
        ids = self._ids(prompt)
        ids.append(self._next(ids).most_common(1)[0][0])
        scored = [self._logprobs(ids[:k]) for k in range(1, len(ids))]
        logprobs = {
            "tokens": [self.tokenizer.decode([i]) for i in ids],
            "token_logprobs": [None, *(row[i] for row, i in zip(scored, ids[1:], strict=True))],
            "top_logprobs": [None, *({str(best): row[best]} for row in scored for best in [max(row, key=row.get)])],  # type: ignore[arg-type]
        }
        return {"text": "", "finish_reason": "length", "logprobs": logprobs if self.echoes else None}

    def _write(self, prompt: str | list[int], body: dict[str, Any]) -> str:
        ids, start = self._ids(prompt), len(self._ids(prompt))
        for _ in range(int(body["max_tokens"])):
            ids.append(self._next(ids).most_common(1)[0][0])
            text = str(self.tokenizer.decode(ids[start:]))
            cut = [text.index(stop) for stop in body.get("stop") or () if stop and stop in text]
            if cut:
                return text[: min(cut)]
        return str(self.tokenizer.decode(ids[start:]))

    def _ids(self, prompt: str | list[int]) -> list[int]:
        return list(prompt) if isinstance(prompt, list) else list(self.tokenizer.encode(prompt).ids)

    def _logprobs(self, context: list[int]) -> dict[int, float]:
        counts, size = self._next(context), self.tokenizer.get_vocab_size()
        total = sum(counts.values())
        return {i: math.log(SPARE / size + (1 - SPARE) * counts[i] / total) for i in range(size)}

    def _next(self, context: list[int]) -> Counter[int]:
        """Count what follows the longest stretch of the context that the corpus has."""
        key = tuple(context[-LONGEST:])
        if key not in self._known:
            self._known[key] = self._look_up(key)
        return self._known[key]

    def _look_up(self, context: tuple[int, ...]) -> Counter[int]:
        for length in range(len(context), SHORTEST - 1, -1):
            stretch = "," + ",".join(map(str, context[-length:])) + ","
            found: Counter[int] = Counter()
            at = self.corpus.find(stretch)
            while at >= 0:
                following = self.corpus[at + len(stretch) :].partition(",")[0]
                if following:
                    found[int(following)] += 1
                at = self.corpus.find(stretch, at + 1)
            if found:
                return found
        return Counter({1: 1})


def _handler(model: NgramServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with model._lock:
                model.seen.headers.append({k.lower(): v for k, v in self.headers.items()})
                model.seen.bodies.append(body)
                model.seen.in_flight += 1
                model.seen.most_in_flight = max(model.seen.most_in_flight, model.seen.in_flight)
            status = model.refuse.get(self.path, 200)
            if model.fail_after is not None and len(model.seen.bodies) > model.fail_after:
                status = 503
            answer = {"error": {"message": "not here"}} if status != 200 else model.answer(self.path, body)
            text = json.dumps(answer).encode()
            with model._lock:
                model.seen.in_flight -= 1
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.send_header("x-headway-release", model.release)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    return Handler
