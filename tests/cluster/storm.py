"""An HTTP front of an API server that plays storms: it turns requests away before it lets them through."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kubernetes
import urllib3

from headway.adapters.kubernetes.client import Client

HOP = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}
"""Headers of one connection."""
TURNED_AWAY = {
    409: '{"reason": "Conflict", "message": "the object has been modified; please apply your changes to the latest"}',
    429: '{"reason": "TooManyRequests", "message": "too many requests, please try again later"}',
}


class Storm:
    """What the front does.

    Attributes:
        turns: By method (`*`: any other): status, and how often a request of a path is turned away with it first.
        seen: Requests that came, by method and status given to them; 0: let through.
    """

    def __init__(self) -> None:
        self.turns: dict[str, tuple[int, int]] = {}
        self.seen: Counter[tuple[str, int]] = Counter()
        self._times: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def judge(self, method: str, path: str) -> int:
        """Return the status to turn a request away with, 0 to let it through."""
        status, often = self.turns.get(method) or self.turns.get("*") or (0, 0)
        with self._lock:
            key = (method, path.partition("?")[0])
            self._times[key] += 1
            given = status if (self._times[key] - 1) % (often + 1) < often else 0
            self.seen[method, given] += 1
        return given


@contextmanager
def storm(kubeconfig: Path) -> Iterator[tuple[Storm, Client]]:
    """Run a front of the API server that a kubeconfig names.

    Yields:
        What it does, and a client that goes through it.
    """
    real = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=real)
    pool = urllib3.PoolManager(ca_certs=real.ssl_ca_cert, cert_file=real.cert_file, key_file=real.key_file)
    played = Storm()

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status = played.judge(self.command, self.path)
            if status:
                self._send(status, TURNED_AWAY[status].encode(), {"Retry-After": "0"})
                return
            headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP}
            answer = pool.request(
                self.command, f"{real.host}{self.path}", body=body or None, headers=headers, retries=False
            )
            self._send(answer.status, answer.data, {"Content-Type": answer.headers.get("Content-Type", "")})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the server asks for these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    front = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=front)
    front.refresh_api_key_hook = None  # it would set the kubeconfig's own host again
    front.host = f"http://127.0.0.1:{server.server_address[1]}"
    client = Client(front)
    try:
        yield played, client
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        pool.clear()
