"""Fake nodes, labelled as NVIDIA's device plugin and GPU feature discovery label real ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

KWOK_ANNOTATION = "kwok.x-k8s.io/node"
GPU = "nvidia.com/gpu"
GPU_TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Machine:
    """A kind of machine.

    Attributes:
        instance_type: As a cloud names it.
        cpus: Logical processors.
        memory_gib: Main memory.
        gpus: How many; none makes a plain node.
        product: As GPU feature discovery writes it.
        gpu_memory_mib: Of one GPU.
        compute: Compute capability, `major.minor`.
        family: GPU architecture.
        labels: What else the platform puts on such nodes.
        taints: What keeps other pods away.
    """

    instance_type: str
    cpus: int
    memory_gib: int
    gpus: int = 0
    product: str = ""
    gpu_memory_mib: int = 0
    compute: str = "0.0"
    family: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()

    def node(self, name: str, zone: str) -> dict[str, Any]:
        """Return the Node object of such a machine."""
        resources = {
            "cpu": str(self.cpus),
            "memory": f"{self.memory_gib}Gi",
            "ephemeral-storage": "4Ti",
            "pods": "110",
            **({GPU: str(self.gpus)} if self.gpus else {}),
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {KWOK_ANNOTATION: "fake"},
                "labels": {**self._labels(name, zone), **self.labels},
            },
            "spec": {"taints": [dict(taint) for taint in self.taints]},
            "status": {"allocatable": resources, "capacity": resources},
        }

    def _labels(self, name: str, zone: str) -> dict[str, str]:
        common = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": self.instance_type,
            "topology.kubernetes.io/region": zone.rstrip("abcdef"),
            "topology.kubernetes.io/zone": zone,
        }
        if not self.gpus:
            return common
        major, minor = self.compute.split(".")
        gpu = {
            "present": "true",
            "count": str(self.gpus),
            "product": self.product,
            "memory": str(self.gpu_memory_mib),
            "family": self.family,
            "replicas": "1",
            "compute.major": major,
            "compute.minor": minor,
            "deploy.device-plugin": "true",
        }
        return {**common, **{f"{GPU}.{key}": value for key, value in gpu.items()}, "nvidia.com/mig.capable": "true"}


H100 = Machine("p5.48xlarge", 192, 2048, 8, "NVIDIA-H100-80GB-HBM3", 81559, "9.0", "hopper", taints=(GPU_TAINT,))
H200 = Machine("p5en.48xlarge", 192, 2048, 8, "NVIDIA-H200", 143771, "9.0", "hopper", taints=(GPU_TAINT,))
L40S = Machine("g6e.12xlarge", 48, 384, 4, "NVIDIA-L40S", 46068, "8.9", "ada-lovelace", taints=(GPU_TAINT,))
H100_SPOT = Machine(
    "p5.48xlarge",
    192,
    2048,
    8,
    "NVIDIA-H100-80GB-HBM3",
    81559,
    "9.0",
    "hopper",
    labels={"karpenter.sh/capacity-type": "spot"},
    taints=(GPU_TAINT, {"key": "spot", "value": "true", "effect": "NoSchedule"}),
)
CPU = Machine("m7i.16xlarge", 64, 256)
ZONES = ("eu-north-1a", "eu-north-1b", "eu-north-1c")


def nodes(machine: Machine, prefix: str, count: int, zones: Iterable[str] = ZONES) -> list[dict[str, Any]]:
    """Return nodes `PREFIX-0` and so on, spread over zones in turn."""
    zone = tuple(zones)
    return [machine.node(f"{prefix}-{index}", zone[index % len(zone)]) for index in range(count)]


def default_nodes() -> list[dict[str, Any]]:
    """Return what a rig has when nobody asks for more: 4 kinds of GPU nodes in 3 zones, and two plain ones."""
    return [
        *nodes(H100, "h100", 3),
        *nodes(H200, "h200", 2),
        *nodes(L40S, "l40s", 2),
        *nodes(H100_SPOT, "spot", 1),
        *nodes(CPU, "cpu", 2),
    ]
