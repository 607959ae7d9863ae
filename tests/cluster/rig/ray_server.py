"""Plays every Ray cluster of the rig: an HTTP proxy that answers for Ray's dashboard, and for Serve what vLLM would.

The KubeRay operator gets it as HTTP_PROXY. Go sends a proxy the whole URL, so one server sees which cluster is meant;
it never uses a proxy for loopback, so the operator reaches the API server directly. Run by path, with the standard
library alone: `python ray_server.py PORT`. Requests to `/rig/` without a host are for the server itself (`ray.py` has
the client).
"""

import http.client
import json
import re
import sys
import threading
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

BEHAVIOUR: dict[str, Any] = {
    "deploy_s": 0.5,
    "deploy_as": "RUNNING",
    "message": "",
    "put_status": 200,
    "get_status": 200,
    "health_status": 200,
    "replica_s": 0.3,
    "most_running": None,
    "answer_status": 200,
    "lists": None,
}
"""What a cluster does when nobody has told it otherwise."""
DEPLOYMENT_STATUS = {"RUNNING": "HEALTHY", "UNHEALTHY": "UNHEALTHY", "DEPLOY_FAILED": "DEPLOY_FAILED"}
FORWARD_TIMEOUT_S = 600
CHUNK_BYTES = 1 << 16
KEPT_REQUESTS = 5_000
# Through the API server's proxy of pods and services, the target is only in this header.
PROXIED = re.compile(
    r"^/api/v1/namespaces/(?P<namespace>[^/]+)/(?:services|pods)/(?:https?:)?(?P<name>[^/:]+)(?::(?P<port>[^/]+))?"
)
PORTS = {"dashboard": "8265", "serve": "8000"}
HOP_HEADERS = {"host", "connection", "proxy-connection", "keep-alive", "content-length", "transfer-encoding"}


class Target(NamedTuple):
    """What a request is for."""

    cluster: str  # NAMESPACE/RAYCLUSTER, or an address of a pod
    address: str  # HOST:PORT as the caller has put it
    path: str


