"""Follows a release through Airflow and shows its steps as they go."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from headway.domain.release import Outcome, record_key, release_id
from headway.domain.value import slug
from headway.errors import BackendError, BackendUnavailable, DeadlineExceeded, HeadwayError
from headway.units import format_seconds

if TYPE_CHECKING:
    from headway.adapters.airflow_api import DagRun, TaskRun
    from headway.wiring import Backend

RELEASE_DAG, RECONCILE_DAG, ROLLBACK_DAG = "release", "reconcile_registry", "rollback"
STEPS = ("select", "plan", "quantize", "stage", "rollout", "canary", "approve", "shift", "record")
EVERY_S = 2.0
AWAY_S = 180.0
"""How long Airflow may be away while a release is followed: it restarts within a minute, on slow cores in two."""

WORDS = {
    None: "waits",
    "scheduled": "waits",
    "queued": "waits",
    "running": "runs",
    "deferred": "runs",
    "awaiting_input": "waits for a person",
    "up_for_retry": "tries again soon",
    "restarting": "tries again soon",
    "success": "done",
    "failed": "failed",
    "skipped": "not needed",
    "upstream_failed": "not reached",
    "removed": "not reached",
}
COLOURS = {
    "done": "green",
    "failed": "red",
    "runs": "cyan",
    "tries again soon": "yellow",
    "waits for a person": "yellow",
}


@dataclass(frozen=True)
class FollowedStep:
    """One step as it ended."""

    name: str
    seconds: float
    result: str


@dataclass(frozen=True)
class Followed:
    """A release from start to end."""

    run_id: str
    release: str
    outcome: Outcome
    reason: str
    report: str
    steps: tuple[FollowedStep, ...] = field(default=())


def utcnow() -> datetime:
    """Return the time; the command line is where it enters."""
    return datetime.now(UTC)  # noqa: TID251 - steps take it as an argument, and this is who gives it


class Follower:
    """Starts runs and shows them.

    Args:
        backend: The ports; Airflow, the ledger and the clusters are read.
        console: Where progress goes: a live table on a terminal, else one line for each change.
    """

    def __init__(self, backend: "Backend", console: Console) -> None:
        self._backend = backend
        self._console = console
        self._known: set[str] | None = None

    def reconcile_now(self) -> None:
        """Run the reconciling DAG now, instead of within five minutes, and wait for its end.

        Raises:
            BackendError: It failed.
            DeadlineExceeded: It did not end in time.
        """
        self.remember_known()
        self.run_to_end(RECONCILE_DAG, f"headway__{utcnow():%Y%m%dT%H%M%S.%f}", {})

    def run_to_end(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, within_s: float = 300.0) -> None:
        """Start a run and wait for its end.

        Raises:
            BackendError: It failed.
            DeadlineExceeded: It did not end in time.
        """
        self._backend.runs.trigger(dag_id, run_id, conf, note="asked for on the command line")
        if self.wait_for(dag_id, run_id, within_s=within_s) != "success":
            raise BackendError(f"{dag_id} failed; its tasks say why: {self._backend.runs.run_url(dag_id, run_id)}")

    def wait_for(self, dag_id: str, run_id: str, *, within_s: float) -> str:
        """Wait until a run is over, and return its state.

        Raises:
            DeadlineExceeded: It did not end in time.
        """
        started = monotonic()
        while True:
            run = self._patient(lambda: self._backend.runs.run(dag_id, run_id))
            if run.ended:
                return str(run.state)
            if monotonic() - started > within_s:
                page = self._backend.runs.run_url(dag_id, run_id)
                raise DeadlineExceeded(
                    f"{dag_id} is still {run.state} after {within_s:.0f} s; look at {page}",
                    waited_s=within_s,
                    last=run.state,
                )
            sleep(EVERY_S)

    def releases_of(self, model: str, version: int) -> set[str]:
        """Return the ids of all release runs that name this version."""
        return {run.run_id for run in self._backend.runs.recent(RELEASE_DAG) if _names(run, model, version)}

    def follow_next(self, model: str, version: int, *, within_s: float = 120.0) -> Followed:
        """Follow the next release run of this version that has not been followed yet.

        Raises:
            DeadlineExceeded: None began in time.
        """
        self.remember_known()
        started = monotonic()
        while True:
            fresh = self._patient(lambda: self.releases_of(model, version)) - (self._known or set())
            if fresh:
                return self.follow(model, max(fresh))
            if monotonic() - started > within_s:
                raise DeadlineExceeded(
                    f"no release of {model} version {version} began within {within_s:.0f} s; "
                    f"look at the runs of {RECONCILE_DAG} in Airflow",
                    waited_s=within_s,
                    last="no run",
                )
            sleep(EVERY_S)

    def follow(self, model: str, run_id: str) -> Followed:
        """Show a release run until it ends, and return how it ended."""
        self.remember_known().add(run_id)
        shown: dict[str, str] = {}
        with self._screen() as show:
            while True:
                run = self._patient(lambda: self._backend.runs.run(RELEASE_DAG, run_id))
                tasks = {t.task_id: t for t in self._patient(lambda: self._backend.runs.tasks(RELEASE_DAG, run_id))}
                show(tasks, shown, self._detail(model, tasks))
                if run.ended:
                    return self._followed(model, run, tasks)
                sleep(EVERY_S)

    def _followed(self, model: str, run: "DagRun", tasks: Mapping[str, "TaskRun"]) -> Followed:
        release = release_id(run.run_id, datetime.fromisoformat(run.run_after))
        try:
            kept = self._backend.ledger.read(record_key(slug(model), release, "release")) or {}
        except BackendUnavailable as error:
            kept = {"reason": f"the ledger cannot be read ({error.message})"}
        return Followed(
            run_id=run.run_id,
            release=release,
            outcome=kept.get("outcome", "failed"),
            reason=str(kept.get("reason") or "nothing was recorded; look at the task `record` in Airflow"),
            report=str(kept.get("report") or ""),
            steps=tuple(
                FollowedStep(name, _seconds(tasks[name]), WORDS.get(tasks[name].state, str(tasks[name].state)))
                for name in STEPS
                if name in tasks
            ),
        )

    def _detail(self, model: str, tasks: Mapping[str, "TaskRun"]) -> Mapping[str, str]:
        """Say what the long step is doing; only decoration, so an error of the cluster or gateway shows nothing."""
        try:
            route = self._backend.traffic.route(model)
            if _at_work(tasks.get("rollout")):
                serving = {b.cluster for b in (route.stable, route.previous) if b}
                starting = [c for c in self._backend.clusters.list(model) if c.name not in serving]
                return {"rollout": "; ".join(f"{c.name} {c.phase} {c.reason}".strip() for c in starting)}
            if _at_work(tasks.get("shift")):
                return {"shift": f"{route.split.candidate_pct} % of the traffic on the candidate"}
        except HeadwayError:
            return {}
        return {}

    def _screen(self) -> AbstractContextManager[Callable[..., None]]:
        if not self._console.is_terminal:
            return nullcontext(self._lines)
        return _LiveTable(self._console)

    def _lines(self, tasks: Mapping[str, "TaskRun"], shown: dict[str, str], detail: Mapping[str, str]) -> None:
        for name in STEPS:
            task = tasks.get(name)
            word = WORDS.get(task.state, str(task.state)) if task else "waits"
            if task is None or word == "waits" or shown.get(name) == word:
                continue
            shown[name] = word
            took = f" ({format_seconds(_seconds(task))})" if task.ended_at and word in ("done", "failed") else ""
            self._console.print(f"  {name:<9} {word}{took}", highlight=False)

    def _patient(self, ask: Callable[[], Any]) -> Any:
        """Ask Airflow, which may be restarting."""
        started = monotonic()
        while True:
            try:
                return ask()
            except BackendUnavailable:
                if monotonic() - started > AWAY_S:
                    raise
                sleep(EVERY_S)

    def remember_known(self) -> set[str]:
        """Return the release runs that are not new: those there at the first call, and those followed since."""
        if self._known is None:
            self._known = {run.run_id for run in self._backend.runs.recent(RELEASE_DAG)}
        return self._known


class _LiveTable:
    """A table that is drawn over."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Callable[..., None]:
        self._live.__enter__()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _show(self, tasks: Mapping[str, "TaskRun"], shown: dict[str, str], detail: Mapping[str, str]) -> None:
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name in STEPS:
            task = tasks.get(name)
            word = WORDS.get(task.state, str(task.state)) if task else "waits"
            at_work = task is not None and task.started_at and word not in ("not needed", "not reached")
            took = format_seconds(_seconds(task)) if task and at_work else ""
            colour = COLOURS.get(word, "dim")
            table.add_row(name, f"[{colour}]{word}[/]", took, escape(detail.get(name, "")))
        self._live.update(table)


def _names(run: "DagRun", model: str, version: int) -> bool:
    return run.conf.get("model") == model and str(run.conf.get("version")) == str(version)


def _at_work(task: "TaskRun | None") -> bool:
    return task is not None and task.state in ("running", "deferred")


def _seconds(task: "TaskRun") -> float:
    if not task.started_at:
        return 0.0
    end = datetime.fromisoformat(task.ended_at) if task.ended_at else utcnow()
    return max(0.0, (end - datetime.fromisoformat(task.started_at)).total_seconds())
