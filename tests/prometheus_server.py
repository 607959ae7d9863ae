"""A stand-in for Prometheus: its HTTP API over samples in memory, for the few forms of query that headway asks.

`rate` extrapolates as Prometheus 3 does (`extrapolatedRate` in `promql/functions.go`), windows are open to the left,
a sample is good for five minutes. Anything else in a query is refused as `bad_data`, so a query that is no PromQL of
these forms fails. No real Prometheus was under it.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOK_BACK_S = 300.0
MOST_POINTS = 11_000
Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]
Points = list[tuple[float, float]]
TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\[\d+s\]|[A-Za-z_:][A-Za-z0-9_:]*|!=|[(){},=-])')


@dataclass
class PrometheusServer:
    """Samples by series, and how the server misbehaves."""

    url: str = ""
    samples: dict[Labels, Points] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and parameters of each request."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    answer: Callable[[], tuple[int, bytes]] | None = None
    """What is answered instead."""
    odd: Callable[[dict[str, Any]], None] | None = None
    """What is done to a good answer."""

    def put(self, name: str, labels: Mapping[str, str], at: datetime, value: float) -> None:
        """Add one sample."""
        key = tuple(sorted({"__name__": name, **labels}.items()))
        self.samples.setdefault(key, []).append((at.timestamp(), value))
        self.samples[key].sort()

    def respond(self, path: str, asked: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body."""
        self.asked.append((path, asked))
        if self.answer:
            return self.answer()
        try:
            body = {"status": "success", "data": self._data(path, asked)}
        except (ValueError, KeyError, IndexError) as error:
            wrong = {"status": "error", "errorType": "bad_data", "error": f"{type(error).__name__}: {error}"}
            return 400, json.dumps(wrong).encode()
        if self.odd:
            self.odd(body)
        return 200, json.dumps(body).encode()

    def _data(self, path: str, asked: dict[str, str]) -> dict[str, Any]:
        if path == "/api/v1/query":
            at = float(asked["time"])
            found = _Query(asked["query"], self.samples, at).result()
            result = [{"metric": dict(key), "value": [at, str(value)]} for key, value in found.items()]
            return {"resultType": "vector", "result": result}
        if path != "/api/v1/query_range":
            raise ValueError(f"no such path {path}")
        start, end, step = (float(asked[name]) for name in ("start", "end", "step"))
        if (end - start) / step > MOST_POINTS:
            raise ValueError("exceeded maximum resolution of 11,000 points per timeseries")
        series: dict[Labels, list[list[Any]]] = {}
        at = start
        while at <= end + 1e-6:
            for key, value in _Query(asked["query"], self.samples, at).result().items():
                series.setdefault(key, []).append([at, str(value)])
            at += step
        return {"resultType": "matrix", "result": [{"metric": dict(k), "values": v} for k, v in series.items()]}


