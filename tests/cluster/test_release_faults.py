"""Whole releases on the rig in which something fails in the middle: stable goes on serving, and the release ends right.

The tasks, triggers and pod programs are those of a deployment; only Airflow's scheduler is left out
(`release_world_walk.py`; `test_release.py` has it). A client asks the model all the time, and none of its requests may
fail.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any

import pytest

from headway.adapters.kubernetes.kinds import POD as POD_KIND
from headway.cli.steady import SteadyClient
from headway.domain.model import ModelVersion
from headway.domain.release import ReleasePlan
from headway.domain.traffic import Route
from headway.ports import Sample
from headway.release import record
from headway.wiring import KubernetesBackend
from operators.hook import HeadwayHook
from operators.reconcile import ReconcileOperator
from operators.release import RolloutOperator
from tests.component.servers import S3Server, s3_server
from tests.fakes import FakeMetrics, FakeRegistry
from tests.unit.airflow import conftest as airflow_of_its_own

from .release_world import ACCELERATOR, MODEL, World, keys, prepared_place, profile, run_world, when
from .release_world_models import make_version, put_files
from .release_world_walk import walk
from .rig.api import HTTP_ROUTE, NODE, POD, Kind, wait_until
from .rig.nodes import H100, ZONES
from .rig.rig import Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

__all__ = ["airflow_of_its_own"]

CLIENT_PERIOD_S = 0.25
LATE_S = 8.0
QUOTA, LEASE, BINDING = (
    Kind("v1", "ResourceQuota"),
    Kind("coordination.k8s.io/v1", "Lease"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding"),
)


class MetricsOfTests(FakeMetrics):
    """Samples in memory, written by one thread and read by others."""

    def put(self, name: str, labels: Mapping[str, str], at: datetime, value: float) -> None:
        """Add one sample; who reads meanwhile goes on with the table as it was."""
        key = (name, tuple(sorted(labels.items())))
        if key not in self.series:
            self.series = {**self.series, key: []}
        self.series[key].append(Sample(at, value))


class BackendOfTests(KubernetesBackend):
    """The Kubernetes backend with registry and metrics in memory: theirs are in `test_release.py`."""

    registry = FakeRegistry()
    metrics = MetricsOfTests()


@dataclass
class Release:
    """The world with version 1 serving, and the plans of both versions.

    Attributes:
        asked: How often benchmarks of earlier tests have asked the candidate.
    """

    world: World
    first: ReleasePlan
    second: ReleasePlan
    asked: int = 0

    @property
    def candidate(self) -> str:
        """Name of version 2's cluster."""
        return self.second.cluster.name

    def pods(self, cluster: str, part: str = "") -> list[dict[str, Any]]:
        """Return the pods of a cluster: `head`, `replica` or all."""
        wanted = f"headway/cluster={cluster}" + (f",headway/part={part}" if part else "")
        return self.world.api.list(POD, self.world.namespace, labelSelector=wanted)

    def measured(self) -> bool:
        """Tell whether the benchmark has asked the candidate a few times."""
        return self.tried() - self.asked >= 15

    def tried(self) -> int:
        """Return how often benchmarks have asked the candidate."""
        return self.world.gateway.counts[(f"internal-{MODEL}", f"{self.candidate}-serve-svc")].tried

    def shared(self) -> bool:
        """Tell whether the candidate has a share of the users."""
        return self.world.route.candidate_pct > 0

    def state(self, version: int) -> record.VersionState:
        """Return what a version remembers of its last release."""
        states = record.read_state(self.world.backend.registry.tags(MODEL, version))
        return max(states.values(), key=lambda state: state.at)

    def stable_serves_alone(self) -> None:
        """See that version 1 has all the traffic and that nothing of version 2 is left."""
        route = self.world.route
        assert route.stable is not None
        assert (route.stable.version, route.candidate, route.candidate_pct) == (1, None, 0)
        assert self.world.backend.clusters.status(self.candidate).phase == "absent"
        assert self.world.backend.clusters.status(route.stable.cluster).phase == "ready"
        wait_until(lambda: not self.pods(self.candidate), "the candidate's pods are gone")
        assert self.world.backend.lease.holder(MODEL, datetime.fromtimestamp(time(), UTC)) is None


