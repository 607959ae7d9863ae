"""Pause pods under the real scheduler: they hold whole nodes, and make way for what serves."""

from typing import Any

import pytest

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.kinds import DEPLOYMENT
from headway.adapters.kubernetes.site import BATCH_PRIORITY, GPU, PRODUCT, SERVING_PRIORITY
from headway.adapters.kubernetes.warm import KubernetesWarm
from headway.errors import Conflict, IntegrityError, Refused
from headway.ports import Held

from .examples import TOLERATED
from .rig.api import DEPLOYMENT as DEPLOYMENTS
from .rig.api import EVENT, POD, condition, wait_until
from .rig.rig import Rig
from .sites import KubernetesSite, local_account

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

H200 = "NVIDIA-H200"
NODES, GPUS = 2, 8
"""The rig has two nodes with eight of them each."""


@pytest.fixture
def warm(rig: Rig, kubernetes_site: KubernetesSite) -> KubernetesWarm:
    """The adapter in an empty namespace; on the rig, whose nodes are known."""
    return KubernetesWarm(kubernetes_site.client, kubernetes_site.site)


def serving_pod(name: str, site: KubernetesSite, priority: str = SERVING_PRIORITY) -> dict[str, Any]:
    """Return a pod that takes a whole H200 node, and passes Pod Security `restricted`."""
    room = {GPU: str(GPUS)}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": site.site.namespace},
        "spec": {
            "priorityClassName": priority,
            "nodeSelector": {PRODUCT: H200},
            "tolerations": TOLERATED,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "engine",
                    "image": "example.invalid/engine",
                    "resources": {"requests": room, "limits": room},
                    "securityContext": security,
                }
            ],
        },
    }


def is_ready(site: KubernetesSite, name: str) -> bool:
    """Whether a pod runs."""
    return condition(site.api.get(POD, name, site.site.namespace), "Ready") == "True"


def ready(warm: KubernetesWarm) -> list[int]:
    """Return for how many replicas room is there, by model."""
    return [one.ready for one in warm.held()]


def test_room_is_held_and_a_serving_pod_takes_it_at_once(warm: KubernetesWarm, kubernetes_site: KubernetesSite) -> None:
    """All nodes are full of pause pods; what serves runs, one pause pod waits, and comes back when there is room."""
    assert warm.hold("tiny", H200, GPUS, NODES) == Held("tiny", H200, GPUS, NODES, 0)
    wait_until(lambda: ready(warm) == [NODES], "both nodes are held")

    kubernetes_site.api.create(serving_pod("engine", kubernetes_site))
    wait_until(lambda: is_ready(kubernetes_site, "engine"), "the serving pod runs")

    assert any(one["reason"] == "Preempted" for one in kubernetes_site.api.list(EVENT, kubernetes_site.site.namespace))
    wait_until(lambda: ready(warm) == [NODES - 1], "one place was given away")
    kubernetes_site.api.delete(POD, "engine", kubernetes_site.site.namespace)
    wait_until(lambda: ready(warm) == [NODES], "it is held again", 30)


def test_batch_work_gets_the_room_too_but_a_pause_pod_takes_none(
    warm: KubernetesWarm, kubernetes_site: KubernetesSite
) -> None:
    """What runs is never thrown out for room that nobody uses yet."""
    for number in range(NODES):
        kubernetes_site.api.create(serving_pod(f"job-{number}", kubernetes_site, BATCH_PRIORITY))
    wait_until(lambda: is_ready(kubernetes_site, "job-0") and is_ready(kubernetes_site, "job-1"), "both jobs run")

    warm.hold("tiny", H200, GPUS, 1)
    pods = wait_until(
        lambda: kubernetes_site.api.list(POD, kubernetes_site.site.namespace, labelSelector="headway/model=tiny"),
        "the pause pod is made",
    )
    wait_until(
        lambda: (
            condition(
                kubernetes_site.api.get(POD, pods[0]["metadata"]["name"], kubernetes_site.site.namespace),
                "PodScheduled",
            )
            == "False"
        ),
        "it waits",
    )

    assert ready(warm) == [0]
    assert is_ready(kubernetes_site, "job-0")
    assert is_ready(kubernetes_site, "job-1")


def test_somebody_who_changed_the_number_is_told_and_not_fought(
    warm: KubernetesWarm, kubernetes_site: KubernetesSite
) -> None:
    """A person who gives room away by hand keeps it, and the tick says who it was."""
    warm.hold("tiny", H200, GPUS, NODES)
    metadata = {"name": "pause-tiny", "namespace": kubernetes_site.site.namespace}
    scaled = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.name, "metadata": metadata}
    kubernetes_site.api.apply({**scaled, "spec": {"replicas": 0}}, manager="kubectl-scale")

    with pytest.raises(Conflict, match="kubectl-scale"):
        warm.hold("tiny", H200, GPUS, NODES)

    warm.hold("tiny", H200, GPUS, 0)
    assert list(warm.held()) == []


def test_somebody_elses_deployment_of_our_name_stays(warm: KubernetesWarm, kubernetes_site: KubernetesSite) -> None:
    """As does one whose annotation was damaged: each is named, and what to do with it."""
    namespace = kubernetes_site.site.namespace
    warm.hold("tiny", H200, GPUS, 1)
    kubernetes_site.api.patch(
        DEPLOYMENTS, "pause-tiny", {"metadata": {"annotations": {"headway/asked": "{"}}}, namespace
    )
    with pytest.raises(IntegrityError, match="delete the Deployment"):
        warm.hold("tiny", H200, GPUS, 0)

    kubernetes_site.api.patch(
        DEPLOYMENTS, "pause-tiny", {"metadata": {"labels": {"app.kubernetes.io/managed-by": "helm"}}}, namespace
    )
    for count in (0, 2):
        with pytest.raises(Conflict, match="not the one that holds room"):
            warm.hold("tiny", H200, GPUS, count)
    assert kubernetes_site.api.get(DEPLOYMENTS, "pause-tiny", namespace) is not None


def test_without_rights_nothing_is_held(rig: Rig, kubernetes_site: KubernetesSite) -> None:
    """The refusal says what is missing."""
    site = kubernetes_site.site
    reader = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]}
    client = Client.connect(local_account(rig, site.namespace, "reader", reader))

    with pytest.raises(Refused, match="cannot patch resource"):
        KubernetesWarm(client, site).hold("tiny", H200, GPUS, 1)

    assert list(KubernetesWarm(client, site).held()) == []
    client.close()
