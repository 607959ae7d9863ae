"""Releases task by task: how each ends, and what users, the registry and the ledger see then."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.timezone import utcnow

from headway.domain.release import ReleasePlan, StepRecord, record_key
from headway.errors import BackendUnavailable, DeadlineExceeded
from headway.prescale import throughput
from headway.release import record, report, rollback
from operators.approve import ApproveOperator
from operators.record import RecordOperator
from operators.release import CanaryOperator, PlanOperator, QuantizeOperator, RolloutOperator, StageOperator
from operators.select import SelectOperator
from operators.triggers import ClusterTrigger, LeaseTrigger, RoomTrigger
from tests.fakes import FakeMetrics
from tests.unit.airflow import played
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.model_files import put_model
from tests.unit.airflow.walk import context, walk
from tests.unit.airflow.world import CANARY, outcome, profile


def test_the_first_release_takes_all_the_traffic(world: FakeBackend) -> None:
    """Nothing serves yet, so absolute limits decide, and all users come at once."""
    walked = walk()

    route = world.traffic.route("tiny")
    assert set(walked.states.values()) == {"success"}, walked.errors
    assert route.stable is not None
    assert (route.stable.version, route.candidate, route.previous) == (1, None, None)
    assert outcome(world, 1) == "promoted"


def test_the_second_release_goes_by_steps_and_keeps_the_way_back(world: FakeBackend) -> None:
    """Stable and candidate side by side, and the old cluster stays warm."""
    walk("one")

    walked = walk("two", minute=1, version=2)

    route = world.traffic.route("tiny")
    assert set(walked.states.values()) == {"success"}, walked.errors
    assert route.stable is not None
    assert route.previous is not None
    assert (route.stable.version, route.previous.version) == (2, 1)
    assert [r.candidate_pct for r in world.traffic.history if r.candidate and r.stable] == [0, 10, 50, 100]
    assert {spec.version for spec in world.clusters.specs.values()} == {1, 2}
    assert outcome(world, 2) == "promoted"


def test_a_release_leaves_what_a_replica_of_it_sustains(world: FakeBackend) -> None:
    """Capacity is planned by it; what was found worse leaves nothing."""
    walk("one")
    one = world.traffic.route("tiny").stable
    world.jobs.plays["bench"] = played.bench(world.weights, slower=3.0)

    walked = walk("two", minute=1, version=2)

    assert one is not None
    found = throughput.recorded(world.ledger, "tiny", one.release)
    assert found is not None
    assert found.requests_per_s >= found.measured_requests_per_s > 0
    assert walked.states["canary"] == "failed"
    assert [key for key in world.ledger.list("releases/tiny/") if key.endswith("/throughput.json")] == [
        record_key("tiny", one.release, throughput.RECORD)
    ]


def test_a_benchmark_too_short_to_tell_what_a_replica_sustains_fails_no_release(world: FakeBackend) -> None:
    """Pre-scaling says what is missing; the release goes on."""
    world.kept_profiles["tiny"] = profile(canary={**CANARY, "blocks": 2, "requests_per_block": 5})

    walked = walk()

    assert set(walked.states.values()) == {"success"}, walked.errors
    assert not [key for key in world.ledger.list("releases/tiny/") if key.endswith("/throughput.json")]


def test_what_serves_already_is_not_released_again(world: FakeBackend) -> None:
    """The form was sent twice: nothing is measured, nothing moves, and the answer is yes."""
    walk("one")
    moved = len(world.traffic.history)

    walked = walk("two", minute=1)

    assert walked.states["plan"] == "skipped"
    assert walked.states["record"] == "success"
    assert len(world.traffic.history) == moved
    assert world.jobs.starts.count("bench") <= 1


def test_a_model_with_a_pickle_is_rejected_before_anything_is_spent(world: FakeBackend) -> None:
    """Version 1 keeps the traffic, the version says why, and nothing was built for it."""
    walk("one")
    put_model(world, 3, pytorch_model__bin=b"pickle")
    jobs = len(world.jobs.starts)

    walked = walk("two", minute=1, version=3)

    assert walked.states["plan"] == "failed"
    assert walked.reason.startswith("rejected: tiny version 3 cannot be served")
    assert outcome(world, 3) == "rejected"
    assert "pickle" in world.registry.tags("tiny", 3)["headway.reason"]
    assert len(world.jobs.starts) == jobs
    assert world.traffic.route("tiny").split.stable_pct == 100


def test_a_version_that_is_no_model_is_remembered_too(world: FakeBackend) -> None:
    """It has no source digest; without a memory reconcile would try it for ever."""
    put_model(world, 3, config__json=b"", MLmodel=b"flavors: {sklearn: {}}")

    walked = walk(version=3)

    assert walked.states["select"] == "failed"
    assert outcome(world, 3) == "rejected"


def test_a_slow_candidate_is_rolled_back_and_deleted(world: FakeBackend) -> None:
    """Users stay on stable; the candidate's memory is free again."""
    walk("one")
    world.jobs.plays["bench"] = played.bench(world.weights, slower=4.0)

    walked = walk("two", minute=1, version=2)

    route = world.traffic.route("tiny")
    assert walked.states["canary"] == "failed"
    assert walked.reason.startswith("rolled_back")
    assert outcome(world, 2) == "rolled_back"
    assert route.candidate is None
    assert route.stable is not None
    assert route.stable.version == 1
    assert {spec.version for spec in world.clusters.specs.values()} == {1}
    assert max(r.candidate_pct for r in world.traffic.history if r.stable) == 0


