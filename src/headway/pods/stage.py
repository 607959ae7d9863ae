"""The stage program: `python -m headway.pods.stage job.json`.

Brings an artifact from S3 to `<dest_root>/<artifact digest>/` on this node. The directory appears by one rename, after
every byte was verified: where it is, it is whole. Any number of runs may ask at once; one downloads, the others find
it. In the mode `scrub` it hashes again what is on the disk, and repairs what differs. What lies where is told in
`headway.pods.node`.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headway.adapters.s3.client import S3Client, S3Connection
from headway.domain.weight_jobs import StageJob, StageResult
from headway.domain.weights import PART_BYTES, Manifest, WeightFile, read_manifest
from headway.errors import ConfigError, Conflict, HeadwayError, IntegrityError, NotFound
from headway.pods import disk
from headway.pods.attest import require_signed
from headway.pods.fetch import Fetcher, Item, require_plain
from headway.pods.io import Progress, part_of, run_program
from headway.pods.node import Node, is_digest
from headway.pods.room import make_room
from headway.units import format_bytes

MARK_PCT = 10.0
"""Share of the progress that looking at the node takes."""


def run(
    job: StageJob, connect: Callable[[], S3Client], progress: Progress, *, part_bytes: int = PART_BYTES
) -> StageResult:
    """Stage an artifact or find it staged, or look after what lies on the node.

    Args:
        job: Which, and where to.
        connect: Connects to the store, as a role that may read artifacts. A hit never does.
        progress: Told how far it is.
        part_bytes: Size of the parts that the manifest lists.

    Raises:
        NotFound: There is no such artifact.
        ConfigError: The job is wrong, or the manifest is of a newer headway.
        Refused: Too little space, a disk that must not be written, a name that is no plain file name, an artifact
            that is not signed as this node wants it, or no right to read it; nothing was published.
        IntegrityError: Bytes differ from the manifest; nothing was published.
        Conflict: The artifact was replaced meanwhile.
        BackendUnavailable: The store does not answer.
    """
    started = time.monotonic()
    root = Path(job.dest_root)
    node = Node(root, part_bytes=part_bytes, say=_log)
    if job.low_pct > job.high_pct:
        raise ConfigError(f"low_pct {job.low_pct} is above high_pct {job.high_pct}; deleting would never begin")
    if not is_digest(job.artifact_digest) and (job.artifact_digest or job.mode == "stage"):
        raise ConfigError(f"`{job.artifact_digest}` is no artifact digest")
    with disk.said(root):
        if job.mode == "scrub":
            return _scrub(job, connect(), node, progress, started)
        manifest = node.hit(job.artifact_digest, job.content_digest)
        if manifest is not None:
            require_signed(manifest, os.environ)
            return _result(job, manifest, progress, started, outcome="hit")
        client = connect()
        manifest = _manifest(client, job.artifact_uri, job.artifact_digest, part_bytes)
        if job.content_digest and manifest.content_digest != job.content_digest:
            raise Conflict(
                f"the artifact at {job.artifact_uri} was made again with other bytes ({manifest.content_digest[:12]}, "
                f"the plan means {job.content_digest[:12]}); start a new release",
                uri=job.artifact_uri,
            )
        return _stage(job, client, node, manifest, progress, started=started)


def _stage(
    job: StageJob, client: S3Client, node: Node, manifest: Manifest, progress: Progress, *, started: float
) -> StageResult:
    digest = job.artifact_digest
    progress(0, "looking at the node")
    with node.locked(partial(progress, 0, "another run stages or scrubs on this node; waiting for it")):
        if node.hit(digest, manifest.content_digest) is not None or (
            node.manifest(digest) is None and node.adopt(manifest)
        ):
            return _result(job, manifest, progress, started, outcome="hit")
        node.tidy(manifest)
        brought = _Bringing(job, client, node, progress)
        brought.bring(manifest, job.artifact_uri)
    return _result(job, manifest, progress, started, outcome="staged", brought=brought)


class _Bringing:
    """What one run brings to the node, with what it found on the way. The node's lock is held."""

    def __init__(self, job: StageJob, client: S3Client, node: Node, progress: Progress) -> None:
        self._job = job
        self._client = client
        self._node = node
        self._progress = progress
        self.fetched_bytes = 0
        self.resumed_bytes = 0
        self.shared_bytes = 0
        self.evicted: list[str] = []
        self.damaged: list[str] = []
        self.unrepaired: list[HeadwayError] = []

    def bring(self, manifest: Manifest, uri: str) -> None:
        """Publish one artifact, with the blobs that the node has already and the rest from the store.

        Blobs are hashed before they are shared. One that has changed on the disk takes all artifacts that hold it out,
        and they are repaired too.
        """
        node = self._node
        self._progress(1, "hashing what the node has already")
        bad, right_bytes = node.spoiled(manifest)
        others = self.take_out(bad) if bad else []
        files = node.missing(manifest)
        self.shared_bytes += right_bytes
        if not node.links:
            files = list({file.sha256: file for file in manifest.files}.values())
        self._fetch(manifest, files, uri)
        node.publish(manifest, files)
        for other in others:
            self.repair(other)

    def take_out(self, spoiled: set[str]) -> list[str]:
        """Take out every artifact that holds one of these blobs, and the blobs; return the artifacts' digests."""
        blobs = [self._node.blobs / sha256 for sha256 in sorted(spoiled)]
        holders = self._node.holders(blobs)
        for digest, names in holders.items():
            self.damaged += [f"{digest}/{name}" for name in names]
            self._node.set_aside(digest)
        for blob in blobs:
            blob.unlink()
        if spoiled:
            _log(f"{len(spoiled)} files have changed on the disk: {', '.join(self.damaged) or 'unused'}")
        return [digest for digest in holders if digest != self._job.artifact_digest]

    def repair(self, digest: str) -> None:
        """Publish again an artifact that was taken out, by the manifest that the node kept."""
        manifest = self._node.manifest(digest)
        if manifest is None:
            return
        try:
            self.bring(manifest, self._uri_of(digest))
        except HeadwayError as error:
            _log(f"cannot repair {digest[:12]}, it stays out: {error.message}")
            self.unrepaired.append(error)

    def _uri_of(self, digest: str) -> str:
        """Return where an artifact is: artifacts lie side by side."""
        base = self._job.artifact_uri.rstrip("/")
        if self._job.artifact_digest and base.endswith(self._job.artifact_digest):
            base = base.removesuffix(self._job.artifact_digest).rstrip("/")
        return f"{base}/{digest}/"

    def _fetch(self, manifest: Manifest, files: list[WeightFile], uri: str) -> None:
        node, job = self._node, self._job
        there = {item.uri: item for item in self._client.list(uri)} if files else {}
        items = []
        for file in files:
            found = there.get(uri + file.path)
            if found is None or found.size_bytes != file.size_bytes:
                has = "is not there" if found is None else f"has {found.size_bytes} bytes"
                raise IntegrityError(
                    f"{uri}{file.path} {has}, its manifest says {file.size_bytes} bytes; delete the artifact, and let "
                    "headway make it again",
                    uri=uri + file.path,
                )
            items.append(Item(file.sha256, found.uri, file.size_bytes, file.sha256, file.parts, found.etag))
        lacking = sum(max(0, i.size_bytes - disk.allocated_bytes(node.incoming / i.path)) for i in items)
        self.evicted += make_room(node, manifest, lacking, pins=job.pins, high_pct=job.high_pct, low_pct=job.low_pct)
        if not items:
            return
        allocate = not node.system.shared
        fetcher = Fetcher(self._client, node.incoming, node.journal, part_bytes=node.part_bytes, allocate=allocate)
        try:
            resumed = fetcher.fetch(items, part_of(self._progress, MARK_PCT, 99)).resumed_bytes
        except HeadwayError as error:
            if "free_bytes" in error.facts:
                # Space that was set aside for what does not fit would only be missed by others.
                node.drop_incoming()
            raise
        self.resumed_bytes += resumed
        self.fetched_bytes += sum(item.size_bytes for item in items) - resumed


