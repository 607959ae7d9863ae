"""A cluster with real Ray Serve and vLLM on CPU: started once for all tests of this module, one to three minutes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import psutil
import pytest
import requests

from headway.adapters.local import cluster_files, supervisord
from headway.adapters.local.clusters import LocalClusters
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.processes import Supervisor, end_strays, strays
from headway.adapters.local.scrape import engine_samples
from headway.domain.cluster import ClusterSpec
from headway.domain.engine_series import GENERATION_TOKENS, PREEMPTIONS
from headway.domain.profile import Engine, Replicas
from headway.release import contract
from headway.settings import Settings
from tests.conftest import CHECKOUT, free_base_port
from tests.factories import make_plan
from tests.fakes import FakeMetrics
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.component, pytest.mark.timeout(1200)]

READY_WITHIN_S = 900.0
NAME, MODEL = "tiny-fp8", "org/tiny-0.1"
LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1", "::1")


class Served(NamedTuple):
    """The one cluster."""

    layout: LocalLayout
    clusters: LocalClusters
    endpoint: str

    def ask(self, path: str, **body: Any) -> requests.Response:
        """Send one request."""
        return requests.post(f"{self.endpoint}/v1/{path}", json={"model": MODEL, **body}, timeout=120)

    def pids(self) -> list[int]:
        """Return its processes."""
        return strays({"HEADWAY_STACK": self.layout.stack_mark, "HEADWAY_CLUSTER": NAME})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A ready cluster of a tiny model with FP8 weights, under a name that Ray has to change."""
    settings = Settings.load().layout()
    layout = LocalLayout.make(
        home=tmp_path_factory.mktemp("hw"),
        cache=settings.cache,
        base_port=free_base_port(),
        checkout=CHECKOUT,
        envs_dir=settings.envs_dir,
    )
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    supervisord.launch(layout)
    clusters = LocalClusters(layout)
    try:
        clusters.apply(spec(write_tiny_model(layout.node / "tiny", fp8=True)))
        end = monotonic() + READY_WITHIN_S
        while (status := clusters.status(NAME)).phase != "ready":
            assert status.phase == "starting", status.reason
            assert monotonic() < end, status.reason
            sleep(1)
        yield Served(layout, clusters, str(status.endpoint))
    finally:
        clusters.delete(NAME)
        Supervisor(layout).shutdown()
        left = end_strays({"HEADWAY_STACK": layout.stack_mark})
    assert left <= 1, "only supervisord may have been left after the cluster was deleted"


def spec(model_dir: Path) -> ClusterSpec:
    """Return what is asked for."""
    return make_plan().cluster.model_copy(
        update={
            "name": NAME,
            "model": MODEL,
            "model_dir": str(model_dir),
            "engine": Engine(max_model_len=512, max_num_seqs=4, kv_cache_gib=0.1),
            "replicas": Replicas(min=1, max=1, target_ongoing=8),
        }
    )


def test_it_answers_under_the_served_name(served: Served) -> None:
    """Sampled and greedy: without a compiler the first sampled request used to kill the engine."""
    for temperature in (0.8, 0.0):
        answer = served.ask("completions", prompt="Hello", max_tokens=4, temperature=temperature, ignore_eos=True)
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4), answer.text


