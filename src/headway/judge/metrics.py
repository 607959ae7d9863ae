"""Every metric of a benchmark, from its records, by the definitions of vLLM's own benchmark (`vllm bench serve`).

| metric | definition |
|---|---|
| TTFT | scheduled arrival to the first non-empty content or reasoning |
| TPOT | `(end - first token) / (output tokens - 1)`, for each answer of two or more tokens |
| ITL | gaps between the chunks of text, of all answers in one pool |
| E2E | scheduled arrival to the end |
| goodput | requests that keep every limit of `canary.goodput`, of all that were sent |
| requests/s, output tokens/s | of requests that ended well, over the time that the blocks took |

One thing differs on purpose: vLLM counts from the moment a request was sent, which hides the time it waited in a late
client. Where nothing was measured a figure is missing (none), never 0.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from headway.domain.bench import RequestRecord, Side
from headway.domain.profile import Goodput
from headway.domain.value import Value
from headway.judge.quantiles import Rate, quantile


class Distribution(Value):
    """A latency of many requests, in milliseconds; all figures are none where nothing was measured."""

    count: int = 0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class SideFigures(Value):
    """What one side did."""

    sent: int
    failed: int
    error_pct: float | None
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    duration_s: float | None
    """Sum over the blocks, each from its first scheduled arrival to its last end."""
    requests_per_s: float | None
    """Requests that ended well, over the duration."""
    output_tokens: int | None
    """Of the requests that ended well; none if one of them does not say how many it had."""
    output_tokens_per_s: float | None
    good: int | None
    """Requests that kept the profile's limits; none without limits."""
    good_pct: float | None
    good_per_s: float | None


class Summary(Value):
    """Both sides; none for a side that got no request."""

    stable: SideFigures | None
    candidate: SideFigures | None


def good(record: RequestRecord, goodput: Goodput) -> bool:
    """Return whether a request ended well and kept every limit.

    As in vLLM's benchmark an answer of one token has no time between tokens and keeps any limit on it. A figure that is
    missing for another reason keeps none.
    """
    if record.error is not None or record.ended_s is None:
        return False
    tpot_ms = 0.0 if record.output_tokens == 1 else record.tpot_ms
    pairs = ((record.ttft_ms, goodput.ttft_ms), (tpot_ms, goodput.tpot_ms), (record.e2e_ms, goodput.e2e_ms))
    return all(limit is None or (found is not None and found <= limit) for found, limit in pairs)


def goodput_rate(records: Sequence[RequestRecord], goodput: Goodput) -> Rate:
    """Count the requests that were *not* good among all that were sent, as the error rate counts failures."""
    return Rate(sum(not good(record, goodput) for record in records), len(records))


def summary(records: Sequence[RequestRecord], goodput: Goodput | None = None) -> Summary:
    """Return every figure of both sides.

    Args:
        records: Requests of both sides, in any order.
        goodput: Limits of a good request; none leaves goodput out.
    """
    return Summary(stable=_side(records, "stable", goodput), candidate=_side(records, "candidate", goodput))


def _side(records: Sequence[RequestRecord], side: Side, goodput: Goodput | None) -> SideFigures | None:
    sent = [r for r in records if r.side == side]
    if not sent:
        return None
    well = [r for r in sent if r.error is None]
    tokens = [r.output_tokens for r in well if r.output_tokens is not None]
    output_tokens = sum(tokens) if well and len(tokens) == len(well) else None
    duration_s = _duration_s(sent)
    kept = None if goodput is None else len(sent) - goodput_rate(sent, goodput).failed

    def per_s(count: int | None) -> float | None:
        return count / duration_s if count is not None and duration_s else None

    return SideFigures(
        sent=len(sent),
        failed=len(sent) - len(well),
        error_pct=(len(sent) - len(well)) / len(sent) * 100,
        ttft=_distribution(r.ttft_ms for r in well),
        tpot=_distribution(r.tpot_ms for r in well),
        itl=_distribution(gap for r in well for gap in r.itl_ms),
        e2e=_distribution(r.e2e_ms for r in well),
        duration_s=duration_s,
        requests_per_s=per_s(len(well)),
        output_tokens=output_tokens,
        output_tokens_per_s=per_s(output_tokens),
        good=kept,
        good_pct=None if kept is None else kept / len(sent) * 100,
        good_per_s=per_s(kept),
    )


def _duration_s(sent: Sequence[RequestRecord]) -> float | None:
    spans: dict[int, tuple[float, float]] = {}
    for record in sent:
        if record.ended_s is None:
            continue
        first_s, last_s = spans.get(record.block, (record.scheduled_s, record.ended_s))
        spans[record.block] = min(first_s, record.scheduled_s), max(last_s, record.ended_s)
    return sum(last_s - first_s for first_s, last_s in spans.values()) or None


def _distribution(values: Iterable[float | None]) -> Distribution:
    present = [value for value in values if value is not None]
    if not present:
        return Distribution()
    figures = {f"p{percent}_ms": quantile(present, percent) for percent in (50, 95, 99)}
    return Distribution(count=len(present), mean_ms=float(np.mean(present)), **figures)
