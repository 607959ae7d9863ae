"""Supervised processes of the embedded stack.

supervisord is this machine's kubelet: every service, job and cluster is a program of it, defined by one file in
`run/conf.d` and one start script in `run/programs`. A script, because supervisord's own `environment=` cannot carry
a value with both kinds of quotes; and a person can run it by hand to see what happens.
"""

import fcntl
import http.client
import os
import shlex
import socket
import xmlrpc.client
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from headway.adapters.local.layout import LocalLayout, checked_name
from headway.adapters.local.strays import end_strays, strays
from headway.errors import BackendError, BackendUnavailable, ConfigError, Conflict, NotFound, Refused

__all__ = ["FAULTS", "STATES", "ProcessState", "Supervisor", "end_strays", "strays"]

Phase = Literal["absent", "starting", "running", "stopping", "exited", "fatal"]

STATES: dict[str, Phase] = {
    "STOPPED": "exited",
    "STARTING": "starting",
    "RUNNING": "running",
    "BACKOFF": "starting",
    "STOPPING": "stopping",
    "EXITED": "exited",
    "FATAL": "fatal",
    "UNKNOWN": "fatal",
}
"""supervisord's states in our words; a test compares the keys with supervisord's own list."""

FAULTS: dict[int, type[BackendError]] = {
    1: BackendError,  # UNKNOWN_METHOD
    2: BackendError,  # INCORRECT_PARAMETERS
    3: BackendError,  # BAD_ARGUMENTS
    4: BackendError,  # SIGNATURE_UNSUPPORTED
    6: BackendUnavailable,  # SHUTDOWN_STATE
    10: NotFound,  # BAD_NAME
    11: BackendError,  # BAD_SIGNAL
    20: NotFound,  # NO_FILE
    21: Refused,  # NOT_EXECUTABLE
    30: BackendError,  # FAILED
    40: BackendError,  # ABNORMAL_TERMINATION
    50: BackendError,  # SPAWN_ERROR
    60: Conflict,  # ALREADY_STARTED
    70: NotFound,  # NOT_RUNNING
    80: BackendError,  # SUCCESS, never raised
    90: Conflict,  # ALREADY_ADDED
    91: Conflict,  # STILL_RUNNING
    92: BackendError,  # CANT_REREAD
}
"""supervisord's faults as headway's errors; a test compares the keys with supervisord's own list."""

OPEN_FILES = 65536
"""Ray and Envoy want many. Set by the start script and not for supervisord (`minfds`): it closes that many descriptors
between fork and exec of each program, and a TERM that comes in this time is lost."""

BAD_NAME, NOT_RUNNING, ALREADY_STARTED, ALREADY_ADDED = 10, 70, 60, 90

CALL_TIMEOUT_S = 120.0
"""A stop waits for the program's own `stop_wait_s`, so a call may take long; without a limit a hung daemon hangs us."""


@dataclass(frozen=True)
class ProcessState:
    """Where a supervised process stands."""

    phase: Phase
    exit_code: int | None = None
    """Of the last end; none while it runs, or if it never ran, or if a signal ended it."""
    pid: int | None = None
    started_at: float | None = None
    """Seconds since the epoch of the last start."""
    detail: str = ""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CALL_TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self.path))
        except OSError:
            self.sock.close()
            raise


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a unix socket; a connection a call, because supervisord's restart breaks a kept one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = _UnixConnection(self.path)
        self._connection = (host, connection)  # where `close` looks for it
        return connection