class _Query:
    """One query at one time."""

    def __init__(self, text: str, samples: Mapping[Labels, Points], at: float) -> None:
        if TOKEN.sub("", text).strip():
            raise ValueError(f"parse error: {TOKEN.sub(' ', text).split()[0]}")
        self._tokens = TOKEN.findall(text)
        self._samples = samples
        self._at = at

    def result(self) -> Vector:
        found = self._union()
        if self._tokens:
            raise ValueError(f"unexpected {self._tokens[0]}")
        return found

    def _union(self) -> Vector:
        found = self._difference()
        while self._tokens and self._tokens[0] == "or":
            self._take("or")
            found = {**self._difference(), **found}
        return found

    def _difference(self) -> Vector:
        found = self._term()
        while self._tokens and self._tokens[0] == "-":
            self._take("-")
            other = _unnamed(self._term())
            found = {key: value - other[key] for key, value in _unnamed(found).items() if key in other}
        return found

    def _term(self) -> Vector:
        word = self._tokens[0]
        if word in {"sum", "avg", "max"}:
            return self._aggregate(self._tokens.pop(0))
        if word == "(":
            return self._bracketed()
        if word == "label_replace":
            return self._label_replace()
        if word in {"rate", "count_over_time"}:
            return self._over_time(self._tokens.pop(0))
        if word == "timestamp":
            self._tokens.pop(0)
            self._take("(")
            found = {key: points[-1][0] for key, points in self._selected(LOOK_BACK_S)}
            self._take(")")
            return found
        return {key: points[-1][1] for key, points in self._selected(LOOK_BACK_S)}

    def _bracketed(self) -> Vector:
        self._take("(")
        found = self._union()
        self._take(")")
        return found

    def _aggregate(self, how: str) -> Vector:
        by: list[str] = []
        if self._tokens[0] == "by":
            self._take("by")
            self._take("(")
            by = [self._tokens.pop(0)]
            self._take(")")
        groups: dict[Labels, list[float]] = {}
        for key, value in self._bracketed().items():
            groups.setdefault(tuple(pair for pair in key if pair[0] in by), []).append(value)
        return {key: _merged(how, values) for key, values in groups.items()}

    def _label_replace(self) -> Vector:
        self._take("label_replace")
        self._take("(")
        found = self._union()
        words = []
        while self._tokens[0] == ",":
            self._take(",")
            words.append(json.loads(self._tokens.pop(0)))
        self._take(")")
        label, value, source, pattern = words
        if (value, pattern) == ("$1", "(.*)"):
            return {_with(key, label, dict(key).get(source, "")): number for key, number in found.items()}
        if source or pattern:
            raise ValueError("only constant labels and whole copies are known here")
        return {_with(key, label, value): number for key, number in found.items()}

    def _over_time(self, how: str) -> Vector:
        self._take("(")
        place = self._tokens.index("}")
        window = float(self._tokens.pop(place + 1)[1:-2])
        found = {}
        for key, points in self._selected(window):
            value = float(len(points)) if how == "count_over_time" else _rate(points, self._at, window)
            if value is not None:
                found[key] = value
        self._take(")")
        named = _unnamed(found)
        if len(named) < len(found):
            raise ValueError("vector cannot contain metrics with the same labelset")
        return named

    def _selected(self, window: float) -> Iterator[tuple[Labels, Points]]:
        """Yield the series of the selector that comes next, with their samples of the window."""
        matchers: list[tuple[str, str, str]] = []
        if self._tokens[0] != "{":
            matchers.append(("__name__", "=", self._tokens.pop(0)))
        else:
            while self._tokens.pop(0) in {"{", ","}:
                label, sign, value = self._tokens.pop(0), self._tokens.pop(0), json.loads(self._tokens.pop(0))
                matchers.append((label, sign, value))
        for key, points in self._samples.items():
            own = dict(key)
            if all((own.get(label, "") == value) == (sign == "=") for label, sign, value in matchers):
                inside = [point for point in points if self._at - window < point[0] <= self._at]
                if inside:
                    yield key, inside

    def _take(self, token: str) -> None:
        found = self._tokens.pop(0)
        if found != token:
            raise ValueError(f"expected {token}, found {found}")


def _with(key: Labels, label: str, value: str) -> Labels:
    return tuple(sorted({**dict(key), label: value}.items()))


def _merged(how: str, values: list[float]) -> float:
    if how == "max":
        return max(values)
    return sum(values) / (len(values) if how == "avg" else 1)


def _unnamed(vector: Vector) -> Vector:
    return {tuple(pair for pair in key if pair[0] != "__name__"): value for key, value in vector.items()}


def _rate(points: Points, at: float, window: float) -> float | None:
    """Return the rate as Prometheus extrapolates it; none of fewer than two samples."""
    if len(points) < 2:
        return None
    grown = points[-1][1] - points[0][1]
    for (_, before), (_, after) in pairwise(points):
        grown += before if after < before else 0.0
    sampled = points[-1][0] - points[0][0]
    average = sampled / (len(points) - 1)
    to_start, to_end = points[0][0] - (at - window), at - points[-1][0]
    if to_start >= average * 1.1:
        to_start = average / 2
    if grown > 0 and points[0][1] >= 0:
        to_start = min(to_start, sampled * points[0][1] / grown)
    if to_end >= average * 1.1:
        to_end = average / 2
    return grown * (sampled + to_start + to_end) / sampled / window


@contextmanager
def prometheus_server() -> Iterator[PrometheusServer]:
    """Serve on loopback."""
    state = PrometheusServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            state.headers.append(dict(self.headers.items()))
            status, body = state.respond(parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Say nothing of a client that went away."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
