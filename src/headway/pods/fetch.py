"""Downloads files in parallel parts, each verified as it arrives, and goes on where an ended run stopped.

The numbers are from a comparison of clients on one machine (2 GiB over loopback to a disk with fsync; the command is
`make bench-staging`): few connections, buffers of 256 KiB and space allocated beforehand were fastest and cheapest;
larger buffers from several threads into one file cost eight times the CPU.
"""

import hashlib
import http.client
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from headway.adapters.s3.client import S3Client
from headway.adapters.s3.errors import REMEDIES
from headway.domain.weights import PART_BYTES
from headway.errors import BackendUnavailable, Conflict, HeadwayError, IntegrityError, Refused
from headway.pods import disk
from headway.pods.answer import Busy, skip_bytes
from headway.pods.io import Progress
from headway.units import KIB, MIB, format_bytes

CONNECTIONS = 4
BUFFER_BYTES = 256 * KIB
TRIES = 6
"""Tries without getting on, before the store counts as away: some 15 s with the pauses between them."""
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
WORTH_BYTES = 1 * MIB
"""A try that got this far was no failure: whoever is cut off again and again still arrives."""
TIMEOUT_S = 60
WRITE_AHEAD_BYTES = 16 * MIB
"""Stretch after which the kernel is asked to begin writing."""
REPORT_S = 0.5
"""Seconds between two reports of progress; each is a file with an fsync."""


class Item(NamedTuple):
    """A file to fetch."""

    path: str
    uri: str
    size_bytes: int
    sha256: str
    parts: tuple[str, ...] | None = None
    """sha256 of each part, if known; otherwise the whole file is hashed at the end."""
    etag: str = ""
    """ETag on which every read insists, if known; otherwise the store is asked."""


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

    @property
    def end(self) -> int:
        return self.start + self.length


class _Taken:
    """How far a part is. A cut connection goes on from here."""

    def __init__(self, part: _Part) -> None:
        self.part = part
        self.position = part.start
        self.running = hashlib.sha256()