def run_id() -> str:
    """Return the id of a new run."""
    return f"test-{token_hex(3)}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A store for all releases of this file."""
    with s3_server(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def serving(rig: Rig, store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Version 1 of the model, released and serving."""
    folder, patch = tmp_path_factory.mktemp("release"), pytest.MonkeyPatch()
    registry, metrics = FakeRegistry(), MetricsOfTests()
    patch.setattr(BackendOfTests, "registry", registry)
    patch.setattr(BackendOfTests, "metrics", metrics)

    def register(number: int, path: Path) -> ModelVersion:
        uri = f"s3://mlflow/{MODEL}/{number}/"
        put_files(store.client("mlflow"), path, uri)
        made = ModelVersion(name=MODEL, version=number, source_uri=uri, run_id="run")
        registry.add(made)
        return made

    with (
        prepared_place(rig) as place,
        keys(folder / "keys") as pair,
        run_world(rig, place, folder, s3=store.connection, pair=pair, make=BackendOfTests, metrics=metrics) as world,
    ):
        patch.setattr(HeadwayHook, "connect", staticmethod(lambda: world.backend))
        first, second = (make_version(world, number, register, folder) for number in (1, 2))
        walked = walk(run_id(), 1)
        assert walked.states["record"] == "success", walked.story
        print({name: round(took_s, 1) for name, took_s in walked.seconds.items()})
        yield Release(world, first, second)
    patch.undo()


@pytest.fixture
def release(serving: Release) -> Iterator[Release]:
    """The same, with a client that asks all the time and must always be answered, and nothing told to fail."""
    serving.world.rig.ray.behave("*", deploy_s=0.5, deploy_as="RUNNING", message="")
    serving.world.engines.behave = lambda spec: {}
    serving.world.write_profile()
    serving.asked = serving.tried()
    with SteadyClient(serving.world.url, MODEL, period_s=CLIENT_PERIOD_S) as client:
        yield serving
    tidy(serving)
    assert client.tally.failures == []
    assert client.tally.answered > 0


def tidy(release: Release) -> None:
    """Make version 1 serve alone again, whatever a test has left."""
    backend, route = release.world.backend, release.world.route
    held = backend.lease.holder(MODEL, datetime.fromtimestamp(time(), UTC))
    if held is not None:
        backend.lease.release(MODEL, held.holder, datetime.fromtimestamp(time(), UTC))
    first = next(one for one in (route.stable, route.previous) if one is not None and one.version == 1)
    alone = Route(model=MODEL, stable=first)
    if route != alone:
        backend.traffic.shift(alone)
    backend.clusters.delete(release.candidate)


def let_lease_run_out(release: Release, holder: str) -> None:
    """Let an hour pass for the lease of a run."""
    leases = release.world.api.list(LEASE, release.world.namespace)
    [lease] = [one for one in leases if one["spec"].get("holderIdentity") == holder]
    past = datetime.fromtimestamp(time(), UTC) - timedelta(hours=1)
    renewed = {"spec": {"renewTime": past.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
    release.world.api.patch(LEASE, lease["metadata"]["name"], renewed, release.world.namespace)


def test_a_candidate_that_is_never_ready_is_taken_down_at_the_deadline(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator waits for ever; headway does not, and says what it was waiting for."""
    release.world.rig.ray.behave(f"{release.world.namespace}/{release.candidate}*", deploy_s=3600)
    monkeypatch.setattr(RolloutOperator, "deadline_s", lambda self, opened: LATE_S)

    walked = walk(run_id(), 2)

    assert (walked.states["rollout"], walked.states["record"]) == ("failed", "failed"), walked.story
    assert "took longer than" in walked.reason
    release.stable_serves_alone()
    assert release.state(2).outcome == "failed"


def test_a_candidate_whose_workers_die_in_the_canary_is_rolled_back(release: Release) -> None:
    """What Serve still calls healthy does not answer: the benchmark counts it."""

    def kill() -> None:
        for one in release.pods(release.candidate):
            release.world.rig.fault(one["metadata"]["name"], "crash-loop", namespace=release.world.namespace)

    with when(release.measured, "the benchmark runs", kill):
        walked = walk(run_id(), 2)

    assert walked.states["record"] == "failed", walked.story
    assert release.state(2).outcome == "rolled_back", walked.story
    release.stable_serves_alone()


def test_a_node_that_is_lost_in_the_canary_costs_stable_nothing(release: Release) -> None:
    """The candidate's node goes NotReady and is then deleted, as a cloud does it, and no other takes its replica."""
    api = release.world.api
    release.world.write_profile(canary={**profile()["canary"], "rate_per_s": 1.0})
    lost: list[str] = []

    def cordon(*, closed: bool) -> None:
        for node in api.list(NODE, labelSelector=f"nvidia.com/gpu.product={ACCELERATOR}"):
            api.patch(NODE, node["metadata"]["name"], {"spec": {"unschedulable": closed}})

    def lose() -> None:
        [one] = release.pods(release.candidate, "replica")
        lost.append(one["spec"]["nodeName"])
        cordon(closed=True)
        release.world.rig.fault(lost[0], "not-ready")
        wait_until(lambda: not _is_ready(api.get(POD, one["metadata"]["name"], release.world.namespace)), "it is lost")
        api.delete(NODE, lost[0])

    try:
        with when(release.measured, "the benchmark runs", lose):
            walked = walk(run_id(), 2)
    finally:
        if lost and api.get(NODE, lost[0]) is None:
            release.world.rig.add_nodes([H100.node(lost[0], ZONES[0])])
        cordon(closed=False)

    assert walked.states["record"] == "failed", walked.story
    assert release.state(2).outcome == "rolled_back", walked.story
    release.stable_serves_alone()


def test_a_head_that_is_deleted_in_the_shift_sends_all_traffic_back(release: Release) -> None:
    """Without its head a cluster cannot be told to scale nor healed; it must not get more of the users."""
    release.world.write_profile(shift={"steps_pct": [20, 50, 100], "bake_s": 6, "max_latency_ratio": 10})

    def kill() -> None:
        release.world.rig.ray.behave(f"{release.world.namespace}/{release.candidate}*", deploy_s=3600)
        release.world.rig.ray.forget(f"{release.world.namespace}/{release.candidate}*")
        [head] = release.pods(release.candidate, "head")
        release.world.api.delete(POD, head["metadata"]["name"], release.world.namespace)

    with when(release.shared, "the candidate has a share", kill):
        walked = walk(run_id(), 2)

    assert (walked.states["shift"], walked.states["record"]) == ("failed", "failed"), walked.story
    assert release.state(2).outcome == "rolled_back", walked.story
    release.stable_serves_alone()


@pytest.mark.parametrize("program", ["operator", "api"])
def test_a_release_survives_a_restart_of_what_it_stands_on(release: Release, program: str) -> None:
    """KubeRay's operator or the API server is gone for seconds in the middle of the rollout: nothing is lost."""
    rig = release.world.rig

    def bounce() -> None:
        rig.kill(program)
        # As long as an update of a node pool takes for one of them.
        threading.Event().wait(4)
        rig.restart(program)

    def coming() -> bool:
        return release.candidate in {
            one["metadata"]["labels"]["headway/cluster"] for one in release.pods(release.candidate)
        }

    with when(coming, "the candidate's pods come", bounce):
        walked = walk(run_id(), 2)

    assert walked.states["record"] == "success", walked.story
    assert release.state(2).outcome == "promoted"


def test_a_person_who_edits_the_route_in_the_middle_is_not_fought(release: Release) -> None:
    """The release ends and names who changed what; what the person wanted stays."""
    release.world.write_profile(shift={"steps_pct": [20, 50, 100], "bake_s": 4, "max_latency_ratio": 10})
    api, name = release.world.api, f"public-{MODEL}"

    def edit() -> None:
        found = api.get(HTTP_ROUTE, name, release.world.namespace)
        assert found is not None
        rules = found["spec"]["rules"]
        rules[0]["backendRefs"][0]["weight"], rules[0]["backendRefs"][1]["weight"] = 90, 10
        api.patch(HTTP_ROUTE, name, {"spec": {"rules": rules}}, release.world.namespace)

    with when(release.shared, "the candidate has a share", edit):
        walked = walk(run_id(), 2, retry_after_s=0.5)

    assert walked.states["record"] == "failed", walked.story
    assert "was changed by" in walked.story
    assert "weight" in walked.story
    found = api.get(HTTP_ROUTE, name, release.world.namespace)
    assert found is not None
    assert [one["weight"] for one in found["spec"]["rules"][0]["backendRefs"]] == [90, 10]
    # The person takes it back, and what the release could not finish is finished by the next look.
    written = found["metadata"]["annotations"]["headway/written"]
    api.patch(HTTP_ROUTE, name, {"spec": json.loads(written)}, release.world.namespace)
    let_lease_run_out(release, walked.run_id)
    _reconcile(release)
    release.stable_serves_alone()


def test_two_releases_at_once_take_turns(release: Release) -> None:
    """The second one waits for the lease, and finds that there is nothing left to do."""
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(walk, run_id(), 2) for _ in range(2)]
        walked = [one.result(timeout=800) for one in both]

    ended = sorted(one.states["plan"] for one in walked)
    assert ended == ["skipped", "success"], "\n\n".join(one.story for one in walked)
    assert release.state(2).outcome == "promoted"


def test_what_a_dead_release_left_is_taken_over_when_its_lease_has_run_out(release: Release) -> None:
    """Airflow was killed for good in the canary: the next release adopts what stands, and the dead one stays out."""
    dead = walk(run_id(), 2, until="rollout")
    assert dead.states["rollout"] == "success", dead.story
    let_lease_run_out(release, dead.run_id)

    walked = walk(run_id(), 2)

    assert walked.states["record"] == "success", walked.story
    assert release.state(2).outcome == "promoted"


def test_a_full_quota_is_a_reason_that_a_person_understands(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace has no GPUs left to give: the release says so, and takes down what it had begun."""
    api, namespace = release.world.api, release.world.namespace
    monkeypatch.setattr(RolloutOperator, "deadline_s", lambda self, opened: LATE_S)
    hard = {"requests.nvidia.com/gpu": "8"}
    metadata = {"name": "gpus", "namespace": namespace}
    api.create({"apiVersion": "v1", "kind": QUOTA.name, "metadata": metadata, "spec": {"hard": hard}})
    try:
        wait_until(lambda: (api.get(QUOTA, "gpus", namespace) or {})["status"].get("used"), "the quota counts")

        walked = walk(run_id(), 2)
    finally:
        api.delete(QUOTA, "gpus", namespace)

    assert walked.states["record"] == "failed", walked.story
    assert "quota" in walked.reason.lower(), walked.story
    release.stable_serves_alone()


def test_rights_that_are_taken_away_stop_a_release_and_nothing_else(release: Release) -> None:
    """Users notice nothing, and once the account has its rights again, the rest is put in order."""
    api, namespace = release.world.api, release.world.namespace
    binding = api.get(BINDING, "headway", namespace)
    assert binding is not None
    binding["metadata"] = {"name": "headway", "namespace": namespace}
    before = release.world.route
    try:
        with when(release.measured, "the benchmark runs", lambda: api.delete(BINDING, "headway", namespace)):
            walked = walk(run_id(), 2)
    finally:
        api.apply(binding)

    assert (walked.states["canary"], walked.states["record"]) == ("failed", "failed"), walked.story
    assert "403" in walked.story
    wait_until(lambda: release.world.backend.client.allowed("list", POD_KIND, namespace), "the rights are back")
    assert release.world.route.stable == before.stable
    assert release.world.route.candidate_pct == 0
    let_lease_run_out(release, walked.run_id)
    _reconcile(release)
    release.stable_serves_alone()


def _is_ready(pod: dict[str, Any] | None) -> bool:
    conditions = ((pod or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _reconcile(release: Release) -> None:
    """End what is over, as the reconciling DAG does every five minutes."""
    ReconcileOperator(task_id="reconcile").end_expired(release.world.backend, run_id())