def _scrub(job: StageJob, client: S3Client, node: Node, progress: Progress, started: float) -> StageResult:
    """Hash again what is on the disk, one artifact after the other, and repair what differs.

    A damaged artifact is taken out before anything else, so that no engine starts with it; one that runs keeps its
    open files. It comes back by one rename. The store's manifests count, not the node's.

    Raises:
        HeadwayError: Something could not be checked or repaired; the rest was. Its fact `damaged` lists all findings.
    """
    size, damaged, fetched, evicted = 0, list[str](), 0, list[str]()
    failed: list[HeadwayError] = []
    digests = [job.artifact_digest] if job.artifact_digest else node.known()
    for number, digest in enumerate(digests):
        now = part_of(progress, 100 * number / len(digests), 100 * (number + 1) / len(digests))
        now(0, f"hashing {digest[:12]}")
        uri = job.artifact_uri if job.artifact_digest else f"{job.artifact_uri.rstrip('/')}/{digest}/"
        bringing = _Bringing(job, client, node, now)
        try:
            manifest = _manifest(client, uri, digest, node.part_bytes)
            with node.locked(partial(now, 0, "another run stages or scrubs on this node; waiting for it")):
                node.tidy(manifest)
                _scrub_one(bringing, node, manifest, uri)
            size += manifest.size_bytes
        except HeadwayError as error:
            _log(f"cannot check or repair {digest[:12]}: {error.message}")
            failed.append(error)
        failed += bringing.unrepaired
        damaged += bringing.damaged
        fetched += bringing.fetched_bytes
        evicted += bringing.evicted
    if failed:
        failed[0].facts["damaged"] = sorted(set(damaged))
        raise failed[0]
    progress(100, f"{format_bytes(size)} hashed, {len(set(damaged))} files were damaged")
    return StageResult(
        outcome="scrubbed",
        path=str(node.final(job.artifact_digest) if job.artifact_digest else node.root),
        artifact_digest=job.artifact_digest,
        size_bytes=size,
        fetched_bytes=fetched,
        evicted=tuple(evicted),
        damaged=tuple(sorted(set(damaged))),
        seconds=round(time.monotonic() - started, 3),
    )


