"""The embedded stack as a whole: up, down, and how its services are."""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from headway.adapters.local import gateway, health, secrets, services
from headway.adapters.local.layout import ENVIRONMENTS, LocalLayout, lock_digest
from headway.adapters.local.machine import (
    HOME_DISK_BYTES,
    STACK_MEMORY_BYTES,
    PortHolder,
    foreign_ports,
    free_disk_bytes,
    free_memory_bytes,
)
from headway.adapters.local.processes import Supervisor, end_strays, strays
from headway.adapters.local.supervisord import launch
from headway.errors import BackendError, BackendUnavailable, ConfigError, Conflict, DeadlineExceeded
from headway.units import format_bytes

Progress = Callable[[str], None]
"""Takes one line for a person."""

MIGRATE = "airflow-db"

READY_WITHIN_S = 900.0
"""For everything together. 20 s were measured on two quiet cores, 300 s with three engines at work beside."""

SHUTDOWN_WITHIN_S = 60.0
PORT_CLOSES_WITHIN_S = 5.0
POLL_S = 0.2

AFTER: Mapping[str, tuple[str, ...]] = {
    services.METRICS: (services.GATEWAY,),
    **dict.fromkeys(services.AIRFLOW_PROGRAMS, (MIGRATE,)),
}
"""What must be ready before a program starts; programs without an entry start at once."""


@dataclass
class _Step:
    """One program on its way to readiness."""

    name: str
    started_at: float | None = None
    ready_at: float | None = None
    last: str = "not started"


def up(layout: LocalLayout, progress: Progress = print) -> None:
    """Start everything that does not run, and wait until every service answers. Quick when all of it does.

    Args:
        layout: Where.
        progress: Takes a line at each step.

    Raises:
        ConfigError: A port is taken, or memory or disk do not suffice, or the environments are not built.
        Conflict: Another `up` or `down` of this stack is at work.
        DeadlineExceeded: A service does not answer.
    """
    with _alone(layout, "up"):
        began = time.monotonic()
        require_environments(layout)
        supervisor = Supervisor(layout)
        if supervisor.pid() is None:
            _launch(layout, progress)
        _prepare(layout)
        took_s = _bring_up(layout, supervisor, progress)
        _resume_clusters(layout, supervisor, progress)
        progress(f"stack is up ({time.monotonic() - began:.1f} s{', nothing to do' if not took_s else ''})")


def down(layout: LocalLayout, progress: Progress = print) -> int:
    """End everything of this stack and prove that nothing is left; return the number of processes that were there.

    Works without supervisord too: what is left is found by the stack's mark. Never touches a process without it.

    Raises:
        Conflict: Another `up` or `down` of this stack is at work.
        DeadlineExceeded: Some process survives KILL.
    """
    if not layout.run.exists() and not strays(_mark(layout)):
        progress("nothing of this stack runs")
        return 0
    with _alone(layout, "down"):
        before = strays(_mark(layout))
        supervisor = Supervisor(layout)
        pid = supervisor.pid()
        if pid is not None:
            progress(f"stopping {len(before)} processes")
            _stop_all(supervisor)
            _wait_for_end(pid, progress)
        ended = end_strays(_mark(layout))
        if ended:
            progress(f"ended {ended} stray processes")
        _remove_sockets(layout)
        left = strays(_mark(layout))
        progress(f"stack is down: {len(before)} processes were there, {len(left)} are left")
        return len(before)


def services_health(layout: LocalLayout) -> dict[str, health.Health]:
    """Tell how each service is, asked now; every service has an entry."""
    return {name: health.check(layout, name) for name in services.PROGRAMS}


def _mark(layout: LocalLayout) -> dict[str, str]:
    return {"HEADWAY_STACK": layout.stack_mark}


@contextmanager
def _alone(layout: LocalLayout, what: str) -> Iterator[None]:
    layout.run.mkdir(parents=True, exist_ok=True)
    with layout.stack_lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            message = f"{holder} is at work on the stack in {layout.home}; wait until it ends, then try again"
            raise Conflict(message, holder=holder) from error
        file.truncate(0)
        file.write(f"headway {what} (pid {os.getpid()})")
        file.flush()
        yield
        file.truncate(0)


