"""The rule decides one run and many alike, and as a plain reading of its definition would."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headway.domain.profile import Canary, Goodput
from headway.judge.quantiles import Floats, Rate, newcombe
from headway.judge.rule import HOLD, PASS, PROMOTE, ROLLBACK, Blocks, Rule, crossover, decide, rule_of
from headway.judge.sequential import ALPHA, PROMOTE_ALPHA, looks_of, nominal_levels, z_of

RULE = Rule(
    limits=(0.07, 0.1, 0.2), guards=(False, False, True), rate_limits=(0.02,), blocks=12, looks=tuple(range(4, 13))
)


class Run(NamedTuple):
    """One run in plain lists."""

    ratios: list[list[float]]
    bad: list[tuple[int, int]]
    usable: list[bool]
    placement: list[int]


def _blocks(runs: Sequence[Run]) -> Blocks:
    first = runs[0]
    return Blocks(
        ratios=np.array([run.ratios for run in runs], dtype=float).reshape(len(runs), -1, len(RULE.limits)),
        bad=np.array([run.bad for run in runs], dtype=float).reshape(len(runs), -1, 1, 2),
        sent=np.full((len(first.ratios), 1, 2), 50.0),
        usable=first.usable,
        placement=first.placement,
    )


def _plain(run: Run) -> tuple[int, int]:
    """Decide as the definition reads, one number at a time."""
    shares: list[float] = []
    best = [(-math.inf, math.inf)] * 4
    for block in (look for look in RULE.looks if look <= len(run.ratios)):
        use = [k for k in range(block) if run.usable[k]]
        groups = [[k for k in use if run.placement[k] == label] for label in sorted({run.placement[k] for k in use})]
        share = _plain_share(run, groups, block)
        if share <= max(shares, default=0.0):
            continue
        shares.append(share)
        states = []
        for m, limit in enumerate([*RULE.limits, *RULE.rate_limits]):
            mean, low, high = _plain_bounds(run, groups, m, tuple(shares), block)
            best[m] = max(best[m][0], low), min(best[m][1], high)
            low = best[m][0] if best[m][0] <= mean else low
            high = best[m][1] if best[m][1] >= mean else high
            states.append("pass" if high < limit else "fail" if low > limit / 2 else "")
        if len(use) >= 0.9 * block and "fail" in states:
            return ROLLBACK, block
        if len(use) >= 0.9 * block and [states[0], states[1], states[3]] == ["pass"] * 3:
            return PROMOTE, block
    return HOLD, len(run.ratios)


def _plain_share(run: Run, groups: list[list[int]], block: int) -> float:
    if not groups or min(map(len, groups)) < 2:
        return 0.0
    if len(groups) == 1 and run.placement[groups[0][0]] != 0:
        return 0.0
    if len({len(group) for group in groups}) > 1 and block != RULE.blocks:
        return 0.0
    return min(1.0, len(groups) ** 2 / sum(1 / len(group) for group in groups) / RULE.blocks)


def _plain_bounds(
    run: Run, groups: list[list[int]], m: int, shares: tuple[float, ...], block: int
) -> tuple[float, float, float]:
    weights = [1.0, 1.0, 0.1, 0.1]
    high_level = nominal_levels(shares, PROMOTE_ALPHA)[-1]
    low_level = nominal_levels(shares, ALPHA * weights[m] / sum(weights))[-1]
    if m == len(RULE.limits):
        return _plain_rate(run, block, low_level, high_level)
    return _plain_t([[run.ratios[k][m] for k in group] for group in groups], low_level, high_level)


def _plain_rate(run: Run, block: int, low_level: float, high_level: float) -> tuple[float, float, float]:
    """Every block counts, whether or not its latencies do."""
    labels = sorted(set(run.placement[:block]))
    differences = [(run.bad[k][0] - run.bad[k][1]) / 50 for k in range(block)]
    own = [[differences[k] for k in range(block) if run.placement[k] == label] for label in labels]
    _, t_low, t_high = _plain_t(own, low_level, high_level)
    ours, theirs = (Rate(sum(run.bad[k][side] for k in range(block)), 50 * block) for side in (0, 1))
    alone = sum(rate.share * (1 - rate.share) / rate.sent for rate in (ours, theirs))
    # Half the width of a t-interval at a level at which its quantile is known.
    error = (t_high - t_low) / (stats.t.isf(high_level, block - len(own)) + stats.t.isf(low_level, block - len(own)))
    effect = max(1.0, error**2 / alone) if alone else 1.0
    low, high = newcombe(
        Rate(ours.failed / effect, ours.sent / effect),  # type: ignore[arg-type]  # a share of a request
        Rate(theirs.failed / effect, theirs.sent / effect),  # type: ignore[arg-type]
        z_low=z_of(low_level),
        z_high=z_of(high_level),
    )
    return ours.share - theirs.share, min(low, t_low), max(high, t_high)


def _plain_t(groups: list[list[float]], low_level: float, high_level: float) -> tuple[float, float, float]:
    means = [statistics.fmean(group) for group in groups]
    squares = sum((value - own) ** 2 for group, own in zip(groups, means, strict=True) for value in group)
    freedom = sum(len(group) - 1 for group in groups)
    error = math.sqrt(squares / freedom * sum(1 / len(group) for group in groups)) / len(groups)
    mean = statistics.fmean(means)
    return mean, mean - stats.t.isf(low_level, freedom) * error, mean + stats.t.isf(high_level, freedom) * error


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any run: better or worse, quiet or noisy, with unusable blocks, swapped or not."""
    blocks = draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    centre = draw(st.sampled_from([-0.1, 0.0, 0.03, 0.07, 0.15, 0.4]))
    noise = draw(st.sampled_from([0.005, 0.03, 0.1]))
    drift = draw(st.sampled_from([0.0, 0.0, 0.02]))
    ratios = centre + noise * rng.standard_normal((blocks, 3)) * [1, 1.5, 4] + drift * np.arange(blocks)[:, None]
    worse = draw(st.sampled_from([0.0, 0.02, 0.2]))
    bad = [(int(rng.binomial(50, worse)), int(rng.binomial(50, 0.01))) for _ in range(blocks)]
    burst = draw(st.sampled_from([0, 0, 4, 20]))
    bad = [(ours + burst * (rng.random() < 0.2), theirs) for ours, theirs in bad]
    usable = [bool(rng.random() > draw(st.sampled_from([0.0, 0.0, 0.1]))) for _ in range(blocks)]
    swap = draw(st.sampled_from([[0], [1, 2], [0, 1], [1, 1, 2, 2], [1]]))
    return Run(ratios.tolist(), bad, usable, [swap[k % len(swap)] for k in range(blocks)])


