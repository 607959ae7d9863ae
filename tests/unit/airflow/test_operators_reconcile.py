"""Reconcile and rollback as tasks: what they start, end and remember."""

from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.timezone import utcnow

from headway.adapters.airflow_api import DagRun
from headway.domain.traffic import Backend, Route
from headway.errors import BackendUnavailable, IntegrityError
from headway.release import record
from operators.reconcile import ReconcileOperator
from operators.rollback import RollbackOperator
from tests.factories import make_plan
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.model_files import put_model
from tests.unit.airflow.walk import context, walk


def reconcile(run_id: str = "scheduled") -> list[str]:
    """Run the task once; return what it says that it did."""
    done = ReconcileOperator(task_id="reconcile").execute(context(run_id))
    assert isinstance(done, list)
    return done


def started(world: FakeBackend) -> list[tuple[str, int]]:
    """Return the run ids and versions of the releases that were started."""
    return [(run_id, conf["version"]) for _, run_id, conf in world.runs.triggered]


def test_an_alias_starts_one_release_however_often_it_is_looked_at(world: FakeBackend) -> None:
    """Until the run has begun, every look names the same run."""
    reconcile()
    reconcile()

    ((run_id, version),) = started(world)
    assert version == 1
    assert run_id.startswith("reconcile__tiny__v1__")
    assert run_id.endswith("__1")


def test_what_was_promoted_is_left_alone(world: FakeBackend) -> None:
    """The digest of the plan is that of the cluster that serves."""
    walk()

    assert reconcile() == []
    assert started(world) == []


def test_a_refused_model_is_not_tried_again_by_itself(world: FakeBackend) -> None:
    """Whatever refused it: its files, or that it is no model at all."""
    put_model(world, 3, "champion", pytorch_model__bin=b"pickle")
    assert reconcile() != []
    walk("one", version=3)
    put_model(world, 4, "champion", config__json=b"", MLmodel=b"flavors: {sklearn: {}}")
    assert reconcile() != []
    walk("two", minute=1, version=4)
    count = len(started(world))

    for version in (3, 4):
        world.registry.aliases[("tiny", "champion")] = version
        assert reconcile() == []

    assert len(started(world)) == count == 2


def test_the_alias_that_moved_back_is_followed(world: FakeBackend) -> None:
    """Version 1 was promoted once; asking for it again is a wish."""
    walk("one")
    world.registry.aliases[("tiny", "champion")] = 2
    walk("two", minute=1)
    world.registry.aliases[("tiny", "champion")] = 1

    reconcile()

    assert [version for _, version in started(world)] == [1]


def test_a_version_that_a_person_released_by_number_stays(world: FakeBackend) -> None:
    """The alias did not move, so it does not take the traffic back."""
    walk("one")
    walk("two", minute=1, version=2)

    assert reconcile() == []


def test_a_model_at_work_is_left_alone(world: FakeBackend) -> None:
    """A waiting run, or a lease, says that somebody is at it."""
    world.runs.active_runs = [DagRun("r", "queued", {"model": "tiny"})]
    assert reconcile() == []
    world.runs.active_runs = []
    world.lease.acquire("tiny", "r", 600, utcnow())
    assert reconcile() == []


def test_one_model_that_cannot_be_looked_at_costs_the_others_nothing(world: FakeBackend) -> None:
    """All are tried; then the task says what is wrong."""
    from tests.factories import make_profile

    world.kept_profiles = {"broken": make_profile(model="broken"), **world.kept_profiles}
    put_model(world, 1, "champion", model="broken")
    world.registry.version_tags[("broken", 1)] = {record.STATE_TAG: "edited by hand"}

    with pytest.raises(AirflowFailException, match=r"broken: tag headway\.state is not what headway wrote"):
        reconcile()

    assert [version for _, version in started(world)] == [1]


def test_the_previous_cluster_ends_when_its_time_is_over(world: FakeBackend) -> None:
    """Route first, then the cluster."""
    walk("one")
    walk("two", minute=1, version=2)
    route = world.traffic.route("tiny")
    assert route.previous is not None
    world.traffic.shift(route.model_copy(update={"keep_previous_until": (utcnow() - timedelta(seconds=1)).isoformat()}))

    reconcile()

    assert world.traffic.route("tiny").previous is None
    assert world.clusters.deleted == [route.previous.cluster]
    assert world.lease.grants == {}


def test_a_candidate_whose_release_died_is_taken_back(world: FakeBackend) -> None:
    """The machine went down in the middle of a shift, and came up again."""
    walk("one")
    left = Backend(cluster="tiny-left", release="r", version=2, cluster_digest="2" * 64)
    world.clusters.apply(make_plan().cluster.model_copy(update={"name": "tiny-left"}))
    route = world.traffic.route("tiny")
    world.traffic.shift(route.model_copy(update={"candidate": left, "candidate_pct": 50}))

    reconcile()

    assert world.traffic.route("tiny") == route
    assert world.clusters.deleted == ["tiny-left"]


def test_a_cluster_that_serves_again_outlives_its_time_as_the_previous_one(world: FakeBackend) -> None:
    """A version that is released again while it is still warm has two roles for a while."""
    walk("one")
    route = world.traffic.route("tiny")
    past = (utcnow() - timedelta(seconds=1)).isoformat()
    world.traffic.shift(route.model_copy(update={"previous": route.stable, "keep_previous_until": past}))

    reconcile()

    assert world.traffic.route("tiny").previous is None
    assert world.clusters.deleted == []


def test_a_registry_that_is_away_is_said(world: FakeBackend) -> None:
    """Nothing is started and nothing is deleted from not knowing."""
    walk("one")
    world.registry.down = True

    with pytest.raises(AirflowFailException, match="the registry does not answer"):
        reconcile()

    assert world.clusters.deleted == []


def serving(world: FakeBackend) -> None:
    """Version 2 over version 1."""
    walk("one")
    world.registry.aliases[("tiny", "champion")] = 2
    walk("two", minute=1)


def test_a_rollback_is_not_undone_by_reconcile(world: FakeBackend) -> None:
    """The alias still names the version that was taken back."""
    serving(world)

    answer = RollbackOperator(task_id="rollback", model="tiny").execute(context("back", minute=2))

    assert answer == {"version": 1, "taken_back": 2}
    assert reconcile() == []


def test_a_rollback_that_is_tried_again_goes_back_once(world: FakeBackend) -> None:
    """The registry was away after the traffic had moved."""
    serving(world)
    world.registry.down = True
    operator = RollbackOperator(task_id="rollback", model="tiny")
    with pytest.raises(BackendUnavailable):
        operator.execute(context("back", minute=2))
    world.registry.down = False

    operator.execute(context("back", minute=2, try_number=2))

    stable = world.traffic.route("tiny").stable
    assert stable is not None
    assert stable.version == 1


def test_no_rollback_target_is_a_clear_refusal(world: FakeBackend) -> None:
    """And no trial at all where the model is unknown."""
    world.traffic.shift(Route(model="tiny"))

    with pytest.raises(AirflowFailException, match="no stable cluster"):
        RollbackOperator(task_id="rollback", model="tiny").execute(context("back"))
    with pytest.raises(AirflowFailException, match="no model was named"):
        RollbackOperator(task_id="rollback", model="").execute(context("back"))


def test_an_edited_memory_is_never_read_as_empty(world: FakeBackend) -> None:
    """Reading it as empty would release a refused model again."""
    with pytest.raises(IntegrityError, match="delete the tag"):
        record.read_state({record.STATE_TAG: "[1]"})