class Supervisor:
    """Starts, watches and ends processes through supervisord. Every method is idempotent.

    Safe to use from several processes at once: definitions change under a short file lock.
    """

    def __init__(self, layout: LocalLayout) -> None:
        self.layout = layout

    def pid(self) -> int | None:
        """Return supervisord's pid, none if it does not answer."""
        try:
            return cast("int", self._call("getPID"))
        except BackendUnavailable:
            return None

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        directory: Path,
        autorestart: bool = False,
        log: Path | None = None,
        stop_wait_s: int = 15,
        start_s: int = 0,
    ) -> None:
        """Start a process, or adopt the running one of this name if its definition is the same.

        A changed definition ends the old process first. One that has ended is started again.

        Args:
            name: Of the process, for example `job-quantize-1f3a...`.
            command: Program and arguments; no shell is involved.
            env: Its whole environment (see `LocalLayout.child_env`).
            directory: Its working folder, made if absent.
            autorestart: Whether it is started again when it dies, and when supervisord itself comes back.
            log: File for its output, appended to; `logs/<name>.log` by default.
            stop_wait_s: Seconds from TERM to KILL.
            start_s: Seconds that it must live to count as running; before, a death counts as a failed start.

        Raises:
            BackendUnavailable: supervisord does not answer.
        """
        directory.mkdir(parents=True, exist_ok=True)
        changed = self.define(
            name,
            command,
            env=env,
            directory=directory,
            autorestart=autorestart,
            log=log,
            stop_wait_s=stop_wait_s,
            start_s=start_s,
        )
        if changed and self.state(name).phase != "absent":
            self._drop(name)
        with self._lock():
            self._call("reloadConfig")
            self._call("addProcessGroup", name, fine=(ALREADY_ADDED,))
        if self.state(name).phase not in ("running", "starting"):
            self._call("startProcess", name, False, fine=(ALREADY_STARTED,))

    def define(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        directory: Path,
        autorestart: bool = False,
        log: Path | None = None,
        stop_wait_s: int = 15,
        start_s: int = 0,
    ) -> bool:
        """Write the definition of a process without starting it; return whether it differs from what was there.

        supervisord takes it up at its own start or at the next `start` of any process.
        """
        checked_name(name)
        script = self.layout.programs / f"{name}.sh"
        log = log or self.layout.log(name)
        mark = {"HEADWAY_STACK": self.layout.stack_mark, "HEADWAY_PROGRAM": name}
        marked = {**env, **mark}
        lines = ["#!/bin/sh", *(f"export {key}={shlex.quote(value)}" for key, value in sorted(marked.items()))]
        if autorestart:
            lines.append(self._end_predecessors(mark))
        lines.append(f"ulimit -n {OPEN_FILES} 2>/dev/null || ulimit -n $(ulimit -Hn)")
        lines += [f"cd {shlex.quote(str(directory))} || exit 1", f"exec {shlex.join(command)}", ""]
        conf = "\n".join(
            (
                f"[program:{name}]",
                f"command=/bin/sh {_escaped(script)}",
                f"directory={_escaped(directory)}",
                f"stdout_logfile={_escaped(log)}",
                "redirect_stderr=true",
                "stdout_logfile_maxbytes=20MB",
                "stdout_logfile_backups=1",
                f"autostart={str(autorestart).lower()}",
                f"autorestart={str(autorestart).lower()}",
                f"startsecs={start_s}",
                f"startretries={20 if autorestart else 0}",
                f"stopwaitsecs={stop_wait_s}",
                "stopasgroup=true",
                "killasgroup=true",
                "",
            )
        )
        script_changed = _replace(script, "\n".join(lines), mode=0o700)
        return _replace(self._conf(name), conf, mode=0o600) or script_changed

    def _end_predecessors(self, mark: Mapping[str, str]) -> str:
        """Return the shell line that ends what a killed process left: its children live on and hold its ports."""
        python, source = self.layout.python("airflow"), self.layout.checkout / "src"
        words = [str(python), "-m", "headway.adapters.local.strays", *(f"{key}={value}" for key, value in mark.items())]
        return f"PYTHONPATH={shlex.quote(str(source))} {shlex.join(words)} || exit 1"

    def state(self, name: str) -> ProcessState:
        """Tell where a process stands; `absent` if supervisord does not know it or never started it.

        Raises:
            BackendUnavailable: supervisord does not answer.
        """
        info = self._call("getProcessInfo", checked_name(name), fine=(BAD_NAME,))
        return _state(info) if isinstance(info, dict) else ProcessState("absent")

    def states(self) -> dict[str, ProcessState]:
        """Tell where every process stands.

        Raises:
            BackendUnavailable: supervisord does not answer.
        """
        return {info["name"]: _state(info) for info in cast("list[dict[str, Any]]", self._call("getAllProcessInfo"))}

    def names(self) -> list[str]:
        """Return the names of all processes that supervisord knows, sorted."""
        return sorted(self.states())

    def stop(self, name: str) -> None:
        """End a process and its group; returns when it has ended. Absent or ended is fine."""
        self._call("stopProcess", checked_name(name), fine=(BAD_NAME, NOT_RUNNING))

    def adopt(self, name: str) -> None:
        """Start a process by the definition that `supervisord.launch` put aside; none there is fine."""
        later = self._conf(checked_name(name)).with_suffix(".later")
        with self._lock():
            if not later.exists():
                return
            later.rename(self._conf(name))
            self._call("reloadConfig")
            self._call("addProcessGroup", name, fine=(ALREADY_ADDED,))

    def restart(self, name: str) -> None:
        """End a process and start it again.

        Raises:
            NotFound: supervisord does not know it.
        """
        self.stop(name)
        self._call("startProcess", name, False, fine=(ALREADY_STARTED,))

    def remove(self, name: str) -> None:
        """End a process and forget it. Absent is fine.

        Strays of it, in groups of their own, are the caller's to end with `end_strays`.
        """
        self._drop(checked_name(name))
        with self._lock():
            self._conf(name).unlink(missing_ok=True)
            self._conf(name).with_suffix(".later").unlink(missing_ok=True)
            (self.layout.programs / f"{name}.sh").unlink(missing_ok=True)
            self._call("reloadConfig")

    def stop_all(self) -> None:
        """End all processes at once; returns when all have ended, each within its own `stop_wait_s`."""
        self._call("stopAllProcesses")

    def shutdown(self) -> None:
        """Ask supervisord to end all processes and itself; not running is fine. Does not wait."""
        try:
            self._call("shutdown")
        except BackendUnavailable:
            return

    def _drop(self, name: str) -> None:
        self.stop(name)
        self._call("removeProcessGroup", name, fine=(BAD_NAME,))

    def _conf(self, name: str) -> Path:
        return self.layout.conf_d / f"{name}.conf"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self.layout.supervisor_lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _call(self, method: str, *args: Any, fine: tuple[int, ...] = ()) -> Any:
        """Call supervisord; the one place where its faults become headway's errors. Faults in `fine` return none."""
        path = self.layout.supervisor_socket
        try:
            with xmlrpc.client.ServerProxy("http://localhost", transport=_UnixTransport(path)) as server:
                return getattr(server.supervisor, method)(*args)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode in fine:
                return None
            kind = FAULTS.get(fault.faultCode, BackendError)
            message = (
                f"supervisord refused {method}({', '.join(map(str, args))}): {fault.faultString}; "
                f"its log is {self.layout.log('supervisord')}"
            )
            raise kind(message, code=fault.faultCode) from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            message = f"supervisord does not answer at {path} ({error}); start the stack with `headway up`"
            raise BackendUnavailable(message, socket=str(path)) from error


def _state(info: Mapping[str, Any]) -> ProcessState:
    phase = STATES.get(str(info["statename"]), "fatal")
    if phase == "exited" and not info["start"]:
        return ProcessState("absent")
    ended_by_itself = info["statename"] == "EXITED"
    return ProcessState(
        phase,
        exit_code=int(info["exitstatus"]) if ended_by_itself and int(info["exitstatus"]) >= 0 else None,
        pid=int(info["pid"]) or None,
        started_at=float(info["start"]) or None,
        detail=str(info["spawnerr"] or info["description"]),
    )


def _escaped(path: Path) -> str:
    """Write a path for supervisord's configuration, in which % starts an expansion and quotes group words."""
    text = str(path)
    if any(character in text for character in " \t\n;\"'"):
        message = (
            f"the path {text!r} holds a space, quote or semicolon; set HEADWAY_HOME and the checkout to paths without"
        )
        raise ConfigError(message, path=text)
    return text.replace("%", "%%")


def _replace(path: Path, content: str, *, mode: int) -> bool:
    """Write a file by rename if its content differs; return whether it did."""
    if path.exists() and path.read_text() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(content)
    part.replace(path)
    return True
