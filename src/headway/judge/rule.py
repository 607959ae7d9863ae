"""The decision rule itself: figures of blocks in, a decision out, for one run or for many at once.

The judge gives it the one run that was measured, the simulation (`benchmarks/canary_sim.py`) thousands; so what is
simulated is what decides. At each declared look every metric has a two-sided interval whose sides have levels of their
own (`sequential`):

- PROMOTE, if the upper bound of every metric lies below its margin. All must, so each is tested at the whole level
  (intersection-union test: R. L. Berger, "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24,
  1982). Guards are not asked, but must have been measured.
- ROLLBACK, if the lower bound of any metric or guard lies above half its margin and its upper bound not below it. Any
  one suffices, so each gets a part of `ALPHA` (Bonferroni).
- Otherwise the next block; after the last one HOLD.

The bounds of all looks hold together with the declared probability, so each look keeps the narrowest ones so far
(C. Jennison, B. W. Turnbull, "Interim analyses: the repeated confidence interval approach", JRSS B 51, 1989).

Where the hardware of the two sides was swapped, their difference is part of every block's figure: with one sign in the
one placement, with the other in the other one. The mean of the placements' means is free of it (a crossover).

A rate has two intervals, and the wider one counts on either side: the t-interval over the blocks' differences, because
requests of one block share their luck, and Newcombe's over all requests, because a t-interval has no width while
nothing has failed. Where blocks differ more than independent requests would, Newcombe's counts as many fewer requests
(the design effect: J. N. K. Rao, A. J. Scott, "A simple method for the analysis of clustered binary data", Biometrics
48, 1992), so that few bad blocks among many do not pass for a small spread.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.profile import Canary
from headway.judge.quantiles import GUARD_PERCENT, LATENCIES, Floats, newcombe_bounds
from headway.judge.sequential import ALPHA, PROMOTE_ALPHA, looks_of, nominal_levels, t_of, z_of

Ints: TypeAlias = NDArray[np.int64]

PROMOTE, HOLD, ROLLBACK = 1, 0, -1
PASS, UNDECIDED, FAIL = 1, 0, -1
VALID_SHARE = 0.9
"""Share of the blocks that must be usable."""
SIDE_WEIGHT = 0.1
"""A guard's or a rate's part of the error that may take back wrongly, against that of a latency metric: a 99th
percentile is so noisy, and a rate shows its faults so clearly, that more would only make the others blunt."""
RATES = ("error_rate", "goodput")
"""Rates of bad requests, in order; goodput only where the profile declares it."""


class Rule(NamedTuple):
    """What was declared before the first block."""

    limits: tuple[float, ...]
    """Of the latency metrics: `log(1 + margin)`."""
    guards: tuple[bool, ...]
    """Whether that metric only takes back and never has to pass."""
    rate_limits: tuple[float, ...]
    """Of the rates of bad requests: how much higher the candidate's may be, as a share of all requests."""
    blocks: int
    looks: tuple[int, ...]
    """Blocks after which a decision is tried."""

    @property
    def low_alphas(self) -> tuple[float, ...]:
        """The share of `ALPHA` by which each metric may take back wrongly; rates come last."""
        weights = [*(SIDE_WEIGHT if guard else 1.0 for guard in self.guards), *(SIDE_WEIGHT for _ in self.rate_limits)]
        return tuple(ALPHA * weight / sum(weights) for weight in weights)


def rule_of(canary: Canary) -> Rule:
    """Return the rule that a canary declares, with the metrics of `LATENCIES` and `RATES`."""
    margins = {50: canary.p50_margin, 95: canary.p95_margin, 99: canary.p99_guard}
    points = [canary.error_margin_pct, *([canary.goodput.margin_pct] if canary.goodput else [])]
    return Rule(
        limits=tuple(math.log1p(margins[int(percent)]) for _, _, percent in LATENCIES),
        guards=tuple(percent >= GUARD_PERCENT for _, _, percent in LATENCIES),
        rate_limits=tuple(point / 100 for point in points),
        blocks=canary.blocks,
        looks=looks_of(canary),
    )


