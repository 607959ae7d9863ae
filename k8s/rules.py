"""Writes the recording rules and alerts of `k8s/base/rules.yaml` from the table of series: `python k8s/rules.py`.

Engines and Ray rename series; `headway.domain.engine_series` knows every spelling, so the rules follow from it and a
unit test fails when the file is not what the table says. A rule renames and labels; it does not add up. Replicas come
and go, and a sum of counters would grow and fall with them: whoever asks takes the rate of each series first.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from headway.adapters.prometheus import spellings
from headway.domain import engine_series
from headway.ports import REQUESTS, UPTIME

TARGET = Path(__file__).parent / "base" / "rules.yaml"
HEADER = "# Written by `python k8s/rules.py` from headway.domain.engine_series; change it there.\n"
NAMESPACE = "headway"
GATEWAY_NAMESPACE = "envoy-gateway-system"
INTERVAL = "15s"
ROUTE = f"httproute/{NAMESPACE}/public-(.+)/rule/0/backend"
"""Envoy Gateway names its clusters after route, rule and place; the public route's first backend is stable."""
GATEWAY_SERIES = (
    (REQUESTS, "envoy_cluster_upstream_rq_total", "", {}, 1.0),
    ("headway_request_errors_total", "envoy_cluster_upstream_rq_xx", 'envoy_response_code_class="5"', {"of": "5xx"}, 1),
    ("headway_request_errors_total", "envoy_cluster_upstream_rq_retry", "", {"of": "retry"}, 1.0),
    ("headway_requests_active", "envoy_cluster_upstream_rq_active", "", {}, 1.0),
    ("headway_ejections_total", "envoy_cluster_outlier_detection_ejections_enforced_total", "", {}, 1.0),
    ("headway_request_seconds_sum", "envoy_cluster_upstream_rq_time_sum", "", {}, 1e-3),
    ("headway_request_seconds_count", "envoy_cluster_upstream_rq_time_count", "", {}, 1.0),
)
"""Our name, Envoy's, what of it, labels of the rule, factor of the unit. As `adapters.local.scrape` has them."""
BUCKET, ENVOY_BUCKET = "headway_request_seconds_bucket", "envoy_cluster_upstream_rq_time_bucket"
MODELS = "headway:models"
"""Model to the slug by which its routes are called, of every engine that was there within an hour."""


def relabelled(expression: str, *changes: tuple[str, str, str, str]) -> str:
    """Return an expression with labels set: target, replacement, source and the pattern that the source must fit."""
    for target, replacement, source, pattern in changes:
        escaped = pattern.replace("\\", "\\\\")
        expression = f'label_replace({expression}, "{target}", "{replacement}", "{source}", "{escaped}")'
    return expression


def engine_rules() -> Iterator[dict[str, Any]]:
    """Yield a rule for each series of an engine, whatever the engine calls it; the newest spelling counts first."""
    ours = (("model", "$1", "model_name", "(.+)"), ("cluster", "$1", "ray_io_cluster", "(.+)"))
    for series in engine_series.TABLE:
        for name in series.stored:
            theirs = [f'{{__name__="{spelling}"}}' for spelling, _ in spellings(name)[1:]]
            yield {"record": f"headway_{name}", "expr": relabelled(f"({' or '.join(theirs)})", *ours)}


