"""What the machine has left: ports, memory, disk, cores. Reading only."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from headway.adapters.local.layout import LocalLayout
from headway.units import GIB

STACK_MEMORY_BYTES = 4 * GIB
"""What the services without any cluster take at most; 2.6 GiB were measured."""

CLUSTER_MEMORY_BYTES = 6 * GIB
"""What one small cluster takes."""

HOME_DISK_BYTES = 5 * GIB
"""Room for data, artifacts and logs of the demo."""

CACHE_DISK_BYTES = 16 * GIB
"""Room for the four environments and for the packages on their way into them; 10 GiB were measured."""

CGROUP_MEMORY = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class PortHolder:
    """Who listens on a port."""

    port: int
    pid: int | None
    """None if the process belongs to another user."""
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})" if self.pid else "a process of another user"


def port_holders(ports: Iterable[int]) -> dict[int, PortHolder]:
    """Return who listens on which of these ports, on whatever address."""
    wanted = set(ports)
    holders: dict[int, PortHolder] = {}
    for connection in psutil.net_connections(kind="tcp"):
        port = connection.laddr.port if connection.laddr else 0
        if connection.status == psutil.CONN_LISTEN and port in wanted:
            holders[port] = PortHolder(port, connection.pid, _command(connection.pid))
    return holders


def _command(pid: int | None) -> str:
    if pid is None:
        return ""
    try:
        return " ".join(psutil.Process(pid).cmdline())[:120]
    except psutil.Error:
        return "ended meanwhile"


def foreign_ports(layout: LocalLayout, own_pids: Iterable[int]) -> dict[int, PortHolder]:
    """Return who, other than our own processes, listens on the stack's fixed ports."""
    own = set(own_pids)
    return {port: holder for port, holder in port_holders(layout.named_ports()).items() if holder.pid not in own}


def free_memory_bytes() -> int:
    """Return what processes may still take: what the machine has available, or the container's limit leaves."""
    available = int(psutil.virtual_memory().available)
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None and used is not None:
        reclaimable = _cgroup_inactive_file()
        available = min(available, limit - used + reclaimable)
    return max(0, available)


def total_memory_bytes() -> int:
    """Return the memory of the machine, or the container's limit if that is smaller."""
    total = int(psutil.virtual_memory().total)
    limit = _cgroup("memory.max")
    return min(total, limit) if limit is not None else total


def _cgroup(name: str) -> int | None:
    """Read a number of this container's memory controller; none if there is no limit or no such controller."""
    try:
        text = (CGROUP_MEMORY / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_inactive_file() -> int:
    """Return the page cache that the kernel gives back before it kills."""
    try:
        lines = (CGROUP_MEMORY / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def free_disk_bytes(path: Path) -> int:
    """Return the free space of the file system in which a path is, or would be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))