def test_tokens_in_log_probabilities_out(served: Served) -> None:
    """The quality gate asks about exact tokens, and Serve's ingress passes the question on."""
    answer = served.ask("completions", prompt=[5, 6, 7, 8], max_tokens=1, temperature=0, prompt_logprobs=0)

    (first, *rest) = answer.json()["choices"][0]["prompt_logprobs"]
    assert first is None
    assert [next(iter(found)) for found in rest] == ["6", "7", "8"]
    assert all(value["logprob"] < 0 for found in rest for value in found.values())


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("completions", {"prompt": "Hello"}), ("chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})],
)
def test_a_stream_comes_token_by_token_and_ends_with_the_usage(served: Served, path: str, prompt: Any) -> None:
    """What the benchmark measures is the engine, not how Serve gathers tokens."""
    wanted = {"max_tokens": 8, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    lines = [line for line in served.ask(path, **prompt, **wanted).text.splitlines() if line.startswith("data: {")]

    pieces = [json.loads(line.removeprefix("data: ")) for line in lines]

    assert pieces[-1]["usage"]["completion_tokens"] == 8
    assert sum(bool(piece["choices"]) for piece in pieces) >= 6


def test_fp8_weights_run_on_the_kernel_that_widens_them_once(served: Served) -> None:
    """Fourteen times faster than the one that vLLM would take on a CPU."""
    logs = Path(f"/tmp/headway-{served.layout.stack_mark}-0/ray/session_latest/logs")

    assert any("Selected WidenedFP8Kernel" in path.read_text(errors="replace") for path in logs.glob("worker-*"))


def test_what_runs_code_for_others_asks_for_a_token_or_is_on_loopback(served: Served) -> None:
    """Serve's replicas listen on every interface for each other's calls, and want a token; nothing else does."""
    listening = [
        (psutil.Process(pid).name(), connection.laddr)
        for pid in served.pids()
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    record = cluster_files.read(served.layout, NAME)
    assert record is not None

    assert len(listening) > 8
    assert all(name.startswith("ray::ServeRepli") for name, at in listening if at.ip not in LOOPBACK), listening
    assert requests.get(f"{record.dashboard_url}/api/serve/applications/", timeout=10).status_code == 401


def test_the_engine_keeps_the_metric_contract(served: Served) -> None:
    """Every series of the table is there under our name, whatever vLLM and Ray call it; none is guessed."""
    record = cluster_files.read(served.layout, NAME)
    assert record is not None
    end = monotonic() + 60
    while True:
        served.ask("completions", prompt="Hello", max_tokens=2)
        metrics, now = FakeMetrics(), datetime.now(UTC)  # noqa: TID251 - the real scraper is a clock too
        text = requests.get(record.metrics_url, timeout=10).text
        for name, labels, value in engine_samples(text, model=MODEL, cluster=NAME):
            metrics.put(name, labels, now, value)
        check = contract.check(metrics, model=MODEL, cluster=NAME, now=now)
        if check.passed:
            break
        assert monotonic() < end, check.sentence
        sleep(1)

    own = {"model": MODEL, "cluster": NAME}
    assert (metrics.instant(GENERATION_TOKENS.name, own, now) or 0) > 0
    assert metrics.instant(PREEMPTIONS.name, own, now) is None, "it is born with its first event"


def test_the_floor_moves_in_place(served: Served) -> None:
    """The replica stays, and no request fails."""
    before = served.pids()
    served.clusters.floor(NAME, Replicas(min=1, max=2, target_ongoing=8))
    end = monotonic() + 60
    while served_maximum(served) != 2:
        assert served.ask("completions", prompt="Hello", max_tokens=1).ok
        assert monotonic() < end

    assert served.ask("completions", prompt="Hello", max_tokens=1).ok
    assert set(before) <= set(served.pids())


def test_a_replica_is_added_while_the_first_one_serves(served: Served) -> None:
    """The cluster is ready all the while, and its lead time is what a replica takes, not what the cluster took."""
    asked_at = datetime.now(UTC)  # noqa: TID251 - the real cluster is a clock too
    served.clusters.floor(NAME, Replicas(min=2, max=2, target_ongoing=8))
    end = monotonic() + READY_WITHIN_S
    while not (told := served.clusters.scale_ups(NAME, asked_at)):
        status = served.clusters.status(NAME)
        assert status.phase == "ready", status.reason
        assert monotonic() < end, status.reason
        sleep(1)

    (came,) = told
    took_s = (came.ready_at - came.asked_at).total_seconds()
    assert came.replicas == served.clusters.status(NAME).replicas_ready == 2
    assert abs((came.asked_at - asked_at).total_seconds()) < 30
    assert took_s > 3, "an engine that loads a model takes longer"
    for _ in range(8):
        assert served.ask("completions", prompt="Hello", max_tokens=1).ok


def served_maximum(served: Served) -> int:
    """Return the greatest number of replicas that Serve knows of."""
    record = cluster_files.read(served.layout, NAME)
    assert record is not None
    headers = cluster_files.api_headers(served.layout, NAME)
    reply = requests.get(f"{record.dashboard_url}/api/serve/applications/", headers=headers, timeout=10)
    found = reply.json()["applications"]["llm"]
    return int(
        found["deployments"]["LLMServer:org--tiny-0_1"]["deployment_config"]["autoscaling_config"]["max_replicas"]
    )
