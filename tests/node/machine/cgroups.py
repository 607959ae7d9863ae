"""The cgroups of a node: where they are on this machine, and their end."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

ROOT = Path("/sys/fs/cgroup")
PREFIX = "headway-node-"
"""Of the one folder below which all cgroups of a node are, in each hierarchy."""
WEIGHT = 16
"""To the kernel all pods together are one group that shares processors with each single process of the machine. Counted
as one, they would starve beside a compiler; Ray gives up on a node that takes 30 s to start."""
GONE_WITHIN_S = 20
POLL_S = 0.05


def hierarchies() -> list[Path]:
    """Return where cgroups are made: one folder for each hierarchy of version 1, or the one of version 2."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        path = Path(place)
        if kind in ("cgroup", "cgroup2") and ROOT in (path, path.parent):
            found.append(path)
    return found


def make(name: str) -> None:
    """Make the folder of a node in every hierarchy; the kubelet wants it to be there."""
    for hierarchy in hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)
        for file, usual in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (hierarchy / name / file).exists():
                (hierarchy / name / file).write_text(str(WEIGHT * usual))
        if hierarchy == ROOT:  # version 2: what is below may use only what is handed down
            controllers = (ROOT / "cgroup.controllers").read_text().split()
            for place in (ROOT, ROOT / name):
                (place / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))


def left(name: str) -> list[Path]:
    """Return what there is of a node."""
    return [hierarchy / name for hierarchy in hierarchies() if (hierarchy / name).exists()]


def strays() -> Iterator[str]:
    """Yield the names of all nodes that there is something of."""
    yield from sorted({path.name for hierarchy in hierarchies() for path in hierarchy.glob(f"{PREFIX}*")})


def remove(name: str) -> None:
    """Take the cgroups of a node away, as soon as its last process is gone.

    Raises:
        TimeoutError: Something still runs in them.
    """
    ends = monotonic() + GONE_WITHIN_S
    while remaining := left(name):
        for path in remaining:
            for folder in sorted(path.rglob("*/"), key=lambda one: len(one.parts), reverse=True):
                _remove(folder)
            _remove(path)
        if not left(name):
            return
        if monotonic() > ends:
            raise TimeoutError(f"cgroups are left after {GONE_WITHIN_S} s: {', '.join(map(str, left(name)))}")
        sleep(POLL_S)


def _remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # a process of it is not gone yet; the caller looks again
