"""The bench program as a process of its own, against servers in processes of their own."""

import asyncio
import hashlib
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
from headway.pods import records_parquet
from tests.component.servers import s3_server, wait_for
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


def _program(folder: Path, job: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.json").write_text(json.dumps(job))
    return subprocess.run(
        [sys.executable, "-m", "headway.pods.bench", "job.json"],
        cwd=folder,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", **variables},
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


def test_the_program_reads_its_prompts_and_hands_over_lines_and_table(candidate: FakeVllm, tmp_path: Path) -> None:
    prompts = "".join(json.dumps({"prompt": f"What is {k}?", "max_tokens": 3}) + "\n" for k in range(20)).encode()
    with s3_server(tmp_path / "s3") as store:
        client = store.client()
        client.put("s3://headway/prompts.jsonl", prompts)
        job = make_job(
            None,
            candidate,
            canary={"prompts": "s3://headway/prompts.jsonl", "arrivals": "replay", "trace": "history"},
            prompts_sha256=hashlib.sha256(prompts).hexdigest(),
            arrivals_s=tuple(k * k / 10 for k in range(20)),
            records_uri="s3://headway/bench/r/records.jsonl",
        )
        done = _program(tmp_path, job.to_json(), **store.environment("headway"))
        assert done.returncode == EXIT_DONE, done.stderr
        result = BenchResult.model_validate_json((tmp_path / "result.json").read_bytes())
        lines, table = client.read(result.records_uri), client.read(result.parquet_uri)
        changed = job.model_copy(update={"prompts_sha256": "0" * 64, "records_path": "other.jsonl"})
        refused = _program(tmp_path, changed.to_json(), **store.environment("headway"))

    assert result.parquet_uri == "s3://headway/bench/r/records.parquet"
    assert records_parquet.read(table).records == parse(lines).records
    assert {body["max_tokens"] for body in candidate.bodies if "What is" in str(body["prompt"])} == {3}
    assert (result.started_at, refused.returncode) == (result.blocks[0].started_at, EXIT_FAILED)
    assert "somebody changed them" in json.loads((tmp_path / "result.json").read_bytes())["error"]


def test_a_killed_program_leaves_no_worker_behind(stable: FakeVllm, candidate: FakeVllm, tmp_path: Path) -> None:
    """Load that nobody measures any more would fall on stable's users."""
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from headway.pods import bench_load; bench_load.STREAMS_PER_PROCESS_S = 20.0; bench_load.cores = lambda: 9\n"
        "from headway.pods.bench import main; sys.exit(main(['job.json']))"
    )
    job = make_job(stable, candidate, canary={"requests_per_block": 2000, "rate_per_s": 20, "warmup_requests": 0})
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    program = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    try:
        wait_for(lambda: len(stable.bodies) > 20, "the load")
        workers = _children(program.pid)
        assert len(workers) == 2
    finally:
        program.kill()
        program.wait(10)
    wait_for(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()], "the end of the workers")
    before = len(stable.bodies)
    time.sleep(1)

    assert len(stable.bodies) == before


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _server_process(port_file: Path, **options: Any) -> "subprocess.Popen[bytes]":
    given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "headway.pods.mock_vllm", "--port", "0", "--port-file", str(port_file), *given]
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