def require_environments(layout: LocalLayout) -> None:
    """Make sure that all that the stack runs in is built; what is built on demand is no part of that.

    Raises:
        ConfigError: Names what is missing.
    """
    missing = [name for name in ENVIRONMENTS if name != "tools" and not layout.python(name).exists()]
    if missing:
        message = f"environments not built: {', '.join(missing)}; run `make setup`"
        raise ConfigError(message, missing=missing)


def _launch(layout: LocalLayout, progress: Progress) -> None:
    """Start supervisord, after what an earlier one left behind is gone and the machine has room."""
    ended = end_strays(_mark(layout))
    if ended:
        progress(f"ended {ended} processes that an earlier supervisord left behind")
    _require_room(layout)
    launch(layout)


def _require_room(layout: LocalLayout) -> None:
    """Refuse before anything starts, with numbers and a remedy."""
    names = layout.named_ports()
    taken = _taken_ports(layout)
    if taken:
        lines = [f"port {port} ({names[port]}) is in use by {holder}" for port, holder in sorted(taken.items())]
        message = f"{'; '.join(lines)}; stop it or set HEADWAY_BASE_PORT"
        raise ConfigError(message, ports=sorted(taken))
    memory = free_memory_bytes()
    if memory < STACK_MEMORY_BYTES:
        message = (
            f"{format_bytes(memory)} of memory are free, the stack without any cluster needs "
            f"{format_bytes(STACK_MEMORY_BYTES)}; end something that holds memory"
        )
        raise ConfigError(message, free_bytes=memory, needed_bytes=STACK_MEMORY_BYTES)
    disk = free_disk_bytes(layout.home)
    if disk < HOME_DISK_BYTES:
        message = (
            f"{format_bytes(disk)} are free on the disk of {layout.home}, headway needs "
            f"{format_bytes(HOME_DISK_BYTES)}; make room or set HEADWAY_HOME to another disk"
        )
        raise ConfigError(message, free_bytes=disk, needed_bytes=HOME_DISK_BYTES)


def _taken_ports(layout: LocalLayout) -> dict[int, PortHolder]:
    """Return who has our ports; one without a process may be closing, so that is waited for."""
    began = time.monotonic()
    while taken := foreign_ports(layout, strays(_mark(layout))):
        if time.monotonic() - began > PORT_CLOSES_WITHIN_S or any(holder.pid for holder in taken.values()):
            break
        time.sleep(POLL_S)
    return taken


def _prepare(layout: LocalLayout) -> None:
    layout.home.mkdir(parents=True, exist_ok=True)
    layout.home.chmod(0o700)
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    secrets.ensure(layout)
    gateway.ensure(layout)


def _bring_up(layout: LocalLayout, supervisor: Supervisor, progress: Progress) -> bool:
    """Start what is not running in the order of `AFTER` and wait for all; return whether there was anything to do."""
    programs = services.services(layout)
    before = supervisor.states()
    steps = {name: _Step(name) for name in (MIGRATE, *programs)}
    migration = _Migration(layout)
    began = time.monotonic()
    busy = False
    while any(step.ready_at is None for step in steps.values()):
        for step in steps.values():
            if step.ready_at is not None or any(steps[name].ready_at is None for name in AFTER.get(step.name, ())):
                continue
            if step.started_at is None:
                step.started_at = time.monotonic()
                if step.name == MIGRATE:
                    migration.start()
                else:
                    _start(supervisor, programs[step.name])
            step.last = migration.problem() if step.name == MIGRATE else _problem(layout, supervisor, step.name)
            if step.last:
                continue
            step.ready_at = time.monotonic()
            took_s = step.ready_at - step.started_at
            if step.name in before and before[step.name].phase == "running" and took_s < 1:
                continue
            if step.name == MIGRATE and not migration.needed:
                continue
            busy = True
            progress(f"{step.name:<22} ready   {took_s:5.1f} s")
        waited_s = time.monotonic() - began
        if waited_s > READY_WITHIN_S:
            waiting = {step.name: step.last for step in steps.values() if step.ready_at is None}
            first = next(iter(waiting))
            message = (
                f"not ready after {waited_s:.0f} s: {'; '.join(f'{name}: {last}' for name, last in waiting.items())}; "
                f"look into {layout.log(first)}"
            )
            raise DeadlineExceeded(message, waited_s=waited_s, last=waiting[first])
        time.sleep(POLL_S)
    return busy


