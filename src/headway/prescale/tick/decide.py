"""From what is there and what is expected to the plan that is kept; pure."""

import math
from datetime import datetime

import numpy as np

from headway.domain.prescaling import EVERY_S, Fan, Mode, Rung, Standing, Tick
from headway.domain.profile import Profile
from headway.domain.series import QuantileForecast, Series
from headway.prescale import ladder, schedule, shadow
from headway.prescale.capacity import Spare, headroom
from headway.prescale.history import History
from headway.prescale.ladder import LeadTimes
from headway.prescale.plan import MANY, Limits, Observed, Plan, Rule, plan
from headway.prescale.tick.foresight import Foreseen
from headway.prescale.tick.read import Found
from headway.prescale.tick.replica import Replica
from headway.prescale.tick.words import Words

REPLICAS = ladder.RUNGS[-1]
"""The rung whose lead time a plan is made for."""
FAN_LEVELS = (0.1, 0.5, 0.8, 0.95)
"""Of the forecast's own levels."""
FAN_DIGITS = 4
UNBOUND = 10**9


def decide(
    profile: Profile, found: Found, seen: Foreseen, replica: Replica | None, *, now: datetime, words: Words
) -> tuple[Tick, History]:
    """Return the plan, and the history with what this tick saw and asked for.

    Args:
        profile: Of the model.
        found: What is there.
        seen: What is expected.
        replica: What one sustains; none if nobody knows.
        now: Now, UTC.
        words: What there was to say so far; what the plan finds wrong is added.
    """
    wishes = profile.prescale
    busy = replica.forecast(seen.rate, found.history) if replica and seen.rate else None
    past = _busy(seen.series, found.history, replica)
    lead_s = found.lead_times.quantile(REPLICAS.level)
    spare = Spare(wishes.spare, wishes.zones)
    limits = Limits(profile.replicas.min, profile.replicas.max, wishes.max_replicas_step, wishes.budget_replicas, spare)
    rule = Rule(quantile=wishes.quantile)
    observed = _observed(found, replica, past, now)
    # Until the replicas of the next tick serve, those of this one have to do.
    ahead_s = lead_s + EVERY_S
    if replica and found.load and replica.lengths_lost(found.load, found.history):
        words.problem(
            f"The engines of {profile.model} report no lengths of requests for an hour: a metric was renamed or is not "
            "read; requests are taken to be as long as the last that were measured."
        )
    ours = plan(observed, busy, lead_s=ahead_s, limits=limits, rule=rule)
    words.problem(*ours.problems)
    told = _standings(profile.model, found, lead_s, now)
    demoted = shadow.demoted(told, now.date())
    words.note(*([demoted] if demoted else []))
    chosen = plan(observed, None, lead_s=ahead_s, limits=limits, rule=rule) if demoted else ours
    load = min(observed.load, MANY) if observed.load is not None and _believed(observed, ahead_s) else None
    others = shadow.would(found.history, past, load, now=now, lead_s=lead_s, limits=limits)
    history = found.history.noted(
        now,
        busy=math.nan if load is None else load,
        # What the forecast would have asked for: once demoted, it must be able to win again.
        asked=ours.floor,
        reactive=others.reactive,
        cron=others.cron,
    )
    made = Tick(
        model=profile.model,
        at=now.isoformat(),
        mode=_mode(profile, found, demoted, busy),
        floor=chosen.floor,
        by=chosen.by,
        wanted=chosen.wanted,
        growth=chosen.growth,
        running=observed.running,
        pending=observed.pending,
        load=load,
        load_at=observed.load_at.isoformat() if load is not None and observed.load_at else None,
        lead_s=lead_s,
        requests_per_s=replica.requests_per_s if replica else None,
        reasons=chosen.reasons,
        problems=tuple(words.problems),
        notes=tuple(words.notes),
        ladder=_ladder(busy, now, chosen, limits, found.lead_times),
        fan=_fan(busy),
        lead_times_s=found.lead_times.measured_s,
        headroom=headroom(load, observed.running, spare).reason if load is not None and observed.running else "",
        standings=told,
        demoted=demoted,
    )
    return made, history


def _observed(found: Found, replica: Replica | None, past: Series, now: datetime) -> Observed:
    running = found.cluster.replicas_ready
    load = replica.load(found.load, found.history) if replica and found.load else None
    last = float(past.values[-1]) if len(past) else math.nan
    return Observed(
        at=now,
        load=load,
        load_at=found.load.at if found.load else None,
        running=running,
        pending=max(found.cluster.replicas_target - running, 0),
        last_bin=last if math.isfinite(last) else None,
        zero_confirmed=found.load is not None and found.load.zero_confirmed,
        floor=found.cluster.spec.replicas.min if found.cluster.spec else 0,
    )


def _believed(observed: Observed, lead_s: float) -> bool:
    """Return whether the plan takes the load for one: with no limits and no forecast, only the load is left."""
    free = Limits(minimum=0, maximum=UNBOUND, max_step=UNBOUND)
    return plan(observed, None, lead_s=lead_s, limits=free).by != "hold"


def _busy(series: Series, history: History, replica: Replica | None) -> Series:
    """Return the cleaned history in busy replicas; missing where nobody knows what a replica sustains."""
    if replica is None:
        return Series(series.start_at, series.step_s, np.full(len(series), np.nan))
    work = np.ones(len(series))
    known = replica.work_of(history)[: len(series)]
    work[: len(known)] = known
    return Series(series.start_at, series.step_s, series.values * work / replica.requests_per_s)


def _standings(model: str, found: Found, lead_s: float, now: datetime) -> tuple[Standing, ...]:
    """Return how the policies did on the last days: priced once a day, kept between."""
    before = found.previous
    if before is not None and not schedule.due(model, before.made_at, now, schedule.DAILY):
        return before.standings
    if not len(found.history):
        return ()
    return shadow.standings(found.history, lead_s=lead_s, step_s=EVERY_S)


def _mode(profile: Profile, found: Found, demoted: str, busy: QuantileForecast | None) -> Mode:
    if found.route.paused:
        return "paused"
    if profile.prescale.shadow:
        return "shadow"
    return "reactive" if demoted or busy is None else "forecast"


def _ladder(
    busy: QuantileForecast | None, now: datetime, chosen: Plan, limits: Limits, times: LeadTimes
) -> tuple[Rung, ...]:
    if busy is None:
        return ()
    found = ladder.ladder(
        busy,
        now,
        floor=chosen.floor,
        maximum=limits.maximum,
        lead_times={REPLICAS.name: times},
        spare=limits.spare,
    )
    return tuple(Rung(name=one.name, count=one.count, lead_s=one.lead_s, reason=one.reason) for one in found)


def _fan(busy: QuantileForecast | None) -> Fan | None:
    if busy is None:
        return None
    shown = [busy.values[busy.levels.index(level)] for level in FAN_LEVELS]
    rows = tuple(tuple(float(f"{value:.{FAN_DIGITS}g}") for value in row) for row in shown)
    return Fan(start_at=busy.start_at.isoformat(), step_s=busy.step_s, levels=FAN_LEVELS, values=rows)