class Blocks(NamedTuple):
    """Figures of the blocks of one or of many runs; which are usable and how they were placed is the same in all."""

    ratios: Floats
    """[run, block, latency metric]: log of the candidate's figure over stable's; not a number where it is missing."""
    bad: Floats
    """[run, block, rate, side]: how many requests were bad; the candidate's first, then stable's."""
    sent: Floats
    """[block, rate, side]: of how many; 0 where a block says nothing of that rate. One that is not usable may still
    count."""
    usable: Sequence[bool]
    """Whether its latencies count."""
    placement: Sequence[int]


class Seen(NamedTuple):
    """What one look saw of the runs that were undecided until then; latency metrics first, then rates."""

    block: int
    valid: int
    runs: Ints
    mean: Floats
    """[run, metric], as `low`, `high` and `state`."""
    low: Floats
    high: Floats
    state: Ints


class Outcome(NamedTuple):
    """The decisions."""

    decision: Ints
    """By run."""
    blocks: Ints
    """By run: blocks until then."""
    looks: tuple[Seen, ...]


class _Levels(NamedTuple):
    """One-sided levels at one look."""

    low: list[float]
    """By metric."""
    high: float


_Bounds: TypeAlias = tuple[Floats, Floats, Floats]


def decide(blocks: Blocks, rule: Rule) -> Outcome:
    """Look after each declared block until it is decided.

    Args:
        blocks: Those that there are so far; more of them do not change a decision that was made.
        rule: What was declared.
    """
    runs, there, _ = blocks.ratios.shape
    limits = np.array([*rule.limits, *rule.rate_limits])
    guards = np.array([*rule.guards, *(False for _ in rule.rate_limits)])
    decision, used = np.zeros(runs, dtype=np.int64), np.full(runs, there, dtype=np.int64)
    best_low, best_high = np.full((runs, len(limits)), -np.inf), np.full((runs, len(limits)), np.inf)
    active = np.arange(runs)
    shares: list[float] = []
    looks: list[Seen] = []
    usable = np.asarray(blocks.usable, dtype=bool)
    for block in (k for k in rule.looks if k <= there):
        use = np.flatnonzero(usable[:block])
        groups = _placed(use, blocks.placement)
        share = _share(groups, block, rule)
        if share <= (shares[-1] if shares else 0.0):
            continue
        shares.append(share)
        bounds = _bounds(blocks, active, block, groups, _levels(tuple(shares), rule))
        mean, low, high = (np.concatenate(pair, axis=1) for pair in bounds)
        # Bounds that hold at all looks at once may be intersected; an estimate outside of what was shown before means
        # that the blocks drift, and then only the present look counts.
        best_low[active], best_high[active] = np.fmax(best_low[active], low), np.fmin(best_high[active], high)
        low = np.where(best_low[active] <= mean, best_low[active], low)
        high = np.where(best_high[active] >= mean, best_high[active], high)
        state = classify(low, high, limits)
        looks.append(Seen(block, len(use), active, mean, low, high, state))
        if len(use) < VALID_SHARE * block:
            continue
        now = _together(state, high, guards)
        decision[active], used[active] = now, np.where(now == HOLD, there, block)
        active = active[now == HOLD]
        if not len(active):
            break
    return Outcome(decision, used, tuple(looks))


def classify(low: Floats, high: Floats, limits: Floats) -> Ints:
    """Hold bounds against margins; bounds that are no numbers neither pass nor fail."""
    fails = np.where((low > limits / 2) & (high >= limits), FAIL, UNDECIDED)
    states: Ints = np.where(high < limits, PASS, fails)
    return states


def crossover(values: Floats, groups: Sequence[Ints], low_levels: Sequence[float], high_level: float) -> _Bounds:
    """Return the mean over the groups' means with its t-bounds, for every run and metric.

    Args:
        values: [run, block, metric].
        groups: The blocks of each placement, two or more of each; their spread is taken to be the same.
        low_levels: One-sided level of each metric's lower bound.
        high_level: The same of all upper bounds.
    """
    mean, error, freedom = _centre(values, groups)
    below = np.array([t_of(level, freedom) for level in low_levels])
    return mean, mean - below * error, mean + t_of(high_level, freedom) * error


