"""Whole releases through the DAGs, with Airflow, MLflow and the store as `headway up` starts them, on the rig.

A first release, one that takes over from it under paired load and split, what becomes of the previous cluster, one that
is taken back, and a rollback by a person. A client asks all the time.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from headway.adapters.kubernetes import objects
from headway.adapters.kubernetes.kinds import DAEMON_SET, JOB
from headway.adapters.local import stack
from headway.adapters.local.processes import strays
from headway.adapters.s3 import S3Connection
from headway.cli.steady import SteadyClient, Tally
from headway.domain.model import ModelVersion
from headway.domain.release import record_key
from headway.domain.traffic import Route
from headway.errors import BackendUnavailable
from headway.release import record
from headway.settings import Settings
from tests.conftest import free_base_port

from .release_world import MODEL, World, prepared_place, profile, run_world
from .release_world_models import make_version
from .rig.api import wait_until
from .rig.rig import Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

ENDS_WITHIN_S = 900
"""On two quiet cores a release takes a minute or two; it is the machine that may be slow, not the release."""
FIRST = {"rate_per_s": 12.0}
PAIRED = {"rate_per_s": 0.75}
"""Slow enough that every engine is read four times meanwhile: Prometheus is asked for a sample each 15 s."""
SLOW = {"ttft_ms": 400.0, "itl_ms": 40.0}
CLIENT_PERIOD_S = 0.5
ANSWERS_WITHIN_S = 120
T = TypeVar("T")


@dataclass
class Deployment:
    """The stack beside the rig."""

    world: World

    def run(self, dag: str, **conf: Any) -> str:
        """Run a DAG to its end; return the state of the run."""
        runs, run_id = self.world.backend.runs, f"test-{uuid4()}"
        patient(lambda: runs.trigger(dag, run_id, {"model": MODEL, **conf}))
        wait_until(lambda: patient(lambda: runs.run(dag, run_id)).ended, f"{dag} {conf} ends", ENDS_WITHIN_S)
        return str(patient(lambda: runs.run(dag, run_id)).state)

    def state(self, version: int) -> record.VersionState:
        """Return what a version remembers of its last release."""
        states = record.read_state(self.world.backend.registry.tags(MODEL, version))
        return max(states.values(), key=lambda state: state.at)

    def clusters(self) -> list[int]:
        """Return the versions of all clusters that there are."""
        return sorted(one.spec.version for one in self.world.backend.clusters.list(MODEL) if one.spec)


def patient(ask: Callable[[], T]) -> T:
    """Ask Airflow, which may need longer for an answer than a client waits while everything else is at work."""
    ends = monotonic() + ANSWERS_WITHIN_S
    while True:
        try:
            return ask()
        except BackendUnavailable:
            if monotonic() > ends:
                raise


@dataclass(frozen=True)
class Seen:
    """What the world looked like after one step of the story.

    Attributes:
        run: State of the run.
        took_s: How long it took.
        state: What the version remembers of it.
        clusters: Versions of the clusters that were there.
        tally: What a client saw meanwhile.
    """

    run: str
    took_s: float
    route: Route
    state: record.VersionState
    clusters: list[int]
    tally: Tally


def step(deployment: Deployment, dag: str, remembers: int, **conf: Any) -> Seen:
    """Run a DAG with a client beside it, and look.

    Args:
        deployment: Where.
        dag: Which.
        remembers: The version whose memory is looked at.
        conf: Of the run.
    """
    began = monotonic()
    with ExitStack() as stack:
        tally = Tally()
        if deployment.world.route.stable is not None:
            client = SteadyClient(deployment.world.url, MODEL, period_s=CLIENT_PERIOD_S)
            tally = stack.enter_context(client).tally
        run = deployment.run(dag, **conf)
    world = deployment.world
    seen = Seen(run, monotonic() - began, world.route, deployment.state(remembers), deployment.clusters(), tally)
    print(f"{dag} {conf}: {seen.run} in {seen.took_s:.0f} s; {seen.state.outcome}: {seen.state.reason[:150]}")
    return seen


def _register(url: str) -> Callable[[int, Path], ModelVersion]:
    from mlflow import MlflowClient

    client = MlflowClient(url, url)

    def register(number: int, folder: Path) -> ModelVersion:
        if number == 1:
            client.create_registered_model(MODEL)
        experiment = client.get_experiment_by_name(MODEL)
        run = client.create_run(experiment.experiment_id if experiment else client.create_experiment(MODEL))
        client.log_artifacts(run.info.run_id, str(folder), "model")
        client.set_terminated(run.info.run_id)
        made = client.create_model_version(MODEL, f"{run.info.artifact_uri}/model", run.info.run_id)
        assert int(made.version) == number
        return ModelVersion(name=MODEL, version=number, source_uri=made.source, run_id=run.info.run_id)

    return register


@pytest.fixture(scope="module")
def deployment(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Airflow, MLflow and the store are up, three versions are registered, and none is released."""
    folder, patch = tmp_path_factory.mktemp("release"), pytest.MonkeyPatch()
    base_port, home = free_base_port(), folder / "home"
    plain = Settings(home=home, base_port=base_port).layout()

    def s3(role: Any) -> S3Connection:
        return S3Connection(endpoint=plain.s3_url, credentials_file=plain.s3_credentials(role))

    stack._prepare(plain)
    pair = (plain.signing_key, plain.artifact_key)
    own: dict[str, Any] = {"base_port": base_port, "home": home, "s3_endpoint": None, "s3_credentials": None}
    try:
        with (
            prepared_place(rig) as place,
            run_world(rig, place, folder, s3=s3, pair=pair, pod_s3_endpoint=plain.s3_url, **own) as world,
        ):
            layout = world.settings.layout()
            stack.up(layout)
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(layout.s3_credentials("mlflow")))
            patch.setenv("MLFLOW_S3_ENDPOINT_URL", layout.s3_url)
            register = _register(layout.mlflow_url)
            for number in (1, 2, 3):
                make_version(world, number, register, folder)
            yield Deployment(world)
    finally:
        stack.down(plain)
        patch.undo()
    assert strays({"HEADWAY_STACK": plain.stack_mark}) == []


