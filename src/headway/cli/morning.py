"""The morning that `headway demo-prescale` replays: what is planned, what came of it, and whether it is as promised."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headway.cli import made_traffic
from headway.cli.demo import DemoFailed
from headway.domain.bench import RequestRecord
from headway.domain.prescaling import EVERY_S, Tick
from headway.domain.profile import Prescale, Profile
from headway.judge.quantiles import quantile
from headway.prescale.plan import RULE
from headway.units import format_seconds

SPEED = 60
"""Seconds of the fast clock in a real one: a bin of ten minutes is ten seconds, over which counters can be read."""
DAY_AT = datetime(2026, 3, 12, tzinfo=UTC)
"""A Thursday."""
BEFORE = timedelta(minutes=45)
"""From the begin of the replay until a second replica has to be asked for."""
PEAK = timedelta(minutes=45)
"""For how long the peak lasts; shorter than a replica takes, by the fast clock."""
AFTER = timedelta(minutes=90)
"""From when the peak begins to fall until the last request: by then the floor has fallen."""
DOWN_DELAY_S = 5.0
"""Real seconds that Serve waits before it ends a replica that the floor does not hold any more."""
MOST_LEAD_S = 360.0
"""A replica that takes longer would have to be asked for the day before."""


@dataclass(frozen=True)
class Seen:
    """What Serve itself said of a cluster at a moment.

    Args:
        at: When, by the fast clock.
        ready: Replicas that serve.
        target: Replicas that Serve wants.
    """

    at: datetime
    ready: int
    target: int


@dataclass(frozen=True)
class Script:
    """What is replayed; times are the fast clock's.

    Args:
        start: Begin of the replay.
        needed_at: When the load exceeds what one replica sustains.
        end: When the last request is sent.
        peak_h: For how many hours the peak lasts.
        requests_per_s: What one replica sustains.
        profile: The model's, with pre-scaling.
    """

    start: datetime
    needed_at: datetime
    end: datetime
    peak_h: float
    requests_per_s: float
    profile: Profile


@dataclass(frozen=True)
class Replayed:
    """What came of it; times are the fast clock's.

    Args:
        ticks: The plans, oldest first.
        seen: What Serve said, oldest first.
        load: Measured busy replicas by the begin of their bin.
        answered: Requests that ended well.
        failures: Why others did not.
    """

    ticks: Sequence[Tick]
    seen: Sequence[Seen]
    load: Sequence[tuple[datetime, float]]
    answered: Sequence[RequestRecord]
    failures: Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """What the replay showed.

    Args:
        asked_at: When the floor asked for the second replica.
        up_at: When Serve had it running.
        facts: What there is to say, name and value.
    """

    asked_at: datetime
    up_at: datetime
    facts: Sequence[tuple[str, str]]


def script(profile: Profile, *, requests_per_s: float, lead_s: float) -> Script:
    """Return what to replay on a machine.

    Args:
        profile: The model's.
        requests_per_s: What one replica sustains here.
        lead_s: Real seconds that a second replica is given to come up.

    Raises:
        DemoFailed: Replicas take so long here that the morning is too short.
    """
    if lead_s > MOST_LEAD_S:
        raise DemoFailed(
            f"a second replica would have to be given {format_seconds(lead_s)} here, and the morning has room for "
            f"{format_seconds(MOST_LEAD_S)}; end what else keeps the cores busy"
        )
    lead = timedelta(seconds=round(lead_s * SPEED))
    peak_h = PEAK / timedelta(hours=1)
    needed_at = made_traffic.crossing(DAY_AT, peak_h)
    before = needed_at - lead - BEFORE
    replicas = profile.replicas.model_copy(update={"min": 1, "max": 2, "downscale_delay_s": DOWN_DELAY_S})
    prescale = Prescale(enabled=True, lead_time_s=lead.total_seconds(), requests_per_s=requests_per_s)
    return Script(
        start=before - timedelta(seconds=before.timestamp() % EVERY_S),
        needed_at=needed_at,
        end=needed_at + PEAK + AFTER,
        peak_h=peak_h,
        requests_per_s=requests_per_s,
        profile=profile.model_copy(update={"replicas": replicas, "prescale": prescale}),
    )


def over(script: Script, ticks: Sequence[Tick], now: Seen) -> bool:
    """Tell whether the story is told: after the peak, floor and replicas have fallen, or the morning has ended."""
    fallen = bool(ticks) and now.at > script.needed_at and ticks[-1].floor == now.ready == 1
    return fallen or now.at >= script.end


def judged(script: Script, replayed: Replayed) -> Outcome:
    """Return what the replay showed.

    Args:
        script: What was replayed.
        replayed: What came of it.

    Raises:
        DemoFailed: A request failed, the replica was not up before the peak, or the floor did not fall after it.
    """
    ticks, last = replayed.ticks, replayed.ticks[-1]
    if replayed.failures:
        raise DemoFailed(
            f"{len(replayed.failures)} of {len(replayed.failures) + len(replayed.answered)} requests failed; the "
            f"first: {replayed.failures[0]}",
            failures=list(replayed.failures),
        )
    asked_at = next((tick.made_at for tick in ticks if tick.floor > 1), None)
    up_at = next((seen.at for seen in replayed.seen if seen.ready > 1), None)
    if asked_at is None or up_at is None or up_at >= script.needed_at:
        raise DemoFailed(
            f"a second replica should serve before {clock(script.needed_at)}, when one is not enough: the floor asked "
            f"for it at {clock(asked_at)}, and it served at {clock(up_at)}. It was given "
            f"{format_seconds(script.profile.prescale.lead_time_s / SPEED)}; the next run gives it more if it was slow"
        )
    if last.floor > 1:
        why = " ".join((*last.reasons, *last.problems))
        raise DemoFailed(f"after the peak, at {clock(last.made_at)}, the floor is still {last.floor}: {why}")
    return Outcome(asked_at, up_at, tuple(_facts(script, replayed, asked_at, up_at)))


def _facts(script: Script, replayed: Replayed, asked_at: datetime, up_at: datetime) -> list[tuple[str, str]]:
    took = up_at - asked_at
    facts = [
        ("one replica sustains", f"{script.requests_per_s:.2f} requests/s, measured here"),
        ("the floor asked for a second", clock(asked_at)),
        ("it served", f"{clock(up_at)}, {format_seconds(took.total_seconds() / SPEED)} of real time later"),
        ("one was not enough from", clock(script.needed_at)),
    ]
    high = next((at for at, load in replayed.load if load > RULE.reactive_target), None)
    if high is not None:
        reacted = high + timedelta(seconds=EVERY_S)
        facts.append(
            ("reacting to the load", f"would have asked at {clock(reacted)} and served at {clock(reacted + took)}")
        )
    facts.append(("requests", f"{len(replayed.answered)} answered, {len(replayed.failures)} failed"))
    calm, busy = (
        quantile((one.e2e_ms for one in replayed.answered if (_sent(script, one) >= script.needed_at) is late), 95)
        for late in (False, True)
    )
    if calm is not None and busy is not None:
        facts.append(
            ("slowest 5 % of the answers", f"over {calm:.0f} ms before the peak, over {busy:.0f} ms from it on")
        )
    return facts


def _sent(script: Script, record: RequestRecord) -> datetime:
    return script.start + timedelta(seconds=SPEED * record.scheduled_s)


def clock(at: datetime | None) -> str:
    """Return the time of day, `never` for none."""
    return "never" if at is None else f"{at:%H:%M}"