def gateway_rules() -> Iterator[dict[str, Any]]:
    """Yield the rules of what the gateway counts for each model and side."""
    seen = f"last_over_time(headway_{engine_series.PROMPT_TOKENS.name}[1h])"
    yield {
        "record": MODELS,
        "expr": f"group by (model, slug) ({relabelled(seen, ('slug', '$1', 'headway_model', '(.+)'))})",
    }
    for name, theirs, only, labels, factor in GATEWAY_SERIES:
        expression = _of_models(theirs, only)
        yield {
            "record": name,
            "expr": expression if factor == 1 else f"{factor:g} * {expression}",
            **({"labels": labels} if labels else {}),
        }
    # Edges in milliseconds to seconds: by their digits, as there is no arithmetic with labels. Prometheus 3 adds `.0`.
    seconds = (
        ("le", "$1.$2", "le", r"(\d+)(\d{3})(?:\.0)?"),
        ("le", "0.$1", "le", r"(\d{3})(?:\.0)?"),
        ("le", "0.0$1", "le", r"(\d{2})(?:\.0)?"),
    )
    yield {"record": BUCKET, "expr": relabelled(_of_models(ENVOY_BUCKET, ""), *seconds)}
    yield {"record": UPTIME, "expr": f'min(envoy_server_uptime{{namespace="{GATEWAY_NAMESPACE}"}})'}


def _of_models(theirs: str, only: str) -> str:
    """Return Envoy's series with `model` and `side`."""
    place = ROUTE.replace("(.+)", ".+")
    matchers = ", ".join(
        [f'namespace="{GATEWAY_NAMESPACE}"', f'envoy_cluster_name=~"{place}/[01]"', *filter(None, [only])]
    )
    labelled = relabelled(
        f"{theirs}{{{matchers}}}",
        ("slug", "$1", "envoy_cluster_name", f"{ROUTE}/."),
        ("side", "stable", "envoy_cluster_name", ".+/0"),
        ("side", "candidate", "envoy_cluster_name", ".+/1"),
    )
    return f"{labelled} * on (slug) group_left (model) {MODELS}"


def alerts() -> Iterator[dict[str, Any]]:
    """Yield what wakes somebody up: users who get errors, and a headway that sees nothing."""
    yield {
        "alert": "HeadwayUsersGetErrors",
        "expr": (
            f"sum by (model) (rate(headway_request_errors_total[5m])) / sum by (model) (rate({REQUESTS}[5m])) > 0.02"
        ),
        "for": "5m",
        "labels": {"severity": "critical"},
        "annotations": {
            "summary": "More than 2 % of the requests for {{ $labels.model }} fail.",
            "description": "Look at the Serving page; `headway rollback {{ $labels.model }}` goes back.",
        },
    }
    yield {
        "alert": "HeadwayRequestsQueue",
        "expr": f"sum by (model) (headway_{engine_series.WAITING.name}) > 4 * sum by (model) "
        f"(headway_{engine_series.RUNNING.name}) + 10",
        "for": "10m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": "Requests for {{ $labels.model }} wait: its replicas are too few.",
            "description": "Raise replicas.max of its profile, or look why new replicas do not come.",
        },
    }
    yield {
        "alert": "HeadwaySeesNoGateway",
        "expr": f"absent({UPTIME})",
        "for": "10m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": "The gateway is not read: releases will not shift traffic.",
            "description": "Look at the PodMonitor `headway-gateway` and at the targets of Prometheus.",
        },
    }
    yield {
        "alert": "HeadwaySeesNoEngine",
        "expr": f'count by (headway_model) (up{{namespace="{NAMESPACE}", headway_part="replica"}} == 1)'
        f" unless on (headway_model) headway_{engine_series.PROMPT_TOKENS.name}",
        "for": "30m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": "Engines of {{ $labels.headway_model }} are read and give none of the series that are known.",
            "description": "A new version may call them otherwise: see headway.domain.engine_series.",
        },
    }


def content() -> str:
    """Return the file."""
    groups = {"headway-engines": engine_rules(), "headway-gateway": gateway_rules(), "headway-alerts": alerts()}
    rules = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "headway", "namespace": NAMESPACE},
        "spec": {
            "groups": [{"name": name, "interval": INTERVAL, "rules": list(rules)} for name, rules in groups.items()]
        },
    }
    return HEADER + yaml.safe_dump(rules, sort_keys=False, width=10_000)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text(encoding="utf-8") != content())
    TARGET.write_text(content(), encoding="utf-8")
