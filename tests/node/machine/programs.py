"""Which Go programs the node runs besides the rig's, at which versions: pinned by the modules of `local/node`."""

from pathlib import Path

from tests.cluster.rig import programs as rig
from tests.cluster.rig.programs import KUBERNETES, MODULES, ROOT, Module

NODE_FOLDER = ROOT / "local" / "node"
VERB = "make node"

KUBELET = Module(
    "kubelet",
    KUBERNETES.path,
    {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy")},
    KUBERNETES.stamps,
    NODE_FOLDER,
    VERB,
)
COREDNS = Module("coredns", "github.com/coredns/coredns", {"coredns": "."}, {}, NODE_FOLDER, VERB)
ENVOY_GATEWAY = Module(
    "envoy-gateway",
    "github.com/envoyproxy/gateway",
    {"envoy-gateway": "github.com/envoyproxy/gateway/cmd/envoy-gateway"},
    {},
    NODE_FOLDER,
    VERB,
)
NODE_MODULES = (KUBELET, COREDNS, ENVOY_GATEWAY)
"""In the order of their building: the first finds nearly all of it compiled for the rig."""


def program(name: str) -> Path:
    """Return the path of a built program of the node or the rig.

    Raises:
        RigNotBuiltError: It is not built.
    """
    return rig.program(name, (*NODE_MODULES, *MODULES))


def cache_folder() -> Path:
    """Return where the node keeps what it has built, beside the rig's."""
    return rig.cache_folder().with_name("node")
