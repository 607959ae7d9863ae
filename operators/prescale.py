"""Pre-scaling, as a task: one tick for all models, each planned where it can cost the others nothing."""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.timezone import utcnow

from headway.domain.prescaling import EVERY_S, Tick, plan_key, read_tick
from headway.domain.profile import Profile
from headway.errors import Conflict, HeadwayError, IntegrityError
from operators.base import RETRIES, RETRY_DELAY
from operators.errors import translated
from operators.hook import HeadwayHook
from operators.workers import Answer, Workers

if TYPE_CHECKING:
    from operators.hook import Backend

LEASE = "prescale: all models"
"""No model can have this name for its own lease."""
EACH_S = 60.0
"""A tick of one model takes well under two seconds; what takes a minute hangs."""
ALL_S = EVERY_S - 120.0
"""What is not done by then is left to the next run, which must not find this one at work."""
TTL_S = EVERY_S - 60.0
"""A run that was killed must not keep the next one out."""
MOST_WORKERS = 4
"""Each holds some 350 MiB."""
MODELS_A_WORKER = 20
"""Below that, starting another worker takes longer than what it would do."""
TOLD = 10
"""Models that are named in the error of a run; all are in its log."""
ACTIVE = ("forecast", "reactive", "shadow")


class PrescaleOperator(BaseOperator):
    """Plans every model that asks for it.

    A model that cannot be planned costs the others nothing: its floor holds, and the run fails with its reason when
    all are done.
    """

    ui_color = "#f3eddf"

    worker: ClassVar[Sequence[str]] = (sys.executable, "-m", "headway.cli.ticks")
    """The command that plans; tests put another one here."""
    each_s: ClassVar[float] = EACH_S

    def __init__(self, **kwargs: Any) -> None:
        """Keep Airflow's own arguments. Retried: a task that starts before the store is up fails."""
        super().__init__(**{"retries": RETRIES, "retry_delay": RETRY_DELAY, **kwargs})

    def execute(self, context: Context) -> Any:
        """Plan all models under one lease; a second tick at the same time says so and changes nothing."""
        with translated():
            backend = HeadwayHook().backend
            profiles, faults = backend.sound_profiles()
            holder = str(context["dag_run"].run_id)
            try:
                backend.lease.acquire(LEASE, holder, TTL_S, utcnow())
            except Conflict as error:
                self.log.warning("another tick is at work, so this one changes nothing: %s", error.message)
                return {"skipped": error.message}
            try:
                due = {model: profile for model, profile in profiles.items() if _is_due(backend, profile)}
                told = self.plan_all(due, utcnow())
                # A profile that cannot be read is no profile that is gone.
                left = [] if faults else _let_go(backend, profiles)
            finally:
                backend.lease.release(LEASE, holder, utcnow())
        return self.told(told, [*faults, *left])

    def plan_all(self, profiles: Mapping[str, Profile], now: datetime) -> Iterable[Answer]:
        """Plan the models in processes of their own."""
        orders = {
            model: {"profile": profiles[model].to_json(), "at": now.isoformat()}
            # Not always in one order: what was not reached today must be reached next time.
            for model in random.sample(sorted(profiles), len(profiles))
        }
        count = min(os.cpu_count() or 1, MOST_WORKERS, 1 + len(orders) // MODELS_A_WORKER)
        workers = Workers(self.worker, count=count, each_s=self.each_s, all_s=ALL_S)
        return list(workers.answers(orders))

    def told(self, answers: Iterable[Answer], faults: Sequence[str]) -> dict[str, Any]:
        """Log what came of each model; fail if any could not be planned as it should."""
        failed = list(faults)
        modes: Counter[str] = Counter()
        for answer in answers:
            fault = answer.fault or (answer.body or {}).get("fault")
            if fault:
                failed.append(f"{answer.name}: {fault}")
                continue
            made = Tick.model_validate((answer.body or {})["tick"])
            modes[made.mode] += 1
            self.log.info(
                "%s: floor %d (%s, %s), %d running, load %s; %s",
                made.model, made.floor, made.mode, made.by, made.running, made.load, " ".join(made.reasons),
            )  # fmt: skip
            for problem in made.problems:
                self.log.warning("%s: %s", made.model, problem)
            if made.load is None and made.mode in ACTIVE:
                failed.append(f"{made.model}: {' '.join(made.problems)} The floor is {made.floor}.")
        if failed:
            for line in failed:
                self.log.error(line)
            more = f"; and {len(failed) - TOLD} more, see the log" if len(failed) > TOLD else ""
            raise AirflowFailException("; ".join(failed[:TOLD]) + more)
        return dict(modes)


def _let_go(backend: "Backend", profiles: Mapping[str, Profile]) -> list[str]:
    """Give back room that is held for models that nobody plans any more; return what went wrong."""
    if backend.warm is None:
        return []
    planned = {model for model, profile in profiles.items() if profile.prescale.enabled}
    try:
        for held in backend.warm.held():
            if held.model not in planned:
                backend.warm.hold(held.model, held.accelerator, held.per_replica, 0)
    except HeadwayError as error:
        return [f"the room that is held for models that nobody plans could not be given back: {error.message}"]
    return []


def _is_due(backend: "Backend", profile: Profile) -> bool:
    """Whether a model is planned, or was until its profile was changed: then its floor has to be given back."""
    if profile.prescale.enabled:
        return True
    try:
        last = read_tick(backend.objects.read(plan_key(profile.model)), profile.model)
    except IntegrityError:
        return True
    return last is not None and last.mode != "off"
