"""`headway calibrate` with real decisions on mock servers: a known delay is found again, or nothing is published."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import wiring
from headway.cli import main
from headway.judge.calibrate import FIRST_TOKEN
from headway.judge.records import parse
from headway.pods.mock_vllm import MockVllm

pytestmark = pytest.mark.component

PROFILE = """model: tiny
hardware: {accelerator: cpu, per_replica: 1}
canary:  # small blocks, wide margins: the machine that runs this may be busy
  blocks: 4
  requests_per_block: 12
  rate_per_s: 30
  max_tokens: 4
  warmup_requests: 2
  p50_margin: 2
  p95_margin: 2
  p99_guard: 2
  error_margin_pct: 20
"""
HARDWARE = ["--hardware", "cpu"]


@pytest.fixture
def server() -> Iterator[MockVllm]:
    with MockVllm(model="tiny", ttft_ms=40, itl_ms=1, sigma=0.05) as found:
        yield found


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(PROFILE)
    return path


def test_real_decisions_are_counted_and_published(
    server: MockVllm, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides are one server; then the same with 60 ms before each request of one side."""
    folder = tmp_path / "kept"
    command = ["calibrate", "--profile", str(profile), "--url-a", f"{server.url}/v1", "--decisions", "2", *HARDWARE]
    command += ["--inject-ms", "60", "--folder", str(folder), "--write"]

    assert main(command) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    asked = server.seen["/v1/completions"]

    assert "found again" in shown
    evidence = wiring.read_profile(profile).canary.evidence
    assert evidence is not None
    assert evidence.method == "trials"
    assert [(t.metric, t.decisions) for t in evidence.trials] == [("", 2), (FIRST_TOKEN, 2)]
    assert 50 < evidence.trials[1].slower_pct < 200
    kept = sorted(folder.glob("*/records.jsonl"))
    assert [path.parent.name for path in kept] == ["aa-001", "aa-002", "delay-60ms-001", "delay-60ms-002"]
    assert {r.injected_ms for r in parse(kept[2].read_bytes()).records if r.side == "candidate"} == {60.0}
    # Once more costs a few questions, not the load: what was measured is there.
    assert main(command) == 0
    assert server.seen["/v1/completions"] - asked < 60


def test_a_delay_that_is_not_found_again_publishes_nothing(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tenth of a millisecond drowns in latencies that spread over tens of them."""
    with MockVllm(model="tiny", ttft_ms=20, itl_ms=1, sigma=0.7) as server:
        command = ["calibrate", "--profile", str(profile), "--url-a", server.url, "--decisions", "2", *HARDWARE]
        command += ["--inject-ms", "0.1", "--folder", str(tmp_path / "kept"), "--write"]

        assert main(command) == 1

    assert "cannot be calibrated" in capsys.readouterr().err
    assert profile.read_text() == PROFILE


def test_what_is_no_openai_endpoint_is_said(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    with MockVllm(model="tiny", mode="http_503") as server:
        assert main(["calibrate", "--profile", str(profile), "--url-a", server.url, *HARDWARE]) == 1

    assert "HTTP 503" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "calibrations").iterdir()] == ["tiny"]


def test_another_model_is_not_measured(server: MockVllm, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures would stand in the profile of this one."""
    profile.write_text(PROFILE.replace("model: tiny", "model: big-70b"))

    assert main(["calibrate", "--profile", str(profile), "--url-a", server.url, *HARDWARE]) == 1
    assert "serves tiny, the profile is for big-70b" in capsys.readouterr().err


def test_a_folder_with_another_benchmark_is_left_alone(
    server: MockVllm, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records cost hours; new margins must not cost them, and what differs is said."""
    folder = tmp_path / "kept"
    command = ["calibrate", "--profile", str(profile), "--url-a", server.url, "--decisions", "2", *HARDWARE]
    command += ["--inject-ms", "60", "--folder", str(folder)]
    assert main(command) == 0, capsys.readouterr().err
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    profile.write_text(PROFILE.replace("p50_margin: 2", "p50_margin: 1.5"))

    assert main(command) == 1
    said = capsys.readouterr().err
    assert f"{folder / 'aa-001'} holds the records of another benchmark (canary.p50_margin was 2.0, is 1.5)" in said
    assert "--folder" in said
    (folder / "aa-001" / "job.json").unlink()
    assert main(command) == 1
    assert "no job.json" in capsys.readouterr().err
    del before[folder / "aa-001" / "job.json"]
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before


def test_a_side_that_only_fails_is_named(
    server: MockVllm, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers questions, and none of the load: no figure and no advice about noise, but who and with what."""
    with MockVllm(model="tiny", mode="http_500", mode_after=1, ttft_ms=20, itl_ms=1) as broken:
        command = ["calibrate", "--profile", str(profile), "--url-a", server.url, "--url-b", broken.url]
        assert main([*command, "--decisions", "2", *HARDWARE, "--folder", str(tmp_path / "kept")]) == 1

        said = capsys.readouterr().err
        assert f"requests of candidate at {broken.url} failed, most often with: HTTP 500" in said
        assert "nan" not in said
