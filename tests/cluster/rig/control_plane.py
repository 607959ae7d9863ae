"""The command lines of etcd, the API server, scheduler, controller manager, KWOK and the KubeRay operator."""

import json
import ssl
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .credentials import Credentials
from .manifests import OPERATOR_ACCOUNT
from .processes import Processes, free_ports
from .programs import program

STARTS_WITHIN_S = 90
NOT_READY_TOLERATION_S = 5
SERVICE_ADDRESSES = "10.96.0.0/16"
# Not loopback: Go would not ask a proxy for such an address, and then nothing would play the pods.
POD_ADDRESSES, NODE_ADDRESS = "10.244.0.0/16", "127.0.0.1"
KWOK_WORKERS = 4
ALONE = ("--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0", "--profiling=false", "--v=1")
"""For programs that have no others of their kind and that nobody asks."""


@dataclass(frozen=True)
class Ports:
    """Where each listens, on 127.0.0.1."""

    etcd: int
    peer: int
    api: int
    kwok: int
    operator_metrics: int
    operator_health: int
    ray: int

    @classmethod
    def free(cls) -> "Ports":
        """Return ports that nobody listens on."""
        return cls(*free_ports(7))


class ControlPlane:
    """Starts each program, and knows when it is up.

    Args:
        folder: Data and logs.
        processes: Where they run.
        ports: Where they listen.
        credentials: What they know each other by.
    """

    def __init__(self, folder: Path, processes: Processes, ports: Ports, credentials: Credentials) -> None:
        self._folder = folder
        self._processes = processes
        self._ports = ports
        self._credentials = credentials
        self._proxy = {"HTTP_PROXY": f"http://127.0.0.1:{ports.ray}"}

    def start_ray(self) -> None:
        """Start what plays Ray clusters."""
        server = Path(__file__).with_name("ray_server.py")
        self._processes.start("ray", [sys.executable, "-I", server, str(self._ports.ray)])

    def start_etcd(self) -> None:
        """Start etcd on the data of the folder; a copy of other data boots too, whatever its ports were."""
        data = self._folder / "etcd"
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._ports.etcd, self._ports.peer))
        self._processes.start(
            "etcd",
            [
                program("etcd"),
                f"--data-dir={data}",
                *(["--force-new-cluster"] if data.exists() else []),
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )

    def start_api(self) -> None:
        """Start the API server. Its proxy of pods and services ends at the played clusters too."""
        credentials = self._credentials
        self._processes.start(
            "api",
            [
                program("kube-apiserver"),
                f"--etcd-servers=http://127.0.0.1:{self._ports.etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._ports.api}",
                f"--tls-cert-file={credentials.certificate}",
                f"--tls-private-key-file={credentials.key}",
                f"--cert-dir={self._folder}",
                f"--token-auth-file={credentials.tokens}",
                "--authorization-mode=RBAC",
                f"--service-account-key-file={credentials.account_key}",
                f"--service-account-signing-key-file={credentials.account_key}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
                # A loopback address is no endpoint that Kubernetes would accept for itself.
                "--endpoint-reconciler-type=none",
                "--allow-privileged=true",
                "--profiling=false",
                # Pods leave a node that is not ready after 5 s in place of 300 s.
                f"--default-not-ready-toleration-seconds={NOT_READY_TOLERATION_S}",
                f"--default-unreachable-toleration-seconds={NOT_READY_TOLERATION_S}",
                "--v=1",
            ],
            self._proxy,
        )

    def start_scheduler(self) -> None:
        """Start the scheduler."""
        kubeconfig = self._credentials.kubeconfig("scheduler")
        self._processes.start("scheduler", [program("kube-scheduler"), f"--kubeconfig={kubeconfig}", *ALONE])

    def start_controller_manager(self) -> None:
        """Start the controller manager."""
        self._processes.start(
            "controller-manager",
            [
                program("kube-controller-manager"),
                f"--kubeconfig={self._credentials.kubeconfig('controller-manager')}",
                f"--service-account-private-key-file={self._credentials.account_key}",
                f"--root-ca-file={self._credentials.certificate}",
                "--use-service-account-credentials=true",
                "--allocate-node-cidrs=false",
                # Volumes and claims that were seen in the wrong order are bound at the next look only (else 15 s).
                "--pvclaimbinder-sync-period=1s",
                *ALONE,
            ],
        )

    def start_kwok(self) -> None:
        """Start what plays kubelets."""
        options = {
            "enableCRDs": ["Stage", "Logs"],
            "manageAllNodes": False,
            "manageNodesWithAnnotationSelector": "kwok.x-k8s.io/node=fake",
            "cidr": POD_ADDRESSES,
            "nodeIP": NODE_ADDRESS,
            "nodePort": self._ports.kwok,
            "nodeLeaseDurationSeconds": 40,
            "serverAddress": f"127.0.0.1:{self._ports.kwok}",
            # Logs of pods: the API server asks the kubelet's port of the node for them, and all nodes are KWOK.
            "enableDebuggingHandlers": True,
            # A configuration replaces the defaults, and no workers would do nothing, for ever.
            "nodeLeaseParallelism": KWOK_WORKERS,
            "nodePlayStageParallelism": KWOK_WORKERS,
            "podPlayStageParallelism": KWOK_WORKERS,
            "podsOnNodeSyncParallelism": KWOK_WORKERS,
            "enablePodsOnNodeSyncStreamWatch": True,
        }
        kind = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
        path = self._folder / "kwok.yaml"
        path.write_text(json.dumps({**kind, "options": options}))
        kubeconfig = self._credentials.kubeconfig("kwok")
        self._processes.start("kwok", [program("kwok"), f"--kubeconfig={kubeconfig}", f"--config={path}"])

    def start_operator(self, token: str) -> None:
        """Start the KubeRay operator, as its own ServiceAccount."""
        kubeconfig = self._credentials.kubeconfig(OPERATOR_ACCOUNT, token)
        self._processes.start(
            "operator",
            [
                program("kuberay-operator"),
                f"--kubeconfig={kubeconfig}",
                "--enable-leader-election=false",
                f"--metrics-addr=127.0.0.1:{self._ports.operator_metrics}",
                f"--health-probe-bind-address=127.0.0.1:{self._ports.operator_health}",
                "--log-stdout-encoder=console",
            ],
            self._proxy,
        )

    def wait_for(self, name: str) -> None:
        """Return when a program is up; one that does not say so is up at once.

        Raises:
            RigError: It ended, or did not come up.
        """
        urls = {
            "etcd": f"http://127.0.0.1:{self._ports.etcd}/health",
            "api": f"https://127.0.0.1:{self._ports.api}/readyz",
            "kwok": f"http://127.0.0.1:{self._ports.kwok}/healthz",
            "operator": f"http://127.0.0.1:{self._ports.operator_health}/readyz",
            "ray": f"http://127.0.0.1:{self._ports.ray}/rig/state",
        }
        if url := urls.get(name):
            self._processes.wait_for(name, lambda: self._answers(url), STARTS_WITHIN_S)

    def _answers(self, url: str) -> bool:
        context = ssl.create_default_context(cafile=str(self._credentials.certificate))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False
