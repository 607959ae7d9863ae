"""The embedded stack's small Prometheus: `python -m headway.adapters.local.scrape HOME CACHE BASE_PORT CHECKOUT`.

Every `EVERY_S` seconds it reads Envoy's statistics, every `ENGINES_EVERY` each cluster's Ray metrics, and appends a
line to `metrics/<YYYYMMDDHH>.jsonl`: `{"at": <UTC, ISO 8601>, "samples": [[name, labels, value], ...]}`.

Of the gateway, with the labels `model` and `side`:

    headway_requests_total           attempts at the side (a retry on the other side counts there)
    headway_request_errors_total     what the side failed: its 5xx, and attempts that were taken to the other side
    headway_requests_active          in flight now
    headway_ejections_total          how often the gateway shut the side out after several failures in a row
    headway_request_seconds_sum      time of ended requests, with `headway_request_seconds_count`
    headway_request_seconds_bucket   ended requests that took at most `le` seconds, every `BUCKETS_EVERY`; an edge that
                                     adds nothing to the one below it is left out

`headway_gateway_uptime_seconds`, without labels, is there whenever Envoy answered. With `model` and `cluster` come the
engines' series, under the names of `headway.domain.engine_series` however the engine calls them.
"""

import json
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests
from pydantic import ValidationError

from headway.adapters.local import cluster_files
from headway.adapters.local.envoy import SIDES, upstream
from headway.adapters.local.layout import LocalLayout
from headway.domain import engine_series
from headway.domain.traffic import Route
from headway.ports import REQUESTS, UPTIME

EVERY_S = 2.0
BUCKETS_EVERY = timedelta(seconds=6)
"""Envoy merges its workers' histograms every five seconds; reading them more often shows nothing new."""
ENGINES_EVERY = timedelta(seconds=5)
"""Ray's workers report every ten seconds, so nothing that they say is missed. Reading a cluster's few thousand lines is
cheap as long as only those of an engine are taken apart."""
KEEP = timedelta(hours=48)
TIMEOUT_S = 2.0

ENVOY_SERIES = {
    "envoy_cluster_upstream_rq_total": (REQUESTS, 1.0),
    "envoy_cluster_upstream_rq_xx": ("headway_request_errors_total", 1.0),
    "envoy_cluster_upstream_rq_retry": ("headway_request_errors_total", 1.0),
    "envoy_cluster_upstream_rq_active": ("headway_requests_active", 1.0),
    "envoy_cluster_outlier_detection_ejections_enforced_total": ("headway_ejections_total", 1.0),
    "envoy_cluster_upstream_rq_time_sum": ("headway_request_seconds_sum", 1e-3),
    "envoy_cluster_upstream_rq_time_count": ("headway_request_seconds_count", 1.0),
}
"""Envoy's series to ours, and the factor of the unit; equal names are added up."""
ENVOY_BUCKET = "envoy_cluster_upstream_rq_time_bucket"
BUCKET = "headway_request_seconds_bucket"
ENVOY_UPTIME = "envoy_server_uptime"
WANTED = "%5E(cluster%5C.%7Cserver%5C.uptime%24)"
"""Of Envoy's own names: `^(cluster\\.|server\\.uptime$)`."""

Sample = tuple[str, dict[str, str], float]

_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?\s+(\S+)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


def envoy_samples(text: str, models: Iterable[str], *, buckets: bool = True) -> list[Sample]:
    """Return the gateway's samples from Envoy's Prometheus text, for the public traffic of these models.

    Args:
        text: What Envoy's admin interface answered.
        models: Whose traffic is looked for.
        buckets: Whether the latency buckets are taken.
    """
    sides = {upstream(model, side): {"model": model, "side": side} for model in models for side in SIDES}
    totals: dict[tuple[str, str], float] = {}
    found: list[Sample] = []
    added: dict[str, float] = {}
    for name, labels, value in _parsed(text, "envoy_"):
        if name == ENVOY_UPTIME:
            found.append((UPTIME, {}, value))
        place = labels.get("envoy_cluster_name", "")
        if place not in sides or ("rq_xx" in name and labels.get("envoy_response_code_class") != "5"):
            continue
        if name in ENVOY_SERIES:
            ours, factor = ENVOY_SERIES[name]
            totals[(ours, place)] = totals.get((ours, place), 0.0) + value * factor
        elif buckets and name == ENVOY_BUCKET:
            edge = _edge(labels.get("le", ""))
            if edge == "+Inf" or (edge and value > added.get(place, 0.0)):
                added[place] = value
                found.append((BUCKET, {**sides[place], "le": edge}, value))
    return found + [(name, sides[place], value) for (name, place), value in sorted(totals.items())]


