"""The `Metrics` port on the files that `headway.adapters.local.scrape` writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headway.adapters.local.layout import LocalLayout
from headway.ports import Sample

STALE = timedelta(seconds=60)
"""A last value that is older than this is no value any more; Prometheus uses five minutes for a slower scrape."""


class LocalMetrics:
    """The `Metrics` port.

    Args:
        layout: Where the files are.
    """

    def __init__(self, layout: LocalLayout) -> None:
        self._folder = layout.metrics

    def instant(self, name: str, labels: Mapping[str, str], at: datetime) -> float | None:
        """Return the sum over matching series of the last value at or before `at`; none when there is no data."""
        last: dict[tuple[tuple[str, str], ...], float] = {}
        for _, found in self._lines(at - STALE, at):
            last |= dict(_matching(found, name, labels))
        return sum(last.values()) if last else None

    def range(self, name: str, labels: Mapping[str, str], start: datetime, end: datetime) -> Sequence[Sample]:
        """Return that sum over time; a gap is missing, never zero."""
        samples = []
        for at, found in self._lines(start, end):
            values = [value for _, value in _matching(found, name, labels)]
            if values:
                samples.append(Sample(at, sum(values)))
        return samples

    def _lines(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, list[Any]]]:
        hour = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        while hour <= end:
            yield from _within(self._folder / f"{hour:%Y%m%d%H}.jsonl", start, end)
            hour += timedelta(hours=1)


def _within(path: Path, start: datetime, end: datetime) -> Iterator[tuple[datetime, list[Any]]]:
    """Yield a file's lines in order; a line that is cut (the scraper is writing it) ends the file."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        moment = line[7:].partition('"')[
            0
        ]  # {"at":"<moment>",...: parsed before the rest, because most lines are not asked for
        try:
            at = datetime.fromisoformat(moment)
            if at > end:
                return
            if at >= start:
                yield at, json.loads(line)["samples"]
        except ValueError:
            return


def _matching(
    samples: Sequence[Any], name: str, labels: Mapping[str, str]
) -> Iterator[tuple[tuple[tuple[str, str], ...], float]]:
    for series, own, value in samples:
        if series == name and labels.items() <= own.items():
            yield tuple(sorted(own.items())), float(value)
