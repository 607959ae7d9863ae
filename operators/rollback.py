"""The way back, as a task."""

from collections.abc import Collection
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.timezone import utcnow

from headway.domain.value import slug
from headway.errors import ConfigError
from headway.release import rollback
from operators.base import RETRIES, RETRY_DELAY, release_of
from operators.errors import translated
from operators.hook import HeadwayHook


class RollbackOperator(BaseOperator):
    """Gives all traffic of a model back to what had it before, and remembers that the version was taken back."""

    template_fields: Collection[str] = ("model",)
    ui_color = "#f3dfdf"

    def __init__(self, *, model: str, **kwargs: Any) -> None:
        """Keep the arguments.

        Args:
            model: Template of the model's name.
            kwargs: Airflow's own.
        """
        super().__init__(**{"retries": RETRIES, "retry_delay": RETRY_DELAY, **kwargs})
        self.model = model

    def execute(self, context: Context) -> Any:
        """Go back once, however often the task is tried."""
        with translated():
            if not self.model:
                raise ConfigError("no model was named; fill in `model`")
            backend = HeadwayHook().backend
            # Decided once and kept: a second try that decided again would go back from where it just went to.
            key = f"rollbacks/{slug(self.model)}/{release_of(context)}.json"
            plan = rollback.decide(self.model, backend.traffic) if backend.ledger.read(key) is None else None
            kept = backend.ledger.append(key, plan.to_json()) if plan else backend.ledger.read(key)
            outcome = rollback.run(rollback.Rollback.model_validate(kept), backend.traffic, backend.clusters)
            rollback.remember(outcome, backend.registry, utcnow())
        if outcome.warning:
            self.log.warning(outcome.warning)
        self.log.info("version %s serves %s", outcome.back.version, self.model)
        return {"version": outcome.back.version, "taken_back": outcome.leave.version}
