"""The node from outside: laid out, started, looked into, and ended with all that it has brought."""

import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.cluster.rig.api import Api
from tests.cluster.rig.prepare import prepared
from tests.cluster.rig.processes import FOREIGN, RigError
from tests.cluster.rig.programs import ROOT
from tests.cluster.rig.programs import program as rig_program

from . import cgroups, settings
from .images import Image, archive_images
from .programs import cache_folder
from .tools import Tools

CABLE = "headway-node"
"""Name of this machine's end of the network cable."""
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
STARTS_WITHIN_S = 180
ENDS_WITHIN_S = 30
SHOWN_CHARACTERS = 3000
POLL_S = 0.01


class Node:
    """One running node; there is one at a time on a machine.

    Attributes:
        folder: Data and logs (`<program>.log`); gone when the node is ended.
        kubeconfig: The administrator's.
        api: The administrator's client.
        timings: Name of what came up to the seconds since the start.
        volume: The node's NVMe: what pods find at `Site.node_root`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "keys" / "admin.kubeconfig"
        self.volume = folder / "volume"
        self.timings: dict[str, float] = {}
        self.cgroup = f"{cgroups.PREFIX}{os.getpid()}"
        self._process: subprocess.Popen[str] | None = None
        self._pid = 0
        self._api: Api | None = None
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()

    @property
    def api(self) -> Api:
        """The administrator's client."""
        self._api = self._api or Api(self.kubeconfig)
        return self._api

    @property
    def pid(self) -> int:
        """The node's first process; zero before it is started."""
        return self._pid

    def start(self, images: Sequence[Image]) -> None:
        """Bring the node up.

        Args:
            images: What its pods run in; nothing else can be pulled.

        Raises:
            RigError: A program did not come up.
            RigNotBuiltError: Something is not built.
        """
        prepared()  # here, as an API server does not start without a default route
        started = monotonic()
        archive_images(images, self.folder / "images.tar")
        self.timings["archived"] = monotonic() - started
        # Whatever ends this process ends `unshare`, and that ends the node.
        line = ["setpriv", "--pdeathsig=KILL", *UNSHARE]
        inside = [sys.executable, "-m", f"{__package__}.inside", str(self.folder), self.cgroup]
        kept = {key: value for key, value in os.environ.items() if key.lower() not in FOREIGN}
        with (self.folder / "inside.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*line, *inside],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self._pid = self._first_process()
        self._lay_cable()
        self._wait_until_ready(started)

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)

    def _first_process(self) -> int:
        """Return the process id of the first process inside, as it is seen from here."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        own = Path("/proc/self/ns/net").readlink()
        ends = monotonic() + ENDS_WITHIN_S
        while monotonic() < ends and self._process.poll() is None:
            found = children.read_text().split()
            if found and Path(f"/proc/{found[0]}/ns/net").readlink() != own:
                return int(found[0])
            sleep(POLL_S)
        raise RigError(f"`unshare` did not start the node; {self._log()}")

    def _lay_cable(self) -> None:
        for line in (
            ("link", "add", CABLE, "type", "veth", "peer", "name", "eth0", "netns", str(self._pid)),
            ("addr", "add", f"{settings.HOST_ADDRESS}/24", "dev", CABLE),
            ("link", "set", CABLE, "up"),
            ("route", "add", settings.SERVICE_ADDRESSES, "via", settings.NODE_ADDRESS),
            ("route", "add", settings.POD_ADDRESSES, "via", settings.NODE_ADDRESS),
        ):
            _ip(*line)

    def _wait_until_ready(self, started: float) -> None:
        ends = monotonic() + STARTS_WITHIN_S
        while True:
            try:
                said = self._said.get(timeout=max(0.1, ends - monotonic()))
            except queue.Empty:
                raise RigError(f"the node is not ready after {STARTS_WITHIN_S} s; {self._log()}") from None
            if said is None or "failed" in said:
                raise RigError(f"the node did not come up: {(said or {}).get('failed', '')}; {self._log()}")
            if "up" in said:
                self.timings[said["up"]] = monotonic() - started
            if said.get("ready"):
                return

    def _log(self) -> str:
        return f"its log ends:\n{(self.folder / 'inside.log').read_text()[-SHOWN_CHARACTERS:]}"

    def stop(self) -> float:
        """End the node and take away what is left of it; return the seconds that it took.

        Raises:
            TimeoutError: Something of it is still there.
        """
        started = monotonic()
        if self._api:
            self._api.close()
        if self._pid and self._process and self._process.poll() is None:
            # With its first process the kernel ends all of the namespace, and then its mounts and its network.
            os.kill(self._pid, signal.SIGKILL)
        if self._process:
            self._process.kill()
            self._process.wait(ENDS_WITHIN_S)
        sweep()
        return monotonic() - started

    def run(self, *line: str, timeout_s: float = 60) -> str:
        """Run a program inside, where the cluster's names are known; return what it printed.

        Raises:
            RigError: It failed.
        """
        enter = ["nsenter", "--target", str(self._pid), "--net", "--mount", "--pid", "--"]
        tools = Tools.unpacked().environment
        done = subprocess.run(
            [*enter, *line], check=False, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **tools}
        )
        if done.returncode:
            raise RigError(f"`{' '.join(line)}` failed inside: {done.stderr.strip()}")
        return done.stdout

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl; return what it printed.

        Raises:
            RigError: It failed.
        """
        kubectl = str(rig_program("kubectl"))
        line = [kubectl, f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder / 'kubectl'}"]
        done = subprocess.run([*line, *arguments], check=False, capture_output=True, text=True)
        if done.returncode:
            raise RigError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


FOLDER_PREFIX = "headway-node-"


def leftovers() -> list[str]:
    """Return what there is of nodes on this machine, in words: none when nothing is left."""
    found = [f"the network cable {CABLE}"] if Path(f"/sys/class/net/{CABLE}").exists() else []
    found += [f"the cgroups {name}" for name in cgroups.strays()]
    module = f"{__package__}.inside".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if module in line:
            found.append(f"process {path.parent.name}")
    found += [f"the mount {line.split()[4]}" for line in _mounts() if f"/{FOLDER_PREFIX}" in line]
    return found


def sweep() -> None:
    """Take away what nodes have left behind that ended or were killed; there must be none that runs."""
    if Path(f"/sys/class/net/{CABLE}").exists():
        _ip("link", "del", CABLE, check=False)
    for name in cgroups.strays():
        cgroups.remove(name)


@contextmanager
def node(images: Sequence[Image], *, keep: Path | None = None) -> Iterator[Node]:
    """Run the node.

    Args:
        images: What its pods run in.
        keep: A folder for data and logs that stays; a temporary one if none is given.

    Yields:
        The running node.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "running.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RigError("a node runs already, and a machine has room and addresses for one; end it first") from None
        sweep()
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX)) if keep is None else keep
        running = Node(folder)
        try:
            running.start(images)
            yield running
        finally:
            running.stop()
            if keep is None:
                shutil.rmtree(folder)


def _ip(*line: str, check: bool = True) -> None:
    tools = Tools.unpacked()
    environment: Mapping[str, str] = {**os.environ, **tools.environment}
    done = subprocess.run([tools.find("ip"), *line], check=False, capture_output=True, text=True, env=environment)
    if check and done.returncode:
        raise RigError(f"`ip {' '.join(line)}` failed: {done.stderr.strip()}")


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()
