"""Step 8: traffic moves to the candidate by steps, each watched, and back to stable at the first breach."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal

from headway.domain.release import ReleasePlan
from headway.domain.traffic import Route
from headway.domain.value import Value
from headway.errors import CanaryFailed, Conflict
from headway.ports import Clusters, Metrics, Traffic

MIN_REQUESTS = 20
"""Live requests of a side below which its mean latency says nothing."""


class ShiftProgress(Value):
    """Where the shift stands after a tick."""

    phase: Literal["scaling", "baking", "done"]
    candidate_pct: int
    detail: str


def tick(plan: ReleasePlan, *, traffic: Traffic, clusters: Clusters, metrics: Metrics, now: datetime) -> ShiftProgress:
    """Do what is due now: watch, take the next step, or promote.

    All state is the gateway's, so any process may call this at any moment, again and again, until `done`.

    Raises:
        CanaryFailed: A limit broke; all traffic is back on stable already.
        Conflict: The route names another candidate: somebody else is at work.
    """
    route = traffic.route(plan.model)
    name = plan.cluster.name
    if route.stable is not None and route.stable.cluster == name:
        return ShiftProgress(phase="done", candidate_pct=100, detail="the candidate is stable now")
    if route.candidate is None or route.candidate.cluster != name:
        found = route.candidate.cluster if route.candidate else "none"
        raise Conflict(f"the candidate of {plan.model} should be {name}, found {found}; another release took over")
    breach = _breach(plan, route, clusters, metrics, now)
    if breach:
        traffic.shift(moved(route, 0, now))
        raise CanaryFailed(
            f"{plan.model} version {route.candidate.version} is taken back at {route.candidate_pct} % of the traffic: "
            f"{breach}",
            verdict={"decision": "ROLLBACK", "sentence": breach, "candidate_pct": route.candidate_pct},
        )
    if route.stable is None:
        return _promote(plan, route, traffic, now)
    since = datetime.fromisoformat(route.candidate_pct_since) if route.candidate_pct_since else now
    bake_ends = since + timedelta(seconds=plan.profile.shift.bake_s)
    if route.candidate_pct > 0 and now < bake_ends:
        left_s = (bake_ends - now).total_seconds()
        return ShiftProgress(
            phase="baking", candidate_pct=route.candidate_pct, detail=f"{left_s:.0f} s of the bake are left"
        )
    if route.candidate_pct >= 100:
        return _promote(plan, route, traffic, now)
    target = next(step for step in plan.profile.shift.steps_pct if step > route.candidate_pct)
    waiting = _scale(plan, route, target, clusters)
    if waiting:
        return ShiftProgress(phase="scaling", candidate_pct=route.candidate_pct, detail=waiting)
    traffic.shift(moved(route, target, now))
    return ShiftProgress(phase="baking", candidate_pct=target, detail=f"{target} % of the traffic go to the candidate")


def moved(route: Route, candidate_pct: int, now: datetime) -> Route:
    """Return the route with another share for the candidate."""
    return route.model_copy(update={"candidate_pct": candidate_pct, "candidate_pct_since": now.isoformat()})


def _promote(plan: ReleasePlan, route: Route, traffic: Traffic, now: datetime) -> ShiftProgress:
    until = now + timedelta(seconds=plan.profile.keep_previous_s)
    traffic.shift(
        Route(
            model=route.model,
            stable=route.candidate,
            previous=route.stable,
            keep_previous_until=until.isoformat() if route.stable else None,
            paused=route.paused,
        )
    )
    return ShiftProgress(phase="done", candidate_pct=100, detail="the candidate is stable now")


def _scale(plan: ReleasePlan, route: Route, target_pct: int, clusters: Clusters) -> str | None:
    """Bring the candidate the replicas for its share before it gets the share (design rule 13.5)."""
    stable = clusters.status(route.stable.cluster) if route.stable else None
    wanted = math.ceil((stable.replicas_target if stable else 1) * target_pct / 100)
    wanted = max(plan.profile.replicas.min, min(wanted, plan.profile.replicas.max))
    candidate = clusters.status(plan.cluster.name)
    if candidate.replicas_ready >= wanted:
        return None
    clusters.floor(plan.cluster.name, plan.profile.replicas.model_copy(update={"min": wanted}))
    return f"{candidate.replicas_ready} of {wanted} replicas for {target_pct} % are ready"


def _breach(plan: ReleasePlan, route: Route, clusters: Clusters, metrics: Metrics, now: datetime) -> str | None:
    status = clusters.status(plan.cluster.name)
    if status.phase != "ready":
        return f"the candidate's cluster is {status.phase} ({status.reason or 'no reason given'})"
    if route.candidate_pct == 0 or route.candidate_pct_since is None:
        return None
    since = datetime.fromisoformat(route.candidate_pct_since)
    candidate = _live(metrics, plan.model, "candidate", since, now)
    stable = _live(metrics, plan.model, "stable", since, now)
    limits = plan.profile.shift
    if candidate["requests"] > 0:
        error_pct = 100 * candidate["errors"] / candidate["requests"]
        # One failure among a handful of requests says nothing about 1 %; more than one does.
        if error_pct > limits.max_error_pct and candidate["errors"] > 1:
            return (
                f"{candidate['errors']:.0f} of {candidate['requests']:.0f} live requests failed on the candidate "
                f"({error_pct:.1f} %); the limit is {limits.max_error_pct} %"
            )
    if min(candidate["ended"], stable["ended"]) >= MIN_REQUESTS and stable["seconds"] > 0:
        ratio = (candidate["seconds"] / candidate["ended"]) / (stable["seconds"] / stable["ended"])
        if ratio > limits.max_latency_ratio:
            return (
                f"live requests take {ratio:.2f} times as long on the candidate as on stable; "
                f"the limit is {limits.max_latency_ratio}"
            )
    return None


def _live(metrics: Metrics, model: str, side: str, since: datetime, now: datetime) -> Mapping[str, float]:
    """Return what the gateway counted for a side since the step; missing data counts as nothing seen."""

    def grown(name: str) -> float:
        labels = {"model": model, "side": side}
        end = metrics.instant(name, labels, now)
        start = metrics.instant(name, labels, since)
        # A counter that fell was reset with the gateway; what it shows since then is what grew.
        return 0.0 if end is None else end if start is None or end < start else end - start

    return {
        "requests": grown("headway_requests_total"),
        "errors": grown("headway_request_errors_total"),
        "ended": grown("headway_request_seconds_count"),
        "seconds": grown("headway_request_seconds_sum"),
    }