@settings(max_examples=300, deadline=None)
@given(runs())
def test_it_decides_as_its_definition_reads(run: Run) -> None:
    outcome = decide(_blocks([run]), RULE)

    assert (int(outcome.decision[0]), int(outcome.blocks[0])) == _plain(run)


def _many(count: int, shift: float = 0.0) -> Floats:
    rng = np.random.default_rng(4)
    found: Floats = shift + 0.05 * rng.standard_normal((count, 12, 3))
    return found


def _of(ratios: Floats, placement: Sequence[int] = ()) -> Blocks:
    count, blocks, _ = ratios.shape
    none = np.zeros((blocks, 1, 2))
    return Blocks(ratios, np.zeros((count, *none.shape)), none + 500, [True] * blocks, placement or [0] * blocks)


def test_many_runs_are_decided_as_each_alone() -> None:
    ratios = np.concatenate([_many(40), _many(40, 0.06), _many(40, 0.2)])

    together = decide(_of(ratios), RULE)
    alone = [decide(_of(ratios[k : k + 1]), RULE) for k in range(len(ratios))]

    assert together.decision.tolist() == [int(one.decision[0]) for one in alone]
    assert together.blocks.tolist() == [int(one.blocks[0]) for one in alone]
    assert {PROMOTE, HOLD, ROLLBACK} == set(together.decision.tolist())


def test_more_blocks_do_not_change_a_decision() -> None:
    ratios = np.concatenate([_many(60), _many(60, 0.2)])
    whole = decide(_of(ratios), RULE)

    for blocks in (4, 6, 9):
        early = decide(_of(ratios[:, :blocks]), RULE)
        done = early.decision != HOLD
        assert (early.decision[done] == whole.decision[done]).all()
        assert (early.blocks[done] == whole.blocks[done]).all()
        assert (whole.blocks[~done] >= blocks).all()


@pytest.mark.parametrize("metric", [0, 1, 2])
def test_a_metric_that_is_missing_never_promotes(metric: int) -> None:
    """A guard need not pass, but must have been measured."""
    ratios = np.full((1, 12, 3), -0.1) + 0.001 * _many(1)
    ratios[:, :, metric] = np.nan

    assert decide(_of(ratios), RULE).decision.tolist() == [HOLD]


