"""Whether live requests show that a candidate is worse, by bounds that hold however often anybody looks.

Two things are watched during a step, on what the gateway counted:

- **Failures**: the share of the candidate's attempts that failed, against `shift.max_error_pct`.
- **Slowness**: a latency `q` is fixed before the step, the one that a tenth of stable's requests exceeded. A request of
  stable is slow above `q`, one of the candidate above `shift.max_latency_ratio * q`. If the candidate takes at most
  that many times as long as stable, its requests are slow at most as often, so its part of all slow ones is at most its
  share of the traffic. That holds whatever the hour and the load, because the gateway draws the side of each request.
  At 100 % there is no stable beside it; then the upper bound of what stable showed before the step is the limit.

The budget `shift.alpha` is the probability that a candidate which keeps its limits is taken back by these two at any
look of the whole shift. Every step gets an equal part, and each of the two half of that. What is assumed is said in
`headway.judge.always_valid`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headway.domain.profile import Shift
from headway.judge import always_valid

WATCHED = 2
"""Failures and slowness share the budget of a step."""
TAIL = 0.1
"""Share of stable's requests that the fixed latency is exceeded by. A rarer event tells more each time, and is seen
less often: between a quarter and a twentieth this one finds a slower candidate with the fewest requests."""
MIN_REQUESTS = 20
"""Requests of stable before the step below which no latency can be fixed, and none is judged."""
ENDLESS = "+Inf"
"""Edge of the last bucket, which holds all."""

Buckets = Mapping[str, float]
"""Requests that took at most so many seconds, by the edge as text; an edge that adds nothing may be missing."""


class Failures(NamedTuple):
    """Attempts at the candidate since one start of the evidence."""

    start: int
    errors: float
    requests: float


class Yardstick(NamedTuple):
    """Latencies that are fixed before a step, and never moved during it."""

    stable_s: float
    """Above this a request of stable is slow."""
    candidate_s: float
    """Above this a request of the candidate is slow."""
    slow: float
    """Requests of stable before the step that were slow."""
    requests: float
    """All of them."""


class Ended(NamedTuple):
    """Answered requests of both sides since one start of the evidence."""

    start: int
    candidate: Buckets
    stable: Buckets


def alpha_of_check(shift: Shift) -> float:
    """Return what one of the two checks may spend during one step."""
    return shift.alpha / (len(shift.steps_pct) * WATCHED)


def failing(seen: Sequence[Failures], shift: Shift) -> str | None:
    """Return why too many requests surely fail; none if that is not shown.

    Args:
        seen: What was counted since each start of the evidence.
        shift: Limits and budget.
    """
    limit = shift.max_error_pct / 100
    for start, counted, requests in seen:
        alpha = always_valid.alpha_of_start(alpha_of_check(shift), start)
        errors = min(counted, requests)
        if always_valid.above(errors, requests, limit, alpha, burst=shift.burst):
            surely = always_valid.lower_bound(errors, requests, alpha, burst=shift.burst)
            return (
                f"{errors:.0f} of {requests:.0f} live requests failed on the candidate "
                f"({100 * errors / requests:.1f} %, surely more than {100 * surely:.2g} %); "
                f"the limit is {shift.max_error_pct:g} %"
            )
    return None


def yardstick(before: Buckets, shift: Shift) -> Yardstick | None:
    """Fix the latencies of a step by what stable showed before it; none if that was too little.

    Args:
        before: Stable's answered requests before the step.
        shift: Says how many times as long the candidate may take.
    """
    edges, total = _edges(before), before.get(ENDLESS, 0.0)
    if total < MIN_REQUESTS:
        return None
    for edge in edges:
        slow = slower(before, edge)
        if slow > TAIL * total:
            continue
        wide = [wider for wider in LADDER_S if wider >= shift.max_latency_ratio * edge * (1 - 1e-9)]
        return Yardstick(edge, wide[0], slow, total) if wide else None
    return None


def slowing(seen: Sequence[Ended], fixed: Yardstick, share: float, shift: Shift) -> str | None:
    """Return why the candidate is surely slower than it may be; none if that is not shown.

    Args:
        seen: What was answered since each start of the evidence.
        fixed: The latencies of this step.
        share: Of the requests that the gateway sends to the candidate.
        shift: Limits and budget.
    """
    for start, candidate, stable in seen:
        alpha = always_valid.alpha_of_start(alpha_of_check(shift), start)
        slow = slower(candidate, fixed.candidate_s)
        if share < 1:
            of, limit = slow + slower(stable, fixed.stable_s), always_valid.part_of(share)
        else:
            alpha /= 2
            of = candidate.get(ENDLESS, 0.0)
            limit = always_valid.interval(fixed.slow, fixed.requests, 2 * alpha, burst=shift.burst)[1]
        if always_valid.above(slow, of, limit, alpha, burst=shift.burst):
            return (
                f"{slow:.0f} of {candidate.get(ENDLESS, 0.0):.0f} live requests took over {fixed.candidate_s:g} s on "
                f"the candidate, {fixed.candidate_s / fixed.stable_s:.3g} times what a tenth of stable's took before; "
                + (
                    f"{slower(stable, fixed.stable_s):.0f} of {stable.get(ENDLESS, 0.0):.0f} of stable's took over "
                    f"{fixed.stable_s:g} s meanwhile"
                    if share < 1
                    else f"at most {100 * limit:.2g} % may"
                )
                + f"; it may take {shift.max_latency_ratio:g} times as long"
            )
    return None


def slower(buckets: Buckets, edge_s: float) -> float:
    """Return how many requests took longer than an edge."""
    return max(0.0, buckets.get(ENDLESS, 0.0) - _within(buckets, edge_s))


def grown(end: Buckets, start: Buckets) -> Buckets:
    """Return what was added to buckets meanwhile."""
    edges = sorted(({*end, *start} - {ENDLESS}), key=float)
    added = {edge: _within(end, float(edge)) - _within(start, float(edge)) for edge in edges}
    return {**added, ENDLESS: end.get(ENDLESS, 0.0) - start.get(ENDLESS, 0.0)}


def _within(buckets: Buckets, edge_s: float) -> float:
    """Return how many took at most that long; an edge that is missing added nothing to the one below it."""
    return max(
        (count for edge, count in buckets.items() if edge != ENDLESS and float(edge) <= edge_s * (1 + 1e-9)),
        default=0.0,
    )


def _edges(buckets: Buckets) -> list[float]:
    return sorted(float(edge) for edge in buckets if edge != ENDLESS)


LADDER_S = tuple(
    step * 10.0**decade / 1000 for decade in range(1, 6) for step in (1.0, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0)
)
"""Edges of the gateway's latency buckets, from 10 ms to 800 s: two digits, which Envoy's histograms keep exactly."""
