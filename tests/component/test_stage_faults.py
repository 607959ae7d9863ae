"""The stage program on bad days: the network's, the disk's, the store's, the node's, and its own end at any moment."""

import errno
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.adapters.s3 import S3Client, S3Connection
from headway.domain.weight_jobs import StageJob, StageResult
from headway.domain.weights import SCHEMA, Manifest, WeightFile
from headway.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    Conflict,
    HeadwayError,
    IntegrityError,
    NotFound,
    Refused,
)
from headway.pods import disk, fetch, node, room, stage
from headway.units import KIB, MIB
from tests.component.fault_proxy import Answer, Asked, FaultProxy, at_time_of, error, fault_proxy
from tests.component.servers import S3Server, s3_server

pytestmark = [pytest.mark.component, pytest.mark.timeout(180)]

PART = 256 * KIB
KILLS = 20
FLOCK, MOUNT, UMOUNT = (shutil.which(tool) or tool for tool in ("flock", "mount", "umount"))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for this module; each test has artifacts of its own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """What stands between the program and the store."""
    with fault_proxy(s3.endpoint) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and time limits of a test, not of a night."""
    monkeypatch.setattr(fetch, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(fetch, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(fetch, "TIMEOUT_S", 2)
    monkeypatch.setattr(room, "RECENT_S", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The node's directory."""
    return tmp_path / "n"


Files = dict[str, bytes]


def noise(seed: int | str, size: int) -> bytes:
    """Return bytes that look random, the same each time."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


def files_of(name: str, size: int = 6 * PART + 77) -> Files:
    """A large file in several parts, and small ones."""
    body = noise(name, size)
    return {"model.safetensors": body, "config.json": b"{}", "empty.txt": b"", "same.json": b"{}"}


def put(s3: S3Server, digest: str, files: Files, /, *, part: int = PART, **changes: Any) -> Manifest:
    """Write an artifact; `changes` are for its manifest."""
    uri, listed, client = f"s3://headway/artifacts/{digest}/", [], connected(s3.connection("admin"), s3.endpoint)
    for path, body in files.items():
        client.put(uri + path, body)
        parts = tuple(sha(body[i : i + part]) for i in range(0, len(body), part))
        listed.append(WeightFile(path=path, size_bytes=len(body), sha256=sha(body), parts=parts))
    manifest = Manifest(artifact_digest=digest, files=tuple(listed))
    written = manifest.model_copy(update=changes)
    client.put(uri + "manifest.json", written.model_dump_json().encode())
    return manifest


def sha(body: bytes) -> str:
    """Name bytes."""
    return hashlib.sha256(body).hexdigest()


def job(digest: str, root: Path, **changes: Any) -> StageJob:
    """Ask for an artifact."""
    uri = f"s3://headway/artifacts/{digest}/"
    data = {"artifact_digest": digest, "artifact_uri": uri, "dest_root": str(root), "high_pct": 100, "low_pct": 100}
    return StageJob(**{**data, **changes})


def scrub(root: Path, **changes: Any) -> StageJob:
    """Ask for a look at everything."""
    return job("", root, mode="scrub", artifact_uri="s3://headway/artifacts/", **changes)


def quiet(percent: float, message: str) -> None:
    """Progress that nobody watches."""
    assert 0 <= percent <= 100
    assert message


def run(asked: StageJob, s3: S3Server, through: FaultProxy | None = None, part: int = PART) -> StageResult:
    """Run the program in this process."""
    client = connected(s3.connection("stage"), through.endpoint if through else s3.endpoint)
    return stage.run(asked, lambda: client, quiet, part_bytes=part)


@cache
def connected(connection: S3Connection, endpoint: str) -> S3Client:
    """Connect once: that takes longer than most runs here."""
    return S3Client(connection.model_copy(update={"endpoint": endpoint}))


def held(folder: Path) -> dict[str, str]:
    """What a directory holds."""
    return {path.name: sha(path.read_bytes()) for path in folder.iterdir()}


def hashes(files: Files) -> dict[str, str]:
    """What it ought to hold."""
    return {name: sha(body) for name, body in files.items()}


def clutter(root: Path) -> set[str]:
    """What lies on the node and belongs to nobody."""
    kept = {".lock", ".blobs", ".manifests", ".used"}
    odd = {path.name for path in root.iterdir() if path.name not in kept and not node.is_digest(path.name)}
    return odd | {path.name for path in (root / ".blobs").iterdir() if path.lstat().st_nlink == 1}


@pytest.fixture
def digest(request: pytest.FixtureRequest) -> str:
    """Name of the test's artifact."""
    return sha(request.node.name.encode())


