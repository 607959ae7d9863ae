"""The rig starts in seconds, ends without a trace, and says what to do where it is not built."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest

from .rig import programs
from .rig.api import wait_until
from .rig.rig import Rig
from .rig.rig import rig as run_rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

STARTS_WITHIN_S = 20
STOPS_WITHIN_S = 2
PROGRAMS = {"api", "controller-manager", "etcd", "kwok", "operator", "ray", "scheduler"}


def test_a_rig_starts_in_seconds_and_stops_without_a_trace(rig: Rig) -> None:
    """A second rig beside the first: up within 20 s, gone within 2 s, with its processes, ports and files."""
    started = monotonic()
    with run_rig() as second:
        up_s = monotonic() - started
        pids = second.processes.pids
        memory = second.processes.memory_bytes()
        listeners = [one.laddr for pid in pids.values() for one in _listening(pid)]
        stopping = monotonic()
    down_s = monotonic() - stopping
    print(f"up {up_s:.1f} s {json.dumps({k: round(v, 1) for k, v in second.timings.items()})}, down {down_s:.2f} s")
    print(f"memory {sum(memory.values()) / 2**20:.0f} MiB {json.dumps({k: v >> 20 for k, v in memory.items()})}")
    assert set(pids) == PROGRAMS
    assert {address.ip for address in listeners} == {"127.0.0.1"}
    assert up_s < STARTS_WITHIN_S
    assert down_s < STOPS_WITHIN_S
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    assert not second.folder.exists()
    assert set(rig.processes.pids) == PROGRAMS, "the first rig is untouched"


def _listening(pid: int) -> list[Any]:
    return [one for one in psutil.Process(pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN]


def test_programs_end_with_their_parent(rig: Rig) -> None:
    """A test run that is killed hard leaves no program behind."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.rig", "up"],
        cwd=programs.ROOT,
        env={**os.environ, "PYTHONPATH": "src:."},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith("up after")
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) == len(PROGRAMS)
        folder = Path(parent.stdout.readline().partition("=")[2].strip()).parent.parent
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    wait_until(lambda: not any(one.is_running() for one in children), "all are gone", 5)
    subprocess.run(["rm", "-rf", folder], check=True)  # noqa: S607


def test_a_rig_that_is_not_built_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to know where builds are kept to get one."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    with pytest.raises(programs.RigNotBuiltError, match="run `make rig`"), run_rig():
        pass
