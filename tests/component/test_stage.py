"""The stage program against a real S3: whole or not there, once per node, and never somewhere else."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.weight_jobs import StageJob, StageResult
from headway.domain.weights import Manifest, WeightFile
from headway.errors import Conflict, IntegrityError, NotFound, Refused
from headway.pods import disk, fetch, stage
from headway.units import MIB
from tests.component.servers import S3Server, s3_server

pytestmark = [pytest.mark.component, pytest.mark.timeout(180)]

PART = 1 * MIB
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for this module; each test has an artifact of its own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def artifact(s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path) -> StageJob:
    """An artifact of three files, the largest in five parts, and the job that stages it."""
    digest = hashlib.sha256(request.node.name.encode()).hexdigest()
    uri = f"s3://headway/artifacts/{digest}/"
    job = StageJob(artifact_digest=digest, artifact_uri=uri, dest_root=str(tmp_path / "n"))
    put_artifact(s3, job, {"model.safetensors": os.urandom(4 * PART + 77), "config.json": b"{}", "empty.txt": b""})
    return job


def put_artifact(s3: S3Server, job: StageJob, files: dict[str, bytes]) -> Manifest:
    """Write files and their manifest."""
    listed = []
    for path, body in files.items():
        s3.client().put(job.artifact_uri + path, body)
        parts = tuple(hashlib.sha256(body[i : i + PART]).hexdigest() for i in range(0, len(body), PART))
        sha256 = hashlib.sha256(body).hexdigest()
        listed.append(WeightFile(path=path, size_bytes=len(body), sha256=sha256, parts=parts))
    manifest = Manifest(artifact_digest=job.artifact_digest, files=tuple(listed))
    s3.client().put(job.artifact_uri + "manifest.json", manifest.model_dump_json().encode())
    return manifest


def staged(s3: S3Server, job: StageJob) -> StageResult:
    """Run the program in this process, as the stage role."""
    return stage.run(job, lambda: s3.client("stage"), quiet, part_bytes=PART)


def quiet(percent: float, message: str) -> None:
    """Progress that nobody watches."""
    assert 0 <= percent <= 100
    assert message


def digests(folder: Path) -> dict[str, str]:
    """What a directory holds."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def wanted(s3: S3Server, job: StageJob) -> dict[str, str]:
    """What the manifest lists."""
    manifest = Manifest.model_validate_json(s3.client().read(job.artifact_uri + "manifest.json"))
    return {file.path: file.sha256 for file in sorted(manifest.files, key=lambda f: f.path)}


def leftovers(job: StageJob) -> list[str]:
    """What lies on the node beside the artifact and its lock."""
    kept = (".lock", ".blobs", ".manifests", ".used")
    return [p.name for p in Path(job.dest_root).iterdir() if p.name not in kept]


def test_an_artifact_appears_whole_and_the_second_run_finds_it(s3: S3Server, artifact: StageJob) -> None:
    """Every byte is the manifest's, and nothing else lies there."""
    first = staged(s3, artifact)
    second = staged(s3, artifact)

    assert (first.outcome, second.outcome) == ("staged", "hit")
    assert first.path == f"{artifact.dest_root}/{artifact.artifact_digest}"
    assert digests(Path(first.path)) == wanted(s3, artifact)
    assert leftovers(artifact) == [artifact.artifact_digest]


def test_six_processes_at_once_download_once(s3: S3Server, artifact: StageJob, tmp_path: Path) -> None:
    """One stages, five find it."""
    environment = {**os.environ, **s3.environment("stage"), "PYTHONPATH": str(SRC)}
    # Parts of the program's own size: one per file here.
    put_whole(s3, artifact)
    running = []
    for number in range(6):
        folder = tmp_path / f"job-{number}"
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(artifact.to_json()))
        command = [sys.executable, "-m", "headway.pods.stage", "job.json"]
        running.append((folder, subprocess.Popen(command, cwd=folder, env=environment)))
    codes = [process.wait(120) for _, process in running]
    outcomes = sorted(json.loads((folder / "result.json").read_text())["outcome"] for folder, _ in running)

    assert codes == [0] * 6
    assert outcomes == ["hit"] * 5 + ["staged"]


def put_whole(s3: S3Server, job: StageJob) -> None:
    """Write the manifest anew with one part a file."""
    manifest = Manifest.model_validate_json(s3.client().read(job.artifact_uri + "manifest.json"))
    files = tuple(f.model_copy(update={"parts": (f.sha256,) if f.size_bytes else ()}) for f in manifest.files)
    whole = manifest.model_copy(update={"files": files})
    s3.client().put(job.artifact_uri + "manifest.json", whole.model_dump_json().encode())