def engine_samples(text: str, *, model: str, cluster: str) -> list[Sample]:
    """Return the engine's samples from a cluster's metrics, under our names, the replicas taken together.

    A series that is there under several of its names (a version that deprecates one gives both, and old Ray gave
    counters with and without `_total`) is taken under its newest alone.
    """
    seen: dict[str, dict[int, list[float]]] = {}
    merge: dict[str, str] = {}
    for line in text.splitlines():
        if "vllm" not in line[:12]:
            continue
        match = _LINE.match(line)
        known = engine_series.known(match[1]) if match else None
        value = _number(match[3]) if match else None
        if known is not None and value is not None:
            seen.setdefault(known.stored, {}).setdefault(known.rank, []).append(value)
            merge[known.stored] = known.series.merge
    labels = {"model": model, "cluster": cluster}
    newest = {name: ranks[min(ranks)] for name, ranks in sorted(seen.items())}
    return [
        (name, labels, sum(values) / len(values) if merge[name] == "mean" else sum(values))
        for name, values in newest.items()
    ]


def _parsed(text: str, prefix: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the samples of a text in Prometheus' format whose names begin like this; what is no number is left out."""
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        match = _LINE.match(line)
        value = _number(match[3]) if match else None
        if match and value is not None:
            yield match[1], dict(_LABEL.findall(match[2] or "")), value


def _edge(milliseconds: str) -> str:
    """Return a bucket's edge in seconds, empty if it is none."""
    value = _number(milliseconds)
    return milliseconds if milliseconds == "+Inf" else "" if value is None else f"{value / 1000:g}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Scraper:
    """Reads what there is, and keeps it."""

    def __init__(self, layout: LocalLayout) -> None:
        self._layout = layout
        self._session = requests.Session()
        self._session.trust_env = False
        self._due: dict[timedelta, datetime] = {}

    def scrape(self, now: datetime) -> int:
        """Append one line; return the number of samples. What does not answer is missing in it, never zero."""
        samples = self._gateway(buckets=self._turn(BUCKETS_EVERY, now))
        if self._turn(ENGINES_EVERY, now):
            samples += self._engines()
        if samples:
            line = json.dumps({"at": now.isoformat(), "samples": samples}, separators=(",", ":"))
            with self._file(now).open("a") as handle:
                handle.write(line + "\n")
        return len(samples)

    def forget(self, now: datetime) -> None:
        """Delete files that are older than `KEEP`."""
        oldest = f"{now - KEEP:%Y%m%d%H}"
        for path in self._layout.metrics.glob("*.jsonl"):
            if path.stem < oldest:
                path.unlink(missing_ok=True)

    def _turn(self, every: timedelta, now: datetime) -> bool:
        """Tell whether it is time for what is done this often."""
        if every in self._due and now < self._due[every]:
            return False
        self._due[every] = now + every
        return True

    def _gateway(self, *, buckets: bool) -> list[Sample]:
        text = self._get(f"{self._layout.envoy_admin_url}/stats/prometheus?filter={WANTED}&usedonly")
        return envoy_samples(text, self._models(), buckets=buckets) if text else []

    def _models(self) -> list[str]:
        try:
            kept = json.loads((self._layout.envoy / "routes.json").read_text())
            return [Route.model_validate(route).model for route in kept["routes"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
            return []

    def _engines(self) -> Iterator[Sample]:
        for record in cluster_files.every(self._layout):
            text = self._get(record.metrics_url)
            if text:
                yield from engine_samples(text, model=record.spec.model, cluster=record.spec.name)

    def _get(self, url: str) -> str | None:
        try:
            answer = self._session.get(url, timeout=TIMEOUT_S)
        except requests.RequestException:
            return None
        return answer.text if answer.ok else None

    def _file(self, now: datetime) -> Path:
        return self._layout.metrics / f"{now:%Y%m%d%H}.jsonl"


def main(home: str, cache: str, base_port: str, checkout: str) -> int:
    """Scrape the stack of that layout until TERM."""
    layout = LocalLayout.make(home=Path(home), cache=Path(cache), base_port=int(base_port), checkout=Path(checkout))
    layout.metrics.mkdir(parents=True, exist_ok=True)
    scraper = Scraper(layout)
    ended = threading.Event()

    def end(*_: Any) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    hour = ""
    due = time.monotonic()
    while not ended.wait(max(0.0, due - time.monotonic())):
        due = max(due + EVERY_S, time.monotonic())
        now = datetime.now(UTC)  # noqa: TID251 - this program is the clock of the series
        try:
            scraper.scrape(now)
        except OSError as error:
            print(f"{now.isoformat()} cannot write: {error}", flush=True)  # noqa: T201 - its log
        except ValueError as error:
            print(f"{now.isoformat()} cannot read: {error}", flush=True)  # noqa: T201 - its log
        if hour != f"{now:%Y%m%d%H}":
            hour = f"{now:%Y%m%d%H}"
            scraper.forget(now)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