class Clusters:
    """What each cluster was told to serve, and how it behaves. Used from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything: deployments, rules, forwards, requests."""
        with self._lock:
            self._deployed: dict[str, tuple[dict[str, Any], float]] = {}  # with the seconds since the epoch
            self._replicas: dict[tuple[str, str], list[float]] = {}  # when each replica of a deployment was started
            self._rules: list[tuple[str, dict[str, Any]]] = []
            self._statuses: dict[tuple[str, str], tuple[str, str]] = {}
            self._forwards: dict[str, str] = {}
            self._requests: list[dict[str, Any]] = []

    def behave(self, cluster: str, changes: dict[str, Any]) -> None:
        """Add a rule for the clusters that match a pattern; later rules win."""
        with self._lock:
            self._rules.append((cluster, changes))

    def behaviour(self, cluster: str) -> dict[str, Any]:
        """Return how a cluster behaves."""
        with self._lock:
            merged = dict(BEHAVIOUR)
            for pattern, changes in self._rules:
                if fnmatchcase(cluster, pattern):
                    merged.update(changes)
            return merged

    def forward(self, forwards: dict[str, str]) -> None:
        """Send requests whose HOST:PORT matches a pattern to a real server."""
        with self._lock:
            self._forwards = forwards

    def upstream(self, address: str) -> str | None:
        """Return the real server for an address, if there is one."""
        with self._lock:
            return next((to for pattern, to in self._forwards.items() if fnmatchcase(address, pattern)), None)

    def deploy(self, cluster: str, config: dict[str, Any]) -> None:
        """Keep what a cluster shall serve, from now on. A new deployment heals what was set for the last one."""
        with self._lock:
            known, since = self._deployed.get(cluster, ({}, 0.0))
            # Other numbers of replicas are no new deployment, as with Serve.
            if _without_numbers(known) != _without_numbers(config):
                since = time()
                self._replicas = {key: value for key, value in self._replicas.items() if key[0] != cluster}
            self._deployed[cluster] = (config, since)
            for one in config.get("applications", []):
                for part in one.get("deployments", []):
                    self._scale(cluster, part)
            self._statuses = {key: value for key, value in self._statuses.items() if key[0] != cluster}

    def _scale(self, cluster: str, part: dict[str, Any]) -> None:
        """Start what the bounds ask for. Nobody sends load, so after its delay, here at once, Serve wants the least."""
        least = (part.get("autoscaling_config") or {}).get("min_replicas", 1)
        started = self._replicas.setdefault((cluster, part["name"]), [])
        started.extend([time()] * (least - len(started)))
        del started[least:]

    def forget(self, pattern: str) -> None:
        """Lose what clusters were told, as a head does that starts again."""
        with self._lock:
            self._replicas = {key: value for key, value in self._replicas.items() if not fnmatchcase(key[0], pattern)}
            self._deployed = {key: value for key, value in self._deployed.items() if not fnmatchcase(key, pattern)}

    def set_status(self, cluster: str, application: str, status: str, message: str) -> int:
        """Set the status of applications that match; return how many do."""
        with self._lock:
            matching = [
                (key, one["name"])
                for key, (config, _) in self._deployed.items()
                for one in config.get("applications", [])
                if fnmatchcase(key, cluster) and fnmatchcase(one["name"], application)
            ]
            for key in matching:
                self._statuses[key] = (status, message)
            return len(matching)

    def applications(self, cluster: str) -> dict[str, Any]:
        """Return a cluster's applications in the form of Ray's dashboard."""
        behaviour = self.behaviour(cluster)
        with self._lock:
            config, since = self._deployed.get(cluster, ({}, 0.0))
            done = time() - since >= behaviour["deploy_s"]
            found = {}
            for one in config.get("applications", []):
                name = one.get("name", "default")
                replicas = {
                    part["name"]: _replicas(self._replicas.get((cluster, part["name"]), []), behaviour, done=done)
                    for part in one.get("deployments", [])
                }
                waits = any(each["state"] != "RUNNING" for part in replicas.values() for each in part)
                natural = (behaviour["deploy_as"], behaviour["message"]) if done else ("DEPLOYING", "")
                if natural[0] == "RUNNING" and waits:
                    natural = ("DEPLOYING", "")
                status, message = self._statuses.get((cluster, name), natural)
                found[name] = _application(one, since, status, message, replicas)
            return found

    def behind(self, namespace: str, service: str) -> str:
        """Return the cluster that answers for a RayService's Service: the last that was deployed."""
        start = f"{namespace}/{service}-"
        with self._lock:
            known = {key: since for key, (_, since) in self._deployed.items() if key.startswith(start)}
        return max(known, key=lambda key: known[key], default=f"{namespace}/{service}")

    def models(self, cluster: str) -> list[str]:
        """Return what a cluster can be asked for now."""
        listed = self.behaviour(cluster)["lists"]
        served = []
        for one in self.applications(cluster).values():
            running = [each for part in one["deployments"].values() for each in part["replicas"]]
            if any(each["state"] == "RUNNING" for each in running):
                configs = (one["deployed_app_config"].get("args") or {}).get("llm_configs") or []
                served += [config["model_loading_config"]["model_id"] for config in configs]
        return served if listed is None or not served else list(listed)

    def note(self, method: str, target: Target, status: int) -> None:
        """Remember a request."""
        with self._lock:
            self._requests.append(
                {"at": time(), "method": method, "cluster": target.cluster, "path": target.path, "status": status}
            )
            del self._requests[:-KEPT_REQUESTS]

    def state(self) -> dict[str, Any]:
        """Return what the control interface shows."""
        with self._lock:
            deployed = {cluster: config for cluster, (config, _) in self._deployed.items()}
            requests = list(self._requests)
        shown = {cluster: self.applications(cluster) for cluster in deployed}
        return {"configs": deployed, "applications": shown, "requests": requests}


