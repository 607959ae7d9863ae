"""What the two sides of one block amount to, and whether the block can be used."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary
from headway.judge import rule
from headway.judge.metrics import goodput_rate
from headway.judge.quantiles import LATENCIES, Floats, Rate, failure_rate, percentiles, timings


class Half(NamedTuple):
    """One side of one block."""

    timings: dict[str, Floats]
    figures: dict[str, float | None]
    """Every latency metric."""
    uncounted: int
    """Answers that ended well and do not say how many tokens they have."""
    rates: tuple[Rate, ...]
    """Requests that failed; then, if the profile says what a good one is, those that were not good."""


class Pair(NamedTuple):
    """One block."""

    summary: BlockSummary
    halves: dict[Side, Half]
    unusable: str
    """Why it cannot be used; empty if it can."""

    @property
    def ratios(self) -> dict[str, float | None]:
        """Candidate over stable for every latency metric; none where a side has no figure."""
        candidate, stable = self.halves["candidate"].figures, self.halves.get("stable")
        return {name: _ratio(value, stable.figures[name] if stable else None) for name, value in candidate.items()}


def measure(
    summary: BlockSummary, sides: dict[Side, list[RequestRecord]], canary: Canary, *, paired: bool = True
) -> Pair:
    """Measure a block.

    Args:
        summary: How it went.
        sides: The requests of each side.
        canary: Says what a good request is.
        paired: Whether stable must be there.
    """
    wanted: tuple[Side, ...] = ("stable", "candidate") if paired else ("candidate",)
    halves = {side: _half(sides.get(side, []), canary) for side in wanted}
    return Pair(summary, halves, _unusable(summary, halves))


def as_run(pairs: Sequence[Pair]) -> rule.Blocks:
    """Return paired blocks as the one run that the rule decides on."""
    ratios = np.array([[[_log(pair.ratios[name]) for name, _, _ in LATENCIES] for pair in pairs]], dtype=float).reshape(
        1, len(pairs), len(LATENCIES)
    )
    both: tuple[Side, Side] = ("candidate", "stable")
    counts = np.array(
        [[[pair.halves[side].rates[k] for side in both] for k in range(_rates(pairs))] for pair in pairs], dtype=float
    ).reshape(len(pairs), _rates(pairs), 2, 2)
    return rule.Blocks(
        ratios,
        counts[None, ..., 0],
        counts[..., 1],
        [not pair.unusable for pair in pairs],
        [pair.summary.placement for pair in pairs],
    )


def pooled(pairs: Sequence[Pair], side: Side) -> tuple[dict[str, float | None], tuple[Rate, ...]]:
    """Return every latency metric and rate of one side over the requests of several blocks."""
    halves = [pair.halves[side] for pair in pairs]
    every = {a: np.concatenate([half.timings[a] for half in halves]) for a in (halves[0].timings if halves else {})}
    rates = zip(*(half.rates for half in halves), strict=True)
    return percentiles(every), tuple(Rate(sum(r.failed for r in of), sum(r.sent for r in of)) for of in rates)


def _half(records: Sequence[RequestRecord], canary: Canary) -> Half:
    taken = timings(records)
    bad = [goodput_rate(records, canary.goodput)] if canary.goodput else []
    uncounted = sum(r.error is None and r.output_tokens is None for r in records)
    return Half(taken, percentiles(taken), uncounted, (failure_rate(records), *bad))


def _unusable(summary: BlockSummary, halves: dict[Side, Half]) -> str:
    number = summary.block + 1
    if summary.void or summary.stopped:
        return f"block {number} is void: {summary.reason or 'stopped'}"
    sent = {side: half.rates[0].sent for side, half in halves.items()}
    short = [f"{n} of {summary.planned} requests of {side}" for side, n in sent.items() if n != summary.planned]
    if short:
        return f"block {number} has only {', '.join(short)}"
    gaps = [
        f"{side}'s {name}"
        for side, half in halves.items()
        for name, value in half.figures.items()
        if value is None or not 0 < value < math.inf
    ]
    if gaps:
        return f"block {number} lacks {', '.join(gaps)}"
    # The others would be a selection: an engine may count short answers and forget long ones.
    uncounted = [f"{half.uncounted} answers of {side}" for side, half in halves.items() if half.uncounted]
    return f"block {number} has {', '.join(uncounted)} without a token count, so no tpot" if uncounted else ""


def _rates(pairs: Sequence[Pair]) -> int:
    return len(pairs[0].halves["candidate"].rates) if pairs else 0


def _ratio(candidate: float | None, stable: float | None) -> float | None:
    return candidate / stable if candidate and stable and candidate > 0 and stable > 0 else None


def _log(ratio: float | None) -> float:
    return math.nan if ratio is None else math.log(ratio)
