"""Recorded pairs of equal sides, drawn again many times and judged by the real rule.

A recorded A/A benchmark gives blocks in which both sides are the same. A replay draws as many blocks as the profile
has, with replacement, swaps the sides of each at random (so that no side is better by luck of the recording), makes the
candidate's side slower by a known share, and lets `judge.rule` decide. Every kind of slowness gets the same draws.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from headway.domain.bench import RequestRecord, Side
from headway.domain.profile import Canary, Evidence, Trials
from headway.domain.value import Value
from headway.errors import ConfigError, IntegrityError
from headway.judge import blocks, rule
from headway.judge import records as record_rules
from headway.judge.calibrate import EVERY_REQUEST, SLOW_REQUESTS, rule_digest
from headway.judge.metrics import goodput_rate
from headway.judge.quantiles import LATENCIES, Floats, failure_rate, latencies, quantile
from headway.judge.records import Run
from headway.judge.sequential import t_of

REPLAYS = 10_000
RATE_TOLERANCE = 0.2
"""By how much of the profile's rate the recorded arrivals may differ from it; few of them may by chance differ more."""
SHARES_OF_MARGIN = (0.5, 1.0, 1.5, 2.0)
UNEQUAL_LEVEL = 0.0005
"""One-sided level at which recorded sides are called unequal; of true A/A recordings one in a thousand is, a metric."""
TAIL_PERCENT = 90
"""Requests above this percentile of their block are the slow ones that a tail-only injection delays."""


class Injection(NamedTuple):
    """What is made slower on the candidate's side."""

    metric: Literal["", "p50", "p95"]
    share: float
    """By how much: 0.1 is ten percent."""


class Block(NamedTuple):
    """One recorded pair."""

    sides: tuple[tuple[RequestRecord, ...], tuple[RequestRecord, ...]]
    seconds: float


class Resampled(Value):
    """What the replays came to."""

    trials: tuple[Trials, ...]
    spread: dict[str, float]
    """Standard deviation of the log ratio of the two sides, by metric."""
    recorded_blocks: int
    block_s: float
    """How long a block took, on average."""


def injections(canary: Canary) -> tuple[Injection, ...]:
    """Return what is tried: nothing, then both kinds of slowness at half a margin to two margins."""
    kinds = ((EVERY_REQUEST, canary.p50_margin), (SLOW_REQUESTS, canary.p95_margin))
    return (
        Injection("", 0.0),
        *(Injection(kind, margin * times) for kind, margin in kinds for times in SHARES_OF_MARGIN),  # type: ignore[arg-type]
    )


def unlike(runs: Sequence[Run], canary: Canary, model: str) -> list[str]:
    """Return in what recorded benchmarks are not those of a profile, one line each with what was found and expected.

    Records know the model that answered, requests, arrivals and tokens; not the hardware, the prompts or the API.

    Args:
        runs: Recorded benchmarks.
        canary: The profile's.
        model: The profile's.
    """
    records = [r for run in runs for r in run.records]
    good = [r for r in records if r.error is None]
    found: list[str] = []
    models = sorted({r.served_model for r in good if r.served_model is not None})
    if good and models != [model]:
        found.append(f"model: found {', '.join(models) or 'no name'}, expected {model}")
    planned = sorted({s.planned for run in runs for s in run.summaries})
    if planned and planned != [canary.requests_per_block]:
        found.append(f"requests in a block: found {_listed(planned)}, expected {canary.requests_per_block}")
    # A prompt set says for itself how long its answers are.
    tokens = sorted({r.output_tokens for r in good if r.output_tokens is not None})
    if tokens and canary.prompts is None and tokens != [canary.max_tokens]:
        found.append(f"tokens of an answer: found {_listed(tokens)}, expected {canary.max_tokens}")
    rate_per_s, gaps = _arrivals(runs)
    slack = max(RATE_TOLERANCE, 3 * _luck(canary) / math.sqrt(max(gaps, 1)))
    if gaps and not abs(rate_per_s / canary.rate_per_s - 1) <= slack:
        found.append(f"arrivals a second on each side: found {rate_per_s:.3g}, expected {canary.rate_per_s:g}")
    return found


