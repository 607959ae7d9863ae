"""The way back: all traffic to the cluster that had it before, in one change of the split."""

from datetime import datetime

from headway.domain.traffic import Backend
from headway.domain.value import Value
from headway.errors import Conflict, Refused
from headway.ports import Clusters, Registry, Traffic
from headway.release import record


class Rollback(Value):
    """What is taken back and what will serve; decided once, so that a second try does not go back twice."""

    model: str
    leave: Backend
    back: Backend


class RollbackOutcome(Value):
    """What was taken back and what serves now."""

    model: str
    leave: Backend
    back: Backend
    warning: str = ""
    """Said when what is left is smaller than what was taken back (design rule 13.5)."""


def decide(model: str, traffic: Traffic) -> Rollback:
    """Say where back is.

    While a shift is on its way it is stable, and the candidate is taken back; otherwise it is the previous cluster.

    Raises:
        Refused: There is nothing to go back to; says what to do instead.
    """
    route = traffic.route(model)
    if route.stable is not None and route.candidate is not None and route.candidate_pct > 0:
        return Rollback(model=model, leave=route.candidate, back=route.stable)
    if route.stable is None:
        raise Refused(
            f"{model} has no stable cluster, so there is nothing to take back; see `headway status`", model=model
        )
    if route.previous is None:
        raise Refused(
            f"{model} has no previous cluster (version {route.stable.version} serves): it was never promoted over "
            "another, or the previous one expired or made room; release the version you want: "
            f"`headway release {model} --version N`",
            model=model,
        )
    return Rollback(model=model, leave=route.stable, back=route.previous)


def run(plan: Rollback, traffic: Traffic, clusters: Clusters) -> RollbackOutcome:
    """Give all traffic to where back is. Needs neither Airflow, nor MLflow, nor S3, and may be called again.

    The cluster that was taken back becomes the previous one and stays warm as long as the other would have, so that
    a mistaken rollback can be taken back as well. A candidate on its way loses its share: whoever goes back wants what
    worked.

    Raises:
        Refused: The cluster to go back to does not answer.
        Conflict: The traffic moved since `decide`.
    """
    route = traffic.route(plan.model)
    done = route.stable == plan.back and (route.candidate is None or route.candidate != plan.leave)
    if done:
        return RollbackOutcome(model=plan.model, leave=plan.leave, back=plan.back)
    if plan.leave not in (route.stable, route.candidate) or plan.back not in (route.stable, route.previous):
        raise Conflict(
            f"the traffic of {plan.model} moved while it was taken back; look at `headway status` and decide again",
            model=plan.model,
        )
    back = clusters.status(plan.back.cluster)
    if back.phase != "ready":
        raise Refused(
            f"{plan.model} cannot go back to version {plan.back.version}: "
            f"its cluster {plan.back.cluster} is {back.phase}"
            f"{f' ({back.reason})' if back.reason else ''}; release that version again: "
            f"`headway release {plan.model} --version {plan.back.version}`",
            model=plan.model,
            cluster=plan.back.cluster,
        )
    only_candidate = plan.leave == route.candidate
    traffic.shift(
        route.model_copy(
            update={
                "stable": plan.back,
                "previous": route.previous if only_candidate else plan.leave,
                "candidate": None,
                "candidate_pct": 0,
                "candidate_pct_since": None,
                "hold_until": None,
            }
        )
    )
    # After the shift: what leaves may be dead or slow to answer, and only the warning needs it.
    leaving = clusters.status(plan.leave.cluster)
    warning = ""
    if back.replicas_ready < leaving.replicas_ready:
        warning = (
            f"{plan.back.cluster} has {back.replicas_ready} replicas, and {plan.leave.cluster} had "
            f"{leaving.replicas_ready}; watch its queue, it grows as the autoscaler sees the load"
        )
    return RollbackOutcome(model=plan.model, leave=plan.leave, back=plan.back, warning=warning)


def remember(outcome: RollbackOutcome, registry: Registry, now: datetime) -> None:
    """Keep `rolled_back` on the version, so that reconcile does not bring it back five minutes later."""
    leave = outcome.leave
    state = record.VersionState(
        outcome="rolled_back",
        release=leave.release,
        at=now.isoformat(),
        reason=f"a person went back to version {outcome.back.version}",
    )
    record.remember_state(registry, outcome.model, leave.version, leave.cluster_digest, state)
    registry.tag(outcome.model, leave.version, record.REASON_TAG, state.reason)
