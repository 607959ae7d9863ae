"""By how much counters grew in regular steps, from samples of each series."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from headway.domain.series import Floats

ENOUGH_SHARE = 0.5
"""A step of which less was measured is missing."""


class Step(NamedTuple):
    """One step in which somebody measured."""

    at: datetime
    """When it begins."""
    per_s: float


def growth(
    series: Iterable[Sequence[tuple[datetime, float]]], start: datetime, end: datetime, step_s: int, *, gap_s: float
) -> list[Step]:
    """Return by how much counters grew a second, all together, in each whole step that was measured.

    Each series is taken by itself: one that falls began again at zero, one that ends or begins is no growth and no
    fall. Between two samples growth is even. What was measured is the time in which any of the series had samples.

    Args:
        series: Time and state of each counter, in the order of time; may reach beyond the steps on both sides.
        start: Begin of the first step.
        end: The last step ends here or before.
        step_s: Length of a step.
        gap_s: Between samples further apart nothing was measured: it is not known when the counter grew, nor whether
            it began again.
    """
    edges: Floats = np.arange(max(int((end - start).total_seconds() // step_s), 0) + 1, dtype=float) * step_s
    grown = np.zeros(len(edges))
    measured: list[Floats] = []
    for samples in series:
        at = np.array([(moment - start).total_seconds() for moment, _ in samples])
        value = np.array([state for _, state in samples])
        whole = (np.diff(at) > 0) & (np.diff(at) <= gap_s)
        if not whole.any():
            continue
        more = np.where(np.diff(value) < 0, value[1:], np.diff(value))
        grown += np.interp(edges, at, np.concatenate([[0.0], np.cumsum(np.where(whole, more, 0.0))]))
        measured.append(np.stack([at[:-1], at[1:]], axis=1)[whole])
    if not measured:
        return []
    took = np.diff(_covered(np.concatenate(measured), edges))
    return [
        Step(start + timedelta(seconds=float(edges[index])), float(more / seconds))
        for index, (more, seconds) in enumerate(zip(np.diff(grown), took, strict=True))
        if seconds >= ENOUGH_SHARE * step_s
    ]


def _covered(intervals: Floats, edges: Floats) -> Floats:
    """Return for how long before each edge at least one of the intervals was there."""
    begins, ends = intervals[np.argsort(intervals[:, 0], kind="stable")].T
    ends = np.maximum.accumulate(ends)
    apart = np.flatnonzero(begins[1:] > ends[:-1])
    first = begins[np.concatenate([[0], apart + 1])]
    last = ends[np.concatenate([apart, [len(ends) - 1]])]
    until = np.cumsum(last - first)
    return np.interp(
        edges, np.stack([first, last], axis=1).ravel(), np.stack([until - (last - first), until], axis=1).ravel()
    )
