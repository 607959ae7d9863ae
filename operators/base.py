"""What every step of a release shares: the ports, the lease, the records, the errors and the waiting.

A task carries only a `ReleaseRef`. Everything else is read again from where it lives, so a retried, cleared or
resumed task finds what the first try made.
"""

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.timezone import utcnow
from airflow.triggers.base import BaseTrigger

from headway.domain.release import (
    ReleasePlan,
    ReleaseRef,
    StepRecord,
    record_key,
    release_id,
)
from headway.domain.value import Value, slug
from headway.errors import ConfigError, DeadlineExceeded, HeadwayError, IntegrityError
from headway.release.recall import DONE, error_key, in_force
from operators.errors import translated
from operators.hook import HeadwayHook
from operators.lease import TTL_S, keep_lease
from operators.triggers import FIRST_LOOK_S
from operators.waiting import EVERY_S, INLINE_S, poll

if TYPE_CHECKING:
    from operators.hook import Backend

log = logging.getLogger(__name__)
Kind = TypeVar("Kind", bound=Value)

RETRIES = 3
RETRY_DELAY = timedelta(seconds=20)
"""A restart of MLflow or S3 takes about 10 s; three times 20 s also survive a slow one."""


@dataclass(frozen=True)
class OpenRelease:
    """One release as one task sees it."""

    backend: "Backend"
    model: str
    release: str
    holder: str
    """Who holds the lease: the id of the DAG run."""
    step: str
    try_number: int = 1
    started_at: datetime = field(default_factory=utcnow)
    ref: ReleaseRef | None = None

    def key(self, name: str) -> str:
        """Return the ledger key of one record of this release."""
        return record_key(slug(self.model), self.release, name)

    @cached_property
    def plan(self) -> ReleasePlan:
        """The frozen plan, after a race the winner's. Raises IntegrityError if the step `plan` left none."""
        plan = self.recall("plan", ReleasePlan)
        if plan is None:
            raise IntegrityError(f"release {self.release} has no plan; start a new release instead of clearing tasks")
        record = self.backend.ledger.read(self.key("quantize")) if plan.contenders else None
        return in_force(plan, record["detail"] if record else None)

    @property
    def sure_ref(self) -> ReleaseRef:
        """The reference; raises IntegrityError where select never answered."""
        if self.ref is None:
            raise IntegrityError(f"release {self.release} selected nothing; start a new release")
        return self.ref

    def recall(self, step: str, kind: type[Kind]) -> Kind | None:
        """Return the value that a step of this release recorded, none if it has not ended well."""
        record = self.backend.ledger.read(self.key(step))
        return kind.model_validate(record["detail"]) if record else None

    def keep(self, value: Kind, step: str | None = None) -> Kind:
        """Record the step's value unless an earlier try did; return the one that is kept."""
        record = StepRecord(
            release=self.release,
            step=step or self.step,
            started_at=self.started_at.isoformat(),
            ended_at=utcnow().isoformat(),
            outcome=DONE,
            detail=value.to_json(),
        )
        kept = self.backend.ledger.append(self.key(record.step), record.to_json())
        return type(value).model_validate(kept["detail"])

    def keep_error(self, error: HeadwayError) -> None:
        """Record why the step failed, one record a try; a ledger that is away must not hide the error itself."""
        record = StepRecord(
            release=self.release,
            step=self.step,
            started_at=self.started_at.isoformat(),
            ended_at=utcnow().isoformat(),
            outcome=type(error).__name__,
            detail={"message": error.message, "facts": error.facts},
        )
        try:
            self.backend.ledger.append(
                error_key(self.model, self.release, self.step, self.try_number), record.to_json()
            )
        except HeadwayError as second:
            log.warning("could not record the error of step %s: %s", self.step, second.message)


def release_of(context: Context) -> str:
    """Return the id of the release that this run makes."""
    run = context["dag_run"]
    return release_id(str(run.run_id), run.run_after, getattr(run, "clear_number", 0) or 0)


@contextmanager
def open_release(
    step: str,
    model: str,
    ref: Any,
    context: Context,
    started_at: datetime | None = None,
    *,
    ttl_s: float | None = TTL_S,
) -> Iterator[OpenRelease]:
    """Give one release to one step, with its lease renewed; errors are recorded and translated.

    Args:
        step: Name of the step; names its record.
        model: Name of the model.
        ref: The `ReleaseRef` that `select` returned, as JSON; none before.
        context: Airflow's.
        started_at: When the step began, if it was deferred since.
        ttl_s: Seconds for which to renew the lease; none to leave it.
    """
    with translated():
        if not model:
            raise ConfigError("no model was named; fill in `model`")
        found = ReleaseRef.model_validate(ref) if ref else None
        release = OpenRelease(
            backend=HeadwayHook().backend,
            model=model,
            release=found.release if found else release_of(context),
            holder=str(context["dag_run"].run_id),
            step=step,
            try_number=context["ti"].try_number,
            started_at=started_at or utcnow(),
            ref=found,
        )
    with translated(release.keep_error):
        if found is not None and ttl_s is not None:
            keep_lease(release.backend, model, release.holder, utcnow(), ttl_s)
        yield release


