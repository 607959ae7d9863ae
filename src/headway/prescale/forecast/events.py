"""Known events: days and hours that are not like the others, and that somebody knew of before.

What was measured during an event teaches nothing about usual days, so it is taken out of the history; what it was like
against a usual day is what the next event of that name is expected to be like.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import Event, QuantileForecast, Series
from headway.prescale.forecast.ensemble import filled

WIDEST_FACTOR = 10.0
"""An event cannot be learned to change traffic by more than this, in either direction."""
MOST_OF_HISTORY = 0.5
"""What takes more of the history than this is the usual day."""


def without_events(series: Series, events: Sequence[Event]) -> Series:
    """Return the series with what was measured during events missing.

    Where little would be left, events are what is usual, and nothing is taken out.
    """
    inside = _any(series, events)
    if not inside.any() or _are_usual(series, inside):
        return series
    return Series(series.start_at, series.step_s, np.where(inside, np.nan, series.values))


def learned_factor(series: Series, events: Sequence[Event], name: str) -> float | None:
    """Return what traffic was during past events of a name, against usual days: the median over them; none if none was.

    Args:
        series: What was measured, events included.
        events: All known events.
        name: Which kind.
    """
    past = [event for event in events if event.name == name and event.start_at < series.end_at]
    if not past:
        return None
    usual = filled(without_events(series, events).values, series.day_bins)
    factors = []
    for event in past:
        measured, bins = series.values[inside := _inside(series, len(series), event)], usual[inside]
        known = np.isfinite(measured)
        expected = float(bins[known].sum())
        if expected > 0:
            factors.append(float(measured[known].sum()) / expected)
    if not factors:
        return None
    return float(np.clip(np.median(factors), 1 / WIDEST_FACTOR, WIDEST_FACTOR))


def with_events(said: QuantileForecast, series: Series, events: Sequence[Event]) -> QuantileForecast:
    """Return the forecast with coming events in it; each is named in a note. Where several meet, the largest counts.

    A factor that somebody gave one event holds for the others of its name that have none, before what was learned.

    Args:
        said: The forecast from a history without events.
        series: What was measured, events included.
        events: All known events.
    """
    coming = [(event, _inside(said, said.steps, event)) for event in events]
    coming = [(event, steps) for event, steps in coming if steps.start < steps.stop]
    if not coming:
        return said
    if _are_usual(series, _any(series, events)):
        note = "Events take most of the history, so they are what is usual; none changes the forecast."
        return replace(said, notes=(*said.notes, note))
    given = {event.name: event.factor for event in sorted(events, key=_factor) if event.factor is not None}
    learned = {name: learned_factor(series, events, name) for name in {event.name for event, _ in coming} - set(given)}
    usual = learned | given
    factors, notes = np.full(said.steps, np.nan), list(said.notes)
    for event, steps in coming:
        factor = event.factor if event.factor is not None else usual[event.name]
        when = f"`{event.name}` from {event.start_at:%Y-%m-%d %H:%M} UTC"
        if factor is None:
            notes.append(
                f"{when} is the first of its name; the forecast is that of a usual day. Give it a factor in the "
                "calendar."
            )
            # Beside another event that means less traffic, an unknown one lowers nothing.
            factor = 1.0
        else:
            notes.append(f"{when}: {factor:.2f} times a usual day.")
        factors[steps] = np.fmax(factors[steps], factor)
    return replace(said, values=said.values * np.where(np.isnan(factors), 1.0, factors), notes=tuple(notes))


def _factor(event: Event) -> float:
    return event.factor or 0.0


def _any(series: Series, events: Sequence[Event]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = np.zeros(len(series), dtype=bool)
    for event in events:
        inside[_inside(series, len(series), event)] = True
    return inside


def _are_usual(series: Series, inside: NDArray[np.bool_]) -> bool:
    """Return whether events took most of what was measured."""
    known = np.isfinite(series.values)
    return bool((inside & known).sum() > MOST_OF_HISTORY * known.sum())


def _inside(over: Series | QuantileForecast, bins: int, event: Event) -> slice:
    """Return which bins overlap the event."""
    first = (event.start_at - over.start_at).total_seconds() // over.step_s
    end = -((over.start_at - event.end_at).total_seconds() // over.step_s)
    return slice(min(max(int(first), 0), bins), min(max(int(end), 0), bins))
