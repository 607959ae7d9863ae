"""The rig's processes: started with a log each, killed and started again one by one, and gone when their parent is."""

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

PR_SET_PDEATHSIG = 1
POLL_S = 0.02
SHOWN_LINES = 12
# What a shell says about proxies and clusters is for its user, not for the rig.
FOREIGN = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "kubeconfig")
_LIBC = ctypes.CDLL(None)


class RigError(Exception):
    """The rig does not do what it is for; the message says which program and what it logged last."""


@dataclass(frozen=True)
class Command:
    """How a program is started, and started again."""

    line: Sequence[str]
    environment: Mapping[str, str]


class Processes:
    """Child processes by name.

    They end with the thread that started them (`PR_SET_PDEATHSIG`): it must live as long as they shall.

    Args:
        folder: Their working folder and home; each logs to `<name>.log` there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands: dict[str, Command] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of those that run."""
        return {name: one.pid for name, one in self._running.items() if one.poll() is None}

    def start(self, name: str, line: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start a program under a name."""
        self._commands[name] = Command([str(part) for part in line], environment or {})
        self.restart(name)

    def restart(self, name: str) -> None:
        """Start a program again as it was started first, after killing it if it still runs."""
        self.kill(name)
        command = self._commands[name]
        kept = {key: value for key, value in os.environ.items() if key.lower() not in FOREIGN}
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                command.line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**kept, "HOME": str(self._folder), **command.environment},
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - only system calls, no lock that a thread could hold
            )

    def kill(self, name: str) -> None:
        """End a program the hard way; nothing happens if it does not run."""
        if process := self._running.pop(name, None):
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End them all the hard way: there is nothing to save."""
        for process in self._running.values():
            process.kill()
        for name in list(self._running):
            self.kill(name)

    def log(self, name: str) -> Path:
        """Return the file that a program logs to."""
        return self._folder / f"{name}.log"

    def memory_bytes(self) -> dict[str, int]:
        """Return the resident memory of each that runs."""
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return {
            name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes for name, pid in self.pids.items()
        }

    def wait_for(self, name: str, condition: Callable[[], bool], within_s: float) -> None:
        """Return when a program has come up.

        Args:
            name: The program that is waited for.
            condition: True when it is up; a refused connection means not yet.
            within_s: How long it may take.

        Raises:
            RigError: It has ended or is not up in time.
        """
        ends = monotonic() + within_s
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            process = self._running.get(name)
            if process is None or process.poll() is not None:
                code = process.returncode if process else "killed"
                raise RigError(f"{name} ended ({code}) while it was waited for; its log ends:\n{self._tail(name)}")
            if monotonic() > ends:
                raise RigError(f"{name} did not come up in {within_s:.0f} s; its log ends:\n{self._tail(name)}")
            sleep(POLL_S)

    def _tail(self, name: str) -> str:
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-SHOWN_LINES:])


def _end_with_parent() -> None:
    """Have the kernel kill the program when the thread that started it ends (prctl(2))."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
