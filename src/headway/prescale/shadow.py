"""What others would have asked for, and who did better: every tick is priced against reactive and last week's cron.

The ticks themselves are the record: the load that each saw, what it asked for, and what the others would have. Whole
days of it are served again, minute by minute, as `replay` does, against an oracle that knew the load. The load is drawn
as a line between two ticks; what lies between ticks that are missing is not counted, for nobody saw it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import numpy as np

from headway.domain.prescaling import Standing
from headway.domain.series import DAY_S, Floats, Series
from headway.prescale.capacity import replicas
from headway.prescale.history import History
from headway.prescale.plan import MANY, RULE, Limits
from headway.prescale.replay import DAY_MINUTES, MINUTE_S, Scene, serve

HEADWAY, REACTIVE, CRON = "headway", "reactive", "cron"
ASKED_BY = {HEADWAY: "asked", REACTIVE: "reactive", CRON: "cron"}
"""Policy to the column of the history that says what it asked for."""
CRON_TARGET = 0.9
"""How busy a replica may be under a cron schedule: the schedule is to bring the peak, the load only corrects it."""
HOUR_S = 3600
WEEK = timedelta(days=7)
DAYS = 7
"""Whole days that are priced."""
LOST_DAYS = 3
"""Days in a row that the forecast must lose before it is not followed any more."""
LEAST_KNOWN = 0.75
"""Share of a day's minutes that must be known: less is no day."""


@dataclass(frozen=True)
class Would:
    """What others would have asked for at a tick.

    Args:
        reactive: What the measured load needs, each replica 80 % busy.
        cron: The highest load of the same hour last week, and never less than reactive at 90 % busy.
    """

    reactive: int
    cron: int


def would(history: History, busy: Series, load: float | None, *, now: datetime, lead_s: float, limits: Limits) -> Would:
    """Return what others would have asked for at this tick; without a load they hold what they asked for last.

    Args:
        history: What the ticks before saw and asked for.
        busy: Busy replicas in each bin of the history, as far as it is known.
        load: Busy replicas now; none where nothing was measured.
        now: Now, UTC.
        lead_s: Seconds from asking for a replica to its first token.
        limits: What may be asked for, by them as by the plan.
    """
    usable = load is not None and math.isfinite(load) and load >= 0
    scheduled = _last_week(busy, now + timedelta(seconds=lead_s), history.step_s, limits)
    found = {}
    for column, target, least in ((REACTIVE, RULE.reactive_target, 0), (CRON, CRON_TARGET, scheduled)):
        before = _last(history.columns[column])
        if load is not None and usable:
            needed = replicas(min(load, MANY), target=target, spare=limits.spare)
        else:
            needed = limits.minimum if before is None else before
        asked = max(needed, least)
        found[column] = _within(asked if before is None else min(asked, before + limits.max_step), limits)
    return Would(**found)


def _within(count: int, limits: Limits) -> int:
    highest = limits.maximum if limits.budget is None else min(limits.maximum, limits.budget)
    return max(min(count, highest), limits.minimum)


def _last(values: Floats) -> int | None:
    known = values[np.isfinite(values)]
    return int(known[-1]) if len(known) else None


def _last_week(busy: Series, at: datetime, step_s: int, limits: Limits) -> int:
    """Return what the highest load of the hours a week ago needed in which replicas of this tick would serve."""
    first_s = (at - WEEK).timestamp()
    begin = first_s // HOUR_S * HOUR_S
    end = math.ceil((first_s + step_s) / HOUR_S) * HOUR_S
    start_s = busy.start_at.timestamp()
    low, high = (max(math.ceil((edge - start_s) / busy.step_s), 0) for edge in (begin, end))
    values = busy.values[low:high]
    known = values[np.isfinite(values) & (values >= 0)]
    return replicas(min(float(known.max()), MANY), spare=limits.spare) if len(known) else 0


def standings(history: History, *, lead_s: float, step_s: int) -> tuple[Standing, ...]:
    """Return what each policy came to on each of the last seven whole days, oldest first.

    Only the plans are compared: an autoscaler that follows the load between two ticks would help all of them alike.

    Args:
        history: What the ticks saw (`busy`) and what was asked for (`asked`, and by the others).
        lead_s: Seconds from asking for a replica to its first token.
        step_s: Seconds between two ticks: so long stands what was asked for before it is not known any more.
    """
    last = history.end_at.date()
    days = [last - timedelta(days=back) for back in range(DAYS, 0, -1)]
    return tuple(one for day in days for one in _of_day(history, day, lead_s=lead_s, step_s=step_s))


