"""The file system below a node's store: what it can do, how its errors are said, and how bytes are made to last."""

import ctypes
import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headway.errors import BackendError, HeadwayError, Refused
from headway.units import KIB, MIB, format_bytes

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Full disk, full quota, limit of a file's size: to whoever writes they are one thing."""

NO_WRITING = (errno.EROFS, errno.EACCES, errno.EPERM)

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What `link` answers where a file system has no hard links (FAT, some FUSE and SMB mounts) or no more of them."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What `flock` answers where there is none (Lustre without `-o flock`, NFS without its lock service)."""

NETWORK = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"),
        *("orangefs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"),
    }
)
"""File systems that other machines may write at the same time. So may any of `fuse.*`."""

SPARE_BYTES = 64 * MIB
"""Space that stays free on the file system beside the files themselves."""

_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_libc = ctypes.CDLL(None, use_errno=True)


class FileSystem(NamedTuple):
    """What a directory lies on."""

    kind: str
    """Name of its type, such as `ext4`; `unknown` where the kernel does not tell."""
    shared: bool
    """Whether other machines may write to it too."""


def file_system(path: Path, mountinfo: str | None = None) -> FileSystem:
    """Tell what a directory lies on, by the longest mount point above it.

    Args:
        path: The directory; the first part of it that exists counts.
        mountinfo: Text of `/proc/self/mountinfo`; none: that of this process.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return FileSystem("unknown", shared=False)
    place, best, kind = os.path.realpath(path), "", "unknown"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # The kernel writes blanks and the like in mount points as octal escapes.
        point = fields[4].encode().decode("unicode_escape")
        # The last of equal ones lies on top.
        if len(point) >= len(best) and (place == point or place.startswith(point.rstrip("/") + "/")):
            best, kind = point, after.split(" ")[0]
    return FileSystem(kind, shared=kind in NETWORK or kind.startswith("fuse."))


def machine() -> str:
    """Return this machine's name as part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())


@contextmanager
def said(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about the disk into headway's errors.

    Raises:
        Refused: It is full, or must not be written.
        BackendError: It failed in another way.
    """
    try:
        yield
    except HeadwayError:
        raise
    except OSError as error:
        raise disk_error(error, folder) from error


def disk_error(error: OSError, folder: Path, needed_bytes: int | None = None) -> BackendError:
    """Return the one error for what the disk said."""
    if error.errno in NO_SPACE:
        return no_space(folder, needed_bytes or 0, free_bytes(folder), said=error.strerror or "")
    where = error.filename or folder
    if error.errno in NO_WRITING:
        return Refused(
            f"cannot write {where}: {error.strerror}; mount {folder} for writing, and let this user own it",
            path=str(where),
        )
    return BackendError(
        f"the disk failed at {where}: {error.strerror or error}; look at the kernel's log and at {folder}",
        path=str(where),
        errno=error.errno,
    )


def no_space(folder: Path, needed: int, free: int, *, pinned: dict[str, int] | None = None, said: str = "") -> Refused:
    """Return the refusal of what does not fit, with its numbers."""
    need = f"{format_bytes(needed)} more are needed in {folder}" if needed else f"{folder} is full"
    stays = ""
    if pinned:
        sizes = ", ".join(f"{name[:12]} {format_bytes(size)}" for name, size in sorted(pinned.items()))
        stays = f"; in use and not to be evicted are {format_bytes(sum(pinned.values()))} ({sizes})"
    return Refused(
        f"{need}, which has {format_bytes(free)} free{f' ({said})' if said else ''}{stays}; "
        "delete what is no longer served there, or give it a larger disk",
        needed_bytes=needed,
        free_bytes=free,
        pinned=pinned or {},
    )


def free_bytes(folder: Path) -> int:
    """Return what an ordinary user may still write there; the folder need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def used_pct(folder: Path, more_bytes: int = 0) -> float:
    """Return the use of the file system in percent as `df` counts it, with so many more bytes on it."""
    state = os.statvfs(folder)
    used = (state.f_blocks - state.f_bfree) * state.f_frsize
    total = used + state.f_bavail * state.f_frsize
    return 100 * (used + more_bytes) / max(total, 1)


def allocated_bytes(path: Path) -> int:
    """Return what a file takes on the disk; zero if it is not there."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def sync(path: Path) -> None:
    """Return when a file's bytes, or a directory's entries, would survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def start_writing(handle: int, start: int, length: int) -> None:
    """Let the kernel begin to write a stretch to the disk, so that the fsync at the end finds little left to do.

    A hint: file systems that do not know it ignore it, and fsync tells of every failure.
    """
    _libc.sync_file_range(handle, ctypes.c_int64(start), ctypes.c_int64(length), _START_WRITING)


def write_whole(path: Path, body: bytes) -> None:
    """Write a small file: a reader sees the old or the new content, also after a crash."""
    fresh = path.with_name(f".{path.name}.{machine()}-{os.getpid()}.new")
    with fresh.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def forget(path: Path) -> None:
    """Drop what memory holds of a file, so that the disk itself is read next.

    Pages that a running engine has mapped stay in memory, and are read there.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def hash_file(path: Path, start: int = 0, length: int | None = None) -> str:
    """Return the sha256 of a stretch of a file, by default of all of it; a symbolic link is refused."""
    running, buffer = hashlib.sha256(), memoryview(bytearray(512 * KIB))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        left = os.fstat(handle).st_size - start if length is None else length
        while left > 0 and (got := os.preadv(handle, [buffer[: min(len(buffer), left)]], start)):
            running.update(buffer[:got])
            start, left = start + got, left - got
    finally:
        os.close(handle)
    return running.hexdigest()