def test_a_killed_run_leaves_nothing_published_and_the_next_goes_on(
    s3: S3Server, artifact: StageJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had arrived is hashed again and kept."""
    real = fetch.Fetcher._one
    seen: list[fetch._Part] = []

    def dies_after_two(self: fetch.Fetcher, part: fetch._Part) -> str:
        if len(seen) >= 2:
            raise KeyboardInterrupt
        seen.append(part)
        return real(self, part)

    monkeypatch.setattr(fetch, "CONNECTIONS", 1)
    monkeypatch.setattr(fetch.Fetcher, "_one", dies_after_two)
    with pytest.raises(KeyboardInterrupt):
        staged(s3, artifact)
    assert not (Path(artifact.dest_root) / artifact.artifact_digest).exists()

    monkeypatch.setattr(fetch.Fetcher, "_one", real)
    resumed = staged(s3, artifact)

    assert resumed.resumed_bytes == sum(part.length for part in seen) > 0
    assert digests(Path(resumed.path)) == wanted(s3, artifact)
    assert leftovers(artifact) == [artifact.artifact_digest]


def test_a_part_that_was_damaged_on_the_disk_is_fetched_again(s3: S3Server, artifact: StageJob) -> None:
    """The journal is not believed: the bytes are hashed."""
    root = Path(artifact.dest_root)
    staged(s3, artifact)
    body = bytearray((root / artifact.artifact_digest / "model.safetensors").read_bytes())
    sha256 = hashlib.sha256(body).hexdigest()
    shutil.rmtree(root)
    (root / ".incoming").mkdir(parents=True)
    partial = root / ".incoming" / sha256
    parts = [hashlib.sha256(body[i : i + PART]).hexdigest() for i in range(0, len(body), PART)]
    lines = [f"{sha256}\t{number}\t{part}\n" for number, part in enumerate(parts)]
    (root / ".incoming.journal").write_text("".join(lines) + "torn li")
    body[PART + 5] ^= 1
    partial.write_bytes(body)

    again = staged(s3, artifact)

    assert again.resumed_bytes == len(body) - PART
    assert digests(Path(again.path)) == wanted(s3, artifact)


def test_bytes_that_differ_from_the_manifest_are_not_published(s3: S3Server, artifact: StageJob) -> None:
    """One bit in the store is enough, and the address is named."""
    uri = artifact.artifact_uri + "model.safetensors"
    body = bytearray(s3.client().read(uri))
    body[2 * PART + 1] ^= 1
    s3.client().put(uri, bytes(body))

    with pytest.raises(IntegrityError, match="part 2"):
        staged(s3, artifact)
    assert not (Path(artifact.dest_root) / artifact.artifact_digest).exists()


def test_an_object_that_changes_meanwhile_is_noticed(
    s3: S3Server, artifact: StageJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one and half of another would pass every size check."""
    real = fetch.Fetcher._allocate

    def changes_it(self: fetch.Fetcher, item: fetch.Item) -> None:
        real(self, item)
        s3.client().put(item.uri, os.urandom(item.size_bytes) if item.size_bytes else b"")

    monkeypatch.setattr(fetch.Fetcher, "_allocate", changes_it)
    with pytest.raises((Conflict, IntegrityError)):
        staged(s3, artifact)


@pytest.mark.parametrize("name", ["../../outside", "/etc/x", ".hidden", "a/b", "a\\b", "..", "x\0y", ""])
def test_names_that_reach_outside_are_refused(s3: S3Server, artifact: StageJob, name: str) -> None:
    """Before anything is written."""
    file = WeightFile(path=name, size_bytes=1, sha256="a" * 64, parts=("a" * 64,))
    manifest = Manifest(artifact_digest=artifact.artifact_digest, files=(file,))
    s3.client().put(artifact.artifact_uri + "manifest.json", manifest.model_dump_json().encode())

    with pytest.raises(Refused, match="no plain file name"):
        staged(s3, artifact)
    assert not Path(artifact.dest_root).exists()


def test_too_little_space_is_said_with_numbers_before_the_first_byte(
    s3: S3Server, artifact: StageJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after 80 of 90 GiB."""
    monkeypatch.setattr(disk, "SPARE_BYTES", 2**60)

    with pytest.raises(Refused, match=r"GiB more are needed in .* free"):
        staged(s3, artifact)
    assert not list(Path(artifact.dest_root).glob("*/*"))


def test_a_directory_that_somebody_changed_is_made_again(s3: S3Server, artifact: StageJob) -> None:
    """A missing, an added and a cut file are all noticed by the sizes."""
    final = Path(staged(s3, artifact).path)
    for spoil in (
        (final / "config.json").unlink,
        lambda: (final / "extra.py").write_text("x"),
        lambda: os.truncate(final / "model.safetensors", 5),
    ):
        spoil()
        assert staged(s3, artifact).outcome == "staged"
        assert digests(final) == wanted(s3, artifact)


def test_an_artifact_that_is_not_whole_is_not_found(s3: S3Server, artifact: StageJob) -> None:
    """Without its manifest it does not exist."""
    s3.client().delete(artifact.artifact_uri + "manifest.json")

    with pytest.raises(NotFound):
        staged(s3, artifact)


def test_the_program_says_why_it_failed(s3: S3Server, tmp_path: Path) -> None:
    """In its result, in one sentence, with its exit code."""
    job = StageJob(artifact_digest="e" * 64, artifact_uri="s3://headway/artifacts/none/", dest_root=str(tmp_path / "n"))
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    command = [sys.executable, "-m", "headway.pods.stage", "job.json"]
    environment = {**os.environ, **s3.environment("stage"), "PYTHONPATH": str(SRC)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)

    result = json.loads((tmp_path / "result.json").read_text())
    assert ended.returncode == 1
    assert result["kind"] == "NotFound"
    assert "quantize" in result["error"]
    assert b"Traceback" not in ended.stderr


def test_a_store_that_is_away_asks_for_another_try(s3: S3Server, tmp_path: Path) -> None:
    """Exit code 75."""
    job = StageJob(artifact_digest="e" * 64, artifact_uri="s3://headway/artifacts/none/", dest_root=str(tmp_path / "n"))
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    environment = {**os.environ, **s3.environment("stage"), "HEADWAY_S3_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "headway.pods.stage", "job.json"]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(SRC)}, capture_output=True, check=False
    )

    assert ended.returncode == 75
