"""Looking several times must not cost more than was declared."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from headway.domain.profile import Canary, Evidence, Goodput
from headway.judge.sequential import (
    ALPHA,
    MOST_LOOKS,
    PROMOTE_ALPHA,
    looks_of,
    nominal_levels,
    spending_levels,
    spent,
    undecidable,
    z_of,
)
from tests.unit.judge.data import make_canary


def test_bounds_agree_with_published_ones() -> None:
    """Five equal looks, one-sided 0.025, Pocock-type spending: the values of the R package ldbounds."""
    shares = (0.2, 0.4, 0.6, 0.8, 1.0)
    levels = spending_levels(shares, tuple(0.025 * math.log1p((math.e - 1) * t) for t in shares))

    assert [z_of(level) for level in levels] == pytest.approx([2.4380, 2.4268, 2.4101, 2.3966, 2.3859], abs=2e-4)


@settings(max_examples=25, deadline=None)
@given(
    looks=st.lists(st.integers(1, 40), min_size=2, max_size=4, unique=True).map(sorted),
    alpha=st.floats(0.002, 0.2),
)
def test_any_looks_spend_exactly_what_is_declared(looks: list[int], alpha: float) -> None:
    """The chance of not crossing at any look, by another way: the normal distribution of all looks together."""
    shares = tuple(look / looks[-1] for look in looks)
    bounds = [z_of(level) for level in nominal_levels(shares, alpha)]

    together = [[math.sqrt(min(a, b) / max(a, b)) for a in shares] for b in shares]
    inside = stats.multivariate_normal(
        cov=np.array(together), allow_singular=True, seed=0, maxpts=200_000, abseps=1e-6, releps=1e-6
    ).cdf(np.array(bounds))

    assert 1 - float(inside) == pytest.approx(alpha, rel=0.005)


def test_more_looks_later_leave_the_first_ones_as_they_are() -> None:
    """Levels are computed as the blocks come in; what was decided by them must not change."""
    shares = tuple(k / 30 for k in range(4, 31))

    whole = nominal_levels(shares, ALPHA)

    assert all(nominal_levels(shares[:n], ALPHA) == whole[:n] for n in (1, 5, 26))


def test_one_look_spends_everything() -> None:
    assert nominal_levels((1.0,), 0.05) == pytest.approx((0.05,))
    assert spent(1.0, 0.05) == pytest.approx(0.05)
    assert spent(0.0, 0.05) == 0


def test_crossing_any_bound_by_luck_has_the_declared_chance() -> None:
    """200,000 random walks without any effect: the share that crosses at any look is alpha."""
    looks = (4, 5, 7, 8, 10)
    levels = nominal_levels(tuple(k / 10 for k in looks), ALPHA)
    walks = np.random.default_rng(1).standard_normal((200_000, 10)).cumsum(axis=1)

    crossed: NDArray[np.bool_] = np.zeros(len(walks), dtype=bool)
    for k, level in zip(looks, levels, strict=True):
        crossed |= walks[:, k - 1] / np.sqrt(k) > z_of(level)

    assert crossed.mean() == pytest.approx(ALPHA, abs=0.002)


@pytest.mark.parametrize(("blocks", "looks"), [(6, (4, 5, 6)), (3, (3,)), (2, (2,)), (70, tuple(range(4, 71, 3)))])
def test_looks_follow_from_the_number_of_blocks(blocks: int, looks: tuple[int, ...]) -> None:
    assert looks_of(Canary(blocks=blocks)) == looks


@given(st.integers(2, 3000))
def test_there_are_few_looks_and_the_last_one_has_all_blocks(blocks: int) -> None:
    looks = looks_of(Canary(blocks=blocks))

    assert 1 <= len(looks) <= MOST_LOOKS
    assert looks[-1] == blocks
    assert all(after > before for before, after in pairwise(looks))


def test_declared_looks_are_taken() -> None:
    assert looks_of(make_canary(looks=(5, 10))) == (5, 10)


def _needed(reason: str) -> int:
    return int(reason.split("it needs ")[1].split(maxsplit=1)[0])


@pytest.mark.parametrize("margin_pct", [0.05, 0.5, 1.5])
def test_a_plan_that_can_never_promote_says_what_it_needs(margin_pct: float) -> None:
    """150 requests without a failure cannot show a failure rate below 0.5 %."""
    (reason,) = undecidable(make_canary(error_margin_pct=margin_pct))

    needed = _needed(reason)
    assert undecidable(make_canary(error_margin_pct=margin_pct, blocks=needed)) == []
    assert undecidable(make_canary(error_margin_pct=margin_pct, blocks=needed - 1)) != []


def test_the_usual_plans_can_promote() -> None:
    assert undecidable(make_canary()) == []
    assert undecidable(Canary()) == []
    assert undecidable(Canary(goodput=Goodput(ttft_ms=500))) == []


def test_goodput_needs_its_requests_too() -> None:
    (reason,) = undecidable(make_canary(goodput=Goodput(ttft_ms=500, margin_pct=1.0)))

    assert "canary.goodput.margin_pct is 1" in reason


def _measured(**spread: float) -> Canary:
    evidence = Evidence(
        hardware="h100", measured_at="2026-01-01T00:00:00Z", method="trials", rule="r", recorded_blocks=60,
        spread={"ttft_p50": 0.07, "ttft_p95": 0.12, "tpot_p50": 0.07, "tpot_p95": 0.12, "ttft_p99": 2.0, **spread},
    )  # fmt: skip
    return Canary(evidence=evidence)


def test_a_measured_spread_that_the_blocks_cannot_average_out_says_how_many_could() -> None:
    """The default plan is enough for the spreads it was made for; guards need not be decidable."""
    assert undecidable(_measured()) == []

    first, second = undecidable(_measured(ttft_p50=0.15, tpot_p95=0.2))

    assert "ttft_p50" in first
    assert "canary.p50_margin is 7.5 %" in first
    assert "tpot_p95" in second
    assert _needed(second) > 30


def test_the_blocks_that_a_spread_needs_promote_equal_sides_nine_times_in_ten() -> None:
    """Blocks of normal differences, judged at the last look alone would pass more often than the plan demands."""
    spread, margin = 0.15, math.log1p(0.075)
    (reason,) = undecidable(_measured(ttft_p50=spread))
    blocks = _needed(reason)
    level = nominal_levels(tuple(k / blocks for k in looks_of(Canary(blocks=blocks))), PROMOTE_ALPHA)[-1]

    def passing(count: int) -> float:
        return float(stats.norm.cdf(margin * math.sqrt(count) / spread - z_of(level)))

    # Four latency metrics share the tenth.
    assert passing(blocks) == pytest.approx(0.975, abs=0.01)
    assert passing(30) < 0.8
