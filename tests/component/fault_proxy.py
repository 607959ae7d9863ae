"""A real HTTP server between a client and the store, which does what gateways, caches and networks do on bad days."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Asked(NamedTuple):
    """One read of an object."""

    path: str
    range: str
    number: int
    """How many reads of this path came before."""


class Answer(NamedTuple):
    """What the store says, as the proxy hands it on."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut_at: int | None = None
    """Bytes of the body after which the connection ends."""
    stalls: bool = False
    """Whether it stays open and silent there instead."""


Fault = Callable[[Asked, Answer], Answer]


@dataclass
class FaultProxy:
    """The server; `fault` may change each answer for an object other than the manifest."""

    server: ThreadingHTTPServer
    upstream: str
    fault: Fault = lambda asked, answer: answer
    asked: list[Asked] = field(default_factory=list)
    sent_bytes: int = 0
    """Of those objects."""
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:  # noqa: C901 - the handler is its body
    """Run the server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = self._forward()
            path = urlsplit(self.path).path
            counts = "/artifacts/" in path and not path.endswith("manifest.json")
            if counts:
                with proxy.lock:
                    seen = sum(one.path == path for one in proxy.asked)
                    asked = Asked(path, self.headers.get("Range", ""), seen)
                    proxy.asked.append(asked)
                answer = proxy.fault(asked, answer)
            self._send(answer, counts=counts)

        do_HEAD = do_GET  # noqa: N815

        def _forward(self) -> Answer:
            connection = http.client.HTTPConnection(urlsplit(proxy.upstream).netloc, timeout=30)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    connection.putheader(name, value)
                connection.endheaders()
                found = connection.getresponse()
                body = found.read()
            finally:
                connection.close()
            kept = {n: v for n, v in found.getheaders() if n.lower() not in ("connection", "transfer-encoding")}
            if self.command != "HEAD":
                kept["Content-Length"] = str(len(body))
            return Answer(found.status, kept, body)

        def _send(self, answer: Answer, *, counts: bool) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            end = len(answer.body) if answer.cut_at is None else answer.cut_at
            view = memoryview(answer.body)[:end]
            try:
                for at in range(0, end, 65536):
                    self.wfile.write(view[at : at + 65536])
                    with proxy.lock:
                        proxy.sent_bytes += len(view[at : at + 65536]) if counts else 0
            except OSError:
                self.close_connection = True
                return
            if answer.cut_at is not None:
                self.close_connection = True
                if answer.stalls:
                    proxy.released.wait(30)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that was killed is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy = FaultProxy(server, upstream)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        server.server_close()


def error(status: int, code: str, **headers: str) -> Answer:
    """Return an error as S3 says it."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()
    return Answer(status, {"Content-Length": str(len(body)), **headers}, body)


def at_time_of(offset: timedelta) -> dict[str, str]:
    """Return the header of a server whose clock differs by so much."""
    return {"Date": format_datetime(datetime.now(UTC) + offset, usegmt=True)}  # noqa: TID251 - the server's clock
