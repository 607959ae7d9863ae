"""The human gate between canary and shift."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from headway.domain.release import Verdict
from headway.domain.value import Value
from headway.errors import Declined, IntegrityError
from operators.base import RETRIES, RETRY_DELAY, OpenRelease, open_release
from operators.lease import TTL_S

YES, NO = "Approve", "Reject"
ANSWER_WITHIN = timedelta(hours=12)
"""No answer means no: a candidate must not wait for ever beside stable, and the measurement grows old."""


ANSWER = "answer"
"""Record of what a person answered."""


class Approval(Value):
    """What the gate let through, and why."""

    asked: bool
    approved: bool = True
    by: str = ""


class ApproveOperator(HITLOperator):
    """Lets a promoted candidate through, after asking a person where profile or form want that.

    A held release ends here: there is nothing to approve, and the traffic stays where it is.
    """

    step: ClassVar[str] = "approve"
    template_fields: Collection[str] = ("model", "ref", "skip", "subject", "body")
    ui_color = "#f3ecdf"

    def __init__(self, *, model: str, ref: Any = None, skip: bool | str = False, **kwargs: Any) -> None:
        """Keep the arguments.

        Args:
            model: Template of the model's name.
            ref: The `ReleaseRef` that `select` returned, as JSON.
            skip: Whether not to ask even if the profile wants it.
            kwargs: Airflow's own.
        """
        defaults = {"retries": RETRIES, "retry_delay": RETRY_DELAY, "response_timeout": ANSWER_WITHIN}
        super().__init__(
            subject="Promote {{ params.model }}?", options=[YES, NO], defaults=NO, **{**defaults, **kwargs}
        )
        self.model = model
        self.ref = ref
        self.skip = skip

    def execute(self, context: Context) -> Any:
        """Ask, or go on."""
        # While nobody answers no trigger renews the lease, so it is taken for the whole time.
        ttl_s = (self.response_timeout or ANSWER_WITHIN).total_seconds() + TTL_S
        with open_release(self.step, self.model, self.ref, context, ttl_s=ttl_s) as release:
            verdict = _verdict(release)
            if verdict.decision != "PROMOTE":
                raise AirflowSkipException(f"{verdict.decision}: {verdict.sentence}")
            if str(self.skip).lower() == "true" or not release.plan.profile.shift.approve:
                release.keep(Approval(asked=False))
                return self.ref
            answered = release.recall(ANSWER, Approval)
            if answered is not None:
                _obey(release, answered)
                return self.ref
            self.subject = f"Promote {release.model} version {release.sure_ref.version}?"
            self.body = _table(release, verdict)
            super().execute(context)
        return self.ref

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the answer."""
        with open_release(self.step, self.model, self.ref, context) as release:
            answer = super().execute_complete(context, event)
            who = str((answer.get("responded_by_user") or {}).get("name") or "")
            approved = answer["chosen_options"] == [YES]
            # Kept before it is obeyed: an answer within seconds of the question finds Airflow 3.3.2 in a race that
            # costs the task a try, and nobody should have to answer twice.
            _obey(release, release.keep(Approval(asked=True, approved=approved, by=who), ANSWER))
        return self.ref


def _obey(release: OpenRelease, answer: Approval) -> None:
    if not answer.approved:
        raise Declined(
            f"{answer.by} declined the promotion" if answer.by else "nobody approved in time, which means no"
        )
    release.keep(answer)


def _verdict(release: OpenRelease) -> Verdict:
    verdict = release.recall("canary", Verdict)
    if verdict is None:
        raise IntegrityError(f"release {release.release} has no verdict; start a new release instead of clearing tasks")
    return verdict


def _table(release: OpenRelease, verdict: Verdict) -> str:
    """Show what a person decides by, as Markdown."""

    def number(value: float | None, unit: str) -> str:
        return "" if value is None else f"{value:.4g} {unit}"

    lines = [verdict.sentence, ""]
    if verdict.effects:
        lines += ["| metric | stable | candidate | ratio | |", "|---|---|---|---|---|"]
        for e in verdict.effects:
            ratio = "" if e.ratio is None else f"{e.ratio:.3f} ({number(e.ratio_low, '')}to {number(e.ratio_high, '')})"
            sides = f"{number(e.stable, e.unit)} | {number(e.candidate, e.unit)}"
            lines.append(f"| {e.metric} | {sides} | {ratio} | {e.verdict} |")
    lines += ["", *[f"- {'ok' if c.passed else 'NOT OK'}: {c.sentence}" for c in verdict.checks]]
    lines += ["", f"Release `{release.release}`, plan `{release.plan.cluster_digest[:12]}`."]
    return "\n".join(lines)
