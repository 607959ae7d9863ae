"""A Ray head with Serve, as far as headway's cluster program and its adapter look. Takes `ray start`'s arguments.

The name of the model's directory says how it goes: `broken` cannot be deployed, `slow` never is, `dies` ends at once,
`mute` runs but answers no completion; any other answers. Of `growing` added replicas start until there is a file
`come` in the working directory. A child in a session of its own plays vLLM's processes, which
outlive their head.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = tuple[int, Any]


class State:
    """What Serve was asked to run."""

    config: Mapping[str, Any] = {}
    deploys = 0


def serve(port: int, answer: Callable[[str, str, bytes], Answer]) -> None:
    """Answer HTTP on loopback, in a thread."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, value = answer(self.command, self.path, body)
            if self.path.startswith("/api/") and self.headers.get("authorization") != f"Bearer {token()}":
                status, value = 401, {"error": "no token"}
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_PUT = do_POST = do_GET  # noqa: N815 - the base class looks for these names

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def token() -> str:
    """Return the token that Ray would ask for."""
    return Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()


def application() -> dict[str, Any]:
    """Return the one application as Serve shows it."""
    app = State.config["applications"][0]
    llm = app["args"]["llm_configs"][0]
    kind = Path(llm["model_loading_config"]["model_source"]).name
    status = {"broken": "DEPLOY_FAILED", "slow": "DEPLOYING"}.get(kind, "RUNNING")
    override = app["deployments"][0]
    replicas = override["autoscaling_config"]["min_replicas"] if status == "RUNNING" else 0
    running = min(replicas, 1) if kind == "growing" and not Path("come").exists() else replicas
    if running < replicas:
        status = "DEPLOYING"
    return {
        "status": status,
        "message": "Traceback:\n  File engine.py\nValueError: shard 1 is cut off" if kind == "broken" else "",
        "deploys": State.deploys,
        "deployments": {
            override["name"]: {
                "target_num_replicas": replicas,
                "replicas": [{"state": "RUNNING"}] * running + [{"state": "STARTING"}] * (replicas - running),
            }
        },
    }


def dashboard(method: str, _path: str, body: bytes) -> Answer:
    """Answer as Ray's dashboard does."""
    if method == "PUT":
        first = not State.config
        State.config = json.loads(body)
        State.deploys += 1
        if first:
            serve(State.config["http_options"]["port"], endpoint)
        return 200, {}
    return 200, {"applications": {"llm": application()} if State.config else {}}


def endpoint(_method: str, path: str, body: bytes) -> Answer:
    """Answer as Serve LLM does."""
    llm = State.config["applications"][0]["args"]["llm_configs"][0]["model_loading_config"]
    if path == "/v1/models":
        return 200, {"data": [{"id": llm["model_id"]}]}
    if Path(llm["model_source"]).name == "mute":
        return 500, {"error": "no engine"}
    asked = json.loads(body)
    # A smoke request that does not sample would prove nothing.
    return (200, {"choices": [{"text": "hello"}]}) if asked.get("temperature") else (400, {"error": "not sampled"})


def main() -> int:
    """Run until killed."""
    ports = dict(re.findall(r"--([a-z-]+)=(\d+)", " ".join(sys.argv)))
    launch = json.loads((Path.cwd() / "serve.json").read_text())
    source = launch["applications"][0]["args"]["llm_configs"][0]["model_loading_config"]["model_source"]
    if Path(source).name == "dies":
        return 1
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    serve(int(ports["dashboard-port"]), dashboard)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
