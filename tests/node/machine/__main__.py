"""`make node` builds what the node is made of; `python -m tests.node.machine up` runs one until Ctrl-C, to look at."""

import os
import platform
import signal
import sys
import tempfile
from pathlib import Path
from threading import Event
from time import monotonic

from tests.cluster.rig.__main__ import build as build_rig
from tests.cluster.rig.__main__ import run
from tests.cluster.rig.build import build_programs
from tests.cluster.rig.programs import RigNotBuiltError

from .gateway import collect
from .node import node
from .packages import unpack
from .programs import NODE_MODULES, cache_folder
from .stock import stock


def build() -> None:
    """Build what is not built."""
    require_root()
    build_rig()
    build_programs(NODE_MODULES)
    collect()
    for listing in ("tools", "image"):
        started = monotonic()
        folder = unpack(listing)
        count = len((folder / "packages.txt").read_text().splitlines())
        print(f"{listing:<24} {count} Debian packages, {monotonic() - started:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        started = monotonic()
        stock(Path(scratch))
        print(f"{'images':<24} {monotonic() - started:.0f} s")
    print(f"the node is ready ({cache_folder()})")


def require_root() -> None:
    """Raise RigNotBuiltError if this machine cannot have a node: it takes namespaces, mounts and cgroups."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        raise RigNotBuiltError(f"a node needs root on Linux; this is user {os.geteuid()} on {platform.system()}")


def up() -> None:
    """Run a node until it is interrupted."""
    require_root()
    with tempfile.TemporaryDirectory() as folder, node(stock(Path(folder)).images) as running:
        for name, after_s in running.timings.items():
            print(f"{name:<12} {after_s:5.1f} s")
        print(f"export KUBECONFIG={running.kubeconfig}")
        print(f"nsenter -t {running.pid} -n -m -p; logs in {running.folder}; Ctrl-C ends it", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Event().wait()


if __name__ == "__main__":
    sys.exit(run("node", {"build": build, "up": up}, *sys.argv[1:2]))
