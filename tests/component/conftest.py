"""Real servers for component tests, each on ports of its own."""

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep

import pytest
import requests

from headway.adapters.local import gateway
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.traffic import LocalTraffic

ENVOY_WITHIN_S = 20


@pytest.fixture
def envoy_process(layout: LocalLayout) -> Iterator[LocalLayout]:
    """A running Envoy without routes."""
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    gateway.ensure(layout)
    with (layout.logs / "envoy.log").open("w") as log:
        process = subprocess.Popen(
            [
                layout.tool("airflow", "envoy"),
                "-c",
                layout.envoy_bootstrap,
                "--concurrency",
                "1",
                "--disable-hot-restart",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        end = monotonic() + ENVOY_WITHIN_S
        while not _ready(f"{layout.envoy_admin_url}/ready"):
            assert process.poll() is None, (layout.logs / "envoy.log").read_text()[-2000:]
            assert monotonic() < end, (layout.logs / "envoy.log").read_text()[-2000:]
            sleep(0.05)
        yield layout
    finally:
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return bool(requests.get(url, timeout=1).ok)
    except requests.RequestException:
        return False


@dataclass
class Upstream:
    """A server that answers as a cluster would, or fails as one would."""

    server: ThreadingHTTPServer
    status: int = 200
    delay_s: float = 0.0
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server.server_address[1])

    def close(self) -> None:
        """Stop listening: from now on connections are refused."""
        self.server.shutdown()
        self.server.server_close()


def start_upstream() -> Upstream:
    """Start a server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            upstream.paths.append(self.path)
            upstream.headers.append(dict(self.headers))
            if upstream.delay_s:
                sleep(upstream.delay_s)
            body = b"{}"
            self.send_response(upstream.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    upstream = Upstream(server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return upstream


@dataclass
class Gateway:
    """A gateway with two clusters behind it."""

    layout: LocalLayout
    traffic: LocalTraffic
    upstreams: dict[str, Upstream]

    def ask(self, path: str = "/tiny/v1/completions", **headers: str) -> requests.Response:
        """Send one request to the public listener."""
        return requests.post(f"{self.layout.gateway_url}{path}", json={}, headers=headers, timeout=10)

    def ask_inside(self, side: str) -> requests.Response:
        """Send one request to a side through the internal listener."""
        return requests.post(
            f"{self.layout.internal_gateway_url}/tiny/v1/completions",
            json={},
            headers={"x-headway-cluster": side},
            timeout=10,
        )


@pytest.fixture
def two_clusters(envoy_process: LocalLayout) -> Iterator[Gateway]:
    """The gateway, with clusters `a` and `b` up."""
    upstreams = {"a": start_upstream(), "b": start_upstream()}
    traffic = LocalTraffic(envoy_process, lambda name: upstreams[name].port if name in upstreams else None)
    yield Gateway(envoy_process, traffic, upstreams)
    for upstream in upstreams.values():
        upstream.close()
