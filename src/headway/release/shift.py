"""Step 8: traffic moves to the candidate by steps, each watched, and back to stable at the first breach."""

import math
from datetime import datetime, timedelta
from typing import Literal

from headway.domain.prescaling import peak_within, plan_key, read_tick
from headway.domain.release import ReleasePlan
from headway.domain.traffic import Route
from headway.domain.value import Value
from headway.errors import CanaryFailed, Conflict, HeadwayError
from headway.judge import live
from headway.ports import REQUESTS, Clusters, Metrics, Objects, Traffic

SHUT_OUT = 2
"""How often the gateway may shut the candidate out in a step (three failed connections or five errors in a row). Then
stable answers its requests, so with much traffic hardly any fail, however broken it is: this count shows it still."""
BEFORE = timedelta(seconds=600)
"""Stretch before a step by which stable's latency is fixed for it."""
ANEW_EVERY = timedelta(seconds=30)
ANEW_LATEST = 10
"""Evidence is collected from the step on, and anew from these moments, so that an hour that went well does not hide
what broke a minute ago."""


class ShiftProgress(Value):
    """Where the shift stands after a tick."""

    phase: Literal["scaling", "baking", "waiting", "done"]
    candidate_pct: int
    detail: str


def tick(
    plan: ReleasePlan, *, traffic: Traffic, clusters: Clusters, metrics: Metrics, objects: Objects, now: datetime
) -> ShiftProgress:
    """Do what is due now: watch, take the next step, or promote.

    All state is the gateway's, so any process may call this at any moment, again and again, until `done`.

    Args:
        plan: Of the candidate.
        traffic: The gateway.
        clusters: Stable and candidate.
        metrics: What the gateway counted.
        objects: Where the last plan of the pre-scaling is.
        now: Now, UTC.

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
    if metrics.counting_since(now) is None:
        return ShiftProgress(
            phase="baking",
            candidate_pct=route.candidate_pct,
            detail="nobody reads the gateway's counters, so the next step waits; `headway up` starts what is down",
        )
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
    peak = peak_ahead(plan.model, objects, now)
    if peak:
        detail = f"the step to {target} % waits, because {peak}"
        return ShiftProgress(phase="waiting", candidate_pct=route.candidate_pct, detail=detail)
    waiting = _scale(plan, route, target, clusters)
    if waiting:
        return ShiftProgress(phase="scaling", candidate_pct=route.candidate_pct, detail=waiting)
    traffic.shift(moved(route, target, now))
    return ShiftProgress(phase="baking", candidate_pct=target, detail=f"{target} % of the traffic go to the candidate")


def peak_ahead(model: str, objects: Objects, now: datetime) -> str | None:
    """Return why no step is taken now: a peak within the time that a replica takes to come (design rule 13.5).

    Only a plan that is in force tells one: where the forecast has lost its trust, nothing waits for it. A plan that
    cannot be read tells none either, since a release must not depend on it.

    Args:
        model: The served name.
        objects: Where the plan is.
        now: Now, UTC.
    """
    try:
        planned = read_tick(objects.read(plan_key(model)), model)
    except HeadwayError:
        return None
    if planned is None or planned.mode != "forecast":
        return None
    return peak_within(planned, now, planned.lead_s)


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
    gateway = _Gateway(metrics, plan.model, now)
    since = datetime.fromisoformat(route.candidate_pct_since)
    starts = [(start, at) for start, at in starts_of_evidence(since, now) if gateway.was_read(at)]
    shut_out = gateway.grown("headway_ejections_total", "candidate", starts[0][1]) if starts else 0.0
    if shut_out >= SHUT_OUT:
        return (
            f"the gateway shut the candidate out {shut_out:.0f} times since the step, each time after several failed "
            "requests in a row"
        )
    seen = [
        live.Failures(
            start,
            gateway.grown("headway_request_errors_total", "candidate", at),
            gateway.tried("candidate", at),
        )
        for start, at in starts
    ]
    failing = live.failing(seen, plan.profile.shift)
    if failing or route.stable is None:
        return failing
    fixed = live.yardstick(gateway.between("stable", since - BEFORE, since), plan.profile.shift)
    if fixed is None:
        return None
    ended = [
        live.Ended(start, gateway.between("candidate", at, now), gateway.between("stable", at, now))
        for start, at in starts
    ]
    return live.slowing(ended, fixed, route.candidate_pct / 100, plan.profile.shift)


def starts_of_evidence(since: datetime, now: datetime) -> list[tuple[int, datetime]]:
    """Return the moments from which evidence is collected: the step's own, and the latest of those that follow it."""
    last = int((now - since) / ANEW_EVERY)
    return [(0, since)] + [(i, since + i * ANEW_EVERY) for i in range(max(1, last - ANEW_LATEST + 1), last + 1)]


class _Gateway:
    """What the gateway counted for a model; every figure is read once."""

    def __init__(self, metrics: Metrics, model: str, now: datetime) -> None:
        self._metrics = metrics
        self._model = model
        self._now = now
        self._began = metrics.counting_since(now)
        self._counts: dict[tuple[str, str, datetime], float] = {}
        self._buckets: dict[tuple[str, datetime], live.Buckets] = {}

    def was_read(self, at: datetime) -> bool:
        """Tell whether it is known what the counters showed at a time; if not, nothing can be counted from it."""
        return self._restarted(at, self._now) or self._metrics.counting_since(at) is not None

    def grown(self, name: str, side: str, since: datetime) -> float:
        """Return by how much a counter grew; what was never counted did not grow."""
        end = self._count(name, side, self._now)
        start = 0.0 if self._restarted(since, self._now) else self._count(name, side, since)
        return end if start > end else end - start

    def tried(self, side: str, since: datetime) -> float:
        """Return how many attempts may have failed since then: those begun since, and those in flight at that time."""
        return self.grown(REQUESTS, side, since) + self._count("headway_requests_active", side, since)

    def between(self, side: str, start: datetime, end: datetime) -> live.Buckets:
        """Return how long the requests took that ended meanwhile."""
        first = {} if self._restarted(start, end) else self._took(side, start)
        last = self._took(side, end)
        if first.get(live.ENDLESS, 0.0) > last.get(live.ENDLESS, 0.0):
            return last
        return live.grown(last, first)

    def _restarted(self, start: datetime, end: datetime) -> bool:
        """Tell whether the counters began at zero meanwhile."""
        return self._began is not None and start < self._began <= end

    def _count(self, name: str, side: str, at: datetime) -> float:
        key = (name, side, at)
        if key not in self._counts:
            self._counts[key] = self._metrics.instant(name, {"model": self._model, "side": side}, at) or 0.0
        return self._counts[key]

    def _took(self, side: str, at: datetime) -> live.Buckets:
        if (side, at) not in self._buckets:
            labels = {"model": self._model, "side": side}
            self._buckets[(side, at)] = self._metrics.instant_by("headway_request_seconds_bucket", labels, "le", at)
        return self._buckets[(side, at)]
