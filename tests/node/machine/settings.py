"""Configuration files of the node's programs, and the reasons for what is not a default."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NODE_NAME = "node0"
NODE_ADDRESS, HOST_ADDRESS = "10.250.0.2", "10.250.0.1"
API_PORT = 6443
SERVICE_ADDRESSES, POD_ADDRESSES = "10.96.0.0/16", "10.244.0.0/24"
KUBERNETES_ADDRESS = "10.96.0.1"
SOCKET = "/run/containerd/containerd.sock"
SANDBOX_IMAGE = "localhost/base:1"
DOMAIN = "cluster.local"

SYSCTLS: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What the kubelet wants of the whole machine. It is shown files that already say so: the machine is not changed."""


def containerd(folder: Path, plugins: Path) -> str:
    """Return containerd's configuration.

    Args:
        folder: Its data and the network's configuration.
        plugins: Where the network's programs are.
    """
    return f"""\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  # A container of root has not always the right to lower these.
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def network(folder: Path) -> str:
    """Return the network of pods: one bridge, no way out of the node."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "addresses"),
            "ranges": [[{"subnet": POD_ADDRESSES}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "node", "plugins": [bridge]})


def kubelet(folder: Path, cgroup: str, client_authority: Path) -> str:
    """Return the kubelet's configuration.

    Args:
        folder: Its own files.
        cgroup: Below which all cgroups of the node are.
        client_authority: Certificate that signs whom it answers: the API server.
    """
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            # Not a Service's address: what is no Service is refused there.
            "clusterDNS": [NODE_ADDRESS],
            "clusterDomain": DOMAIN,
            "resolvConf": str(folder / "resolv-pods.conf"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(client_authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "failSwapOn": False,
            "protectKernelDefaults": True,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "enforceNodeAllocatable": ["pods"],
            # A developer's disk is fuller than a node's.
            "evictionHard": {
                "memory.available": "200Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": str(folder / "plugins"),
            "healthzBindAddress": "127.0.0.1",
            "maxPods": 60,
            "serializeImagePulls": True,
            # Pods that end are seen at once, and not after up to a minute.
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
        }
    )


def proxy(kubeconfig: Path) -> str:
    """Return kube-proxy's configuration; the kernel's limits are those of the machine and stay as they are."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": POD_ADDRESSES,
            "hostnameOverride": NODE_NAME,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def names(kubeconfig: Path) -> str:
    """Return CoreDNS' configuration: the cluster's names and no others."""
    return f"""\
.:53 {{
    bind {NODE_ADDRESS} 127.0.0.1
    errors
    ready 127.0.0.1:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} rig
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 1
    }}
    cache 2
}}
"""
