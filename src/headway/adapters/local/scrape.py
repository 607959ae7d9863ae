"""The embedded stack's small Prometheus: `python -m headway.adapters.local.scrape HOME CACHE BASE_PORT CHECKOUT`.

Every `EVERY_S` seconds it reads Envoy's statistics, and every `ENGINES_EVERY` each cluster's Ray metrics, and appends a
line to `metrics/<YYYYMMDDHH>.jsonl`: `{"at": <UTC, ISO 8601>, "samples": [[name, labels, value], ...]}`.

Names, all with the labels `model` and `side`:

    headway_requests_total           attempts at the side (a retry on the other side counts there)
    headway_request_errors_total     what the side failed: its 5xx, and attempts that were taken to the other side
    headway_requests_active          in flight now
    headway_request_seconds_sum      time of ended requests, with `headway_request_seconds_count`

and, with `model` and `cluster`, those of `ENGINE_SERIES` under vLLM's names with underscores, whatever prefix Ray gives
them.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from headway.adapters.local import cluster_files
from headway.adapters.local.envoy import SIDES, upstream
from headway.adapters.local.layout import LocalLayout
from headway.domain.traffic import Route

EVERY_S = 2.0
ENGINES_EVERY = timedelta(seconds=15)
"""Ray gives thousands of lines a cluster; reading them every two seconds took a tenth of a core."""
KEEP = timedelta(hours=48)
TIMEOUT_S = 2.0

ENVOY_SERIES = {
    "envoy_cluster_upstream_rq_total": ("headway_requests_total", 1.0),
    "envoy_cluster_upstream_rq_xx_total": ("headway_request_errors_total", 1.0),
    "envoy_cluster_upstream_rq_retry_total": ("headway_request_errors_total", 1.0),
    "envoy_cluster_upstream_rq_active": ("headway_requests_active", 1.0),
    "envoy_cluster_upstream_rq_time_sum": ("headway_request_seconds_sum", 1e-3),
    "envoy_cluster_upstream_rq_time_count": ("headway_request_seconds_count", 1.0),
}
"""Envoy's series (as the parser names them) to ours, and the factor of the unit; equal names are added up."""

ENGINE_SERIES = (
    "vllm_num_requests_running",
    "vllm_num_requests_waiting",
    "vllm_kv_cache_usage_perc",
    "vllm_num_preemptions_total",
    "vllm_prompt_tokens_total",
    "vllm_generation_tokens_total",
)

Sample = tuple[str, dict[str, str], float]


def envoy_samples(text: str, models: Iterable[str]) -> list[Sample]:
    """Return the gateway's samples from Envoy's Prometheus text, for the public traffic of these models."""
    sides = {upstream(model, side): {"model": model, "side": side} for model in models for side in SIDES}
    totals: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            place = sample.labels.get("envoy_cluster_name", "")
            name = sample.name
            # The parser gives every counter the suffix `_total`, so `upstream_rq` by code looks like the sum of all.
            if place not in sides or name not in ENVOY_SERIES or "envoy_response_code" in sample.labels:
                continue
            if "rq_xx" in name and sample.labels.get("envoy_response_code_class") != "5":
                continue
            ours, factor = ENVOY_SERIES[name]
            totals[(ours, place)] = totals.get((ours, place), 0.0) + sample.value * factor
    return [(name, sides[place], value) for (name, place), value in sorted(totals.items())]


def engine_samples(text: str, *, model: str, cluster: str) -> list[Sample]:
    """Return the engine's samples from a cluster's metrics: replicas added up, the usage share averaged."""
    seen: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            plain = sample.name.removeprefix("ray_").replace("vllm:", "vllm_")
            name = next((n for n in (plain, f"{plain}_total") if n in ENGINE_SERIES), None)
            if name:
                seen.setdefault(name, []).append(sample.value)
    labels = {"model": model, "cluster": cluster}
    return [
        (name, labels, sum(values) / len(values) if name.endswith("_perc") else sum(values))
        for name, values in sorted(seen.items())
    ]


class Scraper:
    """Reads what there is, and keeps it."""

    def __init__(self, layout: LocalLayout) -> None:
        self._layout = layout
        self._session = requests.Session()
        self._session.trust_env = False
        self._engines_due: datetime | None = None

    def scrape(self, now: datetime) -> int:
        """Append one line; return the number of samples. What does not answer is missing in it, never zero."""
        samples = self._gateway()
        if self._engines_due is None or now >= self._engines_due:
            self._engines_due = now + ENGINES_EVERY
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

    def _gateway(self) -> list[Sample]:
        text = self._get(f"{self._layout.envoy_admin_url}/stats/prometheus?filter=%5Ecluster%5C.&usedonly")
        return envoy_samples(text, self._models()) if text else []

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
