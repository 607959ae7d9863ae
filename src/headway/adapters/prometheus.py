"""The `Metrics` port over Prometheus' HTTP API, or what speaks it (Thanos, Mimir, VictoriaMetrics).

Asked for are our own names: of the gateway `headway_requests_total` and its like, which a recording rule gives; of the
engines, in this order, a rule's `headway_<our name>`, then every spelling that an engine may use itself (see
`headway.domain.engine_series`), the newest first. They are one query, `a or b or c`: of a series that is there under
several names the first alone counts, and a step in which the name changed finds the name that it had then.

A rule's series have the labels `model`, `cluster` and `side`. Where the engines' own names are read, `model` is vLLM's
`model_name` and `cluster` is KubeRay's `ray_io_cluster`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import requests

from headway.domain import engine_series
from headway.errors import BackendUnavailable, ConfigError, Refused
from headway.ports import UPTIME, Sample

TIMEOUT_S = (3.0, 20.0)
"""Connect and read."""
MOST_POINTS = 10_000
"""Steps of one query; Prometheus refuses more than 11,000."""
GRID_S = 15
"""Distance of the samples of a range: a usual scrape interval."""
LOOK_BACK_STEPS = 6
"""Steps before those asked for, from which it is known how many samples a step usually has."""
LOST_SHARE = 0.1
"""A step that lacks more of its usual samples (or more than one, where that is more) was not measured: the series or
Prometheus was away, and as Prometheus divides by the whole step, its rate would be too low."""
FLEET_STEPS = 24
"""Up to so many steps the rates of all models are asked for at once; more are a model's first history."""
FLEET_KEPT, FLEET_AGE_S = 32, 60.0
"""Answers for all models that are kept, and for how long: as long as a tick goes from model to model."""
ENGINE_LABELS = {"model": "model_name", "cluster": "ray_io_cluster"}
"""Our labels to those of an engine's own series."""


class PrometheusMetrics:
    """The `Metrics` port.

    Args:
        base_url: Address up to and without `/api/v1`; a user and password in it are used and never shown.

    Raises:
        ConfigError: It is no address.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise ConfigError(
                "HEADWAY_PROMETHEUS_URL is no address of Prometheus; expected http:// or https://, a host, and perhaps "
                "a port and a path"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = f"{host}:{port}" if port else host
        self._shown = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
        self._fleet: dict[tuple[str, datetime, int, int], tuple[float, dict[str, list[Sample]]]] = {}
        self._session = requests.Session()
        self._session.trust_env = False
        if parts.username is not None:
            self._session.auth = (unquote(parts.username), unquote(parts.password or ""))

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        """Return the sum over matching series of the last value at or before `at`; none when there is no data."""
        found = self._query("query", {"query": _any(_merge(name), name, labels), "time": _time(at)})
        return next((value for one in found for _, value in one.points), None)

    def instant_by(self, name: str, labels: Mapping[str, str], label: str, at: datetime) -> Mapping[str, float]:
        """Return what `instant` does for each value of one more label; empty when there is no data."""
        text = _any(_merge(name), name, labels, by=label)
        found = self._query("query", {"query": text, "time": _time(at)})
        return {one.labels.get(label, ""): value for one in found for _, value in one.points}

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        """Return that sum over time, at a regular distance up to `end`; a gap is missing, never zero."""
        steps = int((end - start).total_seconds() // GRID_S)
        first = end - timedelta(seconds=steps * GRID_S)
        found = self._range(_any(_merge(name), name, labels), first, GRID_S, steps + 1)
        points = sorted(point for _, series in found for point in series.items())
        return [Sample(first + timedelta(seconds=index * GRID_S), value) for index, value in points]

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        """Return by how much matching counters grew a second, in each whole step that was measured."""
        steps = int((end - start).total_seconds() // step_s)
        if steps < 1:
            return []
        if set(labels) != {"model"} or steps > FLEET_STEPS:
            return self._rates(name, labels, start, steps, step_s).get("", [])
        # A tick asks the same for every model: one query answers for all of them.
        asked = (name, start, steps, step_s)
        known = self._fleet.get(asked)
        if known is None or monotonic() - known[0] > FLEET_AGE_S:
            while len(self._fleet) >= FLEET_KEPT:
                del self._fleet[next(iter(self._fleet))]
            known = self._fleet[asked] = (monotonic(), self._rates(name, {}, start, steps, step_s, by="model"))
        return known[1].get(labels["model"], [])

    def _rates(
        self, name: str, labels: Mapping[str, str], start: datetime, steps: int, step_s: int, *, by: str = ""
    ) -> dict[str, list[Sample]]:
        """Return the rates for each value of one of our labels, or all under an empty one."""
        window = f"[{step_s}s]"
        growth = _any("sum", name, labels, call="rate", window=window, by=by)
        samples = _any("max", name, labels, call="count_over_time", window=window, by=by)
        text = f'label_replace({growth}, "of", "growth", "", "") or label_replace({samples}, "of", "samples", "", "")'
        # Prometheus looks back from the end of a step.
        first = start + timedelta(seconds=(1 - LOOK_BACK_STEPS) * step_s)
        found = {
            (metric.get(by, ""), metric.get("of")): series
            for metric, series in self._range(text, first, step_s, steps + LOOK_BACK_STEPS)
        }
        return {
            value: [
                Sample(start + timedelta(seconds=(index - LOOK_BACK_STEPS) * step_s), grown[index])
                for index in sorted(grown)
                if index >= LOOK_BACK_STEPS and _whole(found.get((value, "samples"), {}), index)
            ]
            for (value, of), grown in found.items()
            if of == "growth"
        }

    def counting_since(self, at: datetime) -> datetime | None:
        """Return when the gateway's counters last began at zero; none if nobody was reading the gateway at `at`."""
        found = self._query("query", {"query": f"max(timestamp({UPTIME}) - {UPTIME})", "time": _time(at)})
        return next((_moment(value) for one in found for _, value in one.points), None)

    def _range(
        self, text: str, first: datetime, step_s: int, steps: int
    ) -> list[tuple[Mapping[str, str], dict[int, float]]]:
        """Return each series as its labels and values by the number of the step, asked for piece by piece."""
        found: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
        for begin in range(0, steps, MOST_POINTS):
            start = first + timedelta(seconds=begin * step_s)
            end = first + timedelta(seconds=(min(begin + MOST_POINTS, steps) - 1) * step_s)
            asked = {"query": text, "start": _time(start), "end": _time(end), "step": str(step_s)}
            for one in self._query("query_range", asked):
                series = found.setdefault(tuple(sorted(one.labels.items())), {})
                for at, value in one.points:
                    series[round((at - first.timestamp()) / step_s)] = value
        return [(dict(labels), series) for labels, series in found.items()]

    def _query(self, path: str, asked: Mapping[str, str]) -> list["_Series"]:
        """Return the series of an answer.

        Raises:
            BackendUnavailable: Nobody answered, or not for all of it.
            Refused: What is there does not let headway read, or is no Prometheus.
        """
        url = f"{self._shown}/api/v1/{path}"
        try:
            answer = self._session.get(url, params=asked, timeout=TIMEOUT_S, allow_redirects=False)
        except requests.RequestException as error:
            raise BackendUnavailable(
                f"Prometheus at {self._shown} does not answer ({type(error).__name__}); is it up, and is "
                "HEADWAY_PROMETHEUS_URL right?",
                url=self._shown,
            ) from error
        body = _json(answer)
        said = f"{answer.status_code} {body.get('errorType', '')} {body.get('error', '')}".strip()[:300]
        if answer.status_code >= 500 or answer.status_code == 429 or body.get("errorType") in {"timeout", "canceled"}:
            raise BackendUnavailable(f"Prometheus at {self._shown} cannot answer now ({said})", url=self._shown)
        series = _series(body)
        if answer.status_code != 200 or body.get("status") != "success" or series is None:
            raise Refused(
                f"{self._shown} did not answer as Prometheus does ({said}); expected its HTTP API below "
                "HEADWAY_PROMETHEUS_URL, readable for headway",
                url=self._shown,
                status=answer.status_code,
            )
        if body.get("warnings"):
            # A part of the series would be read as less traffic.
            raise BackendUnavailable(
                f"Prometheus at {self._shown} has not all of the answer ({str(body['warnings'])[:300]})",
                url=self._shown,
            )
        return series


