"""What Ray Serve shows of a cluster: its application by the head's dashboard, and what its endpoint answers.

Outside of the cluster both are reached through the API server's proxy of Services. Where the dashboard gives no answer,
the operator's own copy of the application's status stands in: it is a few seconds old, and knows no replicas.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import requests

from headway.adapters.kubernetes.client import Client, Object, service_url
from headway.adapters.kubernetes.site import DASHBOARD_PORT, SERVE_PORT, Site, serve_service
from headway.domain.cluster import APPLICATION, ClusterSpec, deployment_name
from headway.errors import BackendError, BackendUnavailable, ConfigError

APPLICATIONS = "/api/serve/applications/"
LOOK_S, COMPLETION_S = 10.0, 60.0
"""Longest wait for an answer; a first completion may still compile kernels."""
TELLING_CHARACTERS = 400


class Application(NamedTuple):
    """The application of a cluster."""

    status: str
    """As Serve says it: RUNNING, DEPLOYING, UNHEALTHY, DEPLOY_FAILED, NOT_STARTED, DELETING."""
    message: str
    serving: int | None = None
    """Replicas that take requests; None: only the operator's copy is known."""
    target: int | None = None
    """Replicas that Serve wants; None before it has decided that."""
    started_s: tuple[float, ...] = ()
    """When each replica was started, those that do not serve yet too; seconds since the epoch."""


def ask(
    client: Client, site: Site, service: str, port: int, path: str, *, body: object = None, timeout_s: float = LOOK_S
) -> Any:
    """Send a request to a Service of the cluster, from wherever headway runs: a GET, or a POST where there is a body.

    Raises:
        BackendUnavailable: Nobody answered, or the answer was a server error.
        BackendError: It answered something else that is no success.
    """
    method = "GET" if body is None else "POST"
    if not client.in_cluster:
        try:
            return client.through(service, port, path, site.namespace, method=method, body=body, timeout_s=timeout_s)
        except ConfigError as error:  # the API server maps what its users ask wrongly; this is a server behind it
            raise BackendError(error.message) from error
    url = f"{service_url(service, port, site.namespace)}{path}"
    try:
        reply = requests.request(method, url, json=body, timeout=timeout_s)
        if reply.ok:
            return reply.json()
    except (requests.RequestException, ValueError) as error:
        raise BackendUnavailable(f"{url} does not answer ({type(error).__name__}); headway asks again") from error
    kind = BackendUnavailable if reply.status_code >= 500 else BackendError
    raise kind(f"{url} answered HTTP {reply.status_code}: {reply.text[:TELLING_CHARACTERS]}", status=reply.status_code)


def from_dashboard(client: Client, site: Site, ray_cluster: str, model: str) -> Application | None:
    """Return the application as Serve shows it; None if the dashboard does not answer, or there is none yet."""
    try:
        found = ask(client, site, f"{ray_cluster}-head-svc", DASHBOARD_PORT, APPLICATIONS)
        return _application(found["applications"].get(APPLICATION), model)
    except (BackendError, KeyError, TypeError, AttributeError, ValueError):
        return None


def from_operator(part: Object) -> Application | None:
    """Return the application as the operator has copied it.

    Args:
        part: `activeServiceStatus` or `pendingServiceStatus` of a RayService.
    """
    found = (part.get("applicationStatuses") or {}).get(APPLICATION)
    if not found:
        return None
    deployments = (found.get("serveDeploymentStatuses") or {}).values()
    messages = [str(one.get("message") or "") for one in deployments]
    return Application(str(found.get("status") or ""), last_line([found.get("message") or "", *messages]))


def unanswered(client: Client, site: Site, spec: ClusterSpec) -> str:
    """Return what the endpoint does not do yet; empty if it lists the model and has answered a completion.

    The completion is sampled, because a greedy one does not reach the code that fails without a compiler.
    """
    service = serve_service(spec.name)
    try:
        listed = ask(client, site, service, SERVE_PORT, "/v1/models")
        known = {str(item["id"]) for item in listed["data"]}
        if spec.model not in known:
            return f"/v1/models lists {', '.join(sorted(known)) or 'nothing'} and not {spec.model}"
        body = {"model": spec.model, "prompt": "Hello", "max_tokens": 4, "temperature": 0.8}
        answer = ask(client, site, service, SERVE_PORT, "/v1/completions", body=body, timeout_s=COMPLETION_S)
        if not answer["choices"]:
            return "a completion came back empty"
    except BackendError as error:
        return f"the endpoint does not answer a completion yet: {' '.join(error.message.split())[:TELLING_CHARACTERS]}"
    except (KeyError, TypeError) as error:
        return f"the endpoint does not answer as Ray Serve LLM does ({type(error).__name__})"
    return ""


def last_line(messages: Sequence[str]) -> str:
    """Return the last line of the last message that says anything: that is where a traceback has its point."""
    said = [line.strip() for text in messages for line in text.splitlines() if line.strip()]
    return said[-1][:TELLING_CHARACTERS] if said else ""


def _application(found: Mapping[str, Any] | None, model: str) -> Application | None:
    if not found:
        return None
    deployment = (found.get("deployments") or {}).get(deployment_name(model)) or {}
    replicas = deployment.get("replicas") or ()
    return Application(
        status=str(found.get("status") or ""),
        message=last_line([found.get("message") or "", deployment.get("message") or ""]),
        serving=sum(one.get("state") == "RUNNING" for one in replicas),
        target=int(deployment["target_num_replicas"]) if deployment.get("target_num_replicas") else None,
        started_s=tuple(float(one["start_time_s"]) for one in replicas if one.get("start_time_s")),
    )