def _scrub_one(bringing: _Bringing, node: Node, manifest: Manifest, uri: str) -> None:
    digest, final = manifest.artifact_digest, node.final(manifest.artifact_digest)
    wrong = [file for file in manifest.files if not node.proven(final / file.path, file, from_disk=True)]
    if not wrong and node.is_whole(manifest):
        if node.manifest(digest) != manifest:
            node.adopt(manifest)
        return
    strangers = {path.name for path in final.iterdir()} if final.is_dir() and not final.is_symlink() else set()
    strangers -= {file.path for file in manifest.files}
    bringing.damaged += [f"{digest}/{name}" for name in sorted({file.path for file in wrong} | strangers)]
    node.set_aside(digest)
    # Blobs of the wrong files are the same inodes: whoever else holds them is repaired with this one.
    bringing.bring(manifest, uri)


def _manifest(client: S3Client, artifact_uri: str, digest: str, part_bytes: int) -> Manifest:
    uri = artifact_uri + "manifest.json"
    found = client.read_json(uri)
    if found is None:
        raise NotFound(f"there is no artifact at {artifact_uri}, or it is not whole; let quantize make it", uri=uri)
    manifest = read_manifest(found, uri)
    if manifest.artifact_digest != digest:
        raise IntegrityError(f"{uri} belongs to {manifest.artifact_digest}; delete the artifact", uri=uri)
    if not manifest.files:
        raise IntegrityError(f"{uri} lists no files; delete the artifact", uri=uri)
    for file in manifest.files:
        require_plain(file.path)
        parts = -(-file.size_bytes // part_bytes)
        if len(file.parts) != parts or (parts == 1 and file.parts != (file.sha256,)):
            raise IntegrityError(
                f"{uri} does not give each part of `{file.path}` its sha256; delete the artifact", uri=uri
            )
    require_signed(manifest, os.environ)
    return manifest


def _result(
    job: StageJob,
    manifest: Manifest,
    progress: Progress,
    started: float,
    *,
    outcome: str,
    brought: _Bringing | None = None,
) -> StageResult:
    size = format_bytes(manifest.size_bytes)
    progress(100, f"{size} staged" if outcome == "staged" else f"{size} were there")
    return StageResult(
        outcome="staged" if outcome == "staged" else "hit",
        path=f"{job.dest_root.rstrip('/')}/{job.artifact_digest}",
        artifact_digest=job.artifact_digest,
        size_bytes=manifest.size_bytes,
        fetched_bytes=brought.fetched_bytes if brought else 0,
        resumed_bytes=brought.resumed_bytes if brought else 0,
        shared_bytes=brought.shared_bytes if brought else 0,
        evicted=tuple(brought.evicted) if brought else (),
        damaged=tuple(sorted(set(brought.damaged))) if brought else (),
        seconds=round(time.monotonic() - started, 3),
    )


def _log(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the job's log


def main(arguments: list[str]) -> int:
    """Run the program in the current folder; return its exit code."""

    def work(job: StageJob, progress: Progress) -> StageResult:
        return run(job, lambda: S3Client(connection_of(os.environ)), progress)

    return run_program(arguments, StageJob, work)


def connection_of(environment: "os._Environ[str]") -> S3Connection:
    """Return how this program reaches S3. Credentials are found by botocore itself."""
    return S3Connection(
        endpoint=environment.get("HEADWAY_S3_ENDPOINT") or None,
        region=environment.get("AWS_REGION") or "us-east-1",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
