"""Waiting: in place for what is short, by triggers for what is long; and what errors become."""

import asyncio
import json
import pickle
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.timezone import utcnow
from airflow.triggers.base import BaseTrigger, TriggerEvent

from headway import errors
from headway.domain.job import JobStatus
from headway.domain.release import StepRecord, record_key
from headway.domain.traffic import Backend, Route
from headway.errors import BackendUnavailable, ConfigError, HeadwayError, Refused
from headway.release import rollout
from operators.errors import translated
from operators.lease import keep_lease
from operators.triggers import FIRST_LOOK_S, ClusterTrigger, JobTrigger, LeaseTrigger, RoomTrigger, ShiftTrigger
from operators.waiting import poll
from tests.factories import make_plan, make_profile, make_ref
from tests.unit.airflow.fake_backend import FakeBackend

SOON: dict[str, Any] = {"first_look_s": 0.0, "poll_s": 0.01}


def later(seconds: float = 60) -> str:
    return str((utcnow() + timedelta(seconds=seconds)).isoformat())


def fire(trigger: BaseTrigger, within_s: float = 5.0) -> dict[str, Any]:
    """Run a trigger as the triggerer does and return what its one event carries."""

    async def first() -> TriggerEvent:
        async for event in trigger.run():
            return event
        raise AssertionError("the trigger ended without an event, which leaves its task deferred for ever")

    async def limited() -> TriggerEvent:
        return await asyncio.wait_for(first(), within_s)

    payload = asyncio.run(limited()).payload
    assert isinstance(payload, dict)
    return payload


def test_what_is_short_is_waited_for_in_place() -> None:
    """Staging takes a second; a deferral takes twenty."""
    now = [0.0]
    seen = poll(
        lambda: now[0],
        lambda t: t >= 3,
        within_s=30,
        clock=lambda: now[0],
        rest=lambda s: now.__setitem__(0, now[0] + s),
    )

    assert seen == 3.0


def test_waiting_in_place_ends() -> None:
    """A worker is not held for what is long."""
    now = [0.0]
    seen = poll(
        lambda: now[0],
        lambda t: False,
        within_s=30,
        clock=lambda: now[0],
        rest=lambda s: now.__setitem__(0, now[0] + s),
    )

    assert seen == 30.0


def test_no_trigger_fires_before_its_task_is_deferred_for_sure() -> None:
    """Airflow 3.3.2 fails a run whose trigger fires within two seconds (design rule 13.10)."""
    assert FIRST_LOOK_S >= 15
    assert JobTrigger(name="j", deadline=later()).first_look_s == FIRST_LOOK_S


@pytest.mark.parametrize(
    "trigger",
    [
        JobTrigger(name="j", deadline="2026-11-30T12:00:00+00:00", model="tiny", holder="run"),
        ClusterTrigger(name="c", deadline="2026-11-30T12:00:00+00:00", model="tiny", holder="run"),
        RoomTrigger(spec=make_plan().cluster.to_json(), deadline="2026-11-30T12:00:00+00:00", model="tiny"),
        LeaseTrigger(lease_of="tiny", asker="run", deadline="2026-11-30T12:00:00+00:00"),
        ShiftTrigger(release="r", deadline="2026-11-30T12:00:00+00:00", model="tiny", holder="run", poll_s=5.0),
    ],
    ids=lambda t: type(t).__name__,
)
def test_a_trigger_survives_the_way_through_the_database(trigger: BaseTrigger) -> None:
    """Another triggerer builds it again from JSON, with the same deadline."""
    path, kwargs = trigger.serialize()
    module, name = path.rsplit(".", 1)
    assert module == "operators.triggers"

    again = globals()[name](**json.loads(json.dumps(kwargs)))

    assert again.serialize() == (path, kwargs)


def test_a_trigger_fires_when_the_job_has_ended(backend: FakeBackend) -> None:
    """Well or not: the task looks itself."""
    backend.jobs.statuses["j"] = JobStatus(name="j", phase="failed", reason="broke")

    assert fire(JobTrigger(name="j", deadline=later(), **SOON)) == {"phase": "failed"}


def test_a_trigger_fires_at_its_deadline(backend: FakeBackend) -> None:
    """A job that hangs is not waited for without end."""
    backend.jobs.statuses["j"] = JobStatus(name="j", phase="running")

    assert "deadline" in fire(JobTrigger(name="j", deadline=later(0.05), **SOON))


def test_a_backend_that_is_away_does_not_fire_the_trigger(backend: FakeBackend) -> None:
    """A restart of the gateway must not cost the task a try."""
    backend.clusters.comes_up = False
    backend.clusters.apply(make_plan().cluster)
    real, answers = backend.clusters.status, iter([BackendUnavailable("away")])

    def flaky(name: str) -> Any:
        for error in answers:
            raise error
        backend.clusters.comes_up = True
        return real(name)

    backend.clusters.status = flaky  # type: ignore[method-assign]

    assert fire(ClusterTrigger(name=make_plan().cluster.name, deadline=later(), **SOON)) == {"phase": "ready"}