def test_a_guard_takes_back_but_is_not_asked_to_pass() -> None:
    quiet = 0.2 * _many(1)
    unsure, worse = quiet.copy(), quiet.copy()
    unsure[:, :, 2] += np.array([0.9, -0.9] * 6)
    worse[:, :, 2] += 0.6

    assert decide(_of(unsure), RULE).decision.tolist() == [PROMOTE]
    assert decide(_of(worse), RULE).decision.tolist() == [ROLLBACK]


def test_swapped_hardware_cancels_out() -> None:
    """One machine is 30 % slower, the releases are equal. Without knowing the placement the spread hides everything."""
    ratios = 0.2 * _many(50) + np.array([0.26, -0.26] * 6)[None, :, None]

    assert (decide(_of(ratios, [1, 2] * 6), RULE).decision == PROMOTE).all()
    assert (decide(_of(ratios), RULE).decision == HOLD).all()


def test_a_slow_release_on_the_faster_machine_is_seen_through() -> None:
    ratios = 0.15 + 0.2 * _many(50) + np.array([-0.26, 0.26] * 6)[None, :, None]

    assert (decide(_of(ratios, [1, 2] * 6), RULE).decision == ROLLBACK).all()


def test_one_placement_alone_of_a_swapped_run_decides_nothing() -> None:
    outcome = decide(_of(0.2 * _many(5)[:, :6], [1] * 6), RULE)

    assert not outcome.looks


def test_looks_of_a_swapped_run_are_balanced() -> None:
    placement = [1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 1]
    noisy = 10 * _many(1)

    assert [seen.block for seen in decide(_of(noisy, placement), RULE).looks] == [6, 8, 10, 12]


def test_an_earlier_narrow_bound_counts_until_the_blocks_drift() -> None:
    """The candidate passes early in one metric; a leak then makes it slow, and the early pass is worth nothing."""
    ratios = 0.1 * _many(1)
    ratios[:, 6:, 0] += 0.3
    ratios[:, :6, 1] += np.array([0.4, -0.4] * 3)
    ratios[:, 6:, 1] -= 0.5

    outcome = decide(_of(ratios), RULE)

    assert outcome.looks[2].state[0, 0] == PASS
    assert outcome.looks[-1].state[0, 1] == PASS
    assert outcome.decision[0] != PROMOTE


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=2, max_size=20))
def test_one_placement_gives_the_t_interval_of_the_mean(values: list[float]) -> None:
    mean, low, high = crossover(np.array(values)[None, :, None], [np.arange(len(values))], [0.01], 0.05)

    error = stats.sem(values)
    assert mean.item() == pytest.approx(statistics.fmean(values), abs=1e-12)
    assert low.item() == pytest.approx(mean.item() - stats.t.isf(0.01, len(values) - 1) * error, abs=1e-9)
    assert high.item() == pytest.approx(mean.item() + stats.t.isf(0.05, len(values) - 1) * error, abs=1e-9)


@pytest.mark.parametrize("blocks", [6, 10, 30])
def test_a_metric_at_its_margin_passes_by_luck_as_rarely_as_declared(blocks: int) -> None:
    """The spread is unknown to the rule and estimated from few blocks at the early looks: that must not cost more."""
    limit, runs = 0.07, 40_000
    rule = Rule((limit,), (False,), (), blocks, looks_of(Canary(blocks=blocks)))
    ratios = limit + 0.07 * np.random.default_rng(blocks).standard_normal((runs, blocks, 1))
    none = np.zeros((blocks, 0, 2))

    found = decide(Blocks(ratios, np.zeros((runs, *none.shape)), none, [True] * blocks, [0] * blocks), rule)

    # Four standard errors of so many runs.
    assert 0.04 <= (found.decision == PROMOTE).mean() <= ALPHA + 0.0043


@pytest.mark.parametrize("goodput", [None, Goodput(e2e_ms=900, margin_pct=3)])
def test_the_declared_margins_are_the_limits(goodput: Goodput | None) -> None:
    rule = rule_of(Canary(p50_margin=0.05, p95_margin=0.1, p99_guard=0.3, error_margin_pct=1, goodput=goodput))

    assert [math.expm1(limit) for limit in rule.limits] == pytest.approx([0.05, 0.1, 0.05, 0.1, 0.3, 0.3])
    assert rule.guards == (False, False, False, False, True, True)
    assert rule.rate_limits == ((0.01, 0.03) if goodput else (0.01,))
    assert sum(rule.low_alphas) == pytest.approx(ALPHA)


def test_no_blocks_decide_nothing() -> None:
    empty: Any = decide(_of(np.zeros((3, 0, 3))), RULE)

    assert empty.decision.tolist() == [HOLD] * 3
    assert not empty.looks
