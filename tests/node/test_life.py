"""A node comes and goes, and the machine is as it was."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.rig.api import wait_until
from tests.cluster.rig.programs import ROOT, RigNotBuiltError

from .conftest import why_no_node
from .machine.node import leftovers, node, sweep
from .machine.stock import Stock

UP_WITHIN_S = 180
PLACES = ("/run", "/var/lib", "/var/log", "/opt", "/etc", "/", "/mnt", "/srv")
"""Where programs of a node write that know of no folder of their own."""
SETTINGS = ("net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")


def _machine() -> dict[str, object]:
    """Return what a node could have changed."""
    listed = {place: sorted(path.name for path in Path(place).iterdir()) for place in PLACES}
    settings = {name: Path(f"/proc/sys/{name}").read_text() for name in SETTINGS}
    mounts = sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    links = sorted(path.name for path in Path("/sys/class/net").iterdir())
    routes = Path("/proc/net/route").read_text()
    return {**listed, **settings, "mounts": mounts, "links": links, "routes": routes}


def test_the_machine_is_as_it_was(stock: Stock) -> None:
    """No process, mount, cgroup, network link, route, file or setting of a node is left, and its end takes seconds."""
    before = _machine()
    try:
        with node(stock.images) as running:
            assert _machine()["links"] != before["links"]
            assert running.kubectl("get", "nodes", "-o", "name").split() == ["node/node0"]
            took_s = running.stop()
    except RigNotBuiltError as error:
        pytest.skip(f"there is no node to test on: {error}")

    assert leftovers() == []
    assert _machine() == before
    assert took_s < 10


def test_a_node_dies_with_whoever_started_it(stock: Stock) -> None:
    """A test run that is killed takes the node along; what the kernel cannot know of goes at the next start."""
    del stock
    if reason := why_no_node():
        pytest.skip(reason)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    line = [sys.executable, "-m", "tests.node.machine", "up"]
    started = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    told = iter(started.stdout.readline, "")
    found = next(match for one in told if (match := re.search(r"nsenter -t (\d+) .*logs in (\S+);", one)))

    os.kill(started.pid, signal.SIGKILL)
    started.wait(UP_WITHIN_S)

    wait_until(lambda: not Path(f"/proc/{found[1]}").exists(), "the node's first process is gone")
    wait_until(lambda: not [one for one in leftovers() if "process" in one], "all of its processes are gone")
    sweep()
    assert leftovers() == []
