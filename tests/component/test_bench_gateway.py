"""The benchmark through a real Envoy: fair to stable's users, and harmless to them when the candidate dies."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest
import requests

from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.traffic import LocalTraffic
from headway.domain.bench import BenchJob
from headway.domain.traffic import Backend, Route
from headway.judge.records import parse
from headway.judge.verdict import analyse
from headway.pods import bench
from headway.release import canary
from tests.factories import make_plan, make_profile, make_ref
from tests.fake_vllm import FakeVllm
from tests.fakes import FakeWeightStore

pytestmark = pytest.mark.component

REF = make_ref("r-new")
PLAN = make_plan(
    make_profile(
        canary={
            "blocks": 4,
            "requests_per_block": 20,
            "rate_per_s": 25,
            "max_tokens": 4,
            "warmup_requests": 8,
            "p50_margin": 2,
            "p95_margin": 2,
            "p99_guard": 2,
            "error_margin_pct": 12,
            "max_lag_ms": 5000,
        }
    )
)
STABLE = Backend(cluster="old", release="r-old", version=1, cluster_digest="1" * 64)
CANDIDATE = Backend(cluster=PLAN.cluster.name, release=REF.release, version=2, cluster_digest="2" * 64)


class Sides(NamedTuple):
    """Two clusters behind a gateway."""

    layout: LocalLayout
    stable: FakeVllm
    candidate: FakeVllm

    def job(self) -> BenchJob:
        """What the release would ask the benchmark to do here."""
        return canary.make_job(
            PLAN,
            REF,
            Route(model="tiny", stable=STABLE, candidate=CANDIDATE),
            FakeWeightStore(),
            reference=None,
            gateway_url=self.layout.internal_gateway_url,
            stats_url=f"{self.layout.envoy_admin_url}/stats",
        )


@pytest.fixture
def sides(envoy_process: LocalLayout) -> Iterator[Sides]:
    with FakeVllm(model="tiny") as stable, FakeVllm(model="tiny") as candidate:
        ports = {"old": stable.port, PLAN.cluster.name: candidate.port}
        LocalTraffic(envoy_process, ports.get).shift(Route(model="tiny", stable=STABLE, candidate=CANDIDATE))
        yield Sides(envoy_process, stable, candidate)


class Users:
    """People who keep asking through the public listener, ten times a second, and count their failures."""

    def __init__(self, url: str) -> None:
        self.url, self.asked, self.failures = url, 0, list[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _ask(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            answer = requests.post(self.url, json={"prompt": "hello", "max_tokens": 2, "stream": True}, timeout=10)
            self.asked += 1
            if answer.status_code != 200 or b"[DONE]" not in answer.content:
                self.failures.append(f"{answer.status_code}: {answer.text[:100]}")
            due = max(due + 0.1, time.monotonic())
            self._stop.wait(due - time.monotonic())


def test_users_on_stable_become_load_on_the_candidate(sides: Sides, tmp_path: Path) -> None:
    with Users(f"{sides.layout.gateway_url}/tiny/v1/completions") as users:
        asyncio.run(bench.run(sides.job(), tmp_path, lambda percent, message: None))

    run = parse((tmp_path / "records.jsonl").read_bytes())
    assert {(r.side, r.served_release) for r in run.records} == {("stable", "r-old"), ("candidate", "r-new")}
    assert not any(r.error for r in run.records)
    assert users.failures == []
    assert all(2 <= s.live_rate_per_s <= 15 for s in run.summaries), [s.live_rate_per_s for s in run.summaries]
    assert sum(s.live_sent for s in run.summaries) > 0


def test_a_candidate_that_dies_is_rolled_back_and_no_user_notices(sides: Sides, tmp_path: Path) -> None:
    sides.candidate.behaviour.mode, sides.candidate.behaviour.mode_after = "reset", 40

    with Users(f"{sides.layout.gateway_url}/tiny/v1/completions") as users:
        asyncio.run(bench.run(sides.job(), tmp_path, lambda percent, message: None))

    run = parse((tmp_path / "records.jsonl").read_bytes())
    verdict = analyse(run.records, run.summaries, PLAN.profile.canary).verdict
    assert verdict.decision == "ROLLBACK", verdict.sentence
    assert run.summaries[-1].stable_alive is True
    assert users.asked > 5
    assert users.failures == []