def spellings(name: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return how a series may be called, what counts first in front, and what is called otherwise of its labels.

    Args:
        name: Ours.
    """
    for series in engine_series.TABLE:
        if name in series.stored:
            ending = name.removeprefix(series.name) if series.kind == "histogram" else ""
            endings = ("_total", "") if series.kind == "counter" else (ending,)
            theirs = [
                f"{prefix}{stem}{last}"
                for stem in series.stems
                for last in endings
                for prefix in ("vllm:", "ray_vllm_", "vllm_")
            ]
            return [(f"headway_{name}", {}), *((spelling, ENGINE_LABELS) for spelling in theirs)]
    return [(name, {})] if name.startswith("headway_") else [(f"headway_{name}", {}), (name, {})]


def _merge(name: str) -> str:
    """Return what replicas come to."""
    means = (series.name for series in engine_series.TABLE if series.merge == "mean")
    return "avg" if name in means else "sum"


def _any(
    aggregate: str, name: str, labels: Mapping[str, str], *, call: str = "", window: str = "", by: str = ""
) -> str:
    """Return the query that takes the first spelling that is there, for each value of one of our labels if `by` is."""
    parts = []
    for spelling, renamed in spellings(name):
        key = renamed.get(by, by)
        matchers = [f"__name__={_quoted(spelling)}", *([f'{key}!=""'] if by else [])]
        matchers += [f"{renamed.get(label, label)}={_quoted(value)}" for label, value in sorted(labels.items())]
        found = f"{call}({{{', '.join(matchers)}}}{window})"
        if key != by:
            found = f'label_replace({found}, "{by}", "$1", "{key}", "(.*)")'
        parts.append(f"{aggregate} by ({by}) ({found})" if by else f"{aggregate}({found})")
    return " or ".join(parts)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _whole(counts: Mapping[int, float], index: int) -> bool:
    """Tell whether a step has about as many samples as those before it; where none are known, as the fullest of all."""
    before = [counts[i] for i in range(index - LOOK_BACK_STEPS, index) if i in counts]
    others = [count for i, count in counts.items() if i != index]
    usual = statistics.median(before) if before else max(others, default=math.inf)
    return counts.get(index, 0.0) >= usual - max(1.0, LOST_SHARE * usual)


class _Series(NamedTuple):
    labels: Mapping[str, str]
    points: list[tuple[float, float]]


def _series(body: Mapping[str, Any]) -> list[_Series] | None:
    """Return the series of an answer, none where it has not the form that Prometheus gives it."""
    try:
        return [
            _Series(
                {str(label): str(value) for label, value in one["metric"].items()},
                _points(one["values"] if "values" in one else [one["value"]]),
            )
            for one in body["data"]["result"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _points(pairs: Sequence[Any]) -> list[tuple[float, float]]:
    """Return times and values; what is no number is missing."""
    found = [(float(at), float(value)) for at, value in pairs]
    return [(at, value) for at, value in found if math.isfinite(value)]


def _json(answer: requests.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _time(at: datetime) -> str:
    return f"{at.timestamp():.3f}"


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
