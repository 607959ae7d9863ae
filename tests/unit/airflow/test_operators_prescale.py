"""The tick of all models as a task: who is planned, what a fault costs, and the alert when nobody plans any more."""

import sys
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.timezone import utcnow

from headway.domain.prescaling import Tick, plan_key, read_tick
from headway.errors import Conflict
from headway.ports import Held
from operators.prescale import LEASE, PrescaleOperator
from operators.reconcile import ReconcileOperator
from tests.factories import make_profile
from tests.fakes import FakeWarm
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.walk import context

PLANNER = """
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    model = order["profile"]["model"]
    if model == "hangs":
        while True:
            pass
    if model == "dies":
        sys.exit(3)
    made = {"model": model, "at": order["at"], "mode": "forecast", "floor": 3, "by": "forecast", "wanted": 3,
            "growth": 1.0, "running": 3, "pending": 0, "load": None if model == "blind" else 2.5, "load_at": None,
            "lead_s": 600.0, "requests_per_s": 2.0, "problems": ["No load was measured."] if model == "blind" else []}
    print(json.dumps({"fault": "the store does not answer"} if model == "faulty" else {"tick": made}), flush=True)
"""
"""A planner that does by the model's name what a library may do on a model's data."""


@pytest.fixture
def planned(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Five models that are planned ahead, by a planner of the test, which has four seconds for each."""
    monkeypatch.setattr(PrescaleOperator, "worker", (sys.executable, "-c", PLANNER))
    monkeypatch.setattr(PrescaleOperator, "each_s", 4.0)
    asks(backend, "one", "two")
    return backend


def asks(backend: FakeBackend, *models: str) -> None:
    """Let these models be planned ahead, and no others."""
    backend.kept_profiles = {model: make_profile(model=model, prescale={"enabled": True}) for model in models}


def run(run_id: str = "scheduled") -> Any:
    """Run the task once."""
    return PrescaleOperator(task_id="tick").execute(context(run_id))


def test_all_models_are_planned_in_one_run(planned: FakeBackend) -> None:
    """And those that do not ask for it are not."""
    planned.kept_profiles["plain"] = make_profile(model="plain")

    assert run() == {"forecast": 2}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("hangs", "hangs: took longer than 4 s and was ended"),
        ("dies", "dies: ended its process (exit code 3) without an answer"),
        ("faulty", "faulty: the store does not answer"),
        ("blind", "blind: No load was measured. The floor is 3."),
    ],
)
def test_one_bad_model_costs_the_others_nothing(
    planned: FakeBackend, capsys: pytest.CaptureFixture[str], bad: str, said: str
) -> None:
    """Its floor holds, one sentence says so, and all others have their plan."""
    asks(planned, "one", bad, "two", "three")

    with pytest.raises(AirflowFailException) as failed:
        run()

    assert said in str(failed.value)
    log = capsys.readouterr().out
    assert [f"{model}: floor 3" in log for model in ("one", "two", "three")] == [True, True, True]


def test_a_broken_profile_costs_the_others_nothing(planned: FakeBackend) -> None:
    """Its fault is told when the others are planned."""
    planned.profile_faults = ("broken.yaml is not YAML",)

    with pytest.raises(AirflowFailException, match=r"broken\.yaml is not YAML"):
        run()


def test_many_faults_are_told_shortly(planned: FakeBackend) -> None:
    """A thousand sentences in one error are read by nobody."""
    planned.profile_faults = tuple(f"p{number}.yaml is not YAML" for number in range(40))

    with pytest.raises(AirflowFailException, match="; and 30 more, see the log"):
        run()


def test_of_two_ticks_at_once_one_changes_nothing(planned: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """It says who is at work, and is no failure: the other one does all that is to be done."""
    planned.lease.acquire(LEASE, "another run", 600, utcnow())

    done = run()

    assert "another run" in done["skipped"]
    assert "another tick is at work, so this one changes nothing" in capsys.readouterr().out


def test_the_lease_is_given_back_even_by_a_run_that_fails(planned: FakeBackend) -> None:
    """The next run must not wait for it to expire."""
    asks(planned, "faulty")
    with pytest.raises(AirflowFailException):
        run()

    planned.lease.acquire(LEASE, "the next run", 600, utcnow())
    with pytest.raises(Conflict):
        planned.lease.acquire(LEASE, "a third", 600, utcnow())


def test_a_model_that_is_not_planned_any_more_gets_one_last_tick(planned: FakeBackend) -> None:
    """It gives the profile's own range back; without one the last floor would stay for ever."""
    planned.kept_profiles = {"one": make_profile(model="one")}
    at = utcnow()
    last = Tick.off("one", at, 7, "").model_copy(update={"mode": "forecast"})
    planned.objects.write(plan_key("one"), last.model_dump_json().encode())
    assert run() == {"forecast": 1}

    planned.objects.write(plan_key("one"), Tick.off("one", at, 1, "").model_dump_json().encode())
    assert run() == {}


def test_reconcile_fails_visibly_after_two_missed_ticks(planned: FakeBackend) -> None:
    """Nothing lowers the floor of a dead DAG, so somebody has to be told; what else is due is done all the same."""
    asks(planned, "one")
    planned.kept_profiles["other"] = make_profile(model="other")
    keep(planned, minutes_ago=15)
    assert ReconcileOperator(task_id="reconcile").execute(context()) == []

    keep(planned, minutes_ago=21)
    with pytest.raises(AirflowFailException) as failed:
        ReconcileOperator(task_id="reconcile").execute(context())

    assert "one has had no tick of its pre-scaling for 21 min" in str(failed.value)
    assert "its floor stays at 7 and nothing lowers it" in str(failed.value)
    assert "unpause" in str(failed.value)


def test_a_first_tick_that_never_comes_is_missed_too(planned: FakeBackend) -> None:
    """A model that was only now enabled is no alarm, and one whose DAG never ran becomes one."""
    asks(planned, "one")
    assert ReconcileOperator(task_id="reconcile").execute(context()) == []

    waits = read_tick(planned.objects.read(plan_key("one")), "one")
    assert waits is not None
    assert waits.mode == "off"
    keep(planned, minutes_ago=30)
    with pytest.raises(AirflowFailException, match="one has had no tick"):
        ReconcileOperator(task_id="reconcile").execute(context())


def test_a_store_that_is_away_is_told_by_reconcile_too(planned: FakeBackend) -> None:
    """It must not look like a tick that came."""
    asks(planned, "one")
    planned.objects.down = True

    with pytest.raises(AirflowFailException, match="one: the store does not answer"):
        ReconcileOperator(task_id="reconcile").execute(context())


def keep(backend: FakeBackend, *, minutes_ago: float) -> None:
    """Let the last tick have been some time ago."""
    last = Tick.off("one", utcnow() - timedelta(minutes=minutes_ago, seconds=1), 7, "")
    backend.objects.write(plan_key("one"), last.model_dump_json().encode())


def test_room_for_a_model_that_nobody_plans_is_given_back(planned: FakeBackend) -> None:
    """Without a profile, or one that asks for it, no tick would; a profile that is only broken keeps its room."""
    planned.warm = FakeWarm()
    planned.kept_profiles["plain"] = make_profile(model="plain")
    for model in ("one", "gone", "plain"):
        planned.warm.hold(model, "NVIDIA-L40S", 1, 2)
    planned.profile_faults = ("gone.yaml is not YAML",)
    with pytest.raises(AirflowFailException):
        run()
    assert [held.model for held in planned.warm.held()] == ["gone", "one", "plain"]

    planned.profile_faults = ()
    run()

    assert [held.model for held in planned.warm.held()] == ["one"]


def test_room_that_cannot_be_given_back_is_told(planned: FakeBackend) -> None:
    """The plans of all models are made nevertheless, and the run fails with the reason."""
    planned.warm = FakeWarm(kept={"gone": Held("gone", "NVIDIA-L40S", 1, 2, 2)}, down=True)

    with pytest.raises(AirflowFailException, match="that nobody plans could not be given back"):
        run()
