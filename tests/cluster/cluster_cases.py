"""What tests of clusters share: a cluster to ask for, the adapter with Ray played, and ways to look and to break."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.rayservice import pod_selector
from headway.adapters.kubernetes.site import Site
from headway.domain.cluster import ClusterSpec, ClusterStatus
from headway.domain.profile import Replicas
from tests.factories import make_plan, make_selection

from .rig.api import POD, Kind
from .rig.ray import Ray
from .sites import KubernetesSite

BUDGET = Kind("policy/v1", "PodDisruptionBudget")
H100, H200, L40S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-L40S"
WITHIN_S = 120.0


def spec(site: Site, content: str = "a", **changes: Any) -> ClusterSpec:
    """A cluster on H100s; another content is another artifact."""
    planned = make_plan(selection=make_selection(content=content)).cluster
    fields = {
        "accelerator": H100,
        "tensor_parallel": 2,
        "serving_image": f"example.invalid/ray-llm@sha256:{'0' * 64}",
        "replicas": Replicas(min=1, max=3),
        "release": "r1",
        "model_dir": f"{site.node_root}/{planned.artifact_digest}",
    }
    return planned.model_copy(update={**fields, **changes})


def wait_for(
    clusters: KubernetesClusters, name: str, holds: Callable[[ClusterStatus], bool], within_s: float = WITHIN_S
) -> ClusterStatus:
    """Look until the status is as wanted."""
    end = monotonic() + within_s
    while not holds(status := clusters.status(name)):
        assert monotonic() < end, status
        sleep(0.2)
    return status


def ready(status: ClusterStatus) -> bool:
    """Whether it serves."""
    return status.phase == "ready"


def pods(where: KubernetesSite, name: str, part: str = "replica") -> list[dict[str, Any]]:
    """The pods of a part of a cluster that nobody deletes."""
    found = where.api.list(POD, where.site.namespace, labelSelector=pod_selector(name, part))
    return [one for one in found if not one["metadata"].get("deletionTimestamp")]


def with_fault(where: KubernetesSite, folder: Path, part: str, annotations: Mapping[str, str]) -> KubernetesClusters:
    """The adapter with templates whose pods have a fault from the start."""
    shutil.copytree(where.site.templates, folder / "templates")
    path = folder / "templates" / "rayservice.yaml"
    content = yaml.safe_load(path.read_text())
    config = content["spec"]["rayClusterConfig"]
    group = config["headGroupSpec"] if part == "head" else config["workerGroupSpecs"][0]
    group["template"]["metadata"]["annotations"] = dict(annotations)
    path.write_text(yaml.safe_dump(content))
    return KubernetesClusters(where.client, replace(where.site, templates=folder / "templates"))


def completions(ray: Ray) -> int:
    """How many completions were asked for."""
    return sum(one.path == "/v1/completions" for one in ray.requests("POST"))


class Counted(Client):
    """A client that keeps what it asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[tuple[str, str]] = []

    def request(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        """Note the request, and send it."""
        self.asked.append((method, path))
        return super().request(method, path, *args, **kwargs)