class Fetcher:
    """One download of a set of files into a folder.

    Args:
        client: Signs addresses, and tells the ETag on which each read insists.
        folder: Where the files go; made if absent.
        journal: Keeps what is done, beside the folder and never in it.
        part_bytes: Size of a part.
        allocate: Whether the file system can set space aside; where it cannot, the C library would write it all.
    """

    def __init__(
        self, client: S3Client, folder: Path, journal: Path, *, part_bytes: int = PART_BYTES, allocate: bool = True
    ) -> None:
        self._client = client
        self._folder = folder
        self._journal = journal
        self._part_bytes = part_bytes
        self._allocates = allocate
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._local = threading.local()
        self.etags: dict[str, str] = {}
        """By address: the ETag of the bytes that were fetched."""
        self._digests: dict[tuple[str, int], str] = {}
        self._left: dict[str, int] = {}
        self._done_bytes = 0
        self._reported_at = 0.0

    def fetch(self, items: Sequence[Item], progress: Progress) -> Fetched:
        """Fetch and verify every file.

        Raises:
            Refused: A name that is no plain file name, too little space, or a disk that must not be written.
            IntegrityError: Bytes differ from their digest.
            Conflict: An object changed meanwhile.
            BackendUnavailable: The store stopped answering.
        """
        for item in items:
            require_plain(item.path)
        with disk.said(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._require_space(items)
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                return self._fetch(items, progress, pool)

    def _fetch(self, items: Sequence[Item], progress: Progress, pool: ThreadPoolExecutor) -> Fetched:
        total = sum(item.size_bytes for item in items)
        self.etags.update(zip((item.uri for item in items), pool.map(self._unchanged, items), strict=True))
        for item in items:
            self._allocate(item)
        wanted = [part for item in items for part in self._parts(item)]
        resumed = self._resume(wanted, pool)
        left = [part for part in wanted if (part.item.path, part.number) not in self._digests]
        self._left = {item.path: 0 for item in items}
        for part in left:
            self._left[part.item.path] += 1
        # What was whole already, and what has no bytes: its last step is still to come.
        whole = [item for item in items if not self._left[item.path]]
        self._done_bytes = total - sum(part.length for part in left)
        with self._journal.open("a") as journal:

            def one(part: _Part) -> None:
                if self._stop.is_set():
                    return
                digest = self._one(part)
                with self._lock:
                    self._digests[(part.item.path, part.number)] = digest
                    journal.write(f"{part.item.path}\t{part.number}\t{digest}\n")
                    journal.flush()
                    self._done_bytes += part.length
                    self._left[part.item.path] -= 1
                    ended = not self._left[part.item.path]
                    self._report(progress, total)
                if ended:
                    self._finish(part.item)

            running = [pool.submit(one, part) for part in left]
            running += [pool.submit(self._finish, item) for item in whole]
            self._wait(running)
        disk.sync(self._folder)
        parts = {item.path: tuple(self._digests[(item.path, p.number)] for p in self._parts(item)) for item in items}
        return Fetched(parts, resumed)

    def _wait(self, running: Sequence["Future[None]"]) -> None:
        """Wait for all; the first failure stops the others."""
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
        except BaseException:
            self._stop.set()
            raise
        failed = [future for future in done if future.exception() is not None]
        if failed:
            self._stop.set()
            for future in running:
                future.cancel()
            failed[0].result()

    def _report(self, progress: Progress, total: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            progress(100 * self._done_bytes / max(total, 1), f"fetching {format_bytes(total)}")

    def _parts(self, item: Item) -> Iterator[_Part]:
        for number, start in enumerate(range(0, item.size_bytes, self._part_bytes)):
            yield _Part(item, number, start, min(self._part_bytes, item.size_bytes - start))

    def _unchanged(self, item: Item) -> str:
        if item.etag:
            return item.etag
        found = self._client.head(item.uri)
        if found.size_bytes != item.size_bytes:
            sizes = f"{found.size_bytes} bytes, expected {item.size_bytes}"
            raise IntegrityError(f"{item.uri} has {sizes}; it was replaced since it was listed", uri=item.uri)
        return found.etag

    def _require_space(self, items: Sequence[Item]) -> None:
        """Refuse before the first byte what cannot fit."""
        there = sum(disk.allocated_bytes(self._folder / item.path) for item in items)
        needed = max(0, sum(item.size_bytes for item in items) - there) + disk.SPARE_BYTES
        free = disk.free_bytes(self._folder)
        if needed > free:
            raise disk.no_space(self._folder, needed, free)

    def _allocate(self, item: Item) -> None:
        handle = os.open(self._folder / item.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            if os.fstat(handle).st_size > item.size_bytes:
                os.ftruncate(handle, item.size_bytes)
            if self._allocates and item.size_bytes:
                os.posix_fallocate(handle, 0, item.size_bytes)
        except OSError as error:
            raise disk.disk_error(error, self._folder, item.size_bytes) from error
        finally:
            os.close(handle)

    def _resume(self, wanted: Sequence[_Part], pool: ThreadPoolExecutor) -> int:
        """Take over the parts that an earlier run finished, after hashing them again; return their bytes."""
        if not self._journal.exists():
            return 0
        noted: dict[tuple[str, str], set[str]] = {}
        for line in self._journal.read_text(errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) == 3:
                noted.setdefault((fields[0], fields[1]), set()).add(fields[2])

        def check(part: _Part) -> int:
            known = noted.get((part.item.path, str(part.number)), set())
            if not known or (part.item.parts and part.item.parts[part.number] not in known):
                return 0
            digest = disk.hash_file(self._folder / part.item.path, part.start, part.length)
            if digest not in known or (part.item.parts and digest != part.item.parts[part.number]):
                return 0
            self._digests[(part.item.path, part.number)] = digest
            return part.length

        return sum(pool.map(check, wanted))

    def _one(self, part: _Part) -> str:
        """Fetch one part into its place, however often the connection is cut; return its sha256."""
        taken, failures, damaged = _Taken(part), 0, False
        while True:
            before = taken.position
            try:
                self._go_on(taken)
            except BackendUnavailable as error:
                failures = 1 if taken.position - before >= WORTH_BYTES else failures + 1
                if failures >= TRIES:
                    raise
                self._pause(error, failures)
                continue
            digest = taken.running.hexdigest()
            if part.item.parts is None or digest == part.item.parts[part.number]:
                return digest
            if damaged:
                raise _damaged(part, digest)
            # Once more from its start: bytes may change on their way, under a weak checksum or in a bad cache.
            taken, damaged = _Taken(part), True

    def _pause(self, error: BackendUnavailable, failures: int) -> None:
        """Wait before the next try, longer each time and never all threads at once; a failure elsewhere ends it."""
        longest_s = min(FIRST_PAUSE_S * 2**failures, LONGEST_PAUSE_S)
        wait_s = longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads tries, keeps no secret
        if isinstance(error, Busy):
            wait_s = max(wait_s, error.wait_s)
        print(f"trying again in {wait_s:.1f} s: {error.message}", flush=True)  # noqa: T201 - the job's log
        if self._stop.wait(wait_s):
            raise Conflict("another part failed")

    def _go_on(self, taken: _Taken) -> None:
        """Read a part from where it stands to its end."""
        part, uri = taken.part, taken.part.item.uri
        address = urlsplit(self._client.signed_url(uri, expires_s=3600))
        headers = {"If-Match": f'"{self.etags[uri]}"'}
        if (taken.position, part.end) != (0, part.item.size_bytes):
            headers["Range"] = f"bytes={taken.position}-{part.end - 1}"
        connection = self._connection(address.scheme, address.netloc)
        try:
            connection.request("GET", f"{address.path}?{address.query}", headers=headers)
            answer = connection.getresponse()
            skipped = skip_bytes(
                answer,
                uri,
                start=taken.position,
                end=part.end,
                size_bytes=part.item.size_bytes,
                etag=self.etags[uri],
                now=datetime.fromtimestamp(time.time(), UTC),
            )
            self._write(answer, taken, skipped)
            if not answer.isclosed():
                # Bytes behind the last one that was wanted: they must not be taken for the next answer.
                self._drop()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            message = f"cannot read {uri}: {type(error).__name__} {error}; {REMEDIES[BackendUnavailable]}"
            raise BackendUnavailable(message, uri=uri) from error
        except BaseException:
            self._drop()
            raise

    def _write(self, answer: http.client.HTTPResponse, taken: _Taken, skipped: int) -> None:
        part, buffer = taken.part, self._buffer()
        path = self._folder / part.item.path
        with disk.said(self._folder):
            handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        flushed = taken.position
        try:
            while taken.position < part.end:
                if self._stop.is_set():
                    raise Conflict("another part failed")
                got = answer.readinto(buffer[: min(BUFFER_BYTES, skipped or part.end - taken.position)])
                if not got:
                    raise http.client.IncompleteRead(b"", part.end - taken.position)
                if skipped:
                    skipped -= got
                    continue
                taken.running.update(buffer[:got])
                self._put(handle, buffer[:got], taken.position)
                taken.position += got
                if taken.position - flushed >= WRITE_AHEAD_BYTES or taken.position == part.end:
                    disk.start_writing(handle, flushed, taken.position - flushed)
                    flushed = taken.position
        finally:
            os.close(handle)

    def _put(self, handle: int, piece: memoryview, position: int) -> None:
        written = 0
        while written < len(piece):
            try:
                written += os.pwrite(handle, piece[written:], position + written)
            except OSError as error:
                raise disk.disk_error(error, self._folder) from error

    def _finish(self, item: Item) -> None:
        """Take the last steps of a file all of whose parts are there."""
        if item.parts is None:
            digest = disk.hash_file(self._folder / item.path)
            if digest != item.sha256:
                raise IntegrityError(
                    f"{item.uri} has the sha256 {digest}, expected {item.sha256}; it was replaced since it was "
                    "selected. Start a new release",
                    uri=item.uri,
                )
        with disk.said(self._folder):
            disk.sync(self._folder / item.path)

    def _buffer(self) -> memoryview:
        """Return this thread's buffer."""
        if getattr(self._local, "buffer", None) is None:
            self._local.buffer = memoryview(bytearray(BUFFER_BYTES))
        return self._local.buffer  # type: ignore[no-any-return]

    def _connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        """Return this thread's connection."""
        if getattr(self._local, "connection", None) is None:
            kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
            self._local.connection = kind(netloc, timeout=TIMEOUT_S)
        return self._local.connection  # type: ignore[no-any-return]

    def _drop(self) -> None:
        self._local.connection.close()
        self._local.connection = None


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


def _damaged(part: _Part, digest: str) -> HeadwayError:
    uri, expected = part.item.uri, part.item.parts[part.number] if part.item.parts else ""
    return IntegrityError(
        f"part {part.number} of {uri} has the sha256 {digest}, its manifest says {expected}; "
        "the object was damaged or replaced. Delete the artifact, and let headway make it again",
        uri=uri,
        part=part.number,
    )
