"""How long a cluster takes to the KubeRay operator's Ready: through headway, and by plain kubectl.

Both apply the same RayService on the rig (`make rig`), where a real API server, scheduler and operator run and Ray is
played, so what is measured is what headway adds to them. They take turns, each round in the other order.

`PYTHONPATH=src:. python -m benchmarks.kubernetes_ready`
"""

import argparse
import json
import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.rayservice import ray_service
from headway.domain.cluster import ClusterSpec
from headway.domain.profile import Replicas
from tests.cluster.rig.api import NAMESPACE, RAY_SERVICE, Api, condition, wait_until
from tests.cluster.rig.rig import Rig, rig
from tests.cluster.sites import KubernetesSite, prepared_site
from tests.factories import make_plan

ROUNDS = 10
POLL_S = 0.02
WITHIN_S = 120.0
TARGET_S = 1.0
"""Most by which the two medians may differ."""


def spec(where: KubernetesSite, name: str) -> ClusterSpec:
    """Return a small cluster on H100s."""
    planned = make_plan().cluster
    return planned.model_copy(
        update={
            "name": name,
            "accelerator": "NVIDIA-H100-80GB-HBM3",
            "serving_image": f"example.invalid/ray-llm@sha256:{'0' * 64}",
            "replicas": Replicas(min=1, max=2),
            "model_dir": f"{where.site.node_root}/{planned.artifact_digest}",
        }
    )


def by_headway(where: KubernetesSite, name: str) -> Mapping[str, float]:
    """Apply through headway's adapter; return the seconds to each point."""
    clusters, wanted = KubernetesClusters(where.client, where.site), spec(where, name)
    started = monotonic()
    clusters.apply(wanted)
    applied_s = monotonic() - started
    ready_s = operator_ready(where.api, where.site.namespace, name, started)
    end = started + WITHIN_S
    while clusters.status(name).phase != "ready":
        if monotonic() > end:
            raise SystemExit(f"{name} never answered: {clusters.status(name).reason}")
        sleep(POLL_S)
    answered_s = monotonic() - started
    clusters.delete(name)
    return {"headway apply": applied_s, "headway": ready_s, "headway answered": answered_s}


def by_kubectl(where: KubernetesSite, running: Rig, name: str) -> Mapping[str, float]:
    """Apply the same object with kubectl."""
    manifest = json.dumps(ray_service(spec(where, name), where.site))
    started = monotonic()
    running.kubectl("apply", "-f", "-", stdin=manifest)
    applied_s = monotonic() - started
    ready_s = operator_ready(where.api, where.site.namespace, name, started)
    where.api.delete(RAY_SERVICE, name, where.site.namespace, propagation="Foreground")
    wait_until(lambda: where.api.get(RAY_SERVICE, name, where.site.namespace) is None, f"{name} is gone", WITHIN_S)
    return {"kubectl apply": applied_s, "kubectl": ready_s}


def operator_ready(api: Api, namespace: str, name: str, started: float) -> float:
    """Return after how many seconds the operator said Ready."""
    while condition(api.get(RAY_SERVICE, name, namespace), "Ready") != "True":
        if monotonic() - started > WITHIN_S:
            raise SystemExit(f"{name} never became ready")
        sleep(POLL_S)
    return monotonic() - started


def measured(running: Rig, rounds: int) -> Mapping[str, Sequence[float]]:
    """Take turns; return the seconds of each round by what was measured."""
    namespace = f"headway-bench-{secrets.token_hex(3)}"
    running.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    found: dict[str, list[float]] = {}
    with prepared_site(running.kubeconfig, running.api, running, namespace) as where:
        for index in range(rounds):
            turns: list[Callable[[], Mapping[str, float]]] = [
                lambda name=f"ours-{index}": by_headway(where, name),
                lambda name=f"plain-{index}": by_kubectl(where, running, name),
            ]
            for turn in turns if index % 2 == 0 else reversed(turns):
                for key, seconds in turn().items():
                    found.setdefault(key, []).append(seconds)
    running.api.delete(NAMESPACE, namespace)
    return found


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="where to keep every figure")
    asked = parser.parse_args()
    with rig() as running:
        found = measured(running, asked.rounds)
    print(f"{'seconds':<18} {'median':>7} {'least':>7} {'most':>7}   of {asked.rounds} rounds, taking turns")
    for key, seconds in found.items():
        print(f"{key:<18} {statistics.median(seconds):>7.2f} {min(seconds):>7.2f} {max(seconds):>7.2f}")
    apart_s = statistics.median(found["headway"]) - statistics.median(found["kubectl"])
    print(f"headway against kubectl, to the operator's Ready: {apart_s:+.2f} s (target: within {TARGET_S:.0f} s)")
    if asked.json:
        asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