def test_a_candidate_that_dies_during_the_shift_is_taken_back(world: FakeBackend) -> None:
    """The traffic is back before the release has ended."""
    walk("one")

    def die() -> None:
        name = next(name for name, spec in world.clusters.specs.items() if spec.version == 2)
        world.clusters.fail(name, "engine died")

    walked = walk("two", minute=1, version=2, before={"shift": die})

    assert walked.states["shift"] == "failed"
    assert "engine died" in walked.reason
    assert outcome(world, 2) == "rolled_back"
    assert world.traffic.route("tiny").split.stable_pct == 100


def test_a_rollback_by_a_person_during_a_release_is_its_verdict(world: FakeBackend) -> None:
    """The interrupted release must not be remembered as one that may be tried again."""
    walk("one")

    def press_the_button() -> None:
        route = world.traffic.route("tiny")
        world.traffic.shift(route.model_copy(update={"candidate_pct": 50}))
        done = rollback.run(rollback.decide("tiny", world.traffic), world.traffic, world.clusters)
        rollback.remember(done, world.registry, utcnow())

    walked = walk("two", minute=1, version=2, before={"shift": press_the_button})

    assert walked.reason.startswith("rolled_back: a person went back to version 1")
    assert outcome(world, 2) == "rolled_back"


def test_an_unknown_alias_is_an_answer(world: FakeBackend) -> None:
    """It says what there is instead; there is no version to write it on."""
    walked = walk(alias="chamption")

    assert walked.states["select"] == "failed"
    assert "it has versions [1, 2]" in walked.reason


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"version": "two"}, "version is 'two'; it must be a number"),
        ({"version": 2, "alias": "champion"}, "give one"),
        ({"model": "unknown"}, "no profile for model `unknown`"),
        ({"scheme": "nvfp4"}, "nvfp4"),
    ],
)
def test_a_wrong_form_is_refused_in_one_sentence(world: FakeBackend, form: dict[str, Any], said: str) -> None:
    """Whoever filled it in reads what to change."""
    walked = walk(**form)

    assert said in walked.reason
    assert world.clusters.specs == {}


@pytest.mark.parametrize("empty", [None, "", "None"])
def test_an_empty_field_of_the_form_is_the_profiles_alias(world: FakeBackend, empty: Any) -> None:
    """Airflow renders an empty field in three ways."""
    walked = walk(version=empty, alias=empty)

    assert walked.states["select"] == "success"


def test_a_paused_model_is_not_released(world: FakeBackend) -> None:
    """A person froze it; the sentence says how to go on."""
    route = world.traffic.route("tiny")
    world.traffic.shift(route.model_copy(update={"paused": True}))

    walked = walk()

    assert "tiny is paused; `headway resume tiny`" in walked.reason


def test_a_promotion_that_the_alias_still_names_is_released(world: FakeBackend) -> None:
    """The message of the registry came in time."""
    walked = walk(version="1", while_alias="champion")

    assert walked.states["record"] == "success"
    assert outcome(world, 1) == "promoted"


@pytest.mark.parametrize("alias", ["champion", "gone"])
def test_a_promotion_that_is_over_is_skipped(world: FakeBackend, alias: str) -> None:
    """The message came late: nothing is released, nothing fails, nothing is remembered of it."""
    jobs = len(world.jobs.starts)

    walked = walk(version=2, while_alias=alias)

    assert set(walked.states.values()) == {"skipped"}
    assert f"alias {alias} of tiny names" in str(walked.errors["select"])
    assert str(walked.errors["record"]) == str(walked.errors["select"])
    assert (len(world.jobs.starts), world.traffic.history, world.lease.grants) == (jobs, [], {})
    assert record.read_state(world.registry.tags("tiny", 2)) == {}


