"""A node's store: whole artifacts by digest, whose files are hard links to content that versions share.

```
<root>/<artifact digest>/<file>     what an engine opens: plain files, read-only, hard links to ...
<root>/.blobs/<sha256>              ... these; one with a single link belongs to no artifact and goes
<root>/.manifests/<digest>.json     what a directory must hold, with its own sha256 before it
<root>/.used/<digest>               its time of change is the last use; who holds its lock keeps the artifact here
<root>/.incoming/<sha256>           on its way, with `.incoming.journal` of the parts that are done
<root>/.building/<digest>/          a directory just before the rename that publishes it
<root>/.aside/                      what was taken out, until it is deleted
<root>/.lock                        held by whoever changes the store
```

There is no database: links are the count of references, and every run first clears what a killed one left.

One lock of the node, not one for each artifact: two artifacts that share a shard must not fetch it twice, and two
downloads at once would take as long as one after the other. The kernel frees it when its holder dies. Where other
machines write to the same file system (NFS, Lustre, SMB, FUSE), `flock` may hold for this machine only, or not at all.
There each machine has an `.incoming` and a `.building` of its own, so two may fetch the same artifact, but never write
into one file; the rename lets the first one publish, and the other finds that. Where `flock` is refused, each process
has its own, and nothing is evicted.

Where a file system has no hard links, files are moved to their place instead, and versions share nothing.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headway.domain.value import canonical_json
from headway.domain.weights import PART_BYTES, Manifest, WeightFile, read_manifest
from headway.errors import ConfigError, IntegrityError
from headway.pods import disk

HASHERS = 4
LEFTOVER_S = 86_400.0
"""Age at which what an ended run of another artifact left is deleted; sooner where its space is needed."""
READ_ONLY = 0o444


class Kept(NamedTuple):
    """One artifact of the node."""

    digest: str
    size_bytes: int
    """What would become free: files that other artifacts hold too do not count."""
    used_at: float
    """Unix time of the last use."""


class Node:
    """The store below one directory.

    Args:
        root: The directory; made when something is staged.
        part_bytes: Size of the parts that manifests list.
        say: Takes a line for the log.
    """

    def __init__(self, root: Path, *, part_bytes: int = PART_BYTES, say: Callable[[str], None] = print) -> None:
        self.root = root
        self.part_bytes = part_bytes
        self.say = say
        self.blobs = root / ".blobs"
        self.aside = root / ".aside"
        self._manifests = root / ".manifests"
        self._used = root / ".used"
        self._own = ""
        self.system = disk.FileSystem("unknown", shared=False)
        self.links = True
        """Whether the file system has hard links."""
        self.locks = True
        """Whether it has locks."""
        self._proven: set[tuple[int, int, int, int]] = set()

    # --- Looking ------------------------------------------------------------------------------------------------------

    def final(self, digest: str) -> Path:
        """Return where an artifact is when it is here."""
        return self.root / digest

    @property
    def incoming(self) -> Path:
        """Where files lie until they are whole."""
        return self.root / f".incoming{self._own}"

    @property
    def journal(self) -> Path:
        """Which parts of them are done."""
        return self.root / f".incoming{self._own}.journal"

    @property
    def building(self) -> Path:
        """Where directories lie until they are whole."""
        return self.root / f".building{self._own}"

    def hit(self, digest: str, content_digest: str = "") -> Manifest | None:
        """Return the manifest of an artifact that is here, and note its use; none if it has to be staged.

        Names and sizes are compared with the manifest that the node kept; the bytes were verified when they came, and
        a scrub looks at them again. The store is not asked: what a digest and a content digest name does not change.
        """
        manifest = self.manifest(digest)
        if manifest is None or (content_digest and manifest.content_digest != content_digest):
            return None
        with self._using(digest):
            return manifest if self.is_whole(manifest) else None

    def manifest(self, digest: str) -> Manifest | None:
        """Return the manifest that the node kept; none if there is none that can be relied on."""
        try:
            head, _, body = (self._manifests / f"{digest}.json").read_bytes().partition(b"\n")
            if hashlib.sha256(body).hexdigest() != head.decode("ascii", "replace"):
                return None
            manifest = read_manifest(json.loads(body), f"{digest}.json")
        except (FileNotFoundError, NotADirectoryError, ValueError, IntegrityError, ConfigError):
            return None
        return manifest if manifest.artifact_digest == digest else None

    def is_whole(self, manifest: Manifest, folder: Path | None = None) -> bool:
        """Tell whether a directory has exactly the manifest's files, in their sizes, and nothing else."""
        wanted = {file.path: file.size_bytes for file in manifest.files}
        folder = folder or self.final(manifest.artifact_digest)
        if folder.is_symlink():
            return False
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    state = entry.stat(follow_symlinks=False)
                    if not entry.is_file(follow_symlinks=False) or wanted.pop(entry.name, -1) != state.st_size:
                        return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not wanted

    def artifacts(self) -> list[Kept]:
        """Return what is here, the least recently used first."""
        kept = []
        for folder in self._folders():
            with os.scandir(folder) as entries:
                states = [entry.stat(follow_symlinks=False) for entry in entries]
            # One link here and one in `.blobs`: nobody else has it.
            size = sum(state.st_blocks * 512 for state in states if state.st_nlink <= 2)
            kept.append(Kept(folder.name, size, self._used_at(folder)))
        return sorted(kept, key=lambda one: (one.used_at, one.digest))

    def known(self) -> list[str]:
        """Return the digests of what is here or ought to be: a repair that was cut short left only its manifest."""
        noted = {path.stem for path in self._manifests.glob("*.json")} if self._manifests.is_dir() else set()
        return sorted({folder.name for folder in self._folders()} | noted)

    def _folders(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return [
            path for path in self.root.iterdir() if is_digest(path.name) and path.is_dir() and not path.is_symlink()
        ]

    def _used_at(self, folder: Path) -> float:
        try:
            return (self._used / folder.name).stat().st_mtime
        except FileNotFoundError:
            return folder.stat().st_mtime

    # --- Locks --------------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the node's lock, and clear what ended runs left."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.system = disk.file_system(self.root)
        handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._own = f"-{disk.machine()}" if self.system.shared else ""
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in disk.NO_LOCKS:
                    raise
                self.locks, self._own = False, f"-{disk.machine()}-{os.getpid()}"
            self._say_what_holds()
            for folder in (self.blobs, self._manifests, self._used):
                folder.mkdir(exist_ok=True)
            self.links = self._has_links()
            yield
        finally:
            os.close(handle)

    def _say_what_holds(self) -> None:
        if not self.locks:
            self.say(
                f"{self.root} is on {self.system.kind} without locks: others may download the same; none is evicted"
            )
        elif self.system.shared:
            self.say(f"{self.root} is on {self.system.kind}: one download at a time holds for this machine only")

    def _has_links(self) -> bool:
        probe = self.root / f".probe{self._own}"
        probe.unlink(missing_ok=True)
        try:
            os.link(self.root / ".lock", probe)
        except OSError as error:
            if error.errno not in disk.NO_LINKS:
                raise
            self.say(f"{self.root} is on {self.system.kind} without hard links: versions share nothing")
            return False
        probe.unlink(missing_ok=True)
        return True

    @contextmanager
    def _using(self, digest: str) -> Iterator[None]:
        """Note a use; nobody evicts the artifact meanwhile. A store that must not be written is used all the same."""
        try:
            handle = os.open(self._used / digest, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if error.errno not in disk.NO_WRITING + disk.NO_SPACE:
                raise
            yield
            return
        try:
            self._flock(handle, fcntl.LOCK_SH)
            os.utime(handle)
            yield
        finally:
            os.close(handle)

    def _flock(self, handle: int, kind: int) -> None:
        try:
            fcntl.flock(handle, kind)
        except OSError as error:
            if error.errno not in disk.NO_LOCKS or isinstance(error, BlockingIOError):
                raise

    # --- Changing; the node's lock is held ----------------------------------------------------------------------------

    def tidy(self, manifest: Manifest, *, all_of_it: bool = False) -> None:
        """Clear what ended runs left, but what this artifact can use.

        Args:
            manifest: Of the artifact that is about to be staged.
            all_of_it: Also what is younger than a day, because space is short.
        """
        wanted = {file.sha256 for file in manifest.files}
        alone = self.locks and not self.system.shared
        for path in self._leftovers():
            if path in (self.incoming, self.journal):
                self._tidy_incoming(wanted, all_of_it=all_of_it)
            elif path == self.building or _is_old(path) or (all_of_it and alone):
                remove(path)
        for path in (*self._old_leftovers(), *self._repaired()):
            remove(path)
        self.drop_unused(wanted)
        here = {folder.name for folder in self._folders()} | {manifest.artifact_digest}
        aside = {path.name for path in self.aside.iterdir()} if self.aside.is_dir() else set()
        for path in (*self._manifests.iterdir(), *self._used.iterdir()):
            # `.<name>.new` is what a write of a small file left.
            if path.stem not in here | aside and (alone or _is_old(path)):
                path.unlink(missing_ok=True)

    def drop_unused(self, wanted: Iterable[str] = ()) -> None:
        """Delete blobs that no artifact holds, but those that are wanted."""
        spared = set(wanted)
        alone = self.locks and not self.system.shared
        for blob in [path for path in self.blobs.iterdir() if path.name not in spared]:
            state = _state(blob)
            if state is not None and state.st_nlink == 1 and (alone or time.time() - state.st_ctime > LEFTOVER_S):
                remove(blob)

    def _leftovers(self) -> list[Path]:
        names = (".incoming", ".building", ".probe")
        return [path for path in self.root.iterdir() if path.name.startswith(names)]

    def _repaired(self) -> Iterator[Path]:
        """Yield what was taken out and is no longer needed: a directory whose repair was cut short stays for a day."""
        for path in list(self.aside.iterdir()) if self.aside.is_dir() else ():
            noted = (self._manifests / f"{path.name}.json").exists()
            if not noted or self.final(path.name).exists() or _is_old(path):
                yield path

    def _old_leftovers(self) -> Iterator[Path]:
        """Yield what the layout before this one left: `.<digest>.partial`, its journal and its lock."""
        for path in self.root.glob(".*.*"):
            digest, _, kind = path.name[1:].partition(".")
            if is_digest(digest) and kind in ("partial", "journal", "broken", "lock"):
                lock = self.root / f".{digest}.lock"
                if not lock.exists() or _is_free(lock):
                    yield path

    def _tidy_incoming(self, wanted: set[str], *, all_of_it: bool) -> None:
        if self.incoming.is_dir():
            for path in list(self.incoming.iterdir()):
                odd = path.is_symlink() or not path.is_file()
                if odd or (path.name not in wanted and (all_of_it or _is_old(path))):
                    remove(path)
            if not any(self.incoming.iterdir()):
                self.drop_incoming()
        elif not self.incoming.exists():
            self.journal.unlink(missing_ok=True)

    def drop_incoming(self) -> None:
        """Delete what is on its way."""
        remove(self.incoming)
        remove(self.journal)

    def adopt(self, manifest: Manifest) -> bool:
        """Take over a directory that is whole by names and sizes, such as one of the layout before this one."""
        if not self.is_whole(manifest):
            return False
        self._keep(manifest)
        for file in manifest.files:
            self._share(self.final(manifest.artifact_digest) / file.path, file)
        return True

    def _share(self, path: Path, file: WeightFile) -> None:
        """Let others find a file by its content."""
        path.chmod(READ_ONLY)
        if self.links:
            try:
                os.link(path, self.blobs / file.sha256)
            except FileExistsError:
                return

    def _keep(self, manifest: Manifest) -> None:
        body = canonical_json(manifest)
        path = self._manifests / f"{manifest.artifact_digest}.json"
        disk.write_whole(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)

    def proven(self, path: Path, file: WeightFile, *, from_disk: bool = False) -> bool:
        """Tell whether a file has the manifest's bytes, by the sha256 of each part; an inode is read once."""
        try:
            state = path.lstat()
        except FileNotFoundError:
            return False
        mark = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if mark in self._proven:
            return True
        if path.is_symlink() or state.st_size != file.size_bytes:
            return False
        if from_disk:
            disk.forget(path)
        starts = range(0, file.size_bytes, self.part_bytes)
        with ThreadPoolExecutor(HASHERS) as pool:
            found = pool.map(lambda at: disk.hash_file(path, at, self.part_bytes), starts)
            right = all(a == b for a, b in zip(found, file.parts, strict=True))
        if right:
            self._proven.add(mark)
        return right

    def spoiled(self, manifest: Manifest) -> tuple[set[str], int]:
        """Find blobs that this artifact would share and that have changed on the disk.

        Returns:
            Their sha256, and the bytes of those that are right.

        Raises:
            IntegrityError: The manifest gives a file's parts other bytes than the file.
        """
        bad, right_bytes = set(), 0
        for file in {file.sha256: file for file in manifest.files}.values():
            blob = self.blobs / file.sha256
            if not os.path.lexists(blob):
                continue
            if self.proven(blob, file):
                right_bytes += file.size_bytes
            elif _state(blob) and not blob.is_symlink() and disk.hash_file(blob) == file.sha256:
                raise IntegrityError(
                    f"the manifest of {manifest.artifact_digest} contradicts itself: `{file.path}` has its sha256 and "
                    "not those of its parts; delete the artifact, and let headway make it again",
                    artifact_digest=manifest.artifact_digest,
                )
            else:
                bad.add(file.sha256)
        return bad, right_bytes

    def holders(self, paths: Iterable[Path]) -> dict[str, list[str]]:
        """Return the artifacts that hold these files too, each with the names of its files."""
        inodes = {(state.st_dev, state.st_ino) for path in paths if (state := _state(path)) is not None}
        found: dict[str, list[str]] = {}
        for folder in self._folders():
            with os.scandir(folder) as entries:
                for entry in entries:
                    state = entry.stat(follow_symlinks=False)
                    if (state.st_dev, state.st_ino) in inodes:
                        found.setdefault(folder.name, []).append(entry.name)
        return {digest: sorted(names) for digest, names in found.items()}

    def set_aside(self, digest: str) -> None:
        """Take an artifact out by one rename. Files that an engine has open stay readable to it."""
        final = self.final(digest)
        if final.is_symlink() or final.is_file():
            final.unlink()
        elif final.exists():
            self.aside.mkdir(exist_ok=True)
            target = self.aside / digest
            remove(target)
            final.rename(target)
            disk.sync(self.root)

    def drop_aside(self, digest: str) -> None:
        """Delete what was taken out."""
        remove(self.aside / digest)

    def missing(self, manifest: Manifest) -> list[WeightFile]:
        """Return the files whose bytes the node lacks, each content once."""
        files = {file.sha256: file for file in manifest.files}.values()
        return [file for file in files if not os.path.lexists(self.blobs / file.sha256)]

    def publish(self, manifest: Manifest, arrived: Sequence[WeightFile]) -> None:
        """Let the artifact appear by one rename.

        Args:
            manifest: What it must hold.
            arrived: Files that lie verified in `incoming`.

        Raises:
            IntegrityError: What was built is not what the manifest lists.
        """
        digest = manifest.artifact_digest
        folder = self.building / digest
        remove(folder)
        folder.mkdir(parents=True)
        for file in arrived:
            (self.incoming / file.sha256).chmod(READ_ONLY)
            if self.links:
                (self.incoming / file.sha256).replace(self.blobs / file.sha256)
        last = {file.sha256: file.path for file in manifest.files}
        for file in manifest.files:
            self._place(file, folder / file.path, last=last[file.sha256] == file.path)
        if not self.is_whole(manifest, folder):
            raise IntegrityError(f"{folder} does not hold exactly the files of the manifest; delete it and try again")
        disk.sync(self.blobs)
        disk.sync(folder)
        self._keep(manifest)
        if self.system.shared and self.is_whole(manifest):
            # Another machine was first.
            remove(folder)
        else:
            self.set_aside(digest)
            folder.rename(self.final(digest))
        disk.sync(self.root)
        with self._using(digest):
            self.drop_aside(digest)
        for leftover in (self.building, self.aside, self.incoming):
            if leftover.is_dir() and not any(leftover.iterdir()):
                leftover.rmdir()
        if not self.incoming.exists():
            self.journal.unlink(missing_ok=True)

    def _place(self, file: WeightFile, target: Path, *, last: bool) -> None:
        source = self.incoming / file.sha256
        if self.links:
            os.link(self.blobs / file.sha256, target)
        elif last:
            source.replace(target)
        else:
            # Another file with the same bytes is still to come.
            shutil.copyfile(source, target)
            target.chmod(READ_ONLY)
            disk.sync(target)

    def evict(self, digest: str) -> bool:
        """Delete an artifact that nobody uses; false if somebody holds its lock."""
        handle = os.open(self._used / digest, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                self._flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # First the manifest: a directory without one is staged anew, a manifest without one would be repaired.
            (self._manifests / f"{digest}.json").unlink(missing_ok=True)
            self.set_aside(digest)
            (self._used / digest).unlink(missing_ok=True)
        finally:
            os.close(handle)
        self.drop_aside(digest)
        return True


def is_digest(name: str) -> bool:
    """Tell whether a name is that of an artifact's directory."""
    return len(name) == 64 and all(letter in "0123456789abcdef" for letter in name)


def remove(path: Path) -> None:
    """Delete a file or a directory, whatever it is; absent is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _state(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _is_old(path: Path) -> bool:
    state = _state(path)
    return state is not None and time.time() - state.st_mtime > LEFTOVER_S


def _is_free(lock: Path) -> bool:
    """Tell whether nobody holds a lock of the layout before this one."""
    handle = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
