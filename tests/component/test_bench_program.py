"""The bench program as a process of its own, against servers in processes of their own."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headway.domain.bench import BenchJob, BenchResult, SideTarget
from headway.domain.job import EXIT_DONE, EXIT_FAILED, EXIT_RETRY
from headway.domain.profile import Canary
from headway.judge.quantiles import latencies
from headway.judge.records import parse
from tests.component.test_bench import make_job, measure, side
from tests.fake_vllm import FakeVllm

pytestmark = pytest.mark.component


@pytest.fixture
def stable() -> Iterator[FakeVllm]:
    with FakeVllm(release="stable-1", ttft_ms=10, itl_ms=1) as server:
        yield server


@pytest.fixture
def candidate() -> Iterator[FakeVllm]:
    with FakeVllm(release="candidate-1", ttft_ms=10, itl_ms=1) as server:
        yield server


def _program(folder: Path, job: Any) -> subprocess.CompletedProcess[str]:
    (folder / "job.json").write_text(json.dumps(job))
    return subprocess.run(
        [sys.executable, "-m", "headway.pods.bench", "job.json"],
        cwd=folder,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_program_leaves_result_and_progress(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    done = _program(tmp_path, make_job(stable, candidate).to_json())

    assert done.returncode == EXIT_DONE, done.stderr
    result = BenchResult.model_validate_json((tmp_path / "result.json").read_bytes())
    assert len(result.blocks) >= 4
    assert json.loads((tmp_path / "progress.json").read_bytes())["progress_pct"] == 100


def test_the_program_refuses_a_job_it_does_not_understand(tmp_path: Path) -> None:
    done = _program(tmp_path, {"release": "r"})

    assert done.returncode == EXIT_FAILED
    assert "is no BenchJob" in json.loads((tmp_path / "result.json").read_bytes())["error"]


def test_the_program_asks_to_be_tried_again_without_a_store(
    stable: FakeVllm, candidate: FakeVllm, tmp_path: Path
) -> None:
    """Records that cannot be handed over are kept, and the next try only hands them over."""
    job = make_job(stable, candidate, records_uri="s3://headway/bench/r/records.jsonl").to_json()
    (tmp_path / "job.json").write_text(json.dumps(job))
    environment = {
        "PYTHONPATH": ":".join(sys.path),
        "PATH": "/usr/bin:/bin",
        "HEADWAY_S3_ENDPOINT": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "headway.pods.bench", "job.json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False)

    assert done.returncode == EXIT_RETRY
    assert json.loads((tmp_path / "result.json").read_bytes())["kind"] == "BackendUnavailable"
    assert parse((tmp_path / "records.jsonl").read_bytes()).summaries


def _server_process(port_file: Path, **options: Any) -> "subprocess.Popen[bytes]":
    given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "tests.fake_vllm", "--port", "0", "--port-file", str(port_file), *given]
    return subprocess.Popen(command, env={"PYTHONPATH": ":".join(sys.path)})


async def _until_up(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as response:
        assert response.status == 200


def test_injected_latencies_are_found_again(tmp_path: Path) -> None:
    """Servers in processes of their own: 40 ms and 5 ms a token on one side, twice that on the other."""
    servers, targets = [], []
    try:
        for name, factor in (("stable", 1), ("candidate", 2)):
            port_file = tmp_path / name
            servers.append(_server_process(port_file, release=name, ttft_ms=40 * factor, itl_ms=5 * factor))
            until = time.monotonic() + 30
            while not port_file.exists():
                assert time.monotonic() < until, f"the fake {name} did not start"
                assert servers[-1].poll() is None
                time.sleep(0.05)
            url = f"http://127.0.0.1:{port_file.read_text()}"
            asyncio.run(_until_up(url))
            targets.append(SideTarget(side=name, base_url=url, served_model="m", release=name))  # type: ignore[arg-type]
        canary = Canary(
            blocks=4,
            requests_per_block=20,
            rate_per_s=15,
            max_tokens=16,
            p50_margin=0.5,
            p95_margin=0.5,
            error_margin_pct=20,
        )
        job = BenchJob(release="candidate", targets=tuple(targets), canary=canary, seed=1)
        _, run, analysis = measure(job, tmp_path)
    finally:
        for server in servers:
            server.terminate()
            server.wait(10)

    assert analysis.verdict.decision == "ROLLBACK", analysis.verdict.sentence
    for name, factor in (("stable", 1), ("candidate", 2)):
        found = latencies(side(run, name))
        # Sleeping and the way over loopback add 2 to 3 ms on a quiet machine.
        assert 40 * factor - 1 <= (found["ttft_p50"] or 0) <= 40 * factor + 15
        assert found["tpot_p50"] == pytest.approx(5 * factor, rel=0.15)