def test_a_promotion_that_ends_while_it_waits_is_skipped(world: FakeBackend) -> None:
    """The registry is read again when the turn comes, and the lease is given back."""
    world.lease.acquire("tiny", "other", 600, utcnow())
    select = SelectOperator(task_id="select", model="tiny", version=1, while_alias="champion")
    with pytest.raises(TaskDeferred) as waits:
        select.execute(context())
    world.registry.aliases["tiny", "champion"] = 2
    world.lease.release("tiny", "other", utcnow())

    with pytest.raises(AirflowSkipException):
        select.resume(context(), {"free": True}, **(waits.value.kwargs or {}))
    with pytest.raises(AirflowSkipException):
        RecordOperator(task_id="record", model="tiny").execute(context())

    assert world.lease.grants == {}


def test_a_promotion_that_was_frozen_goes_on_when_the_alias_moves(world: FakeBackend) -> None:
    """A task that is tried again finds what its first try made; the next promotion is the next release."""
    select = SelectOperator(task_id="select", model="tiny", version=1, while_alias="champion")
    frozen = select.execute(context())
    world.registry.aliases["tiny", "champion"] = 2

    assert select.execute(context()) == frozen


def test_a_second_release_of_a_model_waits_without_a_worker(world: FakeBackend) -> None:
    """One at a time, and the queue is visible."""
    world.lease.acquire("tiny", "other", 600, utcnow())

    with pytest.raises(TaskDeferred) as waits:
        SelectOperator(task_id="select", model="tiny").execute(context())

    assert isinstance(waits.value.trigger, LeaseTrigger)
    assert waits.value.trigger.first_look_s >= 15
    world.lease.release("tiny", "other", utcnow())
    operator = SelectOperator(task_id="select", model="tiny")
    answer = operator.resume(context(), {"free": True}, **(waits.value.kwargs or {}))
    assert answer["version"] == 1


def test_the_lease_is_given_back_whatever_happened(world: FakeBackend) -> None:
    """The next release must not wait for the time to live."""
    walk("one")
    put_model(world, 3, pytorch_model__bin=b"pickle")
    walk("two", minute=1, version=3)
    walk("three", minute=2, alias="nobody")

    assert world.lease.grants == {}


def selected(world: FakeBackend) -> dict[str, Any]:
    """Bring a release to the point where its candidate starts, and does not come up."""
    ref = SelectOperator(task_id="select", model="tiny").execute(context())
    PlanOperator(task_id="plan", model="tiny", ref=ref).execute(context())
    world.clusters.comes_up = False
    assert isinstance(ref, dict)
    return ref


def test_a_starting_cluster_is_waited_for_without_a_worker(world: FakeBackend) -> None:
    """The deadline is a point in time, and Airflow's own comes later."""
    ref = selected(world)

    with pytest.raises(TaskDeferred) as waits:
        RolloutOperator(task_id="rollout", model="tiny", ref=ref).execute(context())

    trigger, timeout = waits.value.trigger, waits.value.timeout
    assert isinstance(trigger, ClusterTrigger)
    assert timeout is not None
    assert timeout > timedelta(seconds=profile().deadlines.rollout_s)
    assert (trigger.model, trigger.holder) == ("tiny", "run")


def test_the_event_decides_nothing(world: FakeBackend) -> None:
    """A trigger that says ready about a cluster that still starts makes the task wait on."""
    ref = selected(world)
    operator = RolloutOperator(task_id="rollout", model="tiny", ref=ref)
    with pytest.raises(TaskDeferred) as waits:
        operator.execute(context())

    with pytest.raises(TaskDeferred):
        operator.resume(context(), {"phase": "ready"}, **(waits.value.kwargs or {}))


def test_a_step_that_is_late_ends_with_what_it_was_doing(world: FakeBackend) -> None:
    """A deadline without a reason helps nobody."""
    ref = selected(world)
    operator = RolloutOperator(task_id="rollout", model="tiny", ref=ref)
    with pytest.raises(TaskDeferred) as waits:
        operator.execute(context())
    subject = (waits.value.kwargs or {})["subject"]
    long_ago = (utcnow() - timedelta(days=1)).isoformat()

    with pytest.raises(AirflowFailException, match=r"took longer than .* was starting"):
        operator.resume(context(), {"deadline": ""}, subject=subject, started_at=long_ago)

    kept = world.ledger.read(record_key("tiny", ref["release"], "rollout.error-001"))
    assert kept is not None
    assert StepRecord.model_validate(kept).outcome == DeadlineExceeded.__name__


