"""Whole releases through Airflow itself, on fakes: what walking the tasks by hand cannot show."""

from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.model_files import put_model
from tests.unit.airflow.test_dags import DAGS
from tests.unit.airflow.world import outcome


@pytest.fixture
def bag(airflow_database: None) -> Any:
    """The DAGs as Airflow loads them; anew for each test, because a run in this process renders them in place."""
    return DagBag(dag_folder=str(DAGS))


def release(bag: Any, **conf: Any) -> tuple[str, dict[str, str]]:
    """Run one release to its end; return the run's state and each task's."""
    run = bag.dags["release"].test(run_conf={"model": "tiny", **conf}, logical_date=None)
    return str(run.state), {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def test_a_promoted_release_is_a_successful_run(bag: Any, world: FakeBackend) -> None:
    """Only the reference travels between tasks, and every step finds the rest."""
    run, tasks = release(bag)

    route = world.traffic.route("tiny")
    assert (run, set(tasks.values())) == ("success", {"success"})
    assert route.stable is not None
    assert route.stable.version == 1
    assert outcome(world, 1) == "promoted"


def test_a_refused_release_is_a_failed_run_that_left_order(bag: Any, world: FakeBackend) -> None:
    """The run's state tells the truth, and the last task runs although the others do not."""
    put_model(world, 3, pytorch_model__bin=b"pickle")

    run, tasks = release(bag, version=3)

    assert run == "failed"
    assert (tasks["plan"], tasks["rollout"], tasks["record"]) == ("failed", "upstream_failed", "failed")
    assert outcome(world, 3) == "rejected"
    assert world.lease.grants == {}
