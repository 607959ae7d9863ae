"""Whole releases through Airflow, on fakes: what users, the registry and the ledger see at the end."""

from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from headway.domain.traffic import Route
from headway.release import record
from tests.factories import make_profile
from tests.unit.airflow import played
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.model_files import put_model
from tests.unit.airflow.test_dags import DAGS

QUICK = {"shift": {"steps_pct": [10, 50, 100], "bake_s": 0}}


@pytest.fixture(scope="module")
def bag(airflow_database: None) -> Any:
    """The DAGs as Airflow loads them, in its database."""
    return DagBag(dag_folder=str(DAGS))


@pytest.fixture
def world(backend: FakeBackend) -> FakeBackend:
    """A model with two versions, and programs that do what they should."""
    backend.kept_profiles["tiny"] = make_profile(
        **QUICK, canary={"blocks": 10, "requests_per_block": 15, "p50_margin": 0.5, "p95_margin": 1.0, "error_margin_pct": 5.0}
    )
    put_model(backend, 1, "champion")
    put_model(backend, 2)
    backend.jobs.plays["bench"] = played.bench(backend.weights)
    return backend


def release(bag: Any, **conf: Any) -> tuple[str, dict[str, str]]:
    """Run one release to its end; return the run's state and each task's."""
    run = bag.dags["release"].test(run_conf={"model": "tiny", **conf}, logical_date=None)
    return str(run.state), {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def state(backend: FakeBackend, version: int) -> record.VersionState:
    states = record.read_state(backend.registry.tags("tiny", version))
    assert len(states) == 1
    return next(iter(states.values()))


def test_the_first_release_takes_all_the_traffic(bag: Any, world: FakeBackend) -> None:
    """Nothing serves yet, so absolute limits decide."""
    run, tasks = release(bag)

    route = world.traffic.route("tiny")
    assert (run, set(tasks.values())) == ("success", {"success"})
    assert route.stable is not None
    assert (route.stable.version, route.candidate, route.previous) == (1, None, None)
    assert state(world, 1).outcome == "promoted"
    assert world.lease.grants == {}
