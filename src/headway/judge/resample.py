"""Recorded pairs of equal sides, drawn again many times and judged by the real rule.

A recorded A/A benchmark gives blocks in which both sides are the same. A replay draws as many blocks as the profile
has, with replacement, swaps the sides of each at random (so that no side is better by luck of the recording), makes the
candidate's side slower by a known share, and lets `judge.rule` decide. Every kind of slowness gets the same draws.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from headway.domain.bench import RequestRecord
from headway.domain.profile import Canary, Evidence, Trials
from headway.domain.value import Value
from headway.errors import ConfigError, IntegrityError
from headway.judge import records as record_rules
from headway.judge import rule
from headway.judge.calibrate import EVERY_REQUEST, SLOW_REQUESTS, rule_digest
from headway.judge.metrics import goodput_rate
from headway.judge.quantiles import LATENCIES, Floats, failure_rate, latencies, quantile
from headway.judge.records import Run
from headway.judge.sequential import t_of

REPLAYS = 10_000
LEAST_BLOCKS = 10
"""Fewer recorded blocks say too little about the spread of the next one."""
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


def recorded(runs: Sequence[Run], canary: Canary) -> list[Block]:
    """Return the usable pairs of blocks of recorded A/A benchmarks.

    Raises:
        IntegrityError: Records contradict themselves.
        ConfigError: They are of another load than the profile's, or too few.
    """
    found: list[Block] = []
    wanted = canary.requests_per_block
    for run in runs:
        faults = record_rules.faults(run.records, run.summaries, _as_long_as(canary, run), paired=True)
        if faults:
            raise IntegrityError(f"the recorded blocks are unfit to calibrate from: {faults[0]}", faults=faults)
        for summary in run.summaries:
            own = [r for r in run.records if r.block == summary.block]
            stable, candidate = (tuple(r for r in own if r.side == side) for side in ("stable", "candidate"))
            if summary.void or summary.stopped:
                continue
            if len(stable) != wanted or len(candidate) != wanted:
                raise ConfigError(
                    f"a recorded block has {len(stable)} and {len(candidate)} requests, the profile's have {wanted}; "
                    "record blocks of the profile's own load"
                )
            if any(r.injected_ms for r in candidate):
                raise ConfigError("the recorded blocks carry an injected delay; resampling needs equal sides (A/A)")
            ends = [r.ended_s for r in own if r.ended_s is not None]
            found.append(Block((stable, candidate), max(ends) - min(r.scheduled_s for r in own)))
    if len(found) < LEAST_BLOCKS:
        raise ConfigError(f"there are {len(found)} usable recorded blocks; resampling needs {LEAST_BLOCKS} or more")
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
    blocks = recorded(runs, canary)
    base = _base(blocks)
    ratios = base[:, 1] - base[:, 0]
    if check_equal:
        _refuse_unequal(ratios)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(blocks), size=(replays, canary.blocks))
    candidate = rng.integers(2, size=(replays, canary.blocks))
    bad = _bad_counts(blocks, canary, Injection("", 0.0))
    sent = np.full((canary.blocks, bad.shape[2], 2), float(canary.requests_per_block))
    trials = []
    for injection in injections(canary):
        slow = _bad_counts(blocks, canary, injection) if canary.goodput else bad
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
        recorded_blocks=len(blocks),
        block_s=_short(sum(block.seconds for block in blocks) / len(blocks)),
    )


def spread(runs: Sequence[Run], canary: Canary) -> dict[str, float]:
    """Return the standard deviation of the log ratio of recorded equal sides, by metric; raises as `recorded` does."""
    base = _base(recorded(runs, canary))
    return _spread(base[:, 1] - base[:, 0])


def _spread(ratios: Floats) -> dict[str, float]:
    deviations = ratios.std(axis=0, ddof=1)
    return {name: _short(float(value)) for (name, _, _), value in zip(LATENCIES, deviations, strict=True)}


def _base(blocks: Sequence[Block]) -> Floats:
    """Return [block, side, metric]: the logs of the figures as they were recorded."""
    base = np.array([[_logs(side) for side in block.sides] for block in blocks])
    if np.isnan(base).any():
        raise ConfigError("a recorded block lacks a latency: its requests failed; record blocks that are answered")
    return base


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


def _bad_counts(blocks: Sequence[Block], canary: Canary, injection: Injection) -> Floats:
    """Return [block, side, rate]: failed requests, and those that were not good if the profile says what is good."""
    counts = []
    for block in blocks:
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
