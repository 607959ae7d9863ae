"""Routes as Envoy's configuration: pure functions from routing state to the content of the watched files.

Each model has four upstream clusters that stay as long as the model does; only their endpoints change, in place, so
that no shift breaks a connection:

    <slug>_stable           stable, and behind it a cluster that may save its requests
    <slug>_candidate        the candidate, and behind it stable
    <slug>_stable_only      for the benchmark, which must see a side's own failures
    <slug>_candidate_only

The saving is Envoy's priority groups: a side is priority 0, what saves it is priority 1, and a retry before the first
byte goes to the other priority. (A weighted cluster alone retries inside the side already chosen.)
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from headway.domain.traffic import Backend, Route, path_of
from headway.domain.value import slug

Side = Literal["stable", "candidate"]
PortOf = Callable[[str], int | None]
"""Port of a cluster's endpoint by the cluster's name; none if it has no place on this machine any more."""

SIDES: tuple[Side, ...] = ("stable", "candidate")
TYPE = "type.googleapis.com/envoy."
UPSTREAM_IDLE_S = 60
"""Below the 90 s after which Serve's proxy closes an idle connection: who would reuse it must be who closes it."""
ROUTE_IDLE_S = 900
"""Longest silence in an answer; a queue before the first token counts."""
RETRY_ON = "connect-failure,refused-stream,reset,5xx"
RETRY_BUFFER_BYTES = 8 * 1024 * 1024
"""Longest request body that is kept for a retry; longer ones are passed through without one."""
RELEASE_HEADER = {
    "header": {"key": "x-headway-release", "value": "%UPSTREAM_METADATA(headway:release)%"},
    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
}
"""From the endpoint that answered, so it is right also when a retry went to the other side."""


def upstream(model: str, side: Side, *, only: bool = False) -> str:
    """Return the name of a model's upstream cluster. No dots: Envoy's statistics would take the name apart at them."""
    return f"{slug(model)}_{side}{'_only' if only else ''}"


def clusters(routes: Sequence[Route], folder: str) -> dict[str, Any]:
    """Return the cluster discovery file: four clusters a model, each with a file of endpoints in the folder."""
    return _resources(
        [
            _cluster(upstream(route.model, side, only=only), folder)
            for route in routes
            for side in SIDES
            for only in (False, True)
        ]
    )


def endpoints_file(name: str) -> str:
    """Return the name of the file with the endpoints of an upstream cluster."""
    return f"eds-{name}.yaml"


def endpoints(routes: Sequence[Route], port_of: PortOf, host: str) -> dict[str, dict[str, Any]]:
    """Return the endpoint discovery files by upstream cluster; Envoy reads one cluster from one file."""
    found = []
    for route in routes:
        for side in SIDES:
            own = route.stable if side == "stable" else route.candidate
            found.append(_assignment(upstream(route.model, side), [own, _saver(route, side)], port_of, host))
            found.append(_assignment(upstream(route.model, side, only=True), [own], port_of, host))
    return {assignment["cluster_name"]: _resources([assignment]) for assignment in found}


def route_table(name: Literal["public", "internal"], routes: Sequence[Route]) -> dict[str, Any]:
    """Return the route discovery file of one listener; the internal one honours `x-headway-cluster`."""
    table: list[dict[str, Any]] = []
    for route in routes:
        if name == "internal":
            table += [_direct(route, side) for side in SIDES]
        table.append(_weighted(route))
    known = ", ".join(path_of(route.model) for route in routes if route.stable) or "none yet"
    table.append(_refusal({"prefix": "/"}, f"no model answers at this path; models are at {known}, followed by /v1"))
    return _resources(
        [
            {
                "@type": f"{TYPE}config.route.v3.RouteConfiguration",
                "name": name,
                "virtual_hosts": [{"name": "models", "domains": ["*"], "routes": table}],
            }
        ]
    )


def _saver(route: Route, side: Side) -> Backend | None:
    """Return who may answer what a side could not: a cluster that has been trusted with traffic."""
    if side == "candidate":
        return route.stable
    return route.candidate if route.candidate_pct > 0 else route.previous