def recorded(runs: Sequence[Run], canary: Canary, *, least: int) -> list[Block]:
    """Return the usable pairs of blocks of recorded A/A benchmarks; what the judge could not use is left out.

    Args:
        runs: Recorded benchmarks.
        canary: The profile's.
        least: How many there must be.

    Raises:
        IntegrityError: Records contradict themselves.
        ConfigError: They carry a delay, are of another number of requests, or too few.
    """
    found: list[Block] = []
    left_out: list[str] = []
    wanted = canary.requests_per_block
    for run in runs:
        faults = record_rules.faults(run.records, run.summaries, _as_long_as(canary, run), paired=True)
        if faults:
            raise IntegrityError(f"the recorded blocks are unfit to calibrate from: {faults[0]}", faults=faults)
        if any(r.injected_ms for r in run.records):
            raise ConfigError("the recorded blocks carry an injected delay; resampling needs equal sides (A/A)")
        by_block: dict[int, dict[Side, list[RequestRecord]]] = {s.block: {} for s in run.summaries}
        for record in run.records:
            by_block[record.block].setdefault(record.side, []).append(record)
        for summary in run.summaries:
            sides = by_block[summary.block]
            pair = blocks.measure(summary, sides, canary)
            if pair.unusable:
                left_out.append(pair.unusable)
                continue
            if summary.planned != wanted:
                raise ConfigError(
                    f"a recorded block has {summary.planned} requests, the profile's have {wanted}; record blocks of "
                    "the profile's own load"
                )
            both = tuple(sides["stable"]), tuple(sides["candidate"])
            own = [*both[0], *both[1]]
            ends = [r.ended_s for r in own if r.ended_s is not None]
            found.append(Block(both, max(ends) - min(r.scheduled_s for r in own)))
    if len(found) < least:
        why = f" ({len(left_out)} cannot be used: {left_out[0]})" if left_out else ""
        raise ConfigError(
            f"there are {len(found)} usable recorded blocks{why}; at least {least} are needed, as many as a "
            "decision of the profile may take: record more"
        )
    return found


def resample(
    runs: Sequence[Run], canary: Canary, *, replays: int = REPLAYS, seed: int = 0, check_equal: bool = True
) -> Resampled:
    """Replay the decision on drawn blocks, without a slowness and with each of `injections`.

    Args:
        runs: Recorded A/A benchmarks.
        canary: Margins, looks and number of blocks.
        replays: Decisions of each kind.
        seed: Of the draws; the same for each kind, so that kinds differ by the slowness alone.
        check_equal: Refuse recordings whose sides were surely not equal.

    Raises:
        IntegrityError: Records contradict themselves.
        ConfigError: They are of another load, too few, or their sides were not equal.
    """
    kept = recorded(runs, canary, least=canary.blocks)
    base = _base(kept)
    ratios = base[:, 1] - base[:, 0]
    if check_equal:
        _refuse_unequal(ratios)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(kept), size=(replays, canary.blocks))
    candidate = rng.integers(2, size=(replays, canary.blocks))
    bad = _bad_counts(kept, canary, Injection("", 0.0))
    sent = np.full((canary.blocks, bad.shape[2], 2), float(canary.requests_per_block))
    trials = []
    for injection in injections(canary):
        slow = _bad_counts(kept, canary, injection) if canary.goodput else bad
        outcome = rule.decide(
            rule.Blocks(
                base[drawn, candidate] + _added(injection) - base[drawn, 1 - candidate],
                np.stack([slow[drawn, candidate], bad[drawn, 1 - candidate]], axis=-1),
                sent,
                [True] * canary.blocks,
                [0] * canary.blocks,
            ),
            rule.rule_of(canary),
        )
        trials.append(_trials(injection, outcome))
    return Resampled(
        trials=tuple(trials),
        spread=_spread(ratios),
        recorded_blocks=len(kept),
        block_s=_short(sum(block.seconds for block in kept) / len(kept)),
    )


def spread(runs: Sequence[Run], canary: Canary) -> dict[str, float]:
    """Return the standard deviation of the log ratio of recorded equal sides, by metric; raises as `recorded` does."""
    base = _base(recorded(runs, canary, least=2))
    return _spread(base[:, 1] - base[:, 0])


def _spread(ratios: Floats) -> dict[str, float]:
    deviations = ratios.std(axis=0, ddof=1)
    return {name: _short(float(value)) for (name, _, _), value in zip(LATENCIES, deviations, strict=True)}


def _base(kept: Sequence[Block]) -> Floats:
    """Return [block, side, metric]: the logs of the figures as they were recorded."""
    return np.array([[_logs(side) for side in block.sides] for block in kept])


def _arrivals(runs: Sequence[Run]) -> tuple[float, int]:
    """Return how many requests a second were due on a side within the blocks, and of how many gaps that is known."""
    due: dict[tuple[int, int, Side], list[float]] = {}
    for number, run in enumerate(runs):
        for r in run.records:
            due.setdefault((number, r.block, r.side), []).append(r.scheduled_s)
    # Sides are sent the same arrivals, so the second one says nothing new.
    of = [moments for (_, _, side), moments in due.items() if side == "candidate" and len(moments) > 1]
    gaps = sum(len(moments) - 1 for moments in of)
    span_s = sum(max(moments) - min(moments) for moments in of)
    return (gaps / span_s if span_s > 0 else math.inf), gaps


