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
    """Requests that failed; then, if the profile says what a good one is, those that were not good: of no request where
    the block is unusable, because a failure is one whatever the block was like, and lateness is not."""


class Pair(NamedTuple):
    """One block."""

    summary: BlockSummary
    halves: dict[Side, Half]
    unusable: str
    """Why its latencies cannot be used; empty if they can."""
    withheld: bool
    """Whether that is for want of what the candidate's good answers should have said, where stable's did."""

    @property
    def ratios(self) -> dict[str, float | None]:
        """Candidate over stable for every latency metric; none where a side has no figure."""
        candidate, stable = self.halves["candidate"].figures, self.halves.get("stable")
        return _ratios(candidate, stable.figures if stable else {})


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
    unusable, withheld = _unusable(summary, halves)
    if unusable:
        halves = {
            side: half._replace(rates=(half.rates[0], *(Rate(0, 0) for _ in half.rates[1:])))
            for side, half in halves.items()
        }
    return Pair(summary, halves, unusable, withheld)


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
    """Return every latency metric of one side over the usable ones of several blocks, and every rate over all."""
    used = [pair.halves[side].timings for pair in pairs if not pair.unusable]
    every = {a: np.concatenate([timings[a] for timings in used]) for a in (used[0] if used else {})}
    rates = zip(*(pair.halves[side].rates for pair in pairs), strict=True)
    return percentiles(every), tuple(Rate(sum(r.failed for r in of), sum(r.sent for r in of)) for of in rates)


def _half(records: Sequence[RequestRecord], canary: Canary) -> Half:
    taken = timings(records)
    bad = [goodput_rate(records, canary.goodput)] if canary.goodput else []
    uncounted = sum(r.error is None and r.output_tokens is None for r in records)
    return Half(taken, percentiles(taken), uncounted, (failure_rate(records), *bad))


def _unusable(summary: BlockSummary, halves: dict[Side, Half]) -> tuple[str, bool]:
    """Return why a block's latencies cannot be used, and whether it is the candidate that withholds them."""
    number = summary.block + 1
    if summary.void or summary.stopped:
        return f"block {number} is void: {summary.reason or 'stopped'}", False
    sent = {side: half.rates[0].sent for side, half in halves.items()}
    short = [f"{n} of {summary.planned} requests of {side}" for side, n in sent.items() if n != summary.planned]
    if short:
        return f"block {number} has only {', '.join(short)}", False
    gaps = {
        side: [name for name, value in half.figures.items() if not _positive(value)] for side, half in halves.items()
    }
    lacks = [f"{side}'s {name}" for side, names in gaps.items() for name in names]
    # The others would be a selection: an engine may count short answers and forget long ones.
    uncounted = {side: half.uncounted for side, half in halves.items() if half.uncounted}
    withheld = not gaps.get("stable") and not uncounted.get("stable")
    if lacks:
        return f"block {number} lacks {', '.join(lacks)}", withheld
    if uncounted:
        answers = ", ".join(f"{count} answers of {side}" for side, count in uncounted.items())
        return f"block {number} has {answers} without a token count, so no tpot", withheld
    if "stable" in halves:
        ratios = _ratios(halves["candidate"].figures, halves["stable"].figures)
        beyond = [name for name, ratio in ratios.items() if ratio is None]
        if beyond:
            return f"block {number} has sides too far apart to compare in {', '.join(beyond)}", False
    return "", False


def _rates(pairs: Sequence[Pair]) -> int:
    return len(pairs[0].halves["candidate"].rates) if pairs else 0


def _positive(value: float | None) -> bool:
    return value is not None and 0 < value < math.inf


def _ratios(candidate: dict[str, float | None], stable: dict[str, float | None]) -> dict[str, float | None]:
    return {name: _ratio(value, stable.get(name)) for name, value in candidate.items()}


def _ratio(candidate: float | None, stable: float | None) -> float | None:
    if candidate is None or stable is None or not (_positive(candidate) and _positive(stable)):
        return None
    # Of two numbers that are fine the one may still be too small for the other.
    ratio = candidate / stable
    return ratio if _positive(ratio) else None


def _log(ratio: float | None) -> float:
    return math.nan if ratio is None else math.log(ratio)