def _of_day(history: History, day: date, *, lead_s: float, step_s: int) -> list[Standing]:
    """Return one standing for each policy that asked for anything on a day; none of a day that nobody saw."""
    bins = DAY_S // history.step_s
    start_at = datetime.combine(day, datetime.min.time(), tzinfo=history.start_at.tzinfo)
    first = round((start_at - history.start_at).total_seconds()) // history.step_s
    # One more: the line through the day's last bin ends in it.
    busy = _cut(history.columns["busy"], first, bins + 1)
    seen = np.isfinite(busy) & (busy >= 0)
    if not seen.any():
        return []
    each = history.step_s // MINUTE_S
    minute = np.arange(DAY_MINUTES)
    load = np.interp((minute + 0.5) / each, np.flatnonzero(seen), busy[seen])
    between = seen[minute // each] & seen[minute // each + 1]
    hold = max(step_s // history.step_s, 1)
    found = []
    for policy, column in ASKED_BY.items():
        asked, age = _held(_cut(history.columns[column], first - hold, bins + hold))
        known = between & (age[hold:] < hold)[minute // each]
        if not known.any():
            continue
        scene = Scene(
            start_at=start_at,
            load=load,
            known=known,
            seen=load,
            forecasts=(),
            last_bins=np.empty(0),
            week_ago=np.empty(0),
            lead_min=math.ceil(lead_s / MINUTE_S),
        )
        came_to = serve(scene, asked[hold:][minute // each])
        whole = known.mean() >= LEAST_KNOWN
        found.append(
            Standing(
                day=day.isoformat(),
                policy=policy,
                cost=came_to.cost if whole else None,
                bad_min=came_to.bad_min_a_day * float(known.mean()),
            )
        )
    return found


def _cut(values: Floats, first: int, count: int) -> Floats:
    """Return so many bins from one on; NaN where there are none."""
    at = np.arange(first, first + count)
    inside = (at >= 0) & (at < len(values))
    return np.where(inside, values[np.clip(at, 0, len(values) - 1)], np.nan)


def _held(values: Floats) -> tuple[Floats, Floats]:
    """Return each value held until the next one, and for how many bins it was; the first one stands before it too."""
    known = np.isfinite(values)
    index = np.arange(len(values))
    newest = np.maximum.accumulate(np.where(known, index, -1))
    age = np.where(newest >= 0, index - newest, math.inf)
    return values[np.where(newest >= 0, newest, np.argmax(known))], age


def demoted(standings: Sequence[Standing], today: date) -> str:
    """Return why the forecast is not to be followed; empty while it is.

    It lost where it cost more than reactive and left more minutes short, on each of the last three days, one after the
    other. A day that it did not lose, or that nobody saw, ends it: what was asked for has to be kept as the plan with
    the forecast made it even while reactive is in force, or it could never win again.

    Args:
        standings: Of whole days.
        today: The day, UTC, on which it is asked.
    """
    by_day = {
        day: {one.policy: one for one in standings if one.day == day} for day in sorted({one.day for one in standings})
    }
    newest = list(by_day)[-LOST_DAYS:]
    in_a_row = [date.fromisoformat(day) for day in newest]
    if len(newest) < LOST_DAYS or in_a_row[-1] - in_a_row[0] != timedelta(days=LOST_DAYS - 1):
        return ""
    # Yesterday, or the day before until yesterday is priced.
    if today - in_a_row[-1] > timedelta(days=2):
        return ""
    lost = []
    for day in newest:
        ours, other = by_day[day].get(HEADWAY), by_day[day].get(REACTIVE)
        if ours is None or other is None or ours.cost is None or other.cost is None:
            return ""
        if not (ours.cost > other.cost and ours.bad_min > other.bad_min):
            return ""
        lost.append(
            f"{day}: {ours.cost:.2f} x oracle and {ours.bad_min:.0f} min short, against {other.cost:.2f} and "
            f"{other.bad_min:.0f}"
        )
    return (
        f"The forecast cost more than reactive and left more minutes short on {LOST_DAYS} days in a row "
        f"({'; '.join(lost)}); reactive is followed until it does not."
    )