class ReleaseOperator(BaseOperator):
    """One step of a release that ends at once.

    A subclass names its `step` and says in `work` what it does; the answer is recorded, the reference goes on.
    """

    step: ClassVar[str]
    template_fields: Collection[str] = ("model", "ref")
    ui_color = "#dfe9f3"

    def __init__(self, *, model: str, ref: Any = None, **kwargs: Any) -> None:
        """Keep the arguments; nothing is opened before `execute`.

        Args:
            model: Template of the model's name.
            ref: The `ReleaseRef` that `select` returned, as JSON.
            kwargs: Airflow's own.
        """
        kwargs = {"retries": RETRIES, "retry_delay": RETRY_DELAY, **kwargs}
        super().__init__(**kwargs)
        self.model = model
        self.ref = ref

    def execute(self, context: Context) -> Any:
        """Do the step."""
        with self.opened(context) as release:
            self.work(release)
        return self.ref

    def work(self, release: OpenRelease) -> None:
        """Do what the step is for, and keep the answer."""
        raise NotImplementedError

    @contextmanager
    def opened(self, context: Context, started_at: datetime | None = None) -> Iterator[OpenRelease]:
        """Give the release with its lease renewed; errors are recorded and translated."""
        with open_release(self.step, self.model, self.ref, context, started_at) as release:
            yield release


class WaitingOperator(ReleaseOperator):
    """One step of a release that may take long: begin, wait, finish.

    What ends within half a minute is waited for in the task; the rest is deferred. After a deferral the world is
    looked at again; what the trigger saw decides nothing.
    """

    every_s: ClassVar[float] = EVERY_S
    late_hint: ClassVar[str] = "raise its limit under `deadlines` in the profile if the machine is just slow"

    def work(self, release: OpenRelease) -> None:
        """Begin, or adopt what an earlier try began, and wait for it."""
        self.go_on(release, self.begin(release))

    def resume(self, context: Context, event: dict[str, Any] | None = None, *, subject: str, started_at: str) -> Any:
        """Go on after a deferral."""
        with self.opened(context, datetime.fromisoformat(started_at)) as release:
            self.seen(event or {})
            self.go_on(release, subject)
        return self.ref

    def go_on(self, release: OpenRelease, subject: str) -> None:
        """Finish if the work has ended; otherwise wait a little, then defer."""
        if poll(lambda: self.ended(release, subject), bool, within_s=self.inline_s(release), every_s=self.every_s):
            self.finish(release, subject)
            return
        deadline = release.started_at + timedelta(seconds=self.deadline_s(release))
        if utcnow() >= deadline:
            last = self.abandon(release, subject)
            waited_s = (utcnow() - release.started_at).total_seconds()
            raise DeadlineExceeded(
                f"{self.step} of {release.model} took longer than {self.deadline_s(release):.0f} s ({last}); "
                f"{self.late_hint}",
                waited_s=waited_s,
                last=last,
            )
        self.defer(
            trigger=self.trigger(
                release, subject, deadline=deadline.isoformat(), model=release.model, holder=release.holder
            ),
            method_name="resume",
            kwargs={"subject": subject, "started_at": release.started_at.isoformat()},
            # The trigger's own deadline comes first: when Airflow's does, nobody is told and nothing is cancelled.
            timeout=deadline - utcnow() + timedelta(seconds=20 * FIRST_LOOK_S),
        )

    def inline_s(self, release: OpenRelease) -> float:
        """Return how many seconds to wait in place before deferring."""
        return INLINE_S

    def seen(self, event: dict[str, Any]) -> None:
        """React to what only the trigger could see. Most steps have nothing of the kind."""

    @abstractmethod
    def begin(self, release: OpenRelease) -> str:
        """Start the work or adopt it; return the name under which it is found again."""

    @abstractmethod
    def ended(self, release: OpenRelease, subject: str) -> bool:
        """Tell whether waiting longer changes nothing."""

    @abstractmethod
    def finish(self, release: OpenRelease, subject: str) -> None:
        """Check what came of it, and keep the answer."""

    @abstractmethod
    def deadline_s(self, release: OpenRelease) -> float:
        """Return how long the step may take in seconds."""

    @abstractmethod
    def abandon(self, release: OpenRelease, subject: str) -> str:
        """End the work that is late; return what was seen last, in words."""

    @abstractmethod
    def trigger(self, release: OpenRelease, subject: str, **common: Any) -> BaseTrigger:
        """Return what watches the work meanwhile."""
