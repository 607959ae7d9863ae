"""The stage program: `python -m headway.pods.stage job.json`.

Brings an artifact from S3 to `<dest_root>/<artifact digest>/` on this node. The directory appears by one rename, after
every byte was verified: where it is, it is whole. Any number of runs may ask at once;
one downloads, the others find it.
"""

import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from headway.adapters.s3.client import S3Client, S3Connection
from headway.domain.weight_jobs import StageJob, StageResult
from headway.domain.weights import PART_BYTES, Manifest
from headway.errors import ConfigError, IntegrityError, NotFound
from headway.pods.fetch import Fetcher, Item, require_plain
from headway.pods.io import Progress, run_program
from headway.units import format_bytes


def run(job: StageJob, client: S3Client, progress: Progress, *, part_bytes: int = PART_BYTES) -> StageResult:
    """Stage an artifact, or find it staged.

    Args:
        job: Which, and where to.
        client: The store, as a role that may read artifacts.
        progress: Told how far it is.
        part_bytes: Size of the parts that the manifest lists.

    Raises:
        NotFound: There is no such artifact.
        Refused: Too little space (nothing was written), or a name that is no plain file name.
        IntegrityError: Bytes differ from the manifest; nothing was published.
    """
    started = time.monotonic()
    if not re.fullmatch(r"[0-9a-f]{64}", job.artifact_digest):
        raise ConfigError(f"`{job.artifact_digest}` is no artifact digest")
    manifest = _manifest(job, client)
    root = Path(job.dest_root)
    root.mkdir(parents=True, exist_ok=True)
    final = root / job.artifact_digest
    progress(0, "waiting for the directory")
    with _locked(root / f".{job.artifact_digest}.lock"):
        resumed, outcome = 0, "hit"
        if not _is_whole(final, manifest):
            _clear(final)
            resumed = _stage(job, client, manifest, progress, part_bytes)
            outcome = "staged"
    size = format_bytes(manifest.size_bytes)
    progress(100, f"{size} staged" if outcome == "staged" else f"{size} were there")
    return StageResult(
        outcome="staged" if outcome == "staged" else "hit",
        path=str(final),
        artifact_digest=job.artifact_digest,
        size_bytes=manifest.size_bytes,
        resumed_bytes=resumed,
        seconds=round(time.monotonic() - started, 3),
    )


def _stage(job: StageJob, client: S3Client, manifest: Manifest, progress: Progress, part_bytes: int) -> int:
    root = Path(job.dest_root)
    partial, journal = root / f".{job.artifact_digest}.partial", root / f".{job.artifact_digest}.journal"
    items = [Item(f.path, job.artifact_uri + f.path, f.size_bytes, f.sha256, f.parts) for f in manifest.files]
    _drop_strangers(partial, {item.path for item in items})
    fetched = Fetcher(client, partial, journal, part_bytes=part_bytes).fetch(items, progress)
    if not _is_whole(partial, manifest):
        raise IntegrityError(f"{partial} does not hold exactly the files of the manifest; delete it and try again")
    partial.rename(root / job.artifact_digest)
    _sync(root)
    journal.unlink(missing_ok=True)
    return fetched.resumed_bytes


def _manifest(job: StageJob, client: S3Client) -> Manifest:
    uri = job.artifact_uri + "manifest.json"
    found = client.read_json(uri)
    if found is None:
        raise NotFound(f"there is no artifact at {job.artifact_uri}, or it is not whole; let quantize make it", uri=uri)
    try:
        manifest = Manifest.model_validate(dict(found))
    except ValidationError as error:
        raise IntegrityError(f"{uri} is no manifest that this headway can read: {error}", uri=uri) from error
    if manifest.artifact_digest != job.artifact_digest:
        raise IntegrityError(f"{uri} belongs to {manifest.artifact_digest}; delete the artifact", uri=uri)
    if not manifest.files:
        raise IntegrityError(f"{uri} lists no files; delete the artifact", uri=uri)
    for file in manifest.files:
        require_plain(file.path)
    return manifest


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Tell whether a directory has exactly the manifest's files, in their sizes. Their bytes were verified before."""
    if not folder.is_dir():
        return False
    there = {entry.name: entry for entry in os.scandir(folder)}
    wanted = {file.path: file.size_bytes for file in manifest.files}
    return there.keys() == wanted.keys() and all(
        entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size == wanted[name]
        for name, entry in there.items()
    )


def _clear(final: Path) -> None:
    """Move a directory that somebody changed out of the way; open files of a running engine stay readable."""
    if final.is_symlink():
        final.unlink()
    elif final.exists():
        broken = final.with_name(f".{final.name}.broken")
        shutil.rmtree(broken, ignore_errors=True)
        final.rename(broken)
        shutil.rmtree(broken)


def _drop_strangers(partial: Path, wanted: set[str]) -> None:
    if not partial.is_dir():
        return
    for entry in os.scandir(partial):
        if entry.name in wanted and entry.is_file(follow_symlinks=False):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of one artifact on this node; the kernel frees it when the process dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main(arguments: list[str]) -> int:
    """Run the program in the current folder; return its exit code."""

    def work(job: StageJob, progress: Progress) -> StageResult:
        return run(job, S3Client(connection_of(os.environ)), progress)

    return run_program(arguments, StageJob, work)


def connection_of(environment: "os._Environ[str]") -> S3Connection:
    """Return how this program reaches S3. Credentials are found by botocore itself."""
    return S3Connection(
        endpoint=environment.get("HEADWAY_S3_ENDPOINT") or None,
        region=environment.get("AWS_REGION") or "us-east-1",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
