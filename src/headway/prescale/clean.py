"""From raw samples to a regular series that can be trusted: what was not measured is missing, and never zero.

Samples may come unsorted, twice, with nonsense between them. Each thing that was changed is said in a sentence, because
a forecast from a history that was silently repaired is no better than one from a broken history.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import DAY_S, Floats, Series
from headway.errors import ConfigError
from headway.units import format_seconds

Flags: TypeAlias = NDArray[np.bool_]

OUTAGE_SHARE = 0.1
"""Below this share of what is usual at the time traffic is not low but cut off."""
LONGEST_OUTAGE_S = 3 * DAY_S
"""What stays away longer is gone: then zero is what is measured."""
USUAL_DAYS = 7
"""Days to either side from which the usual level of a time of day is taken."""
SPIKE = 10.0
"""Times above the highest of all other bins, but for the very busiest, from which on a value is no traffic."""
SPIKE_BINS = 3
LEAST_BINS = 12
"""Bins with a value before an outage or a spike can be told."""


class Cleaned(NamedTuple):
    """A series and what was done to get it.

    Args:
        series: Rates, NaN where missing.
        notes: One sentence for each kind of change; empty when nothing was changed.
    """

    series: Series
    notes: tuple[str, ...]


def clean(
    at_s: Sequence[float] | Floats,
    values: Sequence[float] | Floats,
    *,
    step_s: int,
    until: datetime,
    kind: Literal["rate", "counter"] = "rate",
) -> Cleaned:
    """Return samples as a regular series of rates.

    Args:
        at_s: Time of each sample, seconds since 1970. Local times have to be converted before: in the night in which
            the clock is set back, only UTC tells the two hours apart.
        values: The samples: rates, or the state of a counter that only grows.
        step_s: Bins of the result.
        until: Now: a bin that has not ended is left out, one without a sample before it is missing.
        kind: What the samples are.

    Raises:
        ConfigError: Times and values differ in number, or no sample is left.
    """
    if len(at_s) != len(values):
        raise ConfigError(f"{len(at_s)} times and {len(values)} values; each sample needs both")
    notes: list[str] = []
    at, value = _ordered(np.asarray(at_s, dtype=float), np.asarray(values, dtype=float), until, notes)
    if kind == "counter":
        at, value = _rates(at, value, notes)
    negative = value < 0
    if negative.any():
        notes.append(f"{negative.sum()} negative rates were dropped: a rate below zero is a fault of the measurement.")
        at, value = at[~negative], value[~negative]
    if len(at) == 0:
        raise ConfigError(
            "no sample is usable: nothing was measured, which is not zero traffic; check the metric's name and range"
        )
    series = _binned(at, value, step_s, until)
    return without_faults(series, notes)


def without_faults(series: Series, notes: Sequence[str] = ()) -> Cleaned:
    """Return the series with outages and impossible spikes missing.

    Args:
        series: Rates, NaN where missing.
        notes: What was done before.
    """
    values = series.values.copy()
    words = list(notes)
    if np.isfinite(values).sum() >= LEAST_BINS:
        spikes = _spikes(values)
        if spikes.any():
            words.append(
                f"{spikes.sum()} bins from {series.at(int(np.argmax(spikes))):%Y-%m-%d %H:%M} on are more than "
                f"{SPIKE:.0f} times above all others (up to {values[spikes].max():.4g}) and were taken as missing."
            )
            values[spikes] = np.nan
        outages = _outages(values, series.day_bins, LONGEST_OUTAGE_S // series.step_s)
        for first, last in _runs(outages):
            if last - first > 1:
                words.append(
                    f"An outage of {format_seconds((last - first) * series.step_s)} from "
                    f"{series.at(first):%Y-%m-%d %H:%M} UTC is missing, not zero."
                )
        single = sum(last - first == 1 for first, last in _runs(outages))
        if single:
            words.append(f"{single} single bins that were cut off are missing, not zero.")
        values[outages] = np.nan
    missing = np.isnan(series.values)
    if missing.any():
        longest = max(last - first for first, last in _runs(missing))
        words.append(
            f"{missing.sum()} of {len(missing)} bins have no measurement (the longest gap is "
            f"{format_seconds(longest * series.step_s)}); they are missing, not zero."
        )
    return Cleaned(Series(series.start_at, series.step_s, values), tuple(words))


def _ordered(at: Floats, value: Floats, until: datetime, notes: list[str]) -> tuple[Floats, Floats]:
    """Return finite samples before `until` by time, one for each time."""
    finite = np.isfinite(at) & np.isfinite(value)
    if not finite.all():
        notes.append(f"{(~finite).sum()} samples without a number were dropped.")
    early = at < until.timestamp()
    if (finite & ~early).any():
        notes.append(f"{(finite & ~early).sum()} samples from the future were dropped: a clock is ahead.")
    at, value = at[finite & early], value[finite & early]
    if (np.diff(at) < 0).any():
        notes.append(f"The samples were not in order of time ({(np.diff(at) < 0).sum()} steps back); they were sorted.")
    # By time, then by value, so that the order in which they came cannot matter.
    order = np.lexsort((value, at))
    at, value = at[order], value[order]
    times, first, count = np.unique(at, return_index=True, return_counts=True)
    if len(times) < len(at):
        notes.append(f"{len(at) - len(times)} samples had the time of another; the mean of each time was taken.")
        value = np.add.reduceat(value, first) / count
    return times, value


def _rates(at: Floats, value: Floats, notes: list[str]) -> tuple[Floats, Floats]:
    """Return the rate between samples of a counter, at the later one; a counter that fell began again at zero."""
    if len(at) < 2:
        return at[:0], value[:0]
    took, grew = np.diff(at), np.diff(value)
    resets = grew < 0
    if resets.any():
        notes.append(f"The counter began again {resets.sum()} times; it counts from zero there.")
        grew = np.where(resets, value[1:], grew)
    # Over a gap the growth is known but not when it came: the gap stays missing.
    gap = took > 5 * float(np.median(took))
    return at[1:][~gap], (grew / took)[~gap]


def _binned(at: Floats, value: Floats, step_s: int, until: datetime) -> Series:
    """Return the mean of the samples in each bin that has ended."""
    first = math.floor(at[0] / step_s)
    end = max(math.floor(until.timestamp() / step_s), first)
    bins = np.floor(at / step_s).astype(np.int64) - first
    inside = bins < end - first
    count = np.bincount(bins[inside], minlength=end - first).astype(float)
    total = np.bincount(bins[inside], weights=value[inside], minlength=end - first)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return Series(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=first * step_s), step_s, mean)


def _spikes(values: Floats) -> Flags:
    """Return which bins are a spike that no traffic explains: few, and far above all others."""
    known = np.sort(values[np.isfinite(values)])
    others = float(known[-SPIKE_BINS - 1]) if len(known) > SPIKE_BINS else math.inf
    return np.asarray(values > SPIKE * others) if others > 0 else np.zeros(len(values), dtype=bool)


def _outages(values: Floats, day: int, longest: int) -> Flags:
    """Return which bins were cut off: far below what is usual at their time, in a run that is not too long.

    Where traffic is often nearly zero for a while, only what lasts clearly longer than that is an outage.
    """
    usual = _usual(values, day)
    with np.errstate(invalid="ignore"):
        low = values < OUTAGE_SHARE * usual
    # A bin without a value between two low ones belongs to the same outage.
    runs = _runs(low | (np.isnan(values) & _between(low, values)))
    lengths = np.array([last - first for first, last in runs])
    often = 3 * float(np.quantile(lengths, 0.9)) if len(runs) > 0.01 * np.isfinite(values).sum() + 10 else 0.0
    found: Flags = np.zeros(len(values), dtype=bool)
    for first, last in runs:
        if often < last - first <= longest:
            found[first:last] = True
    return np.asarray(found & np.isfinite(values))


def _usual(values: Floats, day: int) -> Floats:
    """Return the usual level at each bin's time: the median of the days around, and at most that of the hours before.

    Where less than two days are known it is the median of all.
    """
    lead = (-len(values)) % day
    rows = np.concatenate([values, np.full(lead, np.nan)]).reshape(-1, day)
    known = np.isfinite(values)
    if len(values) < 2 * day:
        return np.full(len(values), float(np.median(values[known])))
    usual = np.empty_like(rows)
    for index in range(len(rows)):
        # As many days on both sides; at an edge, more on the other one.
        first = min(max(index - USUAL_DAYS, 0), max(len(rows) - 2 * USUAL_DAYS - 1, 0))
        usual[index] = _median(rows[first : first + 2 * USUAL_DAYS + 1])
    return np.asarray(usual.ravel()[: len(values)])


def _median(rows: Floats) -> Floats:
    """Return the median of each column without its NaN; zero where nothing is known."""
    ranked = np.sort(rows, axis=0)
    count = np.isfinite(ranked).sum(axis=0)
    column = np.arange(rows.shape[1])
    low, high = ranked[np.maximum(count - 1, 0) // 2, column], ranked[np.minimum(count // 2, len(rows) - 1), column]
    return np.asarray(np.where(count > 0, (low + high) / 2, 0.0))


def _between(low: Flags, values: Floats) -> Flags:
    """Return which bins lie after a low bin and before another, with no other value between."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) == 0:
        return np.zeros(len(values), dtype=bool)
    index = np.arange(len(values))
    before = known[np.clip(np.searchsorted(known, index, side="right") - 1, 0, None)]
    after = known[np.clip(np.searchsorted(known, index, side="left"), None, len(known) - 1)]
    return np.asarray(low[before] & low[after] & (before <= index) & (after >= index))


def _runs(flags: Flags) -> list[tuple[int, int]]:
    """Return begin and end of each stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