def _start(supervisor: Supervisor, service: services.Service) -> None:
    supervisor.start(
        service.name,
        service.command,
        env=service.env,
        directory=service.directory,
        autorestart=True,
        stop_wait_s=service.stop_wait_s,
        start_s=service.start_s,
    )


def _problem(layout: LocalLayout, supervisor: Supervisor, name: str) -> str:
    """Say what keeps a service from being ready; empty if nothing does."""
    state = supervisor.state(name)
    if state.phase == "fatal":
        message = f"{name} does not stay up ({state.detail}); the end of {layout.log(name)}:\n{_tail(layout, name)}"
        raise BackendError(message, service=name)
    if name == services.S3:
        return health.prepare_s3(layout)
    found = health.check(layout, name, started_at=state.started_at or 0.0)
    return "" if found.ok else found.detail


def _tail(layout: LocalLayout, name: str, lines: int = 15) -> str:
    try:
        return "\n".join(layout.log(name).read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


class _Migration:
    """Brings Airflow's database to this Airflow's schema, once for each lock file."""

    def __init__(self, layout: LocalLayout) -> None:
        self.layout = layout
        self.done = layout.airflow_home / f".migrated-{lock_digest(layout.checkout, 'airflow')}"
        self.needed = not self.done.exists()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if not self.needed:
            return
        with self.layout.log(MIGRATE).open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.layout.python("airflow")), "-m", "airflow", "db", "migrate"],
                env=services.airflow_env(self.layout),
                cwd=self.layout.airflow_home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def problem(self) -> str:
        if self.process is None:
            return ""
        code = self.process.poll()
        if code is None:
            return "migrating the database"
        if code:
            message = (
                f"`airflow db migrate` ended with {code}; the end of {self.layout.log(MIGRATE)}:\n"
                f"{_tail(self.layout, MIGRATE)}"
            )
            raise BackendError(message, exit_code=code)
        self.done.touch()
        return ""


def _resume_clusters(layout: LocalLayout, supervisor: Supervisor, progress: Progress) -> None:
    """Start the clusters that were there at the last `down`: their definitions stay, and so do the routes to them."""
    for name in launch_later(layout):
        progress(f"{name:<22} starting again")
        supervisor.adopt(name)


def launch_later(layout: LocalLayout) -> list[str]:
    """Return the clusters whose definitions `supervisord.launch` put aside."""
    return sorted(path.stem for path in layout.conf_d.glob("cluster-*.later"))


def _stop_all(supervisor: Supervisor) -> None:
    """Tell all programs to end at once, then supervisord, which by itself would end them one after another."""
    try:
        supervisor.stop_all()
    except BackendUnavailable:
        return  # it died meanwhile; what it left is found by the mark
    supervisor.shutdown()


def _wait_for_end(pid: int, progress: Progress) -> None:
    """Wait until supervisord has ended its programs and itself; if it takes too long, the mark finds the rest.

    Its socket says nothing: that closes first.
    """
    try:
        psutil.Process(pid).wait(SHUTDOWN_WITHIN_S)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        progress(f"supervisord still runs after {SHUTDOWN_WITHIN_S:.0f} s; ending it")


def _remove_sockets(layout: LocalLayout) -> None:
    """Remove SeaweedFS's sockets, which it puts into /tmp whatever it is told, and leaves there."""
    for name in ("filer", "s3"):
        port = layout.port("SeaweedFS filer gRPC" if name == "filer" else "SeaweedFS S3 gRPC")
        Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock").unlink(missing_ok=True)  # noqa: S108