def test_room_is_waited_for_without_a_worker_and_taken_when_it_comes(world: FakeBackend) -> None:
    """Where the profile says so: the cluster starts with the first look that finds room, and then is waited for."""
    world.kept_profiles["tiny"] = profile(rollout={"no_room": "wait"})
    ref = selected(world)
    world.clusters.used_bytes = world.clusters.total_bytes
    operator = RolloutOperator(task_id="rollout", model="tiny", ref=ref)

    with pytest.raises(TaskDeferred) as waits:
        operator.execute(context())
    assert isinstance(waits.value.trigger, RoomTrigger)
    assert waits.value.trigger.look() is None
    again = waits.value.kwargs or {}
    with pytest.raises(AirflowFailException, match="waited for room: needs 1 x"):
        operator.resume(context(), {}, **{**again, "started_at": (utcnow() - timedelta(days=1)).isoformat()})
    assert not world.clusters.specs

    world.clusters.used_bytes = 0
    seen = waits.value.trigger.look()
    assert seen is not None
    with pytest.raises(TaskDeferred) as starts:
        operator.resume(context(), seen, **again)
    assert isinstance(starts.value.trigger, ClusterTrigger)
    assert list(world.clusters.specs) == [again["subject"]]


def test_a_second_try_finds_what_the_first_one_decided(world: FakeBackend) -> None:
    """An alias that moved between two tries does not change what this release is about."""
    ref = SelectOperator(task_id="select", model="tiny").execute(context())
    world.registry.aliases[("tiny", "champion")] = 2

    assert SelectOperator(task_id="select", model="tiny").execute(context(try_number=2)) == ref
    PlanOperator(task_id="plan", model="tiny", ref=ref).execute(context())
    world.kept_profiles["tiny"] = profile(engine={"max_model_len": 512})
    PlanOperator(task_id="plan", model="tiny", ref=ref).execute(context(try_number=2))
    kept = world.ledger.read(record_key("tiny", ref["release"], "plan"))
    assert kept is not None
    assert ReleasePlan.model_validate(kept["detail"]).profile.engine.max_model_len == 1024


def test_a_release_that_lost_its_lease_touches_nothing(world: FakeBackend) -> None:
    """It slept for longer than the lease lives, and another one works on the model now."""
    walk("one")
    ref = SelectOperator(task_id="select", model="tiny", version=2).execute(context("two", minute=1))
    world.lease.grants.clear()
    world.lease.acquire("tiny", "three", 600, utcnow())
    moved = len(world.traffic.history)

    with pytest.raises(AirflowFailException, match="lost its lease on tiny"):
        PlanOperator(task_id="plan", model="tiny", ref=ref).execute(context("two", minute=1))
    with pytest.raises(AirflowFailException, match="failed"):
        RecordOperator(task_id="record", model="tiny", ref=ref).execute(context("two", minute=1))

    assert len(world.traffic.history) == moved
    grant = world.lease.holder("tiny", utcnow())
    assert grant is not None
    assert grant.holder == "three"


@pytest.mark.parametrize("part", ["registry", "ledger"])
def test_traffic_goes_back_before_anything_is_remembered(world: FakeBackend, part: str) -> None:
    """MLflow or S3 down in the middle: the task is tried again, and users are on stable meanwhile."""
    walk("one")

    def break_it() -> None:
        route = world.traffic.route("tiny")
        world.traffic.shift(route.model_copy(update={"candidate_pct": 50}))
        getattr(world, part).down = True

    walked = walk(
        "two",
        minute=1,
        version=2,
        before={
            "record": break_it,
            "shift": lambda: world.clusters.fail(
                next(n for n, s in world.clusters.specs.items() if s.version == 2), "died"
            ),
        },
    )

    assert isinstance(walked.errors["record"], BackendUnavailable)
    assert world.traffic.route("tiny").split.stable_pct == 100
    getattr(world, part).down = False
    with pytest.raises(AirflowFailException, match="rolled_back"):
        RecordOperator(task_id="record", model="tiny", ref=walked.ref).execute(context("two", minute=1, try_number=2))
    assert outcome(world, 2) == "rolled_back"
    assert world.traffic.route("tiny").candidate is None


