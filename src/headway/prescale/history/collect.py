"""From the metrics to the table: only bins that are new are asked for, and what nobody measured stays missing."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from headway.domain import engine_series
from headway.domain.series import Floats
from headway.ports import REQUESTS, Metrics
from headway.prescale.history.table import STEP_S, History, floor

AGAIN_BINS = 2
"""Newest bins that are read again: their last samples may have come late."""
LOOK_BACK = timedelta(days=1)
"""How far back gaps are asked for again: a store that was away may have the samples after all."""
MEASURED = ("requests_per_s", "prompt_tokens", "output_tokens", "cached_share")


class Collected(NamedTuple):
    """A history up to now.

    Args:
        history: Every whole bin of the days that are kept, up to the one that is not over yet.
        notes: What a reader has to know, one sentence each.
        faults: What is wrong with the input, one sentence each.
    """

    history: History
    notes: tuple[str, ...]
    faults: tuple[str, ...]


class Load(NamedTuple):
    """What is asked for now.

    Args:
        at: Middle of the window in which it was measured.
        requests_per_s: None if nobody measured it.
        prompt_tokens: Mean of a request; none if the engines say nothing, or answered nothing.
        output_tokens: The same for what they wrote.
        cached_share: Share (0 to 1) of the prompt tokens that came from the prefix cache, none if not known.
        zero_confirmed: Whether the engines' own counter says too that nothing is asked for.
    """

    at: datetime
    requests_per_s: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    cached_share: float | None
    zero_confirmed: bool


def collect(model: str, metrics: Metrics, kept: History | None, *, now: datetime, days: int = 14) -> Collected:
    """Return the history up to now: what is kept, and what came since.

    Args:
        model: As clients ask for it.
        metrics: Where it is measured.
        kept: What an earlier call returned, with what was noted in it; none to read everything.
        now: The bin of this time is not over, so it is left out.
        days: How much is kept.

    Raises:
        BackendError: The metrics do not answer.
    """
    notes: list[str] = []
    end = floor(now, STEP_S)
    start = end - timedelta(days=days)
    if kept is not None and kept.step_s != STEP_S:
        notes.append(f"The kept history has bins of {kept.step_s} s, not {STEP_S} s; it was read anew.")
        kept = None
    if kept is not None and kept.end_at > end + timedelta(seconds=STEP_S):
        notes.append(f"The kept history ends at {kept.end_at:%Y-%m-%d %H:%M} UTC, after now; what lies ahead was cut.")
    history = kept.between(start, end) if kept is not None else History(start, STEP_S, {}).between(start, end)
    first = _first_missing(history, kept, start, end)
    fresh = _measure(model, metrics, history.at(first), end, STEP_S)
    columns = dict(history.columns)
    for name in MEASURED:
        # A bin that was measured once and cannot be read any more (the store forgot it) stays as it was.
        old, new = columns[name], columns[name].copy()
        new[first:] = np.where(np.isfinite(fresh[name]), fresh[name], old[first:])
        columns[name] = new
    history = _begun(History(start, STEP_S, columns))
    return Collected(history, tuple(notes), tuple(_faults(model, fresh)))


def observe(model: str, metrics: Metrics, *, now: datetime, window_s: float = 120) -> Load:
    """Return what is asked for now.

    Args:
        model: As clients ask for it.
        metrics: Where it is measured.
        now: End of the window.
        window_s: Its length. Longer lags behind, shorter is noise: engines report every ten seconds.

    Raises:
        BackendError: The metrics do not answer.
    """
    start = now - timedelta(seconds=round(window_s))
    found = {name: float(values[0]) for name, values in _measure(model, metrics, start, now, round(window_s)).items()}
    idle = found["requests_per_s"] == 0 == found["served_per_s"]
    return Load(
        at=start + (now - start) / 2,
        requests_per_s=_known(found["requests_per_s"]),
        prompt_tokens=_known(found["prompt_tokens"]),
        output_tokens=_known(found["output_tokens"]),
        cached_share=_known(found["cached_share"]),
        # An engine that answers a long request has counted nothing yet; one that idles has no gauge.
        zero_confirmed=idle and not metrics.instant(engine_series.RUNNING.name, {"model": model}, now),
    )


def _first_missing(history: History, kept: History | None, start: datetime, end: datetime) -> int:
    """Return the first bin to ask for: two before the last that is known, and at most a day before what is new."""
    if kept is None or kept.end_at <= start or kept.start_at >= end:
        return 0
    known_until = round((min(kept.end_at, end) - start).total_seconds()) // STEP_S
    look = max(known_until - round(LOOK_BACK.total_seconds()) // STEP_S, 0)
    known = np.flatnonzero(np.isfinite(history.columns["requests_per_s"][:known_until]))
    newest = int(known[-1]) + 1 if len(known) else 0
    return max(min(max(newest, look), known_until) - AGAIN_BINS, 0)


def _measure(model: str, metrics: Metrics, start: datetime, end: datetime, step_s: int) -> Mapping[str, Floats]:
    """Return what was measured in each step, and how many requests the engines served a second."""

    def rate(name: str) -> Floats:
        values = np.full(max(round((end - start).total_seconds()) // step_s, 0), np.nan)
        for sample in metrics.rate(name, {"model": model}, start, end, step_s):
            index = round((sample.at - start).total_seconds() / step_s)
            # A rate below zero or without end is a fault of the store, and nothing was measured by it.
            if 0 <= index < len(values) and np.isfinite(sample.value) and sample.value >= 0:
                values[index] = sample.value
        return values

    served = rate(engine_series.REQUESTS.name)
    queries, hits = rate(engine_series.PREFIX_QUERIES.name), rate(engine_series.PREFIX_HITS.name)
    # The counter of hits is not there before the first one.
    hits = np.where(np.isfinite(queries) & np.isnan(hits), 0.0, hits)
    return {
        "requests_per_s": rate(REQUESTS),
        "served_per_s": served,
        "prompt_tokens": _ratio(rate(engine_series.PROMPT_TOKENS.name), served),
        "output_tokens": _ratio(rate(engine_series.GENERATION_TOKENS.name), served),
        "cached_share": np.minimum(_ratio(hits, queries), 1.0),
    }


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return one over the other, missing where either is or nothing is below."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=np.isfinite(above) & (below > 0))


def _begun(history: History) -> History:
    """Return the history from the first bin on in which anything is known."""
    known = np.any([np.isfinite(values) for values in history.columns.values()], axis=0)
    first = int(np.argmax(known)) if known.any() else len(history)
    return history.between(history.at(first), history.end_at)


def _faults(model: str, fresh: Mapping[str, Floats]) -> list[str]:
    """Return what is wrong with what was read."""
    asked, served = fresh["requests_per_s"], fresh["served_per_s"]
    unseen = np.isnan(asked) & (served > 0)
    faults = []
    if unseen.any() and np.isnan(asked[unseen.argmax() :]).all():
        faults.append(
            f"The engines of {model} serve {served[unseen][-1]:.3g} requests a second and {REQUESTS} has no sample: "
            "the gateway is not read, or its metric was renamed; until it is back, the floor holds."
        )
    elif np.isnan(asked).all():
        faults.append(
            f"{REQUESTS} has no sample of {model} in the last {len(asked)} bins of {STEP_S // 60} min: nothing was "
            "measured, which is not zero traffic; check that the gateway is read, and the metric's name."
        )
    return faults


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
