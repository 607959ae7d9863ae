"""Downloads files in parallel parts, each verified as it arrives, and goes on where an ended run stopped.

The numbers are from a comparison of clients on one machine (1 GiB over loopback to a disk with fsync): few connections,
buffers of 256 KiB and space allocated beforehand were fastest and cheapest; larger buffers from several threads into
one file cost eight times the CPU.
"""

import errno
import hashlib
import http.client
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from headway.adapters.s3.client import S3Client
from headway.adapters.s3.errors import REMEDIES, kind_of
from headway.domain.weights import PART_BYTES
from headway.errors import BackendUnavailable, Conflict, HeadwayError, IntegrityError, Refused
from headway.pods.io import Progress
from headway.units import KIB, format_bytes

CONNECTIONS = 4
BUFFER_BYTES = 256 * KIB
TRIES = 3
TIMEOUT_S = 60
SPARE_BYTES = 64 * 1024 * KIB
"""Space that stays free on the file system beside the files themselves."""


class Item(NamedTuple):
    """A file to fetch."""

    path: str
    uri: str
    size_bytes: int
    sha256: str
    parts: tuple[str, ...] | None = None
    """sha256 of each part, if known; otherwise the whole file is hashed at the end."""


class Fetched(NamedTuple):
    """What was fetched."""

    parts: dict[str, tuple[str, ...]]
    """sha256 of each part, by path."""
    resumed_bytes: int


class _Part(NamedTuple):
    item: Item
    number: int
    start: int
    length: int


