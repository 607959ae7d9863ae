"""The users' clock: their days follow it, and twice a year it moves against UTC.

A forecast finds the day by counting bins, so a change of the clock would put a week of peaks an hour off. Before it
learns, the history is moved onto the clock of now (`aligned`); what it says of the time after a change that is still
to come is moved back (`realigned`). Both work on times of measurement, UTC: whatever is known by real time, such as
events, is taken out before the one and put in after the other.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headway.domain import places
from headway.domain.series import DAY_S, QuantileForecast, Series
from headway.units import format_seconds


def offset_s(zone: str, at: datetime) -> int:
    """Return how far a zone's clock is ahead of UTC.

    Args:
        zone: IANA name of the time zone.
        at: When, UTC.

    Raises:
        ConfigError: There is no such time zone.
    """
    offset = at.astimezone(places.zone(zone)).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def aligned(series: Series, zone: str, at: datetime) -> Series:
    """Return the history on the clock of `at`, so that a time of day is the same number of bins into each day.

    Bins from before a change of the clock move by the difference. The hour that a spring night leaves out is missing;
    the one that an autumn night has twice is the mean of both. The series ends when it ended before: of the hour that
    comes twice, what lies ahead is not known yet.

    Args:
        series: What was measured, UTC.
        zone: IANA name of the users' time zone.
        at: Whose clock counts, UTC: the time of the tick.

    Raises:
        ConfigError: There is no such time zone.
    """
    moved = _moved(series.start_at, series.step_s, len(series), zone, at)
    if not moved.any():
        return series
    index = np.arange(len(series)) + moved
    first = int(index.min())
    bins = max(len(series) - first, 0)
    known = np.isfinite(series.values) & (index < len(series))
    target = index[known] - first
    count = np.bincount(target, minlength=bins)
    total = np.bincount(target, weights=series.values[known], minlength=bins)
    return Series(series.at(first), series.step_s, np.where(count > 0, total / np.maximum(count, 1), np.nan))


def realigned(said: QuantileForecast, zone: str, at: datetime) -> QuantileForecast:
    """Return a forecast that was made on the clock of `at` by UTC: steps after a coming change are moved back.

    Where the clock goes forward, the forecast ends earlier by as much; where it goes back, what is said of the first
    bins stands for those that would come from before it. A change is named in a note.

    Args:
        said: The forecast from a history that was aligned.
        zone: IANA name of the users' time zone.
        at: The time that the history was aligned to, UTC.

    Raises:
        ConfigError: There is no such time zone.
    """
    moved = _moved(said.start_at, said.step_s, said.steps, zone, at)
    if not moved.any():
        return said
    index = np.maximum(np.arange(said.steps) + moved, 0)
    index = index[index < said.steps]
    change = int(np.argmax(moved != 0))
    by_s = int(moved[change]) * said.step_s
    note = (
        f"From {said.start_at + timedelta(seconds=change * said.step_s):%Y-%m-%d %H:%M} UTC on the clock of {zone} is "
        f"{format_seconds(abs(by_s))} {'ahead of' if by_s > 0 else 'behind'} that of now; the forecast follows it."
    )
    return replace(said, values=said.values[:, index], notes=(*said.notes, note))


def _moved(start_at: datetime, step_s: int, bins: int, zone: str, at: datetime) -> NDArray[np.int64]:
    """Return by how many bins the clock of each bin is ahead of that of `at`."""
    result: NDArray[np.int64] = np.zeros(bins, dtype=np.int64)
    if not bins:
        return result
    begin, now = round(start_at.timestamp()), offset_s(zone, at)
    days = (begin // DAY_S, (begin + bins * step_s) // DAY_S + 1)
    for when, offset in _changes(zone, *days):
        # A bin belongs to the clock at its begin.
        result[max(-((begin - when) // step_s), 0) :] = round((offset - now) / step_s)
    return result


@lru_cache(maxsize=256)
def _changes(zone: str, first_day: int, last_day: int) -> tuple[tuple[int, int], ...]:
    """Return from when on a zone has which offset, from the begin of a day up to another day.

    Days and times are numbers since 1970. No zone changes twice within a day.
    """
    found = [(first_day * DAY_S, _offset_at(zone, first_day * DAY_S))]
    for day in range(first_day, last_day):
        low, high, last = day * DAY_S, (day + 1) * DAY_S, found[-1][1]
        if _offset_at(zone, high) == last:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset_at(zone, middle) == last else (low, middle)
        found.append((high, _offset_at(zone, high)))
    return tuple(found)


def _offset_at(zone: str, second: int) -> int:
    return offset_s(zone, datetime.fromtimestamp(second, UTC))
