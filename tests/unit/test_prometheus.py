"""The `Metrics` port over Prometheus: names, holes and faults. The stand-in below it is no real Prometheus."""

import base64
import json
import math
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headway.adapters import prometheus
from headway.adapters.local import services
from headway.adapters.prometheus import PrometheusMetrics
from headway.domain import engine_series
from headway.errors import BackendUnavailable, ConfigError, HeadwayError, Refused
from headway.settings import Settings
from headway.wiring import LocalBackend
from tests.prometheus_server import PrometheusServer, prometheus_server

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TOKENS = engine_series.GENERATION_TOKENS.name
KV_CACHE = engine_series.KV_CACHE.name


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def running() -> Iterator[PrometheusServer]:
    with prometheus_server() as server:
        yield server


@pytest.fixture
def server(running: PrometheusServer) -> PrometheusServer:
    """The stand-in, empty and well."""
    running.samples.clear()
    running.asked.clear()
    running.headers.clear()
    running.answer = running.odd = None
    return running


@pytest.fixture
def metrics(server: PrometheusServer) -> PrometheusMetrics:
    return PrometheusMetrics(server.url)


def grow(server: PrometheusServer, name: str, start: int, end: int, per_s: float, **labels: str) -> None:
    """Put a counter that is read every half minute."""
    for second in range(start, end + 1, 30):
        server.put(name, labels, at(second), 1000 + per_s * (second - start))


def rates(metrics: PrometheusMetrics, name: str, end: int = 1800) -> dict[float, float]:
    return {
        (step.at - NOW).total_seconds(): round(step.value, 3)
        for step in metrics.rate(name, {"model": "m"}, NOW, at(end), 600)
    }


@pytest.mark.parametrize(
    "spelling",
    ["vllm:generation_tokens_total", "ray_vllm_generation_tokens_total", "vllm_generation_tokens_total",
     "vllm:generation_tokens", "ray_vllm_generation_tokens"],
)  # fmt: skip
def test_an_engines_series_is_found_under_each_of_its_names(
    server: PrometheusServer, metrics: PrometheusMetrics, spelling: str
) -> None:
    """The name of vLLM itself, Ray's, and what older versions gave; all carry vLLM's label."""
    for replica in "ab":
        grow(server, spelling, -600, 1800, 2.0, model_name="m", ReplicaId=replica)
    grow(server, spelling, -600, 1800, 9.0, model_name="other")

    assert rates(metrics, TOKENS) == {0: 4.0, 600: 4.0, 1200: 4.0}


def test_every_name_that_the_scraper_knows_is_asked_for() -> None:
    """One table of spellings: what the embedded stack reads, Prometheus is asked for."""
    for series in engine_series.TABLE:
        for stored in series.stored:
            asked = {spelling for spelling, _ in prometheus.spellings(stored)}
            for alias in series.aliases():
                known = engine_series.known(alias)
                if known is not None and known.stored == stored:
                    assert alias in asked


