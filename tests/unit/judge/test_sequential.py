"""Looking several times must not cost more than was declared."""

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.domain.profile import Canary
from headway.judge.sequential import ALPHA, interval, looks_of, nominal_levels, spent, undecidable, z_of
from tests.unit.judge.data import make_canary


def test_bounds_agree_with_published_ones() -> None:
    """Five equal looks, one-sided 0.025, Pocock-type spending: the values of the R package ldbounds."""
    levels = nominal_levels((0.2, 0.4, 0.6, 0.8, 1.0), 0.025)

    assert [z_of(level) for level in levels] == pytest.approx([2.4380, 2.4268, 2.4101, 2.3966, 2.3859], abs=2e-4)


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


def test_an_interval_is_a_t_interval() -> None:
    found = interval([0.1, 0.2, 0.3], level_low=0.025, level_high=0.025)

    assert (found.low, found.mean, found.high) == pytest.approx((0.2 - 0.24841, 0.2, 0.2 + 0.24841), abs=1e-4)


def test_equal_blocks_have_no_spread() -> None:
    assert interval([0.5, 0.5], level_low=0.01, level_high=0.01) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("blocks", "looks"), [(30, (6, 10, 15, 20, 25, 30)), (10, (4, 5, 7, 8, 10)), (3, (3,)), (2, (2,))]
)
def test_looks_follow_from_the_number_of_blocks(blocks: int, looks: tuple[int, ...]) -> None:
    assert looks_of(Canary(blocks=blocks)) == looks


def test_declared_looks_are_taken() -> None:
    assert looks_of(make_canary(looks=(5, 10))) == (5, 10)


def test_a_plan_that_can_never_promote_says_what_it_needs() -> None:
    """150 requests without a failure cannot show a failure rate below 0.5 %."""
    (reason,) = undecidable(make_canary(error_margin_pct=0.5))

    needed = int(reason.split("it needs ")[1].split()[0])
    assert undecidable(make_canary(error_margin_pct=0.5, blocks=needed)) == []
    assert undecidable(make_canary()) == []
    assert undecidable(Canary()) == []