def canary(deployment: Deployment, changes: dict[str, Any]) -> None:
    """Change how the next release measures."""
    deployment.world.write_profile(canary={**profile()["canary"], **changes})


@pytest.fixture(scope="module")
def first(deployment: Deployment) -> Seen:
    """Version 1 is released, and nothing was there before."""
    canary(deployment, FIRST)
    return step(deployment, "release", 1, version=1)


@pytest.fixture(scope="module")
def second(deployment: Deployment, first: Seen) -> Seen:
    """Version 2 is released beside it."""
    assert first.run == "success", first
    canary(deployment, PAIRED)
    return step(deployment, "release", 2, version=2)


@pytest.fixture(scope="module")
def back_and_forth(deployment: Deployment, second: Seen) -> tuple[Seen, Seen]:
    """A person goes back to version 1, and then back again."""
    assert second.run == "success", second
    return step(deployment, "rollback", 2), step(deployment, "rollback", 1)


@pytest.fixture(scope="module")
def slower(deployment: Deployment, back_and_forth: tuple[Seen, Seen]) -> Seen:
    """Version 3 is released, which is much slower."""
    canary(deployment, FIRST)
    deployment.world.engines.behave = lambda spec: SLOW if spec.version == 3 else {}
    return step(deployment, "release", 3, version=3)


@pytest.fixture(scope="module")
def expired(deployment: Deployment, slower: Seen) -> Seen:
    """The time of the previous cluster is over."""
    route = slower.route
    past = datetime.fromtimestamp(time() - 60, UTC).isoformat()
    deployment.world.backend.traffic.shift(route.model_copy(update={"keep_previous_until": past}))
    return step(deployment, "reconcile_registry", 2)


def test_a_first_release_brings_the_model_to_the_gateway(deployment: Deployment, first: Seen) -> None:
    """Objects of the cluster do the work: a Job measures, a DaemonSet stages, a RayService serves, a route shows it."""
    assert (first.run, first.state.outcome) == ("success", "promoted"), first
    assert first.route.stable is not None
    assert (first.route.stable.version, first.route.candidate, first.route.previous) == (1, None, None)
    client, namespace = deployment.world.place.client, deployment.world.namespace
    jobs = client.list(JOB, namespace, labelSelector=objects.selector("job"))
    assert [one["status"].get("succeeded") for one in jobs], "no Job has run"
    sets = client.list(DAEMON_SET, namespace, labelSelector=objects.selector("stage"))
    assert all(one["status"]["numberReady"] > 0 for one in sets)
    assert sets, "no DaemonSet has staged"


def test_a_second_one_is_measured_beside_the_first_and_takes_over_by_steps(
    deployment: Deployment, second: Seen
) -> None:
    """Paired blocks decide; users see both releases meanwhile and no failure; the first stays warm."""
    assert (second.run, second.state.outcome) == ("success", "promoted"), second
    route = second.route
    assert route.stable is not None
    assert route.previous is not None
    assert (route.stable.version, route.previous.version, route.candidate) == (2, 1, None)
    kept = deployment.world.backend.ledger.read(record_key(MODEL, second.state.release, "canary"))
    assert kept is not None
    assert kept["detail"]["decision"] == "PROMOTE"
    assert {"ttft_p50", "tpot_p50"} <= {one["metric"] for one in kept["detail"]["effects"]}
    assert len(second.tally.releases) == 2, second.tally
    assert second.tally.failures == []
    assert second.clusters == [1, 2]


def test_a_person_goes_back_in_seconds_and_forth_again(back_and_forth: tuple[Seen, Seen]) -> None:
    """The previous cluster is warm, so the way back is one change of the route."""
    for seen, version in zip(back_and_forth, (1, 2), strict=True):
        assert seen.run == "success", seen
        assert seen.route.stable is not None
        assert seen.route.stable.version == version
        assert seen.state.outcome == "rolled_back"
        assert seen.tally.failures == []


def test_a_version_that_is_slower_is_taken_back_before_any_user_meets_it(slower: Seen) -> None:
    """The benchmark sees it, the release fails with its reason, and the candidate is gone."""
    assert (slower.run, slower.state.outcome) == ("failed", "rolled_back"), slower
    assert slower.route.stable is not None
    assert (slower.route.stable.version, slower.route.candidate) == (2, None)
    assert len(slower.tally.releases) == 1, slower.tally
    assert slower.tally.failures == []
    assert 3 not in slower.clusters


def test_the_previous_cluster_goes_when_its_time_is_over(expired: Seen) -> None:
    """Reconcile ends what nobody needs any more; what serves stays."""
    assert expired.run == "success", expired
    assert expired.route.previous is None
    assert expired.clusters == [2]
    assert expired.tally.failures == []
