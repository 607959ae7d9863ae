"""Known events: days and hours that are not like the others, and that somebody knew of before.

What was measured during an event teaches nothing about usual days, so it is taken out of the history; what it was like
against a usual day is what the next event of that name is expected to be like.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from headway.domain.series import Floats, QuantileForecast, Series
from headway.prescale.forecast.ensemble import filled

WIDEST_FACTOR = 10.0
"""An event cannot be learned to change traffic by more than this, in either direction."""


class Event(NamedTuple):
    """One event.

    Args:
        name: Events of one name are of one kind: `public holiday`, `launch`.
        start_at: Begin, UTC.
        end_at: End, UTC.
        factor: Traffic against a usual day, where somebody knows; otherwise it is learned from earlier events.
    """

    name: str
    start_at: datetime
    end_at: datetime
    factor: float | None = None


def without_events(series: Series, events: Sequence[Event]) -> Series:
    """Return the series with what was measured during events missing."""
    values = series.values.copy()
    for event in events:
        values[_inside(series.start_at, series.step_s, len(values), event)] = np.nan
    return Series(series.start_at, series.step_s, values)


def learned_factor(series: Series, events: Sequence[Event], name: str) -> float | None:
    """Return what traffic was during past events of a name, against usual days: the median over them; none if none was.

    Args:
        series: What was measured, events included.
        events: All known events.
        name: Which kind.
    """
    usual = filled(without_events(series, events).values, series.day_bins)
    factors = []
    for event in events:
        inside = _inside(series.start_at, series.step_s, len(series), event) & np.isfinite(series.values)
        expected = float(usual[inside].sum())
        if event.name == name and expected > 0:
            factors.append(float(series.values[inside].sum()) / expected)
    if not factors:
        return None
    return float(np.clip(np.median(factors), 1 / WIDEST_FACTOR, WIDEST_FACTOR))


def with_events(said: QuantileForecast, series: Series, events: Sequence[Event]) -> QuantileForecast:
    """Return the forecast with coming events in it; each is named in a note.

    Args:
        said: The forecast from a history without events.
        series: What was measured, events included.
        events: All known events.
    """
    values, notes = said.values.copy(), list(said.notes)
    for event in events:
        steps = _inside(said.start_at, said.step_s, said.steps, event)
        if not steps.any():
            continue
        factor = event.factor if event.factor is not None else learned_factor(series, events, event.name)
        when = f"`{event.name}` from {event.start_at:%Y-%m-%d %H:%M} UTC"
        if factor is None:
            notes.append(f"{when} is the first of its name; the forecast is that of a usual day. Give it a factor.")
            continue
        notes.append(f"{when}: {factor:.2f} times a usual day.")
        values[:, steps] *= factor
    return replace(said, values=values, notes=tuple(notes))


def _inside(start_at: datetime, step_s: int, bins: int, event: Event) -> Floats:
    """Return which bins overlap the event."""
    begin = start_at.timestamp() + step_s * np.arange(bins)
    return np.asarray((begin + step_s > event.start_at.timestamp()) & (begin < event.end_at.timestamp()))
