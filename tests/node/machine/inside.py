"""What runs inside of the node's namespaces, as their first process: mounts, network, then one program after another.

`python -m tests.node.machine.inside FOLDER CGROUP` prints one JSON line for each thing that has come up. When it ends,
the kernel ends every process and every mount of the node with it.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster.rig.api import NODE, Api, condition, wait_until
from tests.cluster.rig.credentials import DAY, Credentials
from tests.cluster.rig.manifests import OPERATOR_ACCOUNT, OPERATOR_NAMESPACE
from tests.cluster.rig.prepare import copy_data, prepared
from tests.cluster.rig.processes import Processes

from . import cgroups, settings
from .programs import program
from .tools import Tools

READY_WITHIN_S = 120
TOKEN_S = 24 * 3600
USERS = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "controller-manager": ("system:kube-controller-manager", ""),
    "kubelet": (f"system:node:{settings.NODE_NAME}", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
    "names": ("names", "system:masters"),
}
ALONE = ("--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0", "--profiling=false", "--v=1")
BOUND = {"kubelet": "/var/lib/kubelet", "network": "/var/lib/cni", "volume": "/var/lib/headway/node"}
"""Folder of the node to where its programs and its volumes expect it."""
LOGS = ("/var/log/pods", "/var/log/containers")


class Inside:
    """The node, seen from within.

    Args:
        folder: Its data and logs.
        cgroup: Name of the folder of its cgroups.
    """

    def __init__(self, folder: Path, cgroup: str) -> None:
        self._folder = folder
        self._cgroup = cgroup
        self._tools = Tools.unpacked()
        self._processes = Processes(folder)
        self._started = monotonic()
        self._server = f"https://{settings.NODE_ADDRESS}:{settings.API_PORT}"
        self._credentials = Credentials(
            folder / "keys",
            self._server,
            datetime.fromtimestamp(time(), UTC),
            addresses=("127.0.0.1", settings.NODE_ADDRESS, settings.KUBERNETES_ADDRESS),
            users=USERS,
        )

    def start(self) -> None:
        """Bring everything up.

        Raises:
            RigError: A program did not come up.
        """
        self._mount()
        self._connect()
        self._start_containerd()
        copy_data(prepared(), self._folder / "etcd")
        self._start_etcd()
        self._start_api()
        self._processes.wait_for("containerd", lambda: Path(settings.SOCKET).is_socket(), READY_WITHIN_S)
        self._say("containerd")
        self._import_images()
        self._say("images")
        self._processes.wait_for("api", self._api_ready, READY_WITHIN_S)
        self._say("api")
        self._start_controllers()
        self._start_node_programs()
        api = Api(self._credentials.kubeconfig("admin"))
        self._start_operator(api.token(OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, TOKEN_S))
        wait_until(lambda: condition(api.get(NODE, settings.NODE_NAME), "Ready") == "True", "node", READY_WITHIN_S)
        api.close()
        self._say("node")

    def reap(self) -> None:
        """Take leave of every process that ends, and tell of the node's own; for ever."""
        own = {pid: name for name, pid in self._processes.pids.items()}
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid in own:
                _print(ended=own[pid], status=status)

    def _mount(self) -> None:
        """Hide what the node writes outside of its folder, and what is the machine's alone."""
        _run("mount", "--make-rprivate", "/")
        folder = self._folder
        for place in ("/var/lib", "/var/log"):
            _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
        for name, place in {**BOUND, **{f"logs{one}": one for one in LOGS}}.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            Path(place).mkdir(parents=True)
            _run("mount", "--bind", str(folder / name), place)
        # A sysfs of this network, with the machine's cgroups put back.
        kept = folder / "cgroups"
        kept.mkdir()
        _run("mount", "--rbind", "/sys/fs/cgroup", str(kept))
        _run("mount", "-t", "sysfs", "sysfs", "/sys")
        _run("mount", "--rbind", str(kept), "/sys/fs/cgroup")
        _run("umount", "--lazy", str(kept))
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        Path("/run/lock").mkdir()
        shown = folder / "sysctls"
        shown.mkdir()
        for key, value in settings.SYSCTLS.items():
            path = shown / key.replace("/", "_")
            path.write_text(f"{value}\n")
            _run("mount", "--bind", str(path), f"/proc/sys/{key}")
        self._write("resolv-pods.conf", f"nameserver {settings.NODE_ADDRESS}\n")
        search = f"search svc.{settings.DOMAIN} {settings.DOMAIN}\noptions ndots:5\n"
        own = self._write("resolv.conf", f"nameserver {settings.NODE_ADDRESS}\n{search}")
        _run("mount", "--bind", str(own), "/etc/resolv.conf")
        # Last: shared earlier, the lazy umount above would take the machine's cgroups along.
        _run("mount", "--make-rshared", "/")
        cgroups.make(self._cgroup)

    def _connect(self) -> None:
        """Take the end of the cable that the outside has laid."""
        ip = str(self._tools.find("ip"))
        wait_until(lambda: Path("/sys/class/net/eth0").exists(), "the cable is laid", READY_WITHIN_S)
        for line in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{settings.NODE_ADDRESS}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            # No default route: pods reach this machine's end of the cable, and nothing behind it.
            ("route", "add", settings.SERVICE_ADDRESSES, "via", settings.HOST_ADDRESS),
        ):
            _run(ip, *line, environment=self._tools.environment)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        bridged = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
        if bridged.exists():  # a pod that asks a Service which it is itself behind
            bridged.write_text("1")
        self._say("network")

    def _start_containerd(self) -> None:
        plugins = self._tools.root / "usr" / "lib" / "cni"
        configuration = self._write("containerd.toml", settings.containerd(self._folder, plugins))
        self._write("cni/10-node.conflist", settings.network(self._folder))
        line = [str(self._tools.find("containerd")), "--config", str(configuration)]
        self._processes.start("containerd", line, self._tools.environment)

    def _import_images(self) -> None:
        archive = str(self._folder / "images.tar")
        line = (str(self._tools.find("ctr")), "--namespace", "k8s.io", "images", "import", archive)
        _run(*line, environment=self._tools.environment)

    def _start_etcd(self) -> None:
        line = [str(program("etcd")), f"--data-dir={self._folder / 'etcd'}", "--force-new-cluster", "--unsafe-no-fsync"]
        self._processes.start("etcd", [*line, "--log-level=warn"])

    def _start_api(self) -> None:
        keys = self._credentials
        certificate, key = self._kubelet_client()
        self._processes.start(
            "api",
            [
                program("kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                "--bind-address=0.0.0.0",
                f"--advertise-address={settings.NODE_ADDRESS}",
                f"--secure-port={settings.API_PORT}",
                f"--tls-cert-file={keys.certificate}",
                f"--tls-private-key-file={keys.key}",
                f"--cert-dir={self._folder}",
                f"--token-auth-file={keys.tokens}",
                "--authorization-mode=Node,RBAC",
                f"--service-account-key-file={keys.account_key}",
                f"--service-account-signing-key-file={keys.account_key}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-cluster-ip-range={settings.SERVICE_ADDRESSES}",
                f"--kubelet-client-certificate={certificate}",
                f"--kubelet-client-key={key}",
                "--kubelet-preferred-address-types=InternalIP",
                # Images have no environment inside: a policy of the test lets pods mount the machine's (`volumes.py`).
                "--feature-gates=MutatingAdmissionPolicy=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
                "--allow-privileged=true",
                "--profiling=false",
                "--v=1",
            ],
        )

    def _kubelet_client(self) -> tuple[Path, Path]:
        """Write what the API server shows to the kubelet, for logs and commands in pods: its own authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
                x509.NameAttribute(NameOID.COMMON_NAME, "api"),
            ]
        )
        now = datetime.fromtimestamp(time(), UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        encoded = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        return (
            self._write("keys/kubelet-client.crt", certificate.public_bytes(serialization.Encoding.PEM).decode()),
            self._write("keys/kubelet-client.key", encoded.decode()),
        )

    def _start_controllers(self) -> None:
        kubeconfig = self._credentials.kubeconfig
        self._processes.start(
            "scheduler", [program("kube-scheduler"), f"--kubeconfig={kubeconfig('scheduler')}", *ALONE]
        )
        self._processes.start(
            "controller-manager",
            [
                program("kube-controller-manager"),
                f"--kubeconfig={kubeconfig('controller-manager')}",
                f"--service-account-private-key-file={self._credentials.account_key}",
                f"--root-ca-file={self._credentials.certificate}",
                "--use-service-account-credentials=true",
                "--allocate-node-cidrs=false",
                *ALONE,
            ],
        )

    def _start_node_programs(self) -> None:
        kubeconfig = self._credentials.kubeconfig
        names = self._write("names.conf", settings.names(kubeconfig("names")))
        self._processes.start("names", [program("coredns"), "-conf", names])
        proxy = self._write("proxy.json", settings.proxy(kubeconfig("proxy")))
        self._processes.start("proxy", [program("kube-proxy"), f"--config={proxy}"], self._tools.environment)
        certificate = self._folder / "keys" / "kubelet-client.crt"
        kubelet = self._write("kubelet.json", settings.kubelet(self._folder, f"/{self._cgroup}", certificate))
        line = [
            str(program("kubelet")),
            f"--config={kubelet}",
            f"--kubeconfig={kubeconfig('kubelet')}",
            f"--hostname-override={settings.NODE_NAME}",
            f"--node-ip={settings.NODE_ADDRESS}",
        ]
        self._processes.start("kubelet", line, self._tools.environment)

    def _start_operator(self, token: str) -> None:
        kubeconfig = self._credentials.kubeconfig(OPERATOR_ACCOUNT, token)
        line = [
            str(program("kuberay-operator")),
            f"--kubeconfig={kubeconfig}",
            "--enable-leader-election=false",
            "--metrics-addr=127.0.0.1:8080",
            "--health-probe-bind-address=127.0.0.1:8082",
            "--log-stdout-encoder=console",
        ]
        self._processes.start("operator", line)

    def _api_ready(self) -> bool:
        api = Api(self._credentials.kubeconfig("admin"))
        try:
            return bool(api.request("GET", "/readyz") == "ok")
        finally:
            api.close()

    def _write(self, name: str, content: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600 if name.startswith("keys/") else 0o644)
        path.write_text(content)
        return path

    def _say(self, what: str) -> None:
        _print(up=what, after_s=round(monotonic() - self._started, 2))


def _run(*line: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(line, check=False, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode:
        raise RuntimeError(f"`{' '.join(line)}` failed: {done.stderr.strip()}")


def _print(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(folder: str, cgroup: str) -> None:
    """Start the node and stay."""
    inside = Inside(Path(folder), cgroup)
    try:
        inside.start()
    except Exception as error:  # noqa: BLE001 - whatever it is, the outside must hear of it
        _print(failed=f"{type(error).__name__}: {error}")
        return
    _print(ready=True)
    inside.reap()


if __name__ == "__main__":
    main(*sys.argv[1:3])
