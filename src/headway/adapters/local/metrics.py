"""The `Metrics` port on the files that `headway.adapters.local.scrape` writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from headway.adapters.local.layout import LocalLayout
from headway.domain import counters
from headway.ports import UPTIME, Sample

STALE = timedelta(seconds=60)
"""A last value that is older than this is no value any more; Prometheus uses five minutes for a slower scrape."""
SAMPLES_A_STEP = 20
"""As many samples tell how a counter grew in a step; the lines between them are not taken apart."""
STRETCH_BYTES = 64 * 1024
"""What is read through rather than halved once more."""

Series = tuple[tuple[str, str], ...]
"""All labels of a series, sorted."""


class LocalMetrics:
    """The `Metrics` port.

    Args:
        layout: Where the files are.
    """

    def __init__(self, layout: LocalLayout) -> None:
        self._folder = layout.metrics

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        """Return the sum over matching series of the last value at or before `at`; none when there is no data."""
        last: dict[Series, float] = {}
        for _, found in self._lines(at - STALE, at):
            last |= dict(_matching(found, name, labels))
        return sum(last.values()) if last else None

    def instant_by(self, name: str, labels: Mapping[str, str], label: str, at: datetime) -> Mapping[str, float]:
        """Return what `instant` does for each value of one more label; empty when there is no data."""
        groups: dict[Series, dict[str, float]] = {}
        for _, found in self._lines(at - STALE, at):
            latest: dict[Series, dict[str, float]] = {}
            for own, value in _matching(found, name, labels):
                kept = dict(own)
                if label in kept:
                    latest.setdefault(tuple((k, v) for k, v in own if k != label), {})[kept[label]] = value
            # A line replaces all of a series: after a restart fewer buckets hold something.
            groups |= latest
        totals: dict[str, float] = {}
        for group in groups.values():
            for key, value in group.items():
                totals[key] = totals.get(key, 0.0) + value
        return totals

    def counting_since(self, at: datetime) -> datetime | None:
        """Return when the gateway's counters last began at zero; none if nobody was reading the gateway at `at`."""
        last = None
        for moment, found in self._lines(at - STALE, at):
            for _, value in _matching(found, UPTIME, {}):
                last = moment - timedelta(seconds=value)
        return last

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        """Return that sum over time; a gap is missing, never zero."""
        samples = []
        for at, found in self._lines(start, end):
            values = [value for _, value in _matching(found, name, labels)]
            if values:
                samples.append(Sample(at, sum(values)))
        return samples

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        """Return by how much matching counters grew a second, in each whole step that was measured."""
        every = min(timedelta(seconds=step_s) / SAMPLES_A_STEP, STALE / 2)
        wanted = f'"{name}"'.encode()
        series: dict[Series, list[tuple[datetime, float]]] = {}
        due = start - STALE
        for at, line in self._texts(start - STALE, end + STALE):
            # Engines are in every third line only; to look for the name costs nothing beside taking a line apart.
            if at >= due and wanted in line:
                due = at + every
                for own, value in _matching(_samples(line), name, labels):
                    series.setdefault(own, []).append((at, value))
        steps = counters.growth(series.values(), start, end, step_s, gap_s=STALE.total_seconds())
        return [Sample(*step) for step in steps]

    def _lines(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, list[Any]]]:
        for at, line in self._texts(start, end):
            yield at, _samples(line)

    def _texts(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, bytes]]:
        hour = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        while hour <= end:
            yield from _within(self._folder / f"{hour:%Y%m%d%H}.jsonl", start, end)
            hour += timedelta(hours=1)


def _within(path: Path, start: datetime, end: datetime) -> Iterator[tuple[datetime, bytes]]:
    """Yield the lines of a file whose time is between the two, in order."""
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        return
    with handle:
        handle.seek(_first(handle, start))
        for line in handle:
            at = _moment(line)
            if at is None or at > end:
                return
            if at >= start:
                yield at, line


def _samples(line: bytes) -> list[Any]:
    """Return the samples of a line; none of one that is cut, because the scraper is writing it."""
    try:
        return list(json.loads(line)["samples"])
    except ValueError:
        return []


def _first(handle: BinaryIO, start: datetime) -> int:
    """Return a place in the file that begins a line, with every line at or after `start` behind it.

    The lines are in the order of time and most are not asked for, so it is searched by halves.
    """
    low, high = 0, handle.seek(0, 2)
    while high - low > STRETCH_BYTES:
        middle = (low + high) // 2
        handle.seek(middle)
        handle.readline()
        place = handle.tell()
        at = _moment(handle.readline())
        if place >= high or at is None or at >= start:
            high = middle
        else:
            low = place
    return low


def _moment(line: bytes) -> datetime | None:
    """Return the time of a line, `{"at":"<time>",...`; none if it is cut there."""
    try:
        return datetime.fromisoformat(line[7:].partition(b'"')[0].decode())
    except ValueError:
        return None


def _matching(samples: Sequence[Any], name: str, labels: Mapping[str, str]) -> Iterator[tuple[Series, float]]:
    for series, own, value in samples:
        if series == name and labels.items() <= own.items():
            yield tuple(sorted(own.items())), float(value)
