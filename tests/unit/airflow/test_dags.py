"""The DAG files: wiring only, quick to parse, and what the form asks."""

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

DAGS = Path(__file__).resolve().parents[3] / "dags"
FORBIDDEN = ("open(", "requests", "headway.", "Variable", "os.environ", " if ", "for ")


@pytest.fixture(scope="module")
def bag(airflow_database: None) -> Any:
    """The DAGs as Airflow loads them."""
    return DagBag(dag_folder=str(DAGS))


def test_every_dag_is_loaded(bag: Any) -> None:
    """An import error is a DAG that is silently gone."""
    assert bag.import_errors == {}
    assert set(bag.dags) >= {"release", "rollback", "reconcile_registry", "prescale"}


def test_the_steps_of_a_release_come_in_their_order(bag: Any) -> None:
    """One line, as the documentation draws it."""
    order = [task.task_id for task in bag.dags["release"].topological_sort()]

    assert order == ["select", "plan", "quantize", "stage", "rollout", "canary", "approve", "shift", "record"]


def test_the_last_task_runs_whatever_happened(bag: Any) -> None:
    """It puts the traffic back, also when a person marks the whole run as failed: that spares teardowns alone."""
    last = bag.dags["release"].get_task("record")

    assert (last.is_teardown, last.trigger_rule) == (True, "all_done_setup_success")


def test_every_task_is_tried_again(bag: Any) -> None:
    """A killed scheduler costs every running task one try (design rule 13.10)."""
    for name in ("release", "rollback", "reconcile_registry", "prescale"):
        for task in bag.dags[name].tasks:
            assert task.retries >= 3, f"{name}.{task.task_id}"


def test_a_release_starts_only_when_asked(bag: Any) -> None:
    """Neither a schedule nor a first parse releases anything."""
    release = bag.dags["release"]

    assert release.schedule is None
    assert release.catchup is False
    assert release.max_active_runs == 4
    assert bag.dags["reconcile_registry"].max_active_runs == 1


def test_ticks_come_every_ten_minutes_one_at_a_time(bag: Any) -> None:
    """A run that is late is not made up for: the next one plans by what is there then."""
    ticks = bag.dags["prescale"]

    assert (ticks.max_active_runs, ticks.catchup, ticks.is_paused_upon_creation) == (1, False, False)
    assert ticks.timetable.summary == "0:10:00"


def test_the_form_explains_itself(bag: Any) -> None:
    """Every field has a title, a description and a section."""
    params = bag.dags["release"].params

    assert set(params) == {"model", "version", "alias", "scheme", "skip_approval"}
    for name in params:
        schema = params.get_param(name).schema
        assert {"title", "description_md", "section"} <= set(schema), name


def test_no_model_is_refused_by_the_form(bag: Any) -> None:
    """The API validates the same."""
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        bag.dags["release"].params.validate()


@pytest.mark.parametrize("path", sorted(DAGS.glob("*.py")), ids=lambda p: p.name)
def test_a_dag_file_is_wiring_only(path: Path) -> None:
    """No IO, no branching on settings, nothing of headway but operators."""
    code = "\n".join(line for line in path.read_text().splitlines() if '"""' not in line)
    body = code.split("with DAG(")[0] + code.split(") as ")[1]

    assert [word for word in FORBIDDEN if word in body] == []