class Fetcher:
    """One download of a set of files into a folder.

    Args:
        client: Signs addresses, and tells the ETag on which each read insists.
        folder: Where the files go; made if absent.
        journal: Keeps what is done, beside the folder and never in it.
        part_bytes: Size of a part.
    """

    def __init__(self, client: S3Client, folder: Path, journal: Path, *, part_bytes: int = PART_BYTES) -> None:
        self._client = client
        self._folder = folder
        self._journal = journal
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._local = threading.local()
        self.etags: dict[str, str] = {}
        """By address: the ETag of the bytes that were fetched."""
        self._digests: dict[tuple[str, int], str] = {}
        self._done_bytes = 0

    def fetch(self, items: Sequence[Item], progress: Progress) -> Fetched:
        """Fetch and verify every file.

        Raises:
            Refused: A name that is no plain file name, or too little space; nothing was fetched.
            IntegrityError: Bytes differ from their digest.
            Conflict: An object changed meanwhile.
            BackendUnavailable: The store stopped answering.
        """
        for item in items:
            require_plain(item.path)
        self._folder.mkdir(parents=True, exist_ok=True)
        total = sum(item.size_bytes for item in items)
        self._require_space(items)
        for item in items:
            self.etags[item.uri] = self._unchanged(item)
            self._allocate(item)
        wanted = [part for item in items for part in self._parts(item)]
        resumed = self._resume(wanted)
        left = [part for part in wanted if (part.item.path, part.number) not in self._digests]
        self._done_bytes = total - sum(part.length for part in left)
        self._all(left, total, progress)
        for item in items:
            if item.parts is None:
                self._require_digest(item)
            _sync(self._folder / item.path)
        _sync(self._folder)
        parts = {item.path: tuple(self._digests[(item.path, p.number)] for p in self._parts(item)) for item in items}
        return Fetched(parts, resumed)

    def _parts(self, item: Item) -> Iterator[_Part]:
        for number, start in enumerate(range(0, item.size_bytes, self._part_bytes)):
            yield _Part(item, number, start, min(self._part_bytes, item.size_bytes - start))

    def _unchanged(self, item: Item) -> str:
        found = self._client.head(item.uri)
        if found.size_bytes != item.size_bytes:
            sizes = f"{found.size_bytes} bytes, expected {item.size_bytes}"
            raise IntegrityError(f"{item.uri} has {sizes}; it was replaced since it was listed", uri=item.uri)
        return found.etag

    def _require_space(self, items: Sequence[Item]) -> None:
        """Refuse before the first byte what cannot fit."""
        there = sum(_allocated(self._folder / item.path) for item in items)
        needed = max(0, sum(item.size_bytes for item in items) - there) + SPARE_BYTES
        state = os.statvfs(self._folder)
        free = state.f_bavail * state.f_frsize
        if needed > free:
            raise _no_space(self._folder, needed, free)

    def _allocate(self, item: Item) -> None:
        path = self._folder / item.path
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            if os.fstat(handle).st_size > item.size_bytes:
                os.ftruncate(handle, item.size_bytes)
            if item.size_bytes:
                os.posix_fallocate(handle, 0, item.size_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            state = os.statvfs(self._folder)
            raise _no_space(self._folder, item.size_bytes, state.f_bavail * state.f_frsize) from error
        finally:
            os.close(handle)

    def _resume(self, wanted: Sequence[_Part]) -> int:
        """Take over the parts that an earlier run finished, after hashing them again; return their bytes."""
        if not self._journal.exists():
            return 0
        noted = {tuple(line.split("\t")) for line in self._journal.read_text().splitlines()}
        resumed = 0
        for part in wanted:
            known = [line[2] for line in noted if len(line) == 3 and line[:2] == (part.item.path, str(part.number))]
            if not known or (part.item.parts and part.item.parts[part.number] not in known):
                continue
            digest = _hash_stretch(self._folder / part.item.path, part.start, part.length)
            if digest in known:
                self._digests[(part.item.path, part.number)] = digest
                resumed += part.length
        return resumed

    def _all(self, parts: Sequence[_Part], total: int, progress: Progress) -> None:
        """Fetch parts side by side; the first failure stops the others."""
        with self._journal.open("a") as journal, ThreadPoolExecutor(CONNECTIONS) as pool:

            def one(part: _Part) -> None:
                if self._stop.is_set():
                    return
                digest = self._with_retries(part)
                with self._lock:
                    self._digests[(part.item.path, part.number)] = digest
                    journal.write(f"{part.item.path}\t{part.number}\t{digest}\n")
                    journal.flush()
                    self._done_bytes += part.length
                    message = f"fetching {format_bytes(total)}"
                    progress(100 * self._done_bytes / max(total, 1), message)

            running: list[Future[None]] = [pool.submit(one, part) for part in parts]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            failed = [future for future in done if future.exception() is not None]
            if failed:
                self._stop.set()
                for future in running:
                    future.cancel()
                failed[0].result()

    def _with_retries(self, part: _Part) -> str:
        for _ in range(TRIES - 1):
            try:
                return self._one(part)
            except BackendUnavailable as error:
                print(f"trying again: {error.message}", flush=True)  # noqa: T201 - the job's log
        return self._one(part)

    def _one(self, part: _Part) -> str:
        """Fetch one part into its place; return its sha256."""
        uri = part.item.uri
        address = urlsplit(self._client.signed_url(uri, expires_s=3600))
        headers = {
            "Range": f"bytes={part.start}-{part.start + part.length - 1}",
            "If-Match": f'"{self.etags[uri]}"',
        }
        connection = self._connection(address.scheme, address.netloc)
        try:
            connection.request("GET", f"{address.path}?{address.query}", headers=headers)
            answer = connection.getresponse()
            if answer.status not in (200, 206):
                raise _refused(uri, answer.status)
            digest = self._write(answer, part)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            message = f"cannot read {uri}: {type(error).__name__} {error}; {REMEDIES[BackendUnavailable]}"
            raise BackendUnavailable(message, uri=uri) from error
        except HeadwayError:
            self._drop()
            raise
        if part.item.parts is not None and digest != part.item.parts[part.number]:
            expected = part.item.parts[part.number]
            raise IntegrityError(
                f"part {part.number} of {uri} has the sha256 {digest}, its manifest says {expected}; "
                "the object was damaged or replaced. Delete the artifact, and let headway make it again",
                uri=uri,
                part=part.number,
            )
        return digest

    def _write(self, answer: http.client.HTTPResponse, part: _Part) -> str:
        running, buffer = hashlib.sha256(), memoryview(bytearray(BUFFER_BYTES))
        position, end = part.start, part.start + part.length
        handle = os.open(self._folder / part.item.path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            while position < end:
                if self._stop.is_set():
                    raise Conflict("another part failed")
                got = answer.readinto(buffer[: min(BUFFER_BYTES, end - position)])
                if not got:
                    raise http.client.IncompleteRead(b"", end - position)
                running.update(buffer[:got])
                written = 0
                while written < got:
                    written += os.pwrite(handle, buffer[written:got], position + written)
                position += got
        finally:
            os.close(handle)
        return running.hexdigest()

    def _connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        """Return this thread's connection."""
        if getattr(self._local, "connection", None) is None:
            kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
            self._local.connection = kind(netloc, timeout=TIMEOUT_S)
        return self._local.connection  # type: ignore[no-any-return]

    def _drop(self) -> None:
        self._local.connection.close()
        self._local.connection = None

    def _require_digest(self, item: Item) -> None:
        digest = _hash_stretch(self._folder / item.path, 0, item.size_bytes)
        if digest != item.sha256:
            raise IntegrityError(
                f"{item.uri} has the sha256 {digest}, expected {item.sha256}; it was replaced since it was selected. "
                "Start a new release",
                uri=item.uri,
            )


def require_plain(path: str) -> None:
    """Refuse a name that could reach outside its folder.

    Raises:
        Refused: It is not the plain name of a visible file.
    """
    if not path or path.startswith(".") or path != PurePosixPath(path).name or "\\" in path or "\0" in path:
        raise Refused(f"`{path}` is no plain file name; nothing is written under it", path=path)


def hash_parts(path: Path, part_bytes: int = PART_BYTES) -> tuple[str, tuple[str, ...]]:
    """Return the sha256 of a file and of each of its parts, in one reading."""
    whole, parts = hashlib.sha256(), []
    with path.open("rb") as file:
        while True:
            part, read = hashlib.sha256(), 0
            while read < part_bytes and (piece := file.read(min(4096 * KIB, part_bytes - read))):
                whole.update(piece)
                part.update(piece)
                read += len(piece)
            if read:
                parts.append(part.hexdigest())
            if read < part_bytes:
                return whole.hexdigest(), tuple(parts)


def _hash_stretch(path: Path, start: int, length: int) -> str:
    running = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        while length and (piece := file.read(min(4096 * KIB, length))):
            running.update(piece)
            length -= len(piece)
    return running.hexdigest()


def _allocated(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _no_space(folder: Path, needed: int, free: int) -> Refused:
    return Refused(
        f"{format_bytes(needed)} more are needed in {folder}, which has {format_bytes(free)} free; "
        "delete what is no longer served there, or give it a larger disk",
        needed_bytes=needed,
        free_bytes=free,
    )


def _refused(uri: str, status: int) -> HeadwayError:
    kind = kind_of("", status)
    return kind(f"cannot read {uri}: HTTP {status}; {REMEDIES[kind]}", uri=uri, status=status)
