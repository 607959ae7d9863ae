"""The cluster that tests of this folder run on: the rig, or the one that KUBECONFIG names."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .platform import Platform, installed
from .rig.api import (
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    POD,
    RAY_CLUSTER,
    RAY_SERVICE,
    SERVICE_ACCOUNT,
    Api,
    wait_until,
)
from .rig.programs import RigNotBuiltError
from .rig.ray import Ray
from .rig.rig import Rig
from .rig.rig import rig as run_rig
from .sites import KubernetesSite, prepared_site

MAKERS = (RAY_SERVICE, RAY_CLUSTER, DEPLOYMENT, DAEMON_SET, JOB, POD)
"""What makes pods, and pods."""
NO_PODS_WITHIN_S = 60


@dataclass(frozen=True)
class Cluster:
    """Where tests run.

    Attributes:
        kubeconfig: The administrator's.
        api: The administrator's client.
        rig: The rig, where it is one; a real cluster has none.
    """

    kubeconfig: Path
    api: Api
    rig: Rig | None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane: started for this session, or the one of KUBECONFIG."""
    if named := os.environ.get("KUBECONFIG"):
        api = Api(Path(named))
        yield Cluster(Path(named), api, None)
        api.close()
        return
    try:
        with run_rig() as running:
            yield Cluster(running.kubeconfig, running.api, running)
    except RigNotBuiltError as error:
        pytest.skip(f"there is no control plane to test on: {error}, or set KUBECONFIG to a cluster with KubeRay")


@pytest.fixture(scope="session")
def rig(cluster: Cluster) -> Rig:
    """The rig, for tests that play faults, kill programs or play Ray."""
    if cluster.rig is None:
        pytest.skip(
            "KUBECONFIG names a real cluster, where pods and nodes do not fail by annotation, no program can be killed"
            " and Ray is not played; unset it to run this on the rig"
        )
    return cluster.rig


@pytest.fixture
def ray(rig: Rig) -> Iterator[Ray]:
    """The played Ray clusters, which know of no earlier test."""
    rig.ray.reset()
    yield rig.ray
    rig.ray.reset()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """An empty namespace; what is in it is gone afterwards, so that the next test has all GPUs."""
    name = f"headway-test-{secrets.token_hex(4)}"
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    wait_until(lambda: cluster.api.get(SERVICE_ACCOUNT, "default", name), f"{name} has its account")
    yield name
    # Kubernetes waits 5 s before it empties a namespace: empty it first.
    for kind in MAKERS:
        cluster.api.delete_all(kind, name)
    cluster.api.delete(NAMESPACE, name)
    wait_until(lambda: not cluster.api.list(POD, name), f"the pods of {name} are gone", NO_PODS_WITHIN_S)


@pytest.fixture
def kubernetes_site(cluster: Cluster, namespace: str) -> Iterator[KubernetesSite]:
    """That namespace, prepared as `k8s/base` and the platform do it; adapters have headway's own rights there."""
    with prepared_site(cluster.kubeconfig, cluster.api, cluster.rig, namespace, as_headway=True) as prepared:
        yield prepared


@pytest.fixture(scope="session")
def platform(rig: Rig) -> Iterator[Platform]:
    """The namespace `headway` as `k8s/overlays/dev` makes it; tests of `k8s/` share it and leave it as it was."""
    with installed(rig) as applied:
        yield applied
