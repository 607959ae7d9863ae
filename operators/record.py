"""The last task, which runs whatever happened: it leaves the world in order and tells how the release ended."""

import html
import logging
from datetime import datetime
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.timezone import utcnow

from headway.domain.release import ReleasePlan, ReleaseRef
from headway.domain.value import slug
from headway.errors import BackendUnavailable, HeadwayError, Refused
from headway.release import canary, recall, record, report, shift
from operators.base import OpenRelease, ReleaseOperator, open_release
from operators.lease import keep_lease
from operators.links import ReportLink

log = logging.getLogger(__name__)


class RecordOperator(ReleaseOperator):
    """Puts traffic and clusters in order first, needing neither S3 nor MLflow for that; then keeps what happened.

    The task succeeds only for a promoted release, so that the run's state tells the truth: success means that the
    version has all the traffic. Rejected, rolled back and failed releases fail with their reason. A held one fails
    too, because it waits for a person and nobody looks for those among the green.
    """

    step = "record"
    operator_extra_links = (ReportLink(),)
    report_url: str = ""

    fails_unless: ClassVar[str] = "promoted"

    def execute(self, context: Context) -> Any:
        """End the release."""
        # Not through the lease: after it was lost, the route tells what is still ours, and that is left in order.
        with open_release(self.step, self.model, self.ref, context, ttl_s=None) as release:
            _skip_stale(release)
            end = self.end(release)
        if end.outcome != self.fails_unless:
            raise AirflowFailException(f"{end.outcome}: {end.reason}")
        return self.ref

    def end(self, release: OpenRelease) -> record.Ending:
        """Traffic first, then what is remembered of it, then the lease."""
        ours = _still_ours(release)
        try:
            end = self._settle(release, ours=ours)
        except HeadwayError as error:
            # A retry goes on under the lease. Without one nobody needs it, and it would keep the next release out.
            if ours and not error.retryable:
                release.backend.lease.release(slug(release.model), release.holder, utcnow())
            raise
        if ours:
            release.backend.lease.release(slug(release.model), release.holder, utcnow())
        return end

    def _settle(self, release: OpenRelease, *, ours: bool) -> record.Ending:
        try:
            story = recall.story(release.backend.ledger, release.model, release.release)
        except BackendUnavailable:
            # Nobody can say how it went, so the candidate must not keep its share until somebody can.
            if ours:
                _unshare(release)
            raise
        plan = story.plan
        end = record.ending(story.steps, story.verdict, promoted=_promoted(release, plan))
        if ours:
            hold_s = plan.profile.hold_s if plan else 0.0
            record.settle_traffic(
                release.model,
                plan.cluster.name if plan else None,
                end,
                traffic=release.backend.traffic,
                clusters=release.backend.clusters,
                hold_s=hold_s,
                now=utcnow(),
            )
        if story.ref is not None:
            end = _taken_back_meanwhile(release, story.ref, plan, end)
            self.report_url = _remember(release, story.ref, story, end)
        else:
            _remember_unselected(release, end)
        return end


def _remember(release: OpenRelease, ref: ReleaseRef, story: recall.Story, end: record.Ending) -> str:
    """Keep the ending with its report, and return the report's address."""
    now = utcnow()
    page, metrics = _report(release, ref, story, end, now)
    return record.remember(
        ref,
        story.plan,
        end,
        registry=release.backend.registry,
        ledger=release.backend.ledger,
        metrics=metrics,
        report_html=page,
        started_at=datetime.fromisoformat(story.steps[0].started_at) if story.steps else release.started_at,
        now=now,
    )


def _report(
    release: OpenRelease, ref: ReleaseRef, story: recall.Story, end: record.Ending, now: datetime
) -> tuple[bytes, dict[str, float]]:
    """Draw the report. A page that cannot be drawn must not cost the verdict its memory."""
    records = canary.read_records(story.verdict, release.backend.weights)
    try:
        return report.render(ref, story.plan, story.steps, story.verdict, end, now=now, records=records)
    except Exception:  # whatever drawing stumbles over, the ending is worth more
        log.exception("the report of %s could not be drawn", release.release)
        text = f"{ref.model} version {ref.version}: {end.outcome}. {end.reason}\nThe report could not be drawn; "
        return f"<pre>{html.escape(text)}see the log of the task record.</pre>".encode(), {}


def _skip_stale(release: OpenRelease) -> None:
    """End as `select` did if it found that nobody wants this release any more: it touched nothing but the lease."""
    stale = None if release.ref else release.backend.ledger.read(release.key(recall.STALE))
    if stale is not None:
        release.backend.lease.release(slug(release.model), release.holder, utcnow())
        raise AirflowSkipException(stale["reason"])


def _still_ours(release: OpenRelease) -> bool:
    """Tell whether traffic and clusters are this release's to change.

    A lease that cannot be read does not stop the way back: the route itself names the candidate's release.
    """
    try:
        keep_lease(release.backend, release.model, release.holder, utcnow())
    except Refused:
        return False
    except BackendUnavailable:
        candidate = release.backend.traffic.route(release.model).candidate
        return candidate is not None and candidate.release == release.release
    return True


def _promoted(release: OpenRelease, plan: ReleasePlan | None) -> bool:
    stable = release.backend.traffic.route(release.model).stable
    return plan is not None and stable is not None and stable.cluster_digest == plan.cluster_digest


def _unshare(release: OpenRelease) -> None:
    route = release.backend.traffic.route(release.model)
    if route.stable is not None and route.candidate_pct > 0:
        release.backend.traffic.shift(shift.moved(route, 0, utcnow()))


def _taken_back_meanwhile(
    release: OpenRelease, ref: ReleaseRef, plan: ReleasePlan | None, end: record.Ending
) -> record.Ending:
    """A rollback by a person during the release is the verdict, whatever the interrupted steps made of it."""
    if plan is None or end.outcome != "failed":
        return end
    state = record.read_state(release.backend.registry.tags(ref.model, ref.version)).get(plan.cluster_digest)
    if state and state.outcome == "rolled_back" and state.release == release.release:
        return record.Ending(outcome="rolled_back", reason=state.reason)
    return end


def _remember_unselected(release: OpenRelease, end: record.Ending) -> None:
    """Keep that a release ended before it had a version; there is no version to tag."""
    now = utcnow().isoformat()
    release.backend.ledger.append(
        release.key("release"),
        {
            "schema_version": 1,
            "release": release.release,
            "model": release.model,
            "version": None,
            "outcome": end.outcome,
            "reason": end.reason,
            "started_at": release.started_at.isoformat(),
            "ended_at": now,
        },
    )
