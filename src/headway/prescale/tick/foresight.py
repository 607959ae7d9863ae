"""From a model's history to its forecast: cleaned, without events, on the clock of its users, learned or rolled."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from headway.domain.prescaling import learned_key
from headway.domain.series import DAY_S, QuantileForecast, Series
from headway.errors import BackendError, IntegrityError
from headway.prescale import calendar, clock, forecast, schedule, state
from headway.prescale.clean import without_faults
from headway.prescale.forecast import Event
from headway.prescale.history import History, checked
from headway.prescale.tick.ports import Case

AHEAD = timedelta(seconds=forecast.HORIZON * forecast.STEP_S)


class Foreseen(NamedTuple):
    """What is expected of a model.

    Args:
        series: The cleaned rates up to the present bin.
        rate: The forecast of the rate; none where there is nothing to forecast from.
        state: What was learned, to be kept; none if nothing was.
    """

    series: Series
    rate: QuantileForecast | None
    state: state.State | None


def recalled(case: Case) -> state.State | None:
    """Return what was learned before, none if there is nothing of use."""
    content = case.ports.objects.read(learned_key(case.model))
    if content is None:
        return None
    try:
        return state.from_npz(content)
    except IntegrityError as error:
        case.words.note(f"What the forecast had learned cannot be used: {error.message}.")
        return None


def foresee(case: Case, history: History, known: state.State | None, *, calendar_text: str | None) -> Foreseen:
    """Return what is expected.

    Args:
        case: The model.
        history: What was measured.
        known: What was learned before; none if nothing was.
        calendar_text: Known events as ICS.
    """
    wishes, now, words = case.profile.prescale, case.now, case.words
    series, cleaned = without_faults(up_to(history.series(), now))
    words.note(*cleaned)
    if not np.isfinite(series.values[-DAY_S // series.step_s :]).any():
        words.note("Nothing was measured within a day; there is nothing to forecast from.")
        return Foreseen(series, None, None)
    zone = wishes.timezone
    events, told = calendar.events(calendar_text, wishes.holidays, zone, series.start_at, now + AHEAD)
    words.note(*told)
    usual = clock.aligned(_without(series, events), zone, now)
    if not np.isfinite(usual.values).any():
        words.note("All that was measured lies in known events; there is nothing to forecast usual days from.")
        return Foreseen(series, None, None)
    anew = known is None or schedule.due(case.model, known.learned_at, now, schedule.DAILY)
    if anew:
        # Once a day: the checks take longer than all the rest, and what is new in a tick is cleaned anyway.
        words.problem(*_checked(case, history))
    found = state.brought_up(known, usual, now=now, offset_s=clock.offset_s(zone, now), anew=anew)
    said = clock.realigned(forecast.forecast(found.learned, usual), zone, now)
    said = forecast.with_events(said, series, events)
    words.note(*said.notes)
    return Foreseen(series, said, found)


def _checked(case: Case, history: History) -> Sequence[str]:
    """Return what is wrong with the history; checks that fail themselves say so, and cost no plan."""
    try:
        return checked({case.model: history}, case.ports.checks, len(history)).get(case.model, ())
    except BackendError as error:
        return (f"The history could not be checked: {error.message}.",)


def up_to(series: Series, now: datetime) -> Series:
    """Return the series up to the bin that is not over; what nobody could read at its end is missing, not zero."""
    bins = int(now.timestamp()) // series.step_s - series.first_bin
    values = series.values[: max(bins, 0)]
    return Series(series.start_at, series.step_s, np.concatenate([values, np.full(max(bins - len(values), 0), np.nan)]))


def _without(series: Series, events: Sequence[Event]) -> Series:
    return forecast.without_events(series, events) if events else series