def _centre(values: Floats, groups: Sequence[Ints]) -> tuple[Floats, Floats, int]:
    """Return the mean over the groups' means, its standard error and the degrees of freedom of that."""
    parts = [values[:, group] for group in groups]
    means = [part.mean(axis=1) for part in parts]
    freedom = sum(len(group) - 1 for group in groups)
    squares = np.sum([((p - m[:, None]) ** 2).sum(axis=1) for p, m in zip(parts, means, strict=True)], axis=0)
    mean: Floats = np.mean(means, axis=0)
    error: Floats = np.sqrt(squares / freedom * sum(1 / len(group) for group in groups)) / len(groups)
    return mean, error, freedom


def _bounds(
    blocks: Blocks, runs: Ints, block: int, groups: Sequence[Ints], levels: _Levels
) -> Iterator[tuple[Floats, Floats]]:
    """Yield mean, lower and upper bound at this look alone, each of the latency metrics and of the rates."""
    count = blocks.ratios.shape[-1]
    of_ratios = crossover(blocks.ratios[runs], groups, levels.low[:count], levels.high)
    of_rates = _rate_bounds(blocks, runs, block, _Levels(levels.low[count:], levels.high))
    return zip(of_ratios, of_rates, strict=True)


def _rate_bounds(blocks: Blocks, runs: Ints, block: int, levels: _Levels) -> _Bounds:
    """Return the difference of the shares of all requests, and the wider of its two bounds on either side."""
    found: list[_Bounds] = []
    for rate, level in enumerate(levels.low):
        bad, sent = blocks.bad[runs, :block, rate], blocks.sent[:block, rate]
        told = np.flatnonzero((sent > 0).all(axis=1))
        shares = bad / np.maximum(sent, 1.0)
        own, error, freedom = _centre(shares[..., 0] - shares[..., 1], _placed(told, blocks.placement))
        bad, sent = bad.sum(axis=1), np.maximum(sent.sum(axis=0), 1.0)
        pooled = bad / sent
        # Of a rate that is 0 or 1 on both sides there is no spread to compare with.
        alone = np.maximum((pooled * (1 - pooled) / sent).sum(axis=1), np.finfo(float).tiny)
        effect = np.maximum(1.0, error**2 / alone)[:, None, None]
        low, high = newcombe_bounds(
            bad[:, None] / effect, sent / effect, z_low=np.array([z_of(level)]), z_high=np.array([z_of(levels.high)])
        )
        low = np.minimum(low[:, 0], own - t_of(level, freedom) * error)
        high = np.maximum(high[:, 0], own + t_of(levels.high, freedom) * error)
        found.append((pooled[:, 0] - pooled[:, 1], low, high))
    if not found:
        none = np.zeros((len(runs), 0))
        return none, none, none
    mean, low, high = (np.stack(column, axis=1) for column in zip(*found, strict=True))
    return mean, low, high


def _levels(shares: tuple[float, ...], rule: Rule) -> _Levels:
    at = {alpha: nominal_levels(shares, alpha)[-1] for alpha in {PROMOTE_ALPHA, *rule.low_alphas}}
    return _Levels([at[alpha] for alpha in rule.low_alphas], at[PROMOTE_ALPHA])


def _placed(use: Ints, placement: Sequence[int]) -> list[Ints]:
    """Return the blocks of each placement; of a swapped run (any but 0) both are there, if only as none."""
    placed = np.asarray(placement, dtype=np.int64)[use]
    groups = [use[placed == label] for label in np.unique(placed)]
    return [*groups, use[:0]] if len(groups) == 1 and placed.any() else groups


def _share(groups: Sequence[Ints], block: int, rule: Rule) -> float:
    """Return how much of the planned information is in; 0 where there is no look."""
    sizes = [len(group) for group in groups]
    # The mean of means is free of the hardware at any sizes, but most precise at equal ones; at the end take what is.
    if min(sizes, default=0) < 2 or (len(set(sizes)) > 1 and block < rule.blocks):
        return 0.0
    return min(1.0, len(sizes) ** 2 / sum(1 / size for size in sizes) / rule.blocks)


def _together(state: Ints, high: Floats, guards: NDArray[np.bool_]) -> Ints:
    passes = np.where(guards, np.isfinite(high), state == PASS).all(axis=1)
    fails = (state == FAIL).any(axis=1)
    decisions: Ints = np.where(fails, ROLLBACK, np.where(passes, PROMOTE, HOLD))
    return decisions
