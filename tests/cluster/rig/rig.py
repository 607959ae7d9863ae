"""The rig itself: everything started in seconds from the prepared data, and stopped without a trace."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any

from .annotations import FAULT, FAULT_AFTER
from .api import NODE, POD, Api, Kind, condition, wait_until
from .control_plane import ControlPlane, Ports
from .credentials import Credentials
from .manifests import OPERATOR_ACCOUNT, OPERATOR_NAMESPACE
from .nodes import default_nodes
from .prepare import copy_data, prepared
from .processes import Processes, RigError
from .programs import program
from .ray import Ray

LOGS = Kind("kwok.x-k8s.io/v1alpha1", "Logs")
READY_WITHIN_S = 120
TOKEN_S = 24 * 3600


class Rig:
    """A running control plane.

    Attributes:
        folder: Data, logs (`<program>.log`) and keys; gone when the rig is stopped.
        kubeconfig: The administrator's.
        api: The administrator's client.
        ray: The played Ray clusters.
        processes: Its programs: `etcd`, `api`, `scheduler`, `controller-manager`, `kwok`, `operator`, `ray`.
        timings: Name of what came up to the seconds since the start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = Processes(folder)
        self.timings: dict[str, float] = {}
        self._started = monotonic()
        self._ports = Ports.free()
        self._credentials = Credentials(
            folder / "keys", f"https://127.0.0.1:{self._ports.api}", datetime.fromtimestamp(time(), UTC)
        )
        self._plane = ControlPlane(folder, self.processes, self._ports, self._credentials)
        self.ray = Ray(self._ports.ray)
        self.kubeconfig = self._credentials.kubeconfig("admin")
        self.api = Api(self.kubeconfig)

    def start(self, nodes: Sequence[dict[str, Any]], *, operator: bool = True) -> None:
        """Bring everything up.

        Args:
            nodes: Node objects to begin with.
            operator: Whether KubeRay's operator runs; without it, objects of ray.io are only kept.

        Raises:
            RigError: Something did not come up.
            RigNotBuiltError: The programs are not built.
        """
        copy_data(prepared(), self.folder / "etcd")
        self._mark("copied")
        self._plane.start_ray()
        self._plane.start_etcd()
        self._plane.start_api()
        for name in ("etcd", "api"):
            self._plane.wait_for(name)
            self._mark(name)
        self._plane.start_controller_manager()
        self._plane.start_scheduler()
        self._plane.start_kwok()
        if operator:
            self._plane.start_operator(self.api.token(OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, TOKEN_S))
        for node in nodes:
            self.api.create(node)
        self.wait_for_nodes(len(nodes))
        self._mark("nodes")
        for name in ("kwok", "ray", *(["operator"] if operator else [])):
            self._plane.wait_for(name)
            self._mark(name)

    def stop(self) -> float:
        """End everything; return the seconds that it took."""
        started = monotonic()
        self.api.close()
        self.processes.stop()
        return monotonic() - started

    def kill(self, name: str) -> None:
        """End one program the hard way."""
        self.processes.kill(name)

    def restart(self, name: str) -> None:
        """Start one program again and return when it is up."""
        self.processes.restart(name)
        self._plane.wait_for(name)

    def add_nodes(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Add nodes and return when all are ready."""
        for node in nodes:
            self.api.create(node)
        self.wait_for_nodes(len(self.api.list(NODE)))

    def wait_for_nodes(self, count: int) -> None:
        """Return when so many nodes are ready."""
        wait_until(lambda: self._ready_nodes() >= count, f"{count} nodes are ready", READY_WITHIN_S)

    def account_kubeconfig(self, account: str, namespace: str, *, duration_s: int = 3600) -> Path:
        """Return the kubeconfig of a ServiceAccount, with a fresh token of its own."""
        token = self.api.token(account, namespace, duration_s)
        return self._credentials.kubeconfig(f"{namespace}-{account}", token, namespace)

    def user_kubeconfig(self, name: str, token: str) -> Path:
        """Return a kubeconfig with a token of the caller's choice, as one that nobody has given out."""
        return self._credentials.kubeconfig(name, token)

    def fault(
        self,
        name: str,
        fault: str | None,
        *,
        namespace: str | None = None,
        after: str | None = None,
        kind: Kind | None = None,
    ) -> None:
        """Let an object fail, or heal (None); `stages.py` has the faults.

        Args:
            name: A pod where a namespace is given, else a node.
            fault: As in `oom`; None takes it away.
            namespace: Of the pod.
            after: How long it takes until it fails, as in `2s`.
            kind: Of what is neither a pod nor a node.
        """
        kind = kind or (POD if namespace else NODE)
        self.api.annotate(kind, name, {FAULT: fault, FAULT_AFTER: after}, namespace)

    def say(self, pod: str, namespace: str, *lines: str) -> None:
        """Let a pod log lines, which the API server gives to those who ask for its log."""
        path = self.folder / "pods" / f"{namespace}-{pod}.log"
        path.parent.mkdir(exist_ok=True)
        stamp = datetime.fromtimestamp(time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        with path.open("a") as log:
            log.writelines(f"{stamp} stdout F {line}\n" for line in lines)
        if self.api.get(LOGS, pod, namespace) is None:
            metadata = {"name": pod, "namespace": namespace}
            spec = {"logs": [{"logsFile": str(path), "follow": True}]}
            self.api.create({"apiVersion": LOGS.api_version, "kind": LOGS.name, "metadata": metadata, "spec": spec})

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl and return what it printed.

        Raises:
            RigError: It failed.
        """
        line = [
            str(program("kubectl")),
            f"--kubeconfig={kubeconfig or self.kubeconfig}",
            f"--cache-dir={self.folder}/kubectl",
        ]
        done = subprocess.run([*line, *arguments], input=stdin, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RigError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def _ready_nodes(self) -> int:
        return sum(condition(one, "Ready") == "True" for one in self.api.list(NODE))

    def _mark(self, name: str) -> None:
        self.timings[name] = monotonic() - self._started


@contextmanager
def rig(
    nodes: Sequence[dict[str, Any]] | None = None, *, operator: bool = True, keep: Path | None = None
) -> Iterator[Rig]:
    """Run a rig.

    Args:
        nodes: Node objects to begin with; `nodes.default_nodes` if none are given.
        operator: Whether KubeRay's operator runs.
        keep: A folder for data and logs that stays; a temporary one if none is given.

    Yields:
        The running rig.
    """
    folder = Path(tempfile.mkdtemp(prefix="headway-rig-")) if keep is None else keep
    running = Rig(folder)
    try:
        running.start(default_nodes() if nodes is None else nodes, operator=operator)
        yield running
    finally:
        running.stop()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
