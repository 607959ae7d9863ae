"""Processes of ours that no supervisor knows any more, found by the mark in their environment."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from headway.errors import ConfigError, DeadlineExceeded

POLL_S = 0.1


def strays(mark: Mapping[str, str]) -> list[int]:
    """Return the pids of all processes that carry every variable of the mark, and of their descendants.

    Descendants, because a program may start others with an environment of its own. This process and its ancestors are
    left out, so that a marked process can clean up after others.

    Args:
        mark: Such as `{"HEADWAY_STACK": "..."}`, or that with `HEADWAY_CLUSTER`.
    """
    if not mark:
        message = "an empty mark would name every process of the machine"
        raise ConfigError(message)
    wanted = {f"{key}={value}".encode() for key, value in mark.items()}
    parents: dict[int, int] = {}
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        try:
            state, parent = _stat(folder)
            if state in "ZX":
                continue
            parents[pid] = parent
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.add(pid)
        except (OSError, ValueError):  # it ended meanwhile, or belongs to somebody else
            continue
    _add_descendants(found, parents)
    pid = os.getpid()
    while pid:
        found.discard(pid)
        pid = parents.get(pid, 0)
    return sorted(found)


def _stat(folder: Path) -> tuple[str, int]:
    """Return state and parent of a process; its name, in parentheses, may hold anything."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def _add_descendants(found: set[int], parents: Mapping[int, int]) -> None:
    grew = bool(found)
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grew = bool(more)


def end_strays(mark: Mapping[str, str], *, term_s: float = 10.0, kill_s: float = 20.0) -> int:
    """End every process with the mark: TERM, then KILL, until none is left; return how many there were.

    Args:
        mark: As for `strays`.
        term_s: Seconds between TERM and KILL.
        kill_s: Seconds after KILL until it is an error.

    Raises:
        DeadlineExceeded: Some are still there.
    """
    ended: set[int] = set()
    started = time.monotonic()
    while pids := strays(mark):
        waited_s = time.monotonic() - started
        if waited_s > term_s + kill_s:
            listed = ",".join(map(str, pids))
            message = (
                f"processes {listed} are still there {waited_s:.0f} s after TERM and KILL; "
                f"look at them with `ps -fp {listed}`"
            )
            raise DeadlineExceeded(message, waited_s=waited_s, last=f"{len(pids)} left")
        for pid in pids:
            if waited_s > term_s:
                _signal(pid, signal.SIGKILL)
            elif pid not in ended:
                _signal(pid, signal.SIGTERM)
        ended |= set(pids)
        time.sleep(POLL_S)
    return len(ended)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    end_strays(dict(argument.split("=", 1) for argument in sys.argv[1:]), term_s=5.0)