def test_a_recorded_series_counts_before_the_engines_own(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """A deployment's rule knows better what belongs to a model; both together would count twice."""
    grow(server, f"headway_{TOKENS}", -600, 1800, 5.0, model="m")
    grow(server, "vllm:generation_tokens_total", -600, 1800, 7.0, model_name="m")

    assert rates(metrics, TOKENS) == {0: 5.0, 600: 5.0, 1200: 5.0}


def test_a_series_under_two_names_at_once_counts_once(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """Old Ray gave counters with and without `_total`."""
    grow(server, "ray_vllm_generation_tokens_total", -600, 1800, 3.0, model_name="m")
    grow(server, "ray_vllm_generation_tokens", -600, 1800, 3.0, model_name="m")

    assert rates(metrics, TOKENS) == {0: 3.0, 600: 3.0, 1200: 3.0}


def test_a_renamed_series_goes_on_under_its_new_name(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """An upgrade of the engine costs the step in which it happened, and no more."""
    grow(server, "vllm:gpu_prefix_cache_hits_total", -4200, 690, 6.0, model_name="m")
    grow(server, "vllm:prefix_cache_hits_total", 720, 2400, 6.0, model_name="m")

    found = rates(metrics, engine_series.PREFIX_HITS.name, end=2400)

    assert set(found.values()) == {6.0}
    assert {0.0, 1200.0, 1800.0} <= set(found)


def test_a_share_is_the_mean_of_the_replicas(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """Two half full caches are not one full one."""
    for replica, share in (("a", 0.2), ("b", 0.6)):
        labels = {"model_name": "m", "ray_io_cluster": "c", "ReplicaId": replica}
        server.put("vllm:gpu_cache_usage_perc", labels, NOW, share)

    assert metrics.instant(KV_CACHE, {"model": "m", "cluster": "c"}, at(5)) == pytest.approx(0.4)
    assert metrics.instant(KV_CACHE, {"model": "m", "cluster": "d"}, at(5)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_missing(server: PrometheusServer, metrics: PrometheusMetrics, value: float) -> None:
    """A sum with one NaN in it is NaN, which must not become a plan."""
    server.put("headway_requests_active", {"model": "m"}, NOW, value)
    for second in range(-600, 601, 30):
        server.put("headway_requests_total", {"model": "m"}, at(second), value)

    assert metrics.instant("headway_requests_active", {"model": "m"}, at(1)) is None
    assert metrics.range("headway_requests_active", {"model": "m"}, NOW, at(30)) == []
    assert rates(metrics, "headway_requests_total", end=600) == {}


def test_a_step_in_which_prometheus_began_again_is_missing(
    server: PrometheusServer, metrics: PrometheusMetrics
) -> None:
    """Prometheus divides by the whole step, however little of it it saw: the load would seem to have fallen."""
    grow(server, "headway_requests_total", -7200, -900, 8.0, model="m")
    grow(server, "headway_requests_total", 330, 1200, 8.0, model="m")

    assert rates(metrics, "headway_requests_total", end=1200) == {600: 8.0}


def test_a_scrape_that_comes_less_often_costs_an_hour_at_most(
    server: PrometheusServer, metrics: PrometheusMetrics
) -> None:
    """Fewer samples are taken for an outage until they are usual."""
    grow(server, "headway_requests_total", -3600, 0, 8.0, model="m")
    for second in range(60, 7201, 60):
        server.put("headway_requests_total", {"model": "m"}, at(second), 29800 + 8.0 * second)

    found = rates(metrics, "headway_requests_total", end=7200)

    assert set(found.values()) == {8.0}
    assert {3600.0 + 600 * step for step in range(6)} <= set(found)


def test_a_tick_asks_once_for_all_models(server: PrometheusServer) -> None:
    """A thousand models with a query each would keep Prometheus busy for longer than a tick may take."""
    for index, model in enumerate(("m", "n", "o")):
        spelling = ("vllm:generation_tokens_total", "ray_vllm_generation_tokens")[index % 2]
        grow(server, spelling, -3600, 1800, 2.0 + index, model_name=model, ReplicaId="a")
        grow(server, spelling, 600, 1800, 1.0, model_name=model, ReplicaId="b")
    grow(server, f"headway_{TOKENS}", -3600, 1800, 50.0, model="o")
    metrics = PrometheusMetrics(server.url)

    def found(model: str, of: PrometheusMetrics, **more: str) -> list[float]:
        steps = of.rate(TOKENS, {"model": model, **more}, NOW, at(1800), 600)
        return [round(step.value, 3) for step in steps]

    assert [found(model, metrics) for model in ("m", "n", "o", "p")] == [[2, 3, 3], [3, 4, 4], [50, 50, 50], []]
    assert len(server.asked) == 1
    assert found("m", metrics, cluster="c") == []
    assert len(server.asked) == 2


def test_a_first_history_is_that_of_one_model_alone(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """Two weeks of all models would be an answer of many megabytes for a figure of each."""
    for model in ("m", "n"):
        grow(server, "headway_requests_total", -600, 30_000, 2.0, model=model)

    assert len(metrics.rate("headway_requests_total", {"model": "m"}, NOW, at(30_000), 600)) == 50
    assert 'model="m"' in server.asked[-1][1]["query"]


def test_an_answer_for_all_models_is_kept_no_longer_than_a_tick(
    server: PrometheusServer, metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples may come late; and what is kept has an end."""
    monkeypatch.setattr(prometheus, "FLEET_AGE_S", -1.0)
    assert rates(metrics, "headway_requests_total") == {}
    grow(server, "headway_requests_total", -600, 1800, 2.0, model="m")
    assert rates(metrics, "headway_requests_total") == {0: 2.0, 600: 2.0, 1200: 2.0}
    monkeypatch.setattr(prometheus, "FLEET_KEPT", 3)
    for step in range(9):
        metrics.rate("headway_requests_total", {"model": "m"}, at(step), at(step + 600), 600)
    assert len(metrics._fleet) == 3


def test_a_long_range_is_asked_for_in_pieces_that_prometheus_answers(
    server: PrometheusServer, metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses more than 11,000 points; no step is lost or doubled between two pieces."""
    assert prometheus.MOST_POINTS <= 11_000
    grow(server, "headway_requests_total", -600, 12_000, 2.0, model="m")
    whole = metrics.rate("headway_requests_total", {"model": "m"}, NOW, at(12_000), 600)
    server.asked.clear()
    monkeypatch.setattr(prometheus, "MOST_POINTS", 7)

    assert metrics.rate("headway_requests_total", {"model": "m"}, NOW, at(12_000), 600) == whole
    assert len(whole) == 20
    for _, asked in server.asked:
        assert (float(asked["end"]) - float(asked["start"])) / 600 < 7


def test_a_label_cannot_leave_its_quotes(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """A model's name is data, whatever is in it."""
    name = 'm"} or vector(1) #\\\n'
    server.put("headway_requests_active", {"model": name}, NOW, 3.0)
    server.put("headway_requests_active", {"model": "m"}, NOW, 100.0)

    assert metrics.instant("headway_requests_active", {"model": name}, at(1)) == 3.0


def error(status: int, kind: str = "", text: str = "no") -> Callable[[], tuple[int, bytes]]:
    body = json.dumps({"status": "error", "errorType": kind, "error": text}).encode()
    return lambda: (status, body)


def success(result: list[Any]) -> Callable[[], tuple[int, bytes]]:
    body = json.dumps({"status": "success", "data": {"result": result}}).encode()
    return lambda: (200, body)


@pytest.mark.parametrize(
    ("answer", "kind", "word"),
    [
        (error(503, "unavailable", "starting up"), BackendUnavailable, "cannot answer now .*starting up"),
        (error(422, "timeout", "query timed out"), BackendUnavailable, "query timed out"),
        (error(429), BackendUnavailable, "429"),
        (error(400, "bad_data", "parse error"), Refused, "parse error"),
        (error(200, "execution", "odd"), Refused, "odd"),
        (lambda: (401, b""), Refused, "401"),
        (lambda: (302, b""), Refused, "302"),
        (lambda: (404, b"<html>"), Refused, "404"),
        (lambda: (200, b"<html>log in</html>"), Refused, "did not answer as Prometheus"),
        (lambda: (200, b"[]"), Refused, "did not answer as Prometheus"),
        (lambda: (200, b'{"status": "success", "data": null}'), Refused, "did not answer as Prometheus"),
        (success([1]), Refused, "did not answer as Prometheus"),
        (success([{"metric": {}}]), Refused, "did not answer as Prometheus"),
        (success([{"metric": {}, "value": [0, "no"], "values": [[0, "no"]]}]), Refused, "did not answer as Prometheus"),
    ],
)
def test_a_fault_is_never_an_empty_answer(
    server: PrometheusServer, answer: Callable[[], tuple[int, bytes]], kind: type[HeadwayError], word: str
) -> None:
    """Whoever asks learns that nothing is known, in words that name the place and no password."""
    server.answer = answer
    metrics = PrometheusMetrics(server.url.replace("//", "//reader:s3cret%40@"))

    for ask in (
        lambda: metrics.instant("headway_requests_active", {}, NOW),
        lambda: metrics.rate("headway_requests_total", {}, NOW, at(600), 600),
        lambda: metrics.range("headway_requests_total", {}, NOW, at(600)),
        lambda: metrics.counting_since(NOW),
    ):
        with pytest.raises(kind, match=word) as caught:
            ask()
        assert "s3cret" not in f"{caught.value!r} {caught.value.facts} {caught.value.__cause__!r}"
        assert server.url in caught.value.message
    sent = server.headers[-1]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"reader:s3cret@"


def test_an_answer_with_a_part_missing_is_none(server: PrometheusServer, metrics: PrometheusMetrics) -> None:
    """A store that lacks one of its parts would show half of the traffic."""
    grow(server, "headway_requests_total", -600, 600, 2.0, model="m")

    def lacking(body: dict[str, Any]) -> None:
        body["warnings"] = ["store 10.0.0.7 does not answer"]

    server.odd = lacking
    with pytest.raises(BackendUnavailable, match=r"not all of the answer .*10\.0\.0\.7"):
        rates(metrics, "headway_requests_total", end=600)
    server.odd = lambda body: body.update(infos=["metric might not be a counter"])
    assert rates(metrics, "headway_requests_total", end=600) == {0: 2.0}


def test_no_prometheus_is_said(monkeypatch: pytest.MonkeyPatch, server: PrometheusServer) -> None:
    """Nobody there, and somebody who never answers."""
    monkeypatch.setattr(prometheus, "TIMEOUT_S", (0.5, 0.1))
    with pytest.raises(BackendUnavailable, match="does not answer"):
        PrometheusMetrics("http://127.0.0.1:1").instant("x", {}, NOW)
    ended = threading.Event()

    def wait() -> tuple[int, bytes]:
        ended.wait(10)
        return 200, b""

    server.answer = wait
    with pytest.raises(BackendUnavailable, match="does not answer"):
        PrometheusMetrics(server.url).instant("x", {}, NOW)
    ended.set()


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://host", "http://", "http://host:port/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="HEADWAY_PROMETHEUS_URL"):
        PrometheusMetrics(url)


def test_the_setting_reaches_the_tasks_and_shows_no_password(tmp_path: Path, server: PrometheusServer) -> None:
    """Tasks of Airflow inherit nothing, so the address is handed on; a path below a proxy is kept."""
    url = server.url.replace("//", "//reader:s3cret@")
    settings = Settings(home=tmp_path, prometheus_url=url)
    layout = settings.layout()
    server.put("headway_requests_active", {"model": "m"}, NOW, 2.0)

    assert services.airflow_env(layout)["HEADWAY_PROMETHEUS_URL"] == url
    assert "HEADWAY_PROMETHEUS_URL" not in services.airflow_env(Settings(home=tmp_path).layout())
    assert "s3cret" not in f"{settings!r} {layout!r}"
    assert LocalBackend(settings).metrics.instant("headway_requests_active", {"model": "m"}, NOW) == 2.0
    with pytest.raises(Refused, match="no such path /sub/api"):
        PrometheusMetrics(f"{server.url}/sub/").instant("x", {}, NOW)