def test_the_report_and_the_ledger_tell_the_same(world: FakeBackend) -> None:
    """What the registry shows can be replayed from the records."""
    walked = walk()
    assert walked.ref is not None

    kept = world.ledger.read(record_key("tiny", walked.ref["release"], "release"))
    assert kept is not None
    assert kept["outcome"] == "promoted"
    assert kept["report"] == world.registry.tags("tiny", 1)["headway.report"]
    _, files = world.registry.reports[walked.ref["release"]]
    assert b"promoted" in files["report.html"]


def test_no_approval_is_asked_where_nobody_wants_one(world: FakeBackend) -> None:
    """The form may skip what the profile asks for."""
    world.kept_profiles["tiny"] = profile(shift={"steps_pct": [100], "bake_s": 0, "approve": True})

    assert walk(skip="True").states["shift"] == "success"


def asked(world: FakeBackend) -> dict[str, Any]:
    """Bring a release to the question."""
    world.kept_profiles["tiny"] = profile(shift={"steps_pct": [100], "bake_s": 0, "approve": True})
    ref = SelectOperator(task_id="select", model="tiny").execute(context())
    for operator in (PlanOperator, QuantizeOperator, StageOperator, RolloutOperator, CanaryOperator):
        operator(task_id=operator.step, model="tiny", ref=ref).execute(context())
    assert isinstance(ref, dict)
    return ref


def answer(choice: str, who: str | None) -> dict[str, Any]:
    """What Airflow hands back with an answer."""
    user = {"id": who, "name": who} if who else None
    return {"chosen_options": [choice], "params_input": {}, "responded_at": utcnow(), "responded_by_user": user}


def test_an_approval_lets_the_release_through(world: FakeBackend) -> None:
    """Who approved is on record."""
    ref = asked(world)
    operator = ApproveOperator(task_id="approve", model="tiny", ref=ref)

    assert operator.execute_complete(context(), answer("Approve", "alice")) == ref

    kept = world.ledger.read(record_key("tiny", ref["release"], "approve"))
    assert kept is not None
    assert kept["detail"] == {"asked": True, "approved": True, "by": "alice"}


@pytest.mark.parametrize(
    ("who", "said"), [("bob", "bob declined the promotion"), (None, "nobody approved in time, which means no")]
)
def test_no_answer_means_no(world: FakeBackend, who: str | None, said: str) -> None:
    """A candidate does not wait for ever, and a no is a verdict."""
    ref = asked(world)
    operator = ApproveOperator(task_id="approve", model="tiny", ref=ref)

    with pytest.raises(AirflowFailException, match=said):
        operator.execute_complete(context(), answer("Reject", who))
    with pytest.raises(AirflowFailException, match=f"rejected: {said}"):
        RecordOperator(task_id="record", model="tiny", ref=ref).execute(context())

    assert outcome(world, 1) == "rejected"


def test_nobody_answers_twice(world: FakeBackend) -> None:
    """A try that was lost after the answer finds the answer."""
    ref = asked(world)
    with pytest.raises(AirflowFailException):
        ApproveOperator(task_id="approve", model="tiny", ref=ref).execute_complete(context(), answer("Reject", "bob"))

    with pytest.raises(AirflowFailException, match="bob declined"):
        ApproveOperator(task_id="approve", model="tiny", ref=ref).execute(context(try_number=2))


def test_the_lease_outlives_a_night_without_an_answer(world: FakeBackend) -> None:
    """No trigger renews it while a person sleeps."""
    ref = asked(world)

    # Where Airflow itself takes over, these tests have nothing to give it.
    with pytest.raises(KeyError, match="task_instance"):
        ApproveOperator(task_id="approve", model="tiny", ref=ref).execute(context())

    grant = world.lease.holder("tiny", utcnow() + timedelta(hours=11))
    assert grant is not None
    assert grant.holder == "run"


def test_a_report_that_cannot_be_drawn_does_not_cost_the_verdict(
    world: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever drawing stumbles over, the release ends and is remembered."""

    def stumble(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(report, "render", stumble)

    walked = walk()

    assert walked.states["record"] == "success"
    assert outcome(world, 1) == "promoted"
    assert walked.ref is not None
    assert b"could not be drawn" in world.registry.reports[walked.ref["release"]][1]["report.html"]


def test_a_candidate_whose_engine_reports_nothing_is_held_and_not_measured(
    world: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards and dashboards would be blind to it, so a person looks first."""
    monkeypatch.setattr(CanaryOperator, "first_metrics_s", 0.0)
    world.metrics = FakeMetrics()

    walked = walk()

    assert outcome(world, 1) == "held"
    assert "nothing was measured" in walked.reason
    assert not [job for job in world.jobs.jobs.values() if job.program == "bench"]
    assert world.traffic.route("tiny").candidate_pct == 0
