"""Walks through a release task by task, against real ports, as Airflow does: retries, deferrals and trigger rules.

The operators and triggers are Airflow's own; what is left out is Airflow's scheduler, which costs seconds a task.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import monotonic, sleep, time
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from headway.errors import HeadwayError
from operators.base import RETRIES
from operators.release import (
    ApproveOperator,
    CanaryOperator,
    PlanOperator,
    QuantizeOperator,
    RecordOperator,
    RolloutOperator,
    SelectOperator,
    ShiftOperator,
    StageOperator,
)
from operators.rollback import RollbackOperator

from .release_world import MODEL

POLL_S = 0.5
RETRY_AFTER_S = 5.0
"""Airflow's own is 20 s; what must survive longer outages than three of these asks for more."""


@dataclass
class Walked:
    """How each task ended, and what it took."""

    run_id: str
    states: dict[str, str] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    retried: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    ref: dict[str, Any] | None = None

    @property
    def reason(self) -> str:
        """What the last task says; empty if it is content."""
        return str(self.errors.get("record", ""))

    @property
    def story(self) -> str:
        """All of it, for a failed assertion."""
        lines = [f"{name}: {state} {self.errors.get(name, '')}" for name, state in self.states.items()]
        return "\n".join([*lines, *(f"{name} retried: {why}" for name, why in self.retried.items())])


def context(run_id: str, at: datetime, try_number: int = 1) -> Any:
    """Return what a task sees of its run."""
    run = SimpleNamespace(run_id=run_id, run_after=at, clear_number=0)
    return {"dag_run": run, "ti": SimpleNamespace(try_number=try_number)}


def walk(run_id: str, version: int, *, until: str = "record", retry_after_s: float = RETRY_AFTER_S) -> Walked:
    """Run a release to its end.

    Args:
        run_id: Id of the run; the lease's holder.
        version: What is released.
        until: The last task that is run, as if Airflow's scheduler were killed after it.
        retry_after_s: Rest before a task is tried again.
    """
    walked, at = Walked(run_id), datetime.fromtimestamp(time(), UTC)
    stopped = ""
    tasks: list[tuple[str, Callable[[Any], Any]]] = [
        ("select", lambda ref: SelectOperator(task_id="select", model=MODEL, version=version)),
        ("plan", lambda ref: PlanOperator(task_id="plan", model=MODEL, ref=ref)),
        ("quantize", lambda ref: QuantizeOperator(task_id="quantize", model=MODEL, ref=ref)),
        ("stage", lambda ref: StageOperator(task_id="stage", model=MODEL, ref=ref)),
        ("rollout", lambda ref: RolloutOperator(task_id="rollout", model=MODEL, ref=ref)),
        ("canary", lambda ref: CanaryOperator(task_id="canary", model=MODEL, ref=ref)),
        ("approve", lambda ref: ApproveOperator(task_id="approve", model=MODEL, ref=ref)),
        ("shift", lambda ref: ShiftOperator(task_id="shift", model=MODEL, ref=ref)),
        ("record", lambda ref: RecordOperator(task_id="record", model=MODEL, ref=ref)),
    ]
    for name, make in tasks:
        if stopped and name != "record":
            walked.states[name] = stopped
            continue
        began = monotonic()
        try:
            answer = _tried(walked, name, partial(make, walked.ref), run_id=run_id, at=at, retry_after_s=retry_after_s)
            walked.ref = walked.ref or answer
            walked.states[name] = "success"
        except AirflowSkipException as error:
            walked.states[name] = stopped = "skipped"
            walked.errors[name] = error
        except (AirflowFailException, HeadwayError) as error:
            walked.states[name], stopped = "failed", "upstream_failed"
            walked.errors[name] = error
        walked.seconds[name] = monotonic() - began
        if name == until:
            break
    return walked


def roll_back(run_id: str) -> Any:
    """Run the DAG of the way back."""
    return RollbackOperator(task_id="rollback", model=MODEL).execute(
        context(run_id, datetime.fromtimestamp(time(), UTC))
    )


def _tried(
    walked: Walked, name: str, make: Callable[[], Any], *, run_id: str, at: datetime, retry_after_s: float
) -> Any:
    for attempt in range(1, RETRIES + 2):
        ctx = context(run_id, at, attempt)
        try:
            return _run(make(), ctx)
        except HeadwayError as error:
            walked.retried.setdefault(name, []).append(error.message)
            if attempt == RETRIES + 1:
                raise
            sleep(retry_after_s)
    raise AssertionError("a task is tried at least once")


def _run(task: Any, ctx: Any) -> Any:
    """Execute a task, and what follows each of its deferrals."""
    go: Callable[[], Any] = partial(task.execute, ctx)
    while True:
        try:
            return go()
        except TaskDeferred as deferred:
            event = asyncio.run(_first(deferred.trigger))
            go = partial(getattr(task, deferred.method_name), ctx, event=event, **dict(deferred.kwargs or {}))


async def _first(trigger: Any) -> Any:
    # Airflow needs the pause before the first look; without it nothing here does.
    trigger.first_look_s, trigger.poll_s = 0.0, POLL_S
    async for event in trigger.run():
        return event.payload
    raise AssertionError(f"{trigger} ended without an event")
