"""Releases as real pods: staged, served by vLLM, split by Envoy, taken back; each test leaves what the next needs."""

from collections.abc import Iterator
from datetime import UTC, datetime
from time import time
from typing import Any

import pytest
import requests

from headway.domain.bench import BenchResult
from headway.domain.cluster import ClusterStatus
from headway.domain.job import JobStatus
from headway.domain.release import ReleasePlan
from headway.judge import records
from headway.release import canary, rollback, rollout, shift, stage
from tests.cluster.rig.api import DAEMON_SET, POD, wait_until
from tests.fakes import FakeObjects

from .machine.node import Node
from .machine.stock import Stock
from .world import MODEL, QUESTION, Users, World, reference, run_world, until

Object = dict[str, Any]

STAGED_WITHIN_S = 120
BENCH_WITHIN_S = 300
READY_WITHIN_S = 600
"""Ray, Serve and vLLM import for minutes on two busy cores."""
SHIFTED_WITHIN_S = 180
BACK_WITHIN_S = 400
GONE_WITHIN_S = 120
LEAST_ANSWERS = 20


@pytest.fixture(scope="module")
def world(node: Node, stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gateway, a store with two versions of the model, and headway's adapters."""
    with run_world(node, stock, tmp_path_factory.mktemp("world")) as running:
        for version in (1, 2):
            running.put_artifact(version)
        yield running


def now() -> datetime:
    """Return the time."""
    return datetime.fromtimestamp(time(), UTC)


def staged(world: World, made: ReleasePlan) -> JobStatus:
    """Stage a plan's artifact as a release does, and return how that ended."""
    release = reference(made).release
    stage.begin(made, world.jobs, world.weights, release=release)
    name = stage.begin(made, world.jobs, world.weights, release=release).name
    status: JobStatus = until(lambda: world.jobs.status(name), lambda one: one.ended, "staged", STAGED_WITHIN_S)
    return status


def rolled_out(world: World, made: ReleasePlan) -> ClusterStatus:
    """Bring a plan's cluster up as a release does, and return it as a candidate without traffic."""
    ref = reference(made)
    rollout.begin(made, ref, world.clusters, world.traffic)
    status: ClusterStatus = until(
        lambda: world.clusters.status(made.cluster.name),
        lambda one: one.phase in ("ready", "failed"),
        f"{made.cluster.name} is ready",
        READY_WITHIN_S,
    )
    assert status.phase == "ready", status.reason
    rollout.finish(made, ref, world.clusters, world.traffic, now())
    return status


def shifted(world: World, made: ReleasePlan) -> None:
    """Move the traffic as a release does, step by step, until the candidate is stable."""
    objects = FakeObjects()

    def tick() -> shift.ShiftProgress:
        return shift.tick(
            made, traffic=world.traffic, clusters=world.clusters, metrics=world.metrics, objects=objects, now=now()
        )

    until(tick, lambda one: one.phase == "done", f"{made.cluster.name} is stable", SHIFTED_WITHIN_S)


def ask(world: World) -> requests.Response:
    """Send one sampled request as a user."""
    return requests.post(f"{world.public}/{MODEL}/v1/completions", json=QUESTION, timeout=60)


def _answered(world: World) -> requests.Response | None:
    answer = ask(world)
    return answer if answer.ok else None


def workers(world: World, made: ReleasePlan) -> list[Object]:
    """Return the pods of a cluster's replicas."""
    selector = f"headway/cluster={made.cluster.name},headway/part=replica"
    return world.place.api.list(POD, world.namespace, labelSelector=selector)


def test_the_set_stages_the_artifact_onto_the_node(world: World) -> None:
    """A real DaemonSet brings every byte to the node's volume; who asks again finds it there."""
    made = world.plan(1)

    with world.timed("stage version 1"):
        status = staged(world, made)

    assert status.phase == "succeeded", (status.reason, world.jobs.log_tail(status.name))
    result = stage.finish(made, world.jobs, world.weights, release=reference(made).release)
    assert (result.outcome, result.path) == ("staged", made.cluster.model_dir)
    files = {path.name: path.stat().st_size for path in (world.node.volume / made.artifact_digest).iterdir()}
    manifest = world.weights.manifest(made.artifact_digest)
    assert manifest is not None
    assert {one.path: one.size_bytes for one in manifest.files}.items() <= files.items()
    [of_set] = world.place.api.list(DAEMON_SET, world.namespace)
    assert of_set["status"]["numberReady"] == 1


def test_a_first_version_comes_up(world: World) -> None:
    """The RayService starts under `restricted`, stages by itself, answers a sampled request, and has no traffic yet."""
    made = world.plan(1)

    with world.timed("version 1: apply to ready"):
        status = rolled_out(world, made)

    assert (status.replicas_ready, status.replicas_target) == (1, 1)
    route = world.traffic.route(MODEL)
    assert route.candidate is not None
    assert (route.candidate.cluster, route.candidate_pct, route.stable) == (made.cluster.name, 0, None)
    [worker] = workers(world, made)
    assert worker["spec"]["initContainers"][0]["name"] == "stage"
    assert worker["spec"]["automountServiceAccountToken"] is False


def test_the_benchmark_is_a_job(world: World) -> None:
    """It measures the candidate from a pod, through the gateway's internal listener, and its result comes back."""
    made = world.plan(1)
    ref = reference(made)

    with world.timed("benchmark of version 1"):
        begun = canary.begin(
            made,
            ref,
            world.traffic.route(MODEL),
            world.jobs,
            world.weights,
            metrics=world.metrics,
            now=now(),
            reference=None,
            gateway_url=world.place.site.gateway_url,
        )
        status = until(lambda: world.jobs.status(begun.name), lambda one: one.ended, "the benchmark", BENCH_WITHIN_S)

    assert status.phase == "succeeded", (status.reason, world.jobs.log_tail(status.name))
    result = BenchResult.model_validate(status.result)
    asked = records.parse(world.weights.read(result.records_uri)).records
    assert len(asked) == made.profile.canary.blocks * made.profile.canary.requests_per_block
    assert {(one.status, one.served_release) for one in asked} == {(200, ref.release)}


def test_the_first_version_gets_the_traffic(world: World) -> None:
    """Envoy sends the users to it, with the release in the answer's header; another path knows nothing."""
    made = world.plan(1)

    with world.timed("version 1: 0 to 100 %"):
        shifted(world, made)

    answer = wait_until(lambda: _answered(world), "the users are answered", SHIFTED_WITHIN_S)
    assert answer is not None
    assert answer.headers["x-headway-release"] == reference(made).release
    assert answer.json()["model"] == MODEL
    nothing = requests.get(f"{world.public}/unknown/v1/models", timeout=10)
    assert nothing.status_code == 503
    assert "no model is served here" in nothing.json()["error"]["message"]


def test_a_second_version_takes_over_under_load(world: World) -> None:
    """From the first look at version 2 to its last percent, no user's request fails, and both versions answer."""
    before, made = world.plan(1), world.plan(2)

    with world.users() as users:
        assert staged(world, made).phase == "succeeded"
        with world.timed("version 2: apply to ready, under load"):
            rolled_out(world, made)
        with world.timed("version 2: 0 to 100 %"):
            shifted(world, made)
        until(lambda: users.by_release[reference(made).release], lambda count: count >= LEAST_ANSWERS, "it serves", 120)

    _told(users, "release of version 2")
    assert users.failures == []
    assert users.by_release[reference(before).release] >= LEAST_ANSWERS
    route = world.traffic.route(MODEL)
    assert route.stable is not None
    assert route.previous is not None
    assert (route.stable.version, route.previous.version) == (2, 1)


def test_the_way_back_fails_no_request(world: World) -> None:
    """All traffic is on the previous cluster within seconds, under load."""
    with world.users() as users:
        until(lambda: users.answered, lambda count: count >= LEAST_ANSWERS // 2, "users are there", 60)
        with world.timed("rollback"):
            rollback.run(rollback.decide(MODEL, world.traffic), world.traffic, world.clusters)
        seen = users.by_release[reference(world.plan(1)).release]
        until(
            lambda: users.by_release[reference(world.plan(1)).release] - seen,
            lambda count: count >= LEAST_ANSWERS // 2,
            "version 1 answers again",
            60,
        )

    _told(users, "rollback")
    assert users.failures == []
    assert ask(world).headers["x-headway-release"] == reference(world.plan(1)).release


def test_a_cluster_that_goes_leaves_nothing(world: World) -> None:
    """When version 2 is deleted, its pods, Ray cluster and Services are gone, and version 1 still serves."""
    made = world.plan(2)
    route = world.traffic.route(MODEL)
    world.traffic.shift(route.model_copy(update={"previous": None, "keep_previous_until": None}))

    with world.users(1) as users, world.timed("delete version 2"):
        world.clusters.delete(made.cluster.name)

    assert users.failures == []
    left = world.node.kubectl(
        "get", "rayservices,rayclusters,services,pods,pdb", "-n", world.namespace, "-o", "name"
    ).splitlines()
    assert not [one for one in left if made.cluster.name in one]


def test_a_killed_worker_comes_back(world: World) -> None:
    """It is told as not ready while it is away, and serves again without anybody's help."""
    made = world.plan(1)
    [worker] = workers(world, made)

    with world.timed("killed worker: away to ready"):
        world.node.kubectl(
            "delete", "pod", "-n", world.namespace, worker["metadata"]["name"], "--grace-period=0", "--force"
        )
        until(
            lambda: world.clusters.status(made.cluster.name), lambda one: one.phase != "ready", "its loss is told", 60
        )
        until(
            lambda: world.clusters.status(made.cluster.name),
            lambda one: one.phase == "ready",
            "it is back",
            BACK_WITHIN_S,
        )

    wait_until(lambda: ask(world).ok, "users are answered", GONE_WITHIN_S)


def _told(users: Users, what: str) -> None:
    print(
        f"{what}: {users.answered} answered, {len(users.failures)} failed, slowest {users.slowest_s:.1f} s,"
        f" {dict(users.by_release)}",
        flush=True,
    )