# --- The network and the store ----------------------------------------------------------------------------------------


def once_each(fault: Callable[[Answer], Answer]) -> Callable[[Asked, Answer], Answer]:
    """Let the first read of each part go wrong."""
    seen: set[tuple[str, str]] = set()
    lock = threading.Lock()

    def first(asked: Asked, answer: Answer) -> Answer:
        part = (asked.path, asked.range.rpartition("-")[2])
        with lock:
            if part in seen:
                return answer
            seen.add(part)
        return fault(answer)

    return first


def flipped(answer: Answer) -> Answer:
    """One bit."""
    return answer._replace(body=bytes([answer.body[0] ^ 1]) + answer.body[1:]) if answer.body else answer


SURVIVED: dict[str, Callable[[Answer], Answer]] = {
    "slow down": lambda answer: error(503, "SlowDown"),
    "slow down, with a pause": lambda answer: error(503, "SlowDown", **{"Retry-After": "0"}),
    "internal error": lambda answer: error(500, "InternalError"),
    "bad gateway": lambda answer: Answer(502, {"Content-Length": "5"}, b"oops!"),
    "too many requests": lambda answer: Answer(429, {"Content-Length": "0"}, b""),
    "cut at once": lambda answer: answer._replace(cut_at=0),
    "cut in the middle": lambda answer: answer._replace(cut_at=len(answer.body) // 2),
    "cut before the last byte": lambda answer: answer._replace(cut_at=max(0, len(answer.body) - 1)),
    "stalled": lambda answer: answer._replace(cut_at=len(answer.body) // 2, stalls=True),
    "half of the length": lambda answer: answer._replace(
        headers={**answer.headers, "Content-Length": str(len(answer.body) // 2)},
        body=answer.body[: len(answer.body) // 2],
    ),
    "another range": lambda answer: answer._replace(
        headers={**answer.headers, "Content-Range": "bytes 1-2/3"}, status=206
    ),
    "a flipped bit": flipped,
}


@pytest.mark.parametrize("name", SURVIVED)
def test_what_passes_is_survived(s3: S3Server, proxy: FaultProxy, root: Path, digest: str, name: str) -> None:
    """Every part goes wrong once, and what is published is right all the same."""
    files = files_of(digest)
    put(s3, digest, files)
    proxy.fault = once_each(SURVIVED[name])

    result = run(job(digest, root), s3, proxy)

    assert result.outcome == "staged"
    assert held(root / digest) == hashes(files)
    assert clutter(root) == set()


def test_a_cut_part_goes_on_where_it_was_cut(s3: S3Server, proxy: FaultProxy, root: Path, digest: str) -> None:
    """Not from its beginning."""
    files = files_of(digest)
    put(s3, digest, files)
    proxy.fault = once_each(lambda answer: answer._replace(cut_at=len(answer.body) // 2))
    run(job(digest, root), s3, proxy)

    assert proxy.sent_bytes == sum(map(len, {sha(body): body for body in files.values()}.values()))


def test_a_server_that_ignores_ranges_is_read_right(s3: S3Server, proxy: FaultProxy, root: Path, digest: str) -> None:
    """It sends the whole object where a stretch was asked for."""
    files = files_of(digest)
    put(s3, digest, files)

    def whole(asked: Asked, answer: Answer) -> Answer:
        body = files[asked.path.rsplit("/", 1)[1]]
        headers = {name: value for name, value in answer.headers.items() if name != "Content-Range"}
        return Answer(200, {**headers, "Content-Length": str(len(body))}, body)

    proxy.fault = whole

    assert run(job(digest, root), s3, proxy).outcome == "staged"
    assert held(root / digest) == hashes(files)


REFUSED: dict[str, tuple[Callable[[Answer], Answer], type[HeadwayError], str]] = {
    "always away": (lambda answer: error(503, "SlowDown"), BackendUnavailable, "503 SlowDown"),
    "always damaged": (flipped, IntegrityError, "manifest says"),
    "another object": (lambda answer: error(412, "PreconditionFailed"), Conflict, "412"),
    "another ETag": (
        lambda answer: answer._replace(
            headers={name: '"other"' if name.lower() == "etag" else value for name, value in answer.headers.items()}
        ),
        Conflict,
        "was replaced while it was read",
    ),
    "no right": (lambda answer: error(403, "AccessDenied"), Refused, "credentials"),
    "gone": (lambda answer: error(404, "NoSuchKey"), NotFound, "NoSuchKey"),
    "skewed": (lambda answer: error(403, "RequestTimeTooSkewed"), Refused, "clock differs .* NTP"),
    "clock behind": (
        lambda answer: error(403, "AccessDenied", **at_time_of(timedelta(minutes=20))),
        Refused,
        "clock is (20 min 00 s|19 min 5. s) behind the store's",
    ),
    "clock ahead": (
        lambda answer: error(403, "AccessDenied", **at_time_of(timedelta(hours=-2))),
        Refused,
        "clock is 2 h 00 min ahead of the store's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_is_said_in_one_sentence(
    s3: S3Server, proxy: FaultProxy, root: Path, digest: str, name: str
) -> None:
    """Nothing is published, and a later run goes on."""
    files = files_of(digest)
    put(s3, digest, files)
    fault, kind, words = REFUSED[name]
    proxy.fault = lambda asked, answer: fault(answer)

    with pytest.raises(kind, match=words) as caught:
        run(job(digest, root), s3, proxy)
    assert type(caught.value).retryable is kind.retryable
    assert not (root / digest).exists()

    proxy.fault = lambda asked, answer: answer
    assert run(job(digest, root), s3, proxy).outcome == "staged"
    assert held(root / digest) == hashes(files)
    assert clutter(root) == set()


def test_a_pause_that_the_store_asks_for_is_kept(s3: S3Server, proxy: FaultProxy, root: Path, digest: str) -> None:
    """`Retry-After` counts, not our own shorter pause."""
    put(s3, digest, files_of(digest))
    proxy.fault = lambda asked, answer: error(503, "SlowDown", **{"Retry-After": "1"}) if not asked.number else answer
    started = time.monotonic()
    run(job(digest, root), s3, proxy)

    assert time.monotonic() - started > 1


def test_an_object_that_is_replaced_meanwhile_is_noticed(
    s3: S3Server, proxy: FaultProxy, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one and half of another would pass every size check."""
    monkeypatch.setattr(fetch, "CONNECTIONS", 1)
    files = files_of(digest)
    put(s3, digest, files)
    done: list[Asked] = []

    def replaced(asked: Asked, answer: Answer) -> Answer:
        if "model" in asked.path and not done:
            done.append(asked)
            put(s3, digest, files_of("other"))
        return answer

    proxy.fault = replaced
    with pytest.raises((Conflict, IntegrityError)):
        run(job(digest, root), s3, proxy)
    assert not (root / digest).exists()


# --- The manifest -----------------------------------------------------------------------------------------------------


def test_a_manifest_of_a_newer_headway_is_refused(s3: S3Server, root: Path, digest: str) -> None:
    """By the program and by the store's adapter, in the same words."""
    put(s3, digest, files_of(digest), schema_version=SCHEMA + 1)
    with pytest.raises(ConfigError, match=r"newer headway\. Upgrade"):
        run(job(digest, root), s3)
    assert not root.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "../../../outside"},
        {"sha256": "0" * 64},
        {"parts": ("0" * 64,)},
        {"parts": ()},
        {"size_bytes": 5},
        {"size_bytes": -1},
        {"path": "../outside"},
        {"path": "/outside"},
        {"path": ".blobs"},
        {"path": "empty.txt"},
    ],
    ids=str,
)
def test_a_manifest_that_lies_is_refused(s3: S3Server, root: Path, digest: str, change: dict[str, Any]) -> None:
    """And nothing is written under its names."""
    files = {"model.safetensors": b"x" * 100, "empty.txt": b""}
    manifest = put(s3, digest, files)
    lying = manifest.files[0].model_copy(update=change)
    put(s3, digest, files, files=(lying, *manifest.files[1:]))

    with pytest.raises((IntegrityError, Refused)):
        run(job(digest, root), s3)
    assert not (root / digest).exists()
    assert not list(root.parent.glob("outside*"))


def test_an_artifact_made_again_with_other_bytes_is_not_a_hit(s3: S3Server, root: Path, digest: str) -> None:
    """Its digest names how it was made; the plan's figures are of certain bytes."""
    old = put(s3, digest, files_of("old"))
    run(job(digest, root, content_digest=old.content_digest), s3)
    new = put(s3, digest, files_of("new"))

    assert run(job(digest, root, content_digest=new.content_digest), s3).outcome == "staged"
    assert held(root / digest) == hashes(files_of("new"))
    with pytest.raises(Conflict, match="made again with other bytes"):
        run(job(digest, root, content_digest=old.content_digest), s3)


def test_a_hit_needs_no_store(s3: S3Server, root: Path, digest: str) -> None:
    """And takes a moment."""
    put(s3, digest, files_of(digest))
    run(job(digest, root), s3)

    def away() -> S3Client:
        raise AssertionError("a hit asks nobody")

    took = []
    for _ in range(20):
        started = time.monotonic()
        assert stage.run(job(digest, root), away, quiet, part_bytes=PART).outcome == "hit"
        took.append(time.monotonic() - started)
    assert sorted(took)[10] < 0.005


# --- Versions that share ----------------------------------------------------------------------------------------------


def version(change: str) -> Files:
    """A version of one base: three shards stay, one is its own."""
    shards = {f"model-{n}.safetensors": noise(n, 2 * PART + n) for n in range(3)}
    return {**shards, "model-3.safetensors": noise(change, 2 * PART), "config.json": b"{}"}


def test_a_new_version_fetches_what_changed(s3: S3Server, proxy: FaultProxy, root: Path, digest: str) -> None:
    """The rest is the same files on the disk."""
    one, two = digest, sha(digest.encode())
    put(s3, one, version("one"))
    put(s3, two, version("two"))
    run(job(one, root), s3)
    second = run(job(two, root), s3, proxy)

    assert second.fetched_bytes == 2 * PART
    assert second.shared_bytes == sum(map(len, version("two").values())) - 2 * PART
    assert {asked.path.rsplit("/", 1)[1] for asked in proxy.asked} == {"model-3.safetensors"}
    assert (root / one / "model-0.safetensors").samefile(root / two / "model-0.safetensors")
    assert held(root / two) == hashes(version("two"))
    assert {path.stat().st_mode & 0o777 for path in (root / two).iterdir()} == {0o444}


def test_two_artifacts_at_once_fetch_what_they_share_once(
    s3: S3Server, proxy: FaultProxy, root: Path, digest: str
) -> None:
    """However many processes ask for however many of them."""
    names = [digest, sha(digest.encode())]
    for name in names:
        put(s3, name, version(name))
    children = [fork(partial(run, job(names[n % 2], root), s3, proxy)) for n in range(6)]

    assert [ended(child) for child in children] == [0] * 6
    assert (
        sorted(asked.path.rsplit("/", 1)[1] for asked in proxy.asked if "model-0" in asked.path)
        == ["model-0.safetensors"] * 2
    )
    for name in names:
        assert held(root / name) == hashes(version(name))
    assert clutter(root) == set()


def test_a_shared_blob_that_changed_on_the_disk_is_not_spread(s3: S3Server, root: Path, digest: str) -> None:
    """The new version gets the right bytes, and so does the old one."""
    one, two = digest, sha(digest.encode())
    put(s3, one, version("one"))
    put(s3, two, version("two"))
    run(job(one, root), s3)
    flip(root / one / "model-1.safetensors")

    result = run(job(two, root), s3)

    assert result.damaged == (f"{one}/model-1.safetensors",)
    assert held(root / one) == hashes(version("one"))
    assert held(root / two) == hashes(version("two"))
    assert clutter(root) == set()


def test_a_directory_of_the_layout_before_is_taken_over(s3: S3Server, root: Path, digest: str) -> None:
    """It is a hit, the next version shares with it, and what its runs left is cleared."""
    one, two = digest, sha(digest.encode())
    put(s3, one, version("one"))
    put(s3, two, version("two"))
    (root / one).mkdir(parents=True)
    for name, body in version("one").items():
        (root / one / name).write_bytes(body)
    for left in (f".{one}.lock", f".{two}.journal"):
        (root / left).write_text("")
    (root / f".{two}.partial").mkdir()

    assert run(job(one, root), s3).outcome == "hit"
    assert run(job(two, root), s3).shared_bytes > 0
    assert clutter(root) == set()


def test_without_hard_links_every_version_has_its_own_files(
    s3: S3Server, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is shared, and everything is right; two names of one content too."""

    def refuses(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    files = files_of(digest)
    put(s3, digest, files)

    assert run(job(digest, root), s3).shared_bytes == 0
    assert held(root / digest) == hashes(files)
    assert run(job(digest, root), s3).outcome == "hit"
    flip(root / digest / "model.safetensors")
    assert run(scrub(root), s3).damaged == (f"{digest}/model.safetensors",)
    assert held(root / digest) == hashes(files)
    assert clutter(root) == set()
    assert "without hard links" in capsys.readouterr().out


@pytest.mark.parametrize("refused", [False, True])
def test_without_locks_that_hold_two_may_fetch_and_both_are_right(
    s3: S3Server, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """As on network file systems, where `flock` is local to a machine or an error."""
    import fcntl

    def no_lock(handle: int, kind: int) -> None:
        if refused:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    monkeypatch.setattr(disk, "file_system", lambda path: disk.FileSystem("nfs4", shared=True))
    files = files_of(digest)
    put(s3, digest, files)

    def on_its_own_machine(number: int) -> None:
        disk.machine = lambda: f"machine-{number}"
        run(job(digest, root), s3)

    children = [fork(partial(on_its_own_machine, n)) for n in range(4)]
    assert [ended(child) for child in children] == [0] * 4
    assert held(root / digest) == hashes(files)


# --- Scrub ------------------------------------------------------------------------------------------------------------


def flip(path: Path, at: int = 5) -> None:
    """Let the disk forget a bit."""
    path.chmod(0o644)
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    with path.open("r+b") as file:
        file.write(body)
    path.chmod(0o444)


def linked_over(path: Path, target: Path) -> None:
    """Put a symbolic link where a file was."""
    path.unlink()
    path.symlink_to(target)


SPOILS: dict[str, Callable[[Path], object]] = {
    "bit": lambda folder: flip(folder / "model-1.safetensors"),
    "cut": lambda folder: os.truncate(folder / "model-1.safetensors", 100),
    "missing": lambda folder: (folder / "model-1.safetensors").unlink(),
    "extra": lambda folder: (folder / "extra.py").write_text("x"),
    "symlink": lambda folder: (folder / "link").symlink_to("/etc/passwd"),
    "in place of a file": lambda folder: linked_over(folder / "model-1.safetensors", folder / "model-2.safetensors"),
    "directory": lambda folder: (folder / "sub").mkdir(),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_scrub_finds_and_repairs(s3: S3Server, root: Path, digest: str, name: str) -> None:
    """In every artifact that shares the file; an engine that has it open keeps what it reads."""
    one, two = digest, sha(digest.encode())
    put(s3, one, version("one"))
    put(s3, two, version("two"))
    run(job(one, root), s3)
    run(job(two, root), s3)
    with (root / one / "model-0.safetensors").open("rb") as opened:
        SPOILS[name](root / one)
        result = run(scrub(root), s3)

        assert opened.read() == version("one")["model-0.safetensors"]
    assert result.outcome == "scrubbed"
    assert result.damaged
    shared = {f"{one}/model-1.safetensors", f"{two}/model-1.safetensors"}
    assert name not in ("bit", "cut") or set(result.damaged) == shared
    assert held(root / one) == hashes(version("one"))
    assert held(root / two) == hashes(version("two"))
    assert clutter(root) == set()
    assert run(scrub(root), s3).damaged == ()


def test_a_scrub_of_one_artifact_leaves_the_others_alone(s3: S3Server, root: Path, digest: str) -> None:
    """Two that share nothing."""
    one, two = digest, sha(digest.encode())
    for name in (one, two):
        put(s3, name, files_of(name))
        run(job(name, root), s3)
        flip(root / name / "model.safetensors")

    assert run(job(one, root, mode="scrub"), s3).damaged == (f"{one}/model.safetensors",)
    assert held(root / one) == hashes(files_of(one))
    assert held(root / two) != hashes(files_of(two))


def test_what_cannot_be_repaired_is_out_and_said(s3: S3Server, root: Path, digest: str) -> None:
    """An artifact that is no longer in the store; the others are looked at all the same."""
    one, two = sorted([digest, sha(digest.encode())])
    for name in (one, two):
        put(s3, name, files_of(name))
        run(job(name, root), s3)
    flip(root / two / "model.safetensors")
    s3.client().delete(f"s3://headway/artifacts/{one}/manifest.json")

    with pytest.raises(NotFound, match=one) as caught:
        run(scrub(root), s3)
    assert caught.value.facts["damaged"] == [f"{two}/model.safetensors"]
    assert held(root / two) == hashes(files_of(two))


# --- Space ------------------------------------------------------------------------------------------------------------


def used_at(root: Path, digest: str, ago_s: float) -> None:
    """Set the last use."""
    then = time.time() - ago_s
    os.utime(root / ".used" / digest, (then, then))


def three(s3: S3Server, root: Path, digest: str) -> list[str]:
    """Stage three artifacts; the first was used last."""
    names = [sha(f"{digest}{n}".encode()) for n in range(3)]
    for age, name in enumerate(names):
        put(s3, name, files_of(name))
        run(job(name, root), s3)
        used_at(root, name, 100 * (age + 1))
    put(s3, digest, files_of(digest))
    return names


def test_the_least_recently_used_makes_room(
    s3: S3Server, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the use is below the low mark, and no further."""
    names = three(s3, root, digest)
    # A file system of which 60, 70, 80 percent are used with one, two, three artifacts, and 90 with a fourth.
    monkeypatch.setattr(
        disk, "used_pct", lambda path, more=0: 50 + 10 * len(list(path.glob("?" * 64))) + bool(more) * 10
    )

    result = run(job(digest, root, high_pct=85, low_pct=75), s3)

    assert result.evicted == (names[2], names[1])
    assert sorted(path.name for path in root.glob("?" * 64)) == sorted([names[0], digest])
    assert clutter(root) == set()


def test_pins_and_what_somebody_holds_stay(s3: S3Server, root: Path, digest: str) -> None:
    """Even where everything else has to go."""
    names = three(s3, root, digest)
    holder = subprocess.Popen([FLOCK, "--shared", root / ".used" / names[1], "sleep", "60"], start_new_session=True)
    try:
        wait_until_locked(root / ".used" / names[1])
        result = run(job(digest, root, high_pct=0.001, low_pct=0.001, pins=(names[2],)), s3)
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()

    assert result.evicted == (names[0],)
    for name in (names[1], names[2], digest):
        assert held(root / name) == hashes(files_of(name))


def test_what_another_release_has_just_asked_for_stays(
    s3: S3Server, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no cluster yet that a pin could name."""
    names = three(s3, root, digest)
    monkeypatch.setattr(room, "RECENT_S", 150.0)

    result = run(job(digest, root, high_pct=0.001, low_pct=0.001), s3)

    assert result.evicted == (names[2], names[1])
    assert held(root / names[0]) == hashes(files_of(names[0]))


def wait_until_locked(path: Path) -> None:
    """Return when somebody else holds the lock."""
    ends = time.monotonic() + 20
    while subprocess.run([FLOCK, "--nonblock", path, "true"], check=False).returncode == 0:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_what_cannot_fit_is_refused_with_its_numbers(
    s3: S3Server, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is needed, what is free, and what is in use and how large."""
    names = three(s3, root, digest)
    monkeypatch.setattr(disk, "SPARE_BYTES", 2**60)
    with pytest.raises(Refused, match=r"more are needed in .* free.*not to be evicted are .* MiB") as caught:
        run(job(digest, root, pins=tuple(names)), s3)

    assert set(caught.value.facts["pinned"]) == set(names)
    assert caught.value.facts["needed_bytes"] > caught.value.facts["free_bytes"]
    assert all((root / name).exists() for name in names)
    assert clutter(root) == set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        [MOUNT, "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"only root may mount a small disk; the limit of a file's size is tested anyway: {mounted.stderr}")
    try:
        yield folder
    finally:
        subprocess.run([UMOUNT, "--lazy", folder], check=True)


@pytest.mark.parametrize("allocates", [True, False])
def test_a_disk_that_fills_up_meanwhile_is_a_refusal(
    s3: S3Server, small_disk: Path, digest: str, monkeypatch: pytest.MonkeyPatch, allocates: bool
) -> None:
    """At `fallocate`, or at whichever write is the first too many; then the space is given back."""
    root = small_disk / "n"
    kept, large = sha(digest.encode()), files_of(digest, size=5 * MIB)
    put(s3, kept, files_of(kept))
    put(s3, digest, large)
    monkeypatch.setattr(disk, "SPARE_BYTES", 0)
    run(job(kept, root), s3)
    before = disk.free_bytes(root)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 2**60)
    monkeypatch.setattr(disk, "file_system", lambda path: disk.FileSystem("x", shared=not allocates))

    with pytest.raises(Refused, match=r"more are needed|is full"):
        run(job(digest, root, pins=(kept,)), s3)
    monkeypatch.undo()
    assert disk.free_bytes(root) >= before - 64 * KIB
    assert not (root / digest).exists()
    assert held(root / kept) == hashes(files_of(kept))


@pytest.mark.parametrize("limit", [0, 1, 4096, PART - 1, PART, PART + 1, 3 * PART + 5, 6 * PART + 76])
@pytest.mark.parametrize("allocates", [True, False])
def test_a_disk_that_is_full_at_any_byte_is_a_refusal(  # noqa: PLR0917 - fixtures and parameters
    s3: S3Server, root: Path, digest: str, monkeypatch: pytest.MonkeyPatch, limit: int, allocates: bool
) -> None:
    """Here the operating system's limit of a file's size, which needs no rights to set."""
    put(s3, digest, files_of(digest))
    monkeypatch.setattr(disk, "file_system", lambda path: disk.FileSystem("x", shared=not allocates))
    client = s3.client("stage")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(Refused) as caught:
            stage.run(job(digest, root), lambda: client, quiet, part_bytes=PART)
        assert caught.value.facts["free_bytes"]

    assert ended(fork(limited)) == 0
    assert not (root / digest).exists()
    assert run(job(digest, root), s3).outcome == "staged"
    assert held(root / digest) == hashes(files_of(digest))


def test_a_directory_that_must_not_be_written_is_one_error_and_still_a_hit(s3: S3Server, digest: str) -> None:
    """What is there is found; what is not cannot come."""
    other = sha(digest.encode())
    put(s3, digest, files_of(digest))
    put(s3, other, files_of(other))
    client = s3.client("stage")
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        root = folder / "n"
        run(job(digest, root), s3)
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

        def as_nobody() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            assert stage.run(job(digest, root), lambda: client, quiet, part_bytes=PART).outcome == "hit"
            with pytest.raises(Refused, match=r"cannot write .*Permission denied; mount"):
                stage.run(job(other, root), lambda: client, quiet, part_bytes=PART)

        assert ended(fork(as_nobody)) == 0
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)


# --- The end of the program at any moment -----------------------------------------------------------------------------


def fork(work: Callable[[], object]) -> int:
    """Run something in a process of its own, which is ready at once."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as caught:  # noqa: BLE001 - the process ends here
        os.write(2, f"{type(caught).__name__}: {caught}\n".encode())
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for it; return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_run_killed_at_any_moment_leaves_nothing_wrong_and_the_next_goes_on(
    s3: S3Server, proxy: FaultProxy, tmp_path: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty moments; at most one part of each stream is fetched again."""
    # What was sent is counted, so nothing else may be sent twice, however busy this machine is.
    monkeypatch.setattr(fetch, "TIMEOUT_S", 60)
    files = files_of(digest, size=40 * PART + 77)
    put(s3, digest, files)
    size = sum(map(len, {sha(body): body for body in files.values()}.values()))
    started = time.monotonic()
    assert ended(fork(lambda: run(job(digest, tmp_path / "whole"), s3, proxy))) == 0
    whole_s = time.monotonic() - started
    right = 0
    for number, moment in enumerate(noise(20, KILLS)):
        root, before = tmp_path / str(number), proxy.sent_bytes
        child = fork(partial(run, job(digest, root), s3, proxy))
        # The run itself is what is waited for; where in it the end comes is left to chance.
        time.sleep((0.2 + 0.8 * moment / 256) * whole_s)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        ended(child)
        if (root / digest).exists():
            assert held(root / digest) == hashes(files)
        result = run(job(digest, root), s3, proxy)

        assert held(root / digest) == hashes(files)
        assert clutter(root) == set()
        assert proxy.sent_bytes - before <= size + fetch.CONNECTIONS * PART, result
        right += 1
    assert right == KILLS


CALLS = ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync", "chmod", "posix_fallocate", "utime")


def dies_at(count: int) -> None:
    """End this process at the given call that changes the disk, before or after it takes effect."""
    left = [count]

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and count % 2:
                os._exit(9)
            done = real(*args, **kwargs)
            if left[0] == 0:
                os._exit(9)
            return done

        return call

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


def killed(count: int, work: Callable[[], object]) -> None:
    """Do something that ends there."""
    dies_at(count)
    work()


POOL = {f"s{n}": noise(100 + n, 3 * KIB + n) for n in range(5)}
MODELS = {"0": ("s0", "s1", "s2"), "1": ("s0", "s1", "s3"), "2": ("s3", "s4"), "3": ("s2", "s2", "s4")}
STEP_PART = 1 * KIB


def model_digest(name: str) -> str:
    """Name of one artifact of the model."""
    return sha(f"model{name}".encode())


def model_files(name: str) -> Files:
    """Its files."""
    return {f"f{n}": POOL[shard] for n, shard in enumerate(MODELS[name])}


steps = st.one_of(
    st.tuples(st.just("stage"), st.sampled_from(sorted(MODELS)), st.sets(st.sampled_from(sorted(MODELS)))),
    st.tuples(st.just("squeeze"), st.sampled_from(sorted(MODELS)), st.sets(st.sampled_from(sorted(MODELS)))),
    st.tuples(st.just("killed"), st.sampled_from(sorted(MODELS)), st.integers(1, 60)),
    st.tuples(st.just("killed scrub"), st.just(""), st.integers(1, 60)),
    st.tuples(st.just("spoil"), st.sampled_from(sorted(MODELS)), st.integers(0, 1)),
    st.tuples(st.just("scrub"), st.just(""), st.just(0)),
)


@pytest.fixture(scope="module")
def model(s3: S3Server) -> S3Client:
    """The store with the artifacts of the model."""
    for name in MODELS:
        put(s3, model_digest(name), model_files(name), part=STEP_PART)
    return s3.client("stage")


@given(taken=st.lists(steps, min_size=2, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_of_runs_and_ends_keeps_the_node_right(  # noqa: C901 - one branch for each kind of step
    model: S3Client, taken: list[tuple[str, str, Any]]
) -> None:
    """What is published is whole, pins stay, and what belongs to nobody goes."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "n"
        spoiled: set[str] = set()

        def act(asked: StageJob) -> StageResult:
            return stage.run(asked, lambda: model, quiet, part_bytes=STEP_PART)

        for kind, name, more in taken:
            there = {one for one in MODELS if (root / model_digest(one)).exists()}
            if kind in ("stage", "squeeze"):
                mark = 100 if kind == "stage" else 0.001
                pins = tuple(model_digest(one) for one in more)
                result = act(job(model_digest(name), root, pins=pins, high_pct=mark, low_pct=mark))
                assert (root / model_digest(name)).exists()
                assert {model_digest(one) for one in more & there} <= {path.name for path in root.iterdir()}
                assert not set(result.evicted) & {*pins, model_digest(name)}
            elif kind == "killed":
                assert ended(fork(partial(killed, more, partial(act, job(model_digest(name), root))))) in (0, 9)
            elif kind == "killed scrub":
                assert ended(fork(partial(killed, more, partial(act, scrub(root))))) in (0, 9)
            elif kind == "scrub" and root.exists():
                act(scrub(root))
            elif kind == "spoil" and name in there:
                path = root / model_digest(name) / f"f{more}"
                flip(path)
                spoiled.add(MODELS[name][more])
            if kind == "scrub":
                spoiled.clear()
            for one, shards in MODELS.items():
                if (root / model_digest(one)).exists() and not spoiled & set(shards):
                    assert held(root / model_digest(one)) == hashes(model_files(one)), (kind, name)
            if kind in ("stage", "squeeze") and result.outcome == "staged":
                assert clutter(root) <= {".incoming", ".incoming.journal", ".aside"}
        if root.exists():
            act(job(model_digest("0"), root))
            act(scrub(root))
            assert clutter(root) <= {".incoming", ".incoming.journal"}


hostile = st.sampled_from(
    ["..", ".", "", "/", "a/b", "../x", "/etc/x", "a\\b", "x\0y", ".hidden", "./a", "a/", "a/../b"]
)


@given(names=st.lists(hostile | st.text(max_size=8), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_manifest_with_a_hostile_name_is_refused_before_anything_is_written(s3: S3Server, names: list[str]) -> None:
    """Or it holds plain names only, and then nothing but its directory comes to be."""
    digest = sha(repr(names).encode())
    listed = tuple(WeightFile(path=name, size_bytes=0, sha256=sha(b""), parts=()) for name in names)
    manifest = Manifest(artifact_digest=digest, files=listed)
    uri = f"s3://headway/artifacts/{digest}/"
    try:
        body = manifest.model_dump_json().encode()
    except ValueError:
        return  # Not a text that JSON can hold.
    s3.client().put(uri + "manifest.json", body)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "sub" / "n"
        with pytest.raises((Refused, IntegrityError, BackendError)):
            run(job(digest, root), s3)
        assert not list(Path(name).rglob("*")) or all(
            path.is_relative_to(root.parent) for path in Path(name).rglob("*")
        )
        assert not (root / digest).exists()