def test_a_trigger_renews_the_lease(backend: FakeBackend) -> None:
    """A quantization of hours outlives the lease's time to live many times."""
    backend.jobs.statuses["j"] = JobStatus(name="j", phase="succeeded")

    fire(JobTrigger(name="j", deadline=later(), model="tiny", holder="run", **SOON))

    grant = backend.lease.holder("tiny", utcnow())
    assert grant is not None
    assert grant.holder == "run"


def test_a_lost_lease_wakes_the_task(backend: FakeBackend) -> None:
    """The task meets the same error when it looks, and ends."""
    backend.jobs.statuses["j"] = JobStatus(name="j", phase="running")
    backend.lease.acquire("tiny", "other", 600, utcnow())

    assert "lost its lease" in fire(JobTrigger(name="j", deadline=later(), model="tiny", holder="run", **SOON))["error"]
    with pytest.raises(Refused, match=r"lost its lease on tiny \(tiny is held by other"):
        keep_lease(backend, "tiny", "run", utcnow())


def test_a_person_who_ends_the_task_ends_the_job(backend: FakeBackend) -> None:
    """The restart of a triggerer does not: only `on_kill` cancels."""
    backend.jobs.statuses["j"] = JobStatus(name="j", phase="running")
    trigger = JobTrigger(name="j", deadline=later())

    asyncio.run(trigger.cleanup())
    assert backend.jobs.status("j").phase == "running"
    asyncio.run(trigger.on_kill())
    assert backend.jobs.status("j").phase == "absent"


def test_a_free_lease_wakes_who_waits_for_it(backend: FakeBackend) -> None:
    """One release a model at a time."""
    backend.lease.acquire("tiny", "other", 600, utcnow())
    asker = {"lease_of": "tiny", "asker": "run"}
    assert "deadline" in fire(LeaseTrigger(**asker, deadline=later(0.05), **SOON))

    backend.lease.release("tiny", "other", utcnow())
    assert fire(LeaseTrigger(**asker, deadline=later(), **SOON)) == {"free": True}


def shifting(backend: FakeBackend) -> ShiftTrigger:
    """A candidate that is up, with a plan in the ledger, whose bakes take no time."""
    plan = make_plan(make_profile(shift={"steps_pct": [10, 50, 100], "bake_s": 0}))
    ref = make_ref()
    record = StepRecord(
        release=ref.release, step="plan", started_at="", ended_at="", outcome="done", detail=plan.to_json()
    )
    backend.ledger.append(record_key("tiny", ref.release, "plan"), record.to_json())
    stable = Backend(cluster="tiny-0", release="r0", version=0, cluster_digest="0" * 64)
    backend.clusters.apply(plan.cluster.model_copy(update={"name": "tiny-0"}))
    backend.clusters.apply(plan.cluster)
    backend.traffic.shift(Route(model="tiny", stable=stable, candidate=rollout.backend_of(plan, ref)))
    return ShiftTrigger(release=ref.release, model="tiny", holder="run", deadline=later(), **SOON)


def test_a_long_bake_goes_on_without_a_worker(backend: FakeBackend) -> None:
    """The trigger takes the steps; the task only wakes for the end."""
    assert fire(shifting(backend)) == {"phase": "done"}
    assert [route.candidate_pct for route in backend.traffic.history] == [0, 10, 50, 100, 0]


def test_a_breach_during_a_long_bake_sends_the_traffic_back_at_once(backend: FakeBackend) -> None:
    """Users do not wait for a free worker."""
    trigger = shifting(backend)
    backend.clusters.fail(make_plan().cluster.name, "engine died")

    seen = fire(trigger)

    assert "engine died" in seen["breach"]
    assert backend.traffic.route("tiny").split.stable_pct == 100


def every_error() -> list[type[HeadwayError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadwayError)]


@pytest.mark.parametrize("kind", every_error(), ids=lambda k: k.__name__)
def test_only_what_may_pass_is_tried_again(kind: type[HeadwayError]) -> None:
    """A rejected model is rejected three minutes later, too."""
    error = kind.__new__(kind)
    HeadwayError.__init__(error, "what was found")
    noted: list[HeadwayError] = []

    with (
        pytest.raises(kind if kind.retryable else AirflowFailException, match="what was found"),
        translated(noted.append),
    ):
        raise error

    assert noted == [error]
    assert pickle.loads(pickle.dumps(error)).message == "what was found"  # noqa: S301 - our own bytes


def test_a_bug_is_not_dressed_up() -> None:
    """What headway did not raise on purpose keeps its type and its trace."""
    with pytest.raises(ZeroDivisionError), translated():
        raise ZeroDivisionError


def test_a_missing_profile_is_a_configuration_error(backend: FakeBackend) -> None:
    """The fake is as strict as the real one."""
    with pytest.raises(ConfigError):
        backend.profile("unknown")