def _luck(canary: Canary) -> float:
    """Return the deviation of one gap between arrivals, as a share of their mean."""
    if canary.arrivals == "gamma":
        return 1 / math.sqrt(canary.burstiness)
    # Recorded traffic is scaled as a whole; a part of it may be far from its mean.
    return {"constant": 0.0, "poisson": 1.0, "replay": 3.0}[canary.arrivals]


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) if len(values) <= 3 else f"{values[0]} to {values[-1]}"


def _as_long_as(canary: Canary, run: Run) -> Canary:
    """Return a canary of as many blocks as were recorded, which may be more than the profile's."""
    return canary.model_copy(update={"blocks": max(canary.blocks, len(run.summaries)), "looks": ()})


def _logs(side: Sequence[RequestRecord]) -> list[float]:
    found: Mapping[str, float | None] = latencies(side)
    return [math.log(value) if value else math.nan for value in found.values()]


def _added(injection: Injection) -> Floats:
    """Return what an injection adds to the logs of a side's figures: a quantile of slower requests is slower alike."""
    least = {"": math.inf, EVERY_REQUEST: 0.0, SLOW_REQUESTS: 95.0}[injection.metric]
    return np.array([math.log1p(injection.share) if percent >= least else 0.0 for _, _, percent in LATENCIES])


def _bad_counts(kept: Sequence[Block], canary: Canary, injection: Injection) -> Floats:
    """Return [block, side, rate]: failed requests, and those that were not good if the profile says what is good."""
    counts = []
    for block in kept:
        of_block = []
        for side in block.sides:
            rates = [float(failure_rate(side).failed)]
            if canary.goodput:
                rates.append(float(goodput_rate(_slower(side, injection), canary.goodput).failed))
            of_block.append(rates)
        counts.append(of_block)
    return np.array(counts)


def _slower(side: Sequence[RequestRecord], injection: Injection) -> Sequence[RequestRecord]:
    if not injection.metric:
        return side
    limits = {"ttft_ms": -math.inf, "tpot_ms": -math.inf}
    if injection.metric == SLOW_REQUESTS:
        limits = {
            name: quantile((getattr(r, name) for r in side if r.error is None), TAIL_PERCENT) or math.inf
            for name in limits
        }
    return [_slower_one(record, injection.share, limits) for record in side]


def _slower_one(record: RequestRecord, share: float, limits: Mapping[str, float]) -> RequestRecord:
    ttft_ms, tpot_ms = record.ttft_ms, record.tpot_ms
    if record.first_token_s is None or record.ended_s is None or ttft_ms is None:
        return record
    ttft_s = ttft_ms / 1e3 * (1 + share if ttft_ms >= limits["ttft_ms"] else 1)
    rest_s = record.ended_s - record.first_token_s
    rest_s *= 1 + share if tpot_ms is not None and tpot_ms >= limits["tpot_ms"] else 1
    first_token_s = record.scheduled_s + ttft_s
    return record.model_copy(update={"first_token_s": first_token_s, "ended_s": first_token_s + rest_s})


def _refuse_unequal(ratios: Floats) -> None:
    n = len(ratios)
    bound = t_of(UNEQUAL_LEVEL, n - 1)
    for (name, _, _), values in zip(LATENCIES, ratios.T, strict=True):
        error = float(values.std(ddof=1)) / math.sqrt(n)
        mean = float(values.mean())
        if error and abs(mean) > bound * error:
            raise ConfigError(
                f"the recorded sides are not equal: the candidate's {name} is {math.expm1(mean) * 100:+.1f} % of "
                "stable's over all blocks; resampling needs records of the same cluster on both sides"
            )


def _trials(injection: Injection, outcome: rule.Outcome) -> Trials:
    return Trials(
        metric=injection.metric,
        slower_pct=_short(injection.share * 100),
        promoted=int((outcome.decision == rule.PROMOTE).sum()),
        rolled_back=int((outcome.decision == rule.ROLLBACK).sum()),
        held=int((outcome.decision == rule.HOLD).sum()),
        mean_blocks=_short(float(outcome.blocks.mean())),
    )


def evidence_of(found: Resampled, canary: Canary, *, hardware: str, measured_at: str) -> Evidence:
    """Return what a profile publishes of its replays."""
    return Evidence(
        hardware=hardware,
        measured_at=measured_at,
        method="resampled",
        rule=rule_digest(canary),
        recorded_blocks=found.recorded_blocks,
        spread=found.spread,
        trials=found.trials,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")