def _cluster(name: str, folder: str) -> dict[str, Any]:
    return {
        "@type": f"{TYPE}config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "connect_timeout": "2s",
        "eds_cluster_config": {
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": f"{folder}/{endpoints_file(name)}",
                    "watched_directory": {"path": folder},
                },
            }
        },
        # One endpoint a priority: without this Envoy would keep asking a dead one ("panic").
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "outlier_detection": {
            "consecutive_gateway_failure": 3,
            "consecutive_5xx": 5,
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_time": "15s",
            "max_ejection_percent": 100,
            "enforcing_consecutive_gateway_failure": 0 if name.endswith("_only") else 100,
            "enforcing_consecutive_5xx": 0 if name.endswith("_only") else 100,
            "enforcing_success_rate": 0,
        },
        "circuit_breakers": {
            "thresholds": [
                {
                    "priority": "DEFAULT",
                    "max_connections": 4096,
                    "max_pending_requests": 4096,
                    "max_requests": 4096,
                    "max_retries": 1024,
                }
            ]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": f"{UPSTREAM_IDLE_S}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def _assignment(name: str, order: Sequence[Backend | None], port_of: PortOf, host: str) -> dict[str, Any]:
    groups: list[dict[str, Any]] = []
    for backend in order:
        port = port_of(backend.cluster) if backend else None
        if backend is None or port is None:
            continue
        endpoint = {
            "endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}},
            "metadata": {"filter_metadata": {"headway": {"release": backend.release, "cluster": backend.cluster}}},
        }
        groups.append({"priority": len(groups), "lb_endpoints": [endpoint]})
    return {"@type": f"{TYPE}config.endpoint.v3.ClusterLoadAssignment", "cluster_name": name, "endpoints": groups}


def _weighted(route: Route) -> dict[str, Any]:
    match = {"path_separated_prefix": f"{path_of(route.model)}/v1"}
    if route.stable is None:
        return _refusal(match, f"{route.model} has no stable version yet; its first release has not ended")
    split = route.split
    weights = [
        {"name": upstream(route.model, side), "weight": weight}
        for side, weight in zip(SIDES, (split.stable_pct, split.candidate_pct), strict=True)
    ]
    action = {
        "weighted_clusters": {"clusters": weights},
        "retry_policy": {
            "retry_on": RETRY_ON,
            "num_retries": 2,
            "retry_priority": {
                "name": "envoy.retry_priorities.previous_priorities",
                "typed_config": {
                    "@type": f"{TYPE}extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                    "update_frequency": 1,
                },
            },
        },
    }
    return _answer(match, action)


def _direct(route: Route, side: Side) -> dict[str, Any]:
    match = {
        "path_separated_prefix": f"{path_of(route.model)}/v1",
        "headers": [{"name": "x-headway-cluster", "string_match": {"exact": side}}],
    }
    if (route.stable if side == "stable" else route.candidate) is None:
        return _refusal(match, f"{route.model} has no {side} now")
    return _answer(match, {"cluster": upstream(route.model, side, only=True)})


def _answer(match: Mapping[str, Any], action: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "match": dict(match),
        "route": {**action, "prefix_rewrite": "/v1", "timeout": "0s", "idle_timeout": f"{ROUTE_IDLE_S}s"},
        "request_headers_to_remove": ["x-headway-cluster"],
        "response_headers_to_add": [RELEASE_HEADER],
        "per_request_buffer_limit_bytes": RETRY_BUFFER_BYTES,
    }


def _refusal(match: Mapping[str, Any], reason: str) -> dict[str, Any]:
    body = json.dumps({"error": {"message": reason, "type": "service_unavailable", "code": 503}})
    return {
        "match": dict(match),
        "direct_response": {"status": 503, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }


def _resources(resources: list[dict[str, Any]]) -> dict[str, Any]:
    """Wrap resources with a version that names their content, by which the gateway's taking it is seen."""
    content = json.dumps(resources, sort_keys=True)
    return {"version_info": hashlib.sha256(content.encode()).hexdigest()[:16], "resources": resources}
