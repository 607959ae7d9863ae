"""Step 9: the release ends, whatever happened: traffic first, then what is remembered of it."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from pydantic import ValidationError

from headway.domain.release import FINAL_OUTCOMES, Outcome, ReleasePlan, ReleaseRef, StepRecord, Verdict, record_key
from headway.domain.value import Value, slug
from headway.errors import IntegrityError, Refused
from headway.ports import Clusters, Ledger, Registry, Traffic

STATE_TAG = "headway.state"
"""JSON: for each cluster digest, how its last release of this version ended (design rule 13.2)."""
RELEASE_TAG = "headway.release"
REASON_TAG = "headway.reason"
REPORT_TAG = "headway.report"
ERROR_OUTCOMES: Mapping[str, Outcome] = {
    "ModelRejected": "rejected",
    "QualityRejected": "rejected",
    "PlanInfeasible": "rejected",
    "ConfigError": "rejected",
    "IntegrityError": "rejected",
    "Declined": "rejected",
    "CanaryFailed": "rolled_back",
}
"""What an error of a step makes of the release; any other error is `failed` and may be tried again by itself."""


MAX_KEPT = 20
"""Pairs kept on a version, newest first; older ones are in the ledger."""


class VersionState(Value):
    """How the last release of one pair of version and cluster digest ended."""

    outcome: Outcome
    release: str
    at: str
    """UTC time, ISO 8601."""
    reason: str = ""


class Ending(Value):
    """How a release ended and why."""

    outcome: Outcome
    reason: str

    @property
    def final(self) -> bool:
        """Whether only a person may release this pair again (design rule 13.2)."""
        return self.outcome in FINAL_OUTCOMES


def ending(steps: Sequence[StepRecord], verdict: Verdict | None, *, promoted: bool) -> Ending:
    """Decide how the release ended, from the world first and the records second.

    Args:
        steps: Records of the steps, in order; a failed one carries the error's name as its outcome.
        verdict: Of the canary, if it came so far.
        promoted: Whether the gateway has the candidate as stable.
    """
    if promoted:
        return Ending(outcome="promoted", reason=verdict.sentence if verdict else "it serves all the traffic")
    failed = [step for step in steps if step.outcome != "done"]
    if failed:
        last = failed[-1]
        return Ending(
            outcome=ERROR_OUTCOMES.get(last.outcome, "failed"),
            reason=str(last.detail.get("message") or f"step {last.step} ended with {last.outcome}"),
        )
    if verdict is not None and verdict.decision == "ROLLBACK":
        return Ending(outcome="rolled_back", reason=verdict.sentence)
    if verdict is not None and verdict.decision == "HOLD":
        return Ending(outcome="held", reason=verdict.sentence)
    return Ending(outcome="failed", reason="the release was stopped before it came to a verdict")


def settle_traffic(
    model: str, cluster: str | None, end: Ending, *, traffic: Traffic, clusters: Clusters, hold_s: float, now: datetime
) -> bool:
    """Leave the gateway and the clusters as the ending asks, without S3, MLflow or Airflow.

    Promoted: nothing to do. Held: the candidate stays up with none of the traffic for `hold_s`. Otherwise stable has
    all the traffic and the candidate is gone.

    Returns:
        Whether anything had to change.
    """
    if cluster is None or end.outcome == "promoted":
        return False
    route = traffic.route(model)
    ours = route.candidate is not None and route.candidate.cluster == cluster
    serving = {b.cluster for b in (route.stable, route.previous) if b is not None}
    if end.outcome == "held" and ours:
        until = (now + timedelta(seconds=hold_s)).isoformat()
        traffic.shift(route.model_copy(update={"candidate_pct": 0, "candidate_pct_since": None, "hold_until": until}))
        return True
    if ours:
        traffic.shift(
            route.model_copy(
                update={"candidate": None, "candidate_pct": 0, "candidate_pct_since": None, "hold_until": None}
            )
        )
    if cluster not in serving:
        clusters.delete(cluster)
    return ours


def remember(
    ref: ReleaseRef,
    plan: ReleasePlan | None,
    end: Ending,
    *,
    registry: Registry,
    ledger: Ledger,
    metrics: Mapping[str, float],
    report_html: bytes,
    started_at: datetime,
    now: datetime,
) -> str:
    """Keep the ending in the registry and the ledger; return the report's web address.

    The tag `headway.state` remembers the ending per cluster digest, so that an alias which still points at a refused
    version does not bring it back. It comes first: a report that the registry refuses must not cost the memory.
    """
    state = VersionState(outcome=end.outcome, release=ref.release, at=now.isoformat(), reason=end.reason)
    remember_state(registry, ref.model, ref.version, state_key(ref, plan), state)
    registry.tag(ref.model, ref.version, RELEASE_TAG, ref.release)
    registry.tag(ref.model, ref.version, REASON_TAG, end.reason)
    address = _report(ref, registry, metrics, report_html)
    ledger.append(
        record_key(slug(ref.model), ref.release, "release"),
        {
            "schema_version": 1,
            "release": ref.release,
            "model": ref.model,
            "version": ref.version,
            "source_digest": ref.source_digest,
            "plan_digest": plan.plan_digest if plan else None,
            "artifact_digest": plan.artifact_digest if plan else None,
            "cluster_digest": plan.cluster_digest if plan else None,
            "outcome": end.outcome,
            "reason": end.reason,
            "report": address,
            "started_at": started_at.isoformat(),
            "ended_at": now.isoformat(),
        },
    )
    return address


def _report(ref: ReleaseRef, registry: Registry, metrics: Mapping[str, float], report_html: bytes) -> str:
    """Keep the report and return its address; one that the registry refuses for good is named in its place."""
    try:
        address = registry.log_report(ref.model, ref.version, ref.release, metrics, {"report.html": report_html})
    except Refused as error:
        return f"not kept: {error.message}"
    registry.tag(ref.model, ref.version, REPORT_TAG, address)
    return address


def state_key(ref: ReleaseRef, plan: ReleasePlan | None) -> str:
    """Return under which key the ending is remembered: the cluster digest, or the source's when there was no plan."""
    return plan.cluster_digest if plan else f"source:{ref.source_digest}"


def read_state(tags: Mapping[str, str]) -> dict[str, VersionState]:
    """Return the remembered endings of a version by key.

    Raises:
        IntegrityError: Somebody edited the tag; reading it as empty would release a refused model again.
    """
    try:
        return {
            key: VersionState.model_validate(state) for key, state in json.loads(tags.get(STATE_TAG) or "{}").items()
        }
    except (ValueError, AttributeError, ValidationError) as error:
        raise IntegrityError(
            f"tag {STATE_TAG} is not what headway wrote there; delete the tag to let the version be released again",
            tag=STATE_TAG,
        ) from error


def remember_state(registry: Registry, model: str, version: int, key: str, state: VersionState) -> None:
    """Keep one ending on the version. The caller holds the model's lease, so nobody writes in between."""
    merged = {**read_state(registry.tags(model, version)), key: state}
    newest = sorted(merged, key=lambda k: merged[k].at, reverse=True)[:MAX_KEPT]
    registry.tag(
        model, version, STATE_TAG, json.dumps({k: merged[k].to_json() for k in sorted(newest)}, sort_keys=True)
    )
