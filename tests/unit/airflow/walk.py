"""Walks through a release task by task as Airflow does, in milliseconds: trigger rules, skips and failures included."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from headway.errors import HeadwayError
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

START = datetime(2026, 11, 30, 12, tzinfo=UTC)


def context(run_id: str = "run", *, minute: int = 0, try_number: int = 1, again: int = 0) -> Any:
    """Return what a task sees of its run."""
    run = SimpleNamespace(run_id=run_id, run_after=START + timedelta(minutes=minute), clear_number=again)
    return {"dag_run": run, "ti": SimpleNamespace(try_number=try_number)}


@dataclass
class Walked:
    """How each task ended."""

    states: dict[str, str] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    ref: dict[str, Any] | None = None

    @property
    def reason(self) -> str:
        """What the last task says."""
        return str(self.errors.get("record", ""))


def walk(
    run_id: str = "run",
    *,
    minute: int = 0,
    model: str = "tiny",
    version: Any = None,
    alias: Any = None,
    while_alias: Any = None,
    scheme: str = "profile",
    skip: Any = False,
    before: dict[str, Callable[[], None]] | None = None,
) -> Walked:
    """Run a release to its end.

    Args:
        run_id: Id of the run.
        minute: When it was due; later releases have later ids.
        model: Of the form, as the others.
        version: Of the form.
        alias: Of the form.
        while_alias: Of the webhook's message.
        scheme: Of the form.
        skip: Of the form.
        before: What happens to the world before a task begins.
    """
    walked = Walked()
    ctx = context(run_id, minute=minute)
    stopped = ""
    tasks: list[tuple[str, Callable[[Any], Any]]] = [
        (
            "select",
            lambda ref: SelectOperator(
                task_id="select", model=model, version=version, alias=alias, while_alias=while_alias
            ),
        ),
        ("plan", lambda ref: PlanOperator(task_id="plan", model=model, ref=ref, scheme=scheme)),
        ("quantize", lambda ref: QuantizeOperator(task_id="quantize", model=model, ref=ref)),
        ("stage", lambda ref: StageOperator(task_id="stage", model=model, ref=ref)),
        ("rollout", lambda ref: RolloutOperator(task_id="rollout", model=model, ref=ref)),
        ("canary", lambda ref: CanaryOperator(task_id="canary", model=model, ref=ref)),
        ("approve", lambda ref: ApproveOperator(task_id="approve", model=model, ref=ref, skip=skip)),
        ("shift", lambda ref: ShiftOperator(task_id="shift", model=model, ref=ref)),
        ("record", lambda ref: RecordOperator(task_id="record", model=model, ref=ref)),
    ]
    for name, make in tasks:
        if stopped and name != "record":
            walked.states[name] = stopped
            continue
        if before and name in before:
            before[name]()
        try:
            answer = make(walked.ref).execute(ctx)
            walked.ref = walked.ref or answer
            walked.states[name] = "success"
        except AirflowSkipException as error:
            walked.states[name] = stopped = "skipped"
            walked.errors[name] = error
        except (AirflowFailException, HeadwayError, TaskDeferred) as error:
            walked.states[name] = "deferred" if isinstance(error, TaskDeferred) else "failed"
            stopped = "upstream_failed"
            walked.errors[name] = error
    return walked