def _without_numbers(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without what Serve changes in place."""
    stripped: dict[str, Any] = json.loads(json.dumps(config))
    for one in stripped.get("applications", []):
        for part in one.get("deployments", []):
            part["autoscaling_config"] = bool(part.get("autoscaling_config"))
    return stripped


def _replicas(started: list[float], behaviour: dict[str, Any], *, done: bool) -> list[dict[str, Any]]:
    """Return the replicas of a deployment as the dashboard shows them."""
    now, most = time(), behaviour["most_running"]
    shown = []
    for index, at in enumerate(started):
        up = done and behaviour["deploy_as"] != "DEPLOY_FAILED" and now - at >= behaviour["replica_s"]
        state = "RUNNING" if up and (most is None or index < most) else "STARTING"
        shown.append({"replica_id": f"{index}-{at:.3f}", "state": state, "start_time_s": at})
    return shown


def _application(
    config: dict[str, Any], since_s: float, status: str, message: str, replicas: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    name = config.get("name", "default")
    deployments = list(replicas) or [f"LLMServer:{name}", "OpenAiIngress"]
    part = {"status": DEPLOYMENT_STATUS.get(status, "UPDATING"), "message": message}
    return {
        "name": name,
        "route_prefix": config.get("route_prefix", "/"),
        "status": status,
        "message": message,
        "last_deployed_time_s": since_s,
        "deployed_app_config": config,
        "deployments": {
            one: {
                "name": one,
                **part,
                "target_num_replicas": len(replicas.get(one, ())),
                "replicas": replicas.get(one, []),
            }
            for one in deployments
        },
    }


CLUSTERS = Clusters()


def _cluster_of(service: str, namespace: str) -> str:
    """Return the cluster behind a Service: of its head, or of a RayService's requests."""
    if service.endswith("-serve-svc"):
        return CLUSTERS.behind(namespace, service.removesuffix("-serve-svc"))
    return f"{namespace}/{service.removesuffix('-head-svc')}"


class Handler(BaseHTTPRequestHandler):
    """One connection of the operator, of the API server or of a test."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Say nothing: `state` has the requests."""

    def handle_request(self) -> None:
        """Answer a request: for a cluster, or for the server itself."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/rig/"):
            self._control(self.path.removeprefix("/rig/"), json.loads(body or b"{}"))
            return
        target = self._target()
        upstream = CLUSTERS.upstream(target.address)
        status = self._forward(upstream, target, body) if upstream else self._play(target, body)
        CLUSTERS.note(self.command, target, status)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = handle_request  # noqa: N815

    def _target(self) -> Target:
        url = urlsplit(self.path)
        path = f"{url.path}?{url.query}" if url.query else url.path
        if proxied := PROXIED.match(self.headers.get("X-Forwarded-Uri") or ""):
            name, namespace = proxied["name"], proxied["namespace"]
            port = PORTS.get(proxied["port"] or "", proxied["port"] or "")
            return Target(_cluster_of(name, namespace), f"{name}.{namespace}:{port}", path)
        address = url.netloc or self.headers.get("Host", "")
        host = address.partition(":")[0]
        name, _, rest = host.partition(".")
        known = name.endswith(("-head-svc", "-serve-svc"))
        return Target(_cluster_of(name, rest.split(".")[0]) if known else host, address, path)

    def _play(self, target: Target, body: bytes) -> int:
        behaviour = CLUSTERS.behaviour(target.cluster)
        path = target.path.partition("?")[0].rstrip("/")
        if not target.cluster:  # the operator asks before the pod has an address
            return self._answer(502, {"error": "no host in the request"})
        if path == "/-/healthz":
            return self._answer(behaviour["health_status"], "success")
        if path == "/api/version":
            return self._answer(
                200, {"version": "4", "ray_version": "0.0.0", "ray_commit": "played", "session_name": ""}
            )
        if path == "/api/serve/applications":
            return self._serve(target.cluster, behaviour, body)
        if path in ("/v1/models", "/v1/completions"):
            return self._answer_as_vllm(path, CLUSTERS.models(target.cluster), behaviour, body)
        return self._answer(404, {"error": f"{target.address} is played by the rig, which knows no {target.path}"})

    def _serve(self, cluster: str, behaviour: dict[str, Any], body: bytes) -> int:
        if self.command == "GET":
            if behaviour["get_status"] >= 400:
                return self._answer(behaviour["get_status"], "refused by a rule")
            return self._answer(200, {"applications": CLUSTERS.applications(cluster), "proxy_location": "EveryNode"})
        if self.command == "PUT":
            if behaviour["put_status"] >= 400:
                return self._answer(behaviour["put_status"], "refused by a rule")
            CLUSTERS.deploy(cluster, json.loads(body))
            return self._answer(200, "")
        return self._answer(405, f"{self.command} is not played")

    def _answer_as_vllm(self, path: str, models: list[str], behaviour: dict[str, Any], body: bytes) -> int:
        if not models:
            return self._answer(503, {"error": {"message": "no replica runs"}})
        if path == "/v1/models":
            return self._answer(200, {"object": "list", "data": [{"id": one, "object": "model"} for one in models]})
        asked = json.loads(body or b"{}")
        if behaviour["answer_status"] >= 400:
            return self._answer(behaviour["answer_status"], {"error": {"message": "refused by a rule"}})
        if asked.get("model") not in models:
            return self._answer(404, {"error": {"message": f"the model {asked.get('model')} does not exist"}})
        if not asked.get("temperature"):  # would prove nothing: it does not reach the sampler
            return self._answer(400, {"error": {"message": "not sampled"}})
        return self._answer(200, {"object": "text_completion", "choices": [{"index": 0, "text": " hello"}]})

    def _control(self, action: str, told: dict[str, Any]) -> None:
        cluster = told.pop("cluster", "*")
        answer: Any = {}
        if action == "state":
            answer = CLUSTERS.state()
        elif action == "behave":
            CLUSTERS.behave(cluster, told)
        elif action == "status":
            answer = CLUSTERS.set_status(cluster, told["application"], told["status"], told["message"])
        elif action == "forward":
            CLUSTERS.forward(told["to"])
        elif action == "forget":
            CLUSTERS.forget(cluster)
        elif action == "reset":
            CLUSTERS.reset()
        else:
            self._answer(404, {"error": f"no action {action}"})
            return
        self._answer(200, answer)

    def _answer(self, status: int, content: Any) -> int:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return status

    def _forward(self, upstream: str, target: Target, body: bytes) -> int:
        headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_HEADERS}
        connection = http.client.HTTPConnection(upstream, timeout=FORWARD_TIMEOUT_S)
        try:
            connection.request(self.command, target.path, body or None, headers)
            answer = connection.getresponse()
        except OSError as error:
            connection.close()
            return self._answer(502, {"error": f"{upstream} does not answer: {error}"})
        try:
            self._relay(answer)
        finally:
            connection.close()
        return answer.status

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        """Hand on an answer as it comes, so that a stream of tokens stays a stream."""
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in HOP_HEADERS:
                self.send_header(key, value)
        empty = self.command == "HEAD" or answer.status in (204, 304)
        length = answer.getheader("Content-Length", "0" if empty else None)
        self.send_header(*(("Content-Length", length) if length is not None else ("Transfer-Encoding", "chunked")))
        self.end_headers()
        while chunk := answer.read1(CHUNK_BYTES):
            self.wfile.write(chunk if length is not None else b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if length is None:
            self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    """A server with room for all that ask at once."""

    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
