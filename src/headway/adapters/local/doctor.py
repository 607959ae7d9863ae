"""What is missing on this machine for the embedded stack, and what to do about it."""

import shutil
import sys
from collections.abc import Callable, Iterator

from headway.adapters.local import services
from headway.adapters.local.layout import ENVIRONMENTS, SYSTEM_PATH, LocalLayout
from headway.adapters.local.machine import (
    CACHE_DISK_BYTES,
    CLUSTER_MEMORY_BYTES,
    HOME_DISK_BYTES,
    STACK_MEMORY_BYTES,
    cores,
    foreign_ports,
    free_disk_bytes,
    free_memory_bytes,
    total_memory_bytes,
)
from headway.adapters.local.processes import Supervisor, strays
from headway.adapters.local.stack import services_health
from headway.domain.finding import Finding, Level
from headway.errors import BackendUnavailable
from headway.units import format_bytes

PYTHON = (3, 11)
LEAST_CORES = 2


def examine(layout: LocalLayout) -> list[Finding]:
    """Look at everything that the stack needs. Changes nothing, starts nothing."""
    parts: tuple[Callable[[LocalLayout], Iterator[Finding]], ...] = (
        _python,
        _environments,
        _room,
        _programs,
        _ports,
        _running,
    )
    return [finding for part in parts for finding in part(layout)]


def _python(_layout: LocalLayout) -> Iterator[Finding]:
    found = sys.version.split()[0]
    right = sys.version_info[:2] == PYTHON
    wanted = ".".join(map(str, PYTHON))
    yield Finding(
        "python", "ok" if right else "missing", found, "" if right else f"the lock files are for Python {wanted}"
    )


def _environments(layout: LocalLayout) -> Iterator[Finding]:
    for name in ENVIRONMENTS:
        python = layout.python(name)
        if python.exists():
            yield Finding(f"environment {name}", "ok", str(python.parent.parent))
        else:
            yield Finding(f"environment {name}", "missing", f"no {python}", "run `make setup`")


def _room(layout: LocalLayout) -> Iterator[Finding]:
    disk = free_disk_bytes(layout.home)
    yield _enough("disk of HEADWAY_HOME", disk, HOME_DISK_BYTES, f"make room at {layout.home}, or set HEADWAY_HOME")
    if not all(layout.python(name).exists() for name in ENVIRONMENTS):
        disk = free_disk_bytes(layout.cache)
        yield _enough(
            "disk of HEADWAY_CACHE", disk, CACHE_DISK_BYTES, f"make room at {layout.cache}, or set HEADWAY_CACHE"
        )
    if not strays({"HEADWAY_STACK": layout.stack_mark}):
        needed = STACK_MEMORY_BYTES + CLUSTER_MEMORY_BYTES
        yield _enough("free memory", free_memory_bytes(), needed, "end something that holds memory")
    needed = STACK_MEMORY_BYTES + 2 * CLUSTER_MEMORY_BYTES
    yield _enough("memory", total_memory_bytes(), needed, "two clusters side by side need this much", lacking="note")
    found = cores()
    yield Finding(
        "cores",
        "ok" if found >= LEAST_CORES else "note",
        str(found),
        "" if found >= LEAST_CORES else f"{LEAST_CORES} are expected; raise the profiles' deadlines",
    )


def _enough(what: str, free: int, needed: int, remedy: str, lacking: Level = "missing") -> Finding:
    text = f"{format_bytes(free)}, needs {format_bytes(needed)}"
    return Finding(what, "ok", text) if free >= needed else Finding(what, lacking, text, remedy)


def _programs(_layout: LocalLayout) -> Iterator[Finding]:
    for name, package in (("lscpu", "util-linux"), ("make", "make"), ("git", "git")):
        path = shutil.which(name, path=SYSTEM_PATH)
        if path:
            yield Finding(name, "ok", path)
        else:
            level: Level = "missing" if name == "lscpu" else "note"
            yield Finding(name, level, f"not in {SYSTEM_PATH}", f"install the package {package}")


def _ports(layout: LocalLayout) -> Iterator[Finding]:
    names = layout.named_ports()
    taken = foreign_ports(layout, strays({"HEADWAY_STACK": layout.stack_mark}))
    for port, holder in sorted(taken.items()):
        yield Finding(
            f"port {port}", "missing", f"{names[port]}: in use by {holder}", "stop it or set HEADWAY_BASE_PORT"
        )
    if not taken:
        yield Finding("ports", "ok", f"{min(names)} to {max(names)} are free or ours")


def _running(layout: LocalLayout) -> Iterator[Finding]:
    try:
        states = Supervisor(layout).states()
    except BackendUnavailable:
        left = len(strays({"HEADWAY_STACK": layout.stack_mark}))
        if left:
            yield Finding("stack", "missing", f"supervisord is gone, {left} of its processes run", "run `headway down`")
        else:
            yield Finding("stack", "note", "not running", "start it with `headway up`")
        return
    health = services_health(layout)
    for name in services.PROGRAMS:
        state = states.get(name)
        phase = state.phase if state else "absent"
        found = f"{phase}, {health[name].detail}"
        ok = health[name].ok and phase == "running"
        yield Finding(
            name, "ok" if ok else "missing", found, "" if ok else f"run `headway up`; its log is {layout.log(name)}"
        )
    for name in sorted(set(states) - set(services.PROGRAMS)):
        yield Finding(name, "ok", f"{states[name].phase}, {states[name].detail}")
