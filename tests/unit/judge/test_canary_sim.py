"""The published error rates are those of the rule that decides, under the model that is written down."""

import math

import numpy as np
import pytest

from benchmarks.canary_sim import CELLS, judged, ours, simulate, simulate_rates, table
from benchmarks.canary_sim_model import (
    PERCENTS,
    REQUESTS,
    SPREAD,
    STALL_FACTOR,
    STALL_SPREAD,
    Cell,
    draw,
    log_at,
    log_quantiles,
    measure,
    ranks,
    survivals,
)
from benchmarks.canary_sim_rates import RateCell, failing, late
from headway.domain.profile import Canary
from headway.judge.rule import PROMOTE, rule_of

RUNS = 1_500
EQUAL, AT_MARGIN, SLOW = (
    Cell(name, slower=(share, share)) for name, share in (("equal", 0.0), ("margin", 0.075), ("slow", 0.15))
)


def _promoted_back_held(cell: Cell) -> tuple[float, float, float]:
    (found,) = (t for t in simulate(RUNS, [cell]) if t.rule == "headway")
    return found.promoted / RUNS, found.rolled_back / RUNS, found.held / RUNS


def test_an_equal_candidate_is_promoted() -> None:
    """The published 97.5 % and 0.5 %, less three standard errors of so few runs."""
    promoted, back, _ = _promoted_back_held(EQUAL)

    assert promoted >= 0.963
    assert back <= 0.008


def test_a_candidate_at_the_margin_is_not() -> None:
    promoted, back, _ = _promoted_back_held(AT_MARGIN)

    assert promoted <= 0.02
    assert back > 0.5


def test_a_slow_one_is_taken_back() -> None:
    promoted, back, _ = _promoted_back_held(SLOW)

    assert promoted == 0
    assert back >= 0.998


def test_a_swap_makes_unequal_machines_harmless() -> None:
    lottery = Cell("margin", slower=(0.075, 0.075), lottery=True)

    assert _promoted_back_held(lottery)[0] > 0.03
    assert _promoted_back_held(lottery._replace(swapped=True))[0] <= 0.02


def test_equal_sides_spread_as_the_model_says() -> None:
    logs = measure(draw(np.random.default_rng(1), 500), EQUAL)
    spread = (logs[:, :, 1] - logs[:, :, 0]).std(axis=(0, 1))

    assert spread[0] == pytest.approx([0.073, 0.121, 0.503], rel=0.03)
    assert spread[1] == pytest.approx([0.073, 0.121, 0.503], rel=0.03)


def test_drawn_ranks_are_distributed_as_sorted_requests() -> None:
    """Against the plain way: draw 200 latencies, and let numpy take the percentiles."""
    blocks = 8_000
    rng = np.random.default_rng(2)
    stalled = rng.random((blocks, REQUESTS)) < 0.02
    base, stall = rng.standard_normal((2, blocks, REQUESTS))
    latencies = np.exp(np.where(stalled, math.log(STALL_FACTOR) + STALL_SPREAD * stall, SPREAD * base))
    plain = np.log(np.percentile(latencies, PERCENTS, axis=1)).T
    drawn = log_quantiles(log_at(survivals(rng, (blocks,)), stalls=0.02))

    assert drawn.mean(axis=0) == pytest.approx(plain.mean(axis=0), abs=0.02)
    assert drawn.std(axis=0) == pytest.approx(plain.std(axis=0), rel=0.05)
    assert np.corrcoef(drawn.T) == pytest.approx(np.corrcoef(plain.T), abs=0.04)


@pytest.mark.parametrize("requests", [2, 15, 200])
def test_the_ranks_are_those_that_percentiles_interpolate_between(requests: int) -> None:
    latencies = np.sort(np.random.default_rng(3).random(requests))[::-1]
    at_ranks = np.log(latencies[[rank - 1 for rank in ranks(requests)]])

    assert log_quantiles(at_ranks, requests) == pytest.approx(np.log(np.percentile(latencies, PERCENTS)))


def test_the_simulated_rule_is_the_declared_one() -> None:
    assert judged(("ttft", "tpot")) == rule_of(Canary())


def test_every_rule_stands_in_the_table_with_the_same_benchmarks() -> None:
    tallies = simulate(20, CELLS[:2])

    assert [t.rule for t in tallies] == [t.rule for t in tallies[:5]] * 2
    assert all(t.promoted + t.rolled_back + t.held == 20 for t in tallies)
    assert table(tallies).count("\n") == 11


def test_the_same_seed_gives_the_same_table() -> None:
    assert table(simulate(30, CELLS[:1])) == table(simulate(30, CELLS[:1]))


def test_blocks_are_counted_until_the_decision() -> None:
    logs = np.zeros((1, 30, 2, 6)) + 0.001 * np.random.default_rng(5).standard_normal((1, 30, 2, 6))

    decision, blocks = ours(logs, judged(("ttft", "tpot")), [0] * 30)

    # The latencies are sure by then; that fewer than 0.5 % of the requests fail takes 1,800 of them to show.
    assert (decision.tolist(), blocks.tolist()) == ([PROMOTE], [9])


GOODPUT = RateCell("goodput", spread=SPREAD)
NARROW = RateCell("narrow goodput", spread=0.1)
FAILURES = RateCell("failures")


def _rates(cell: RateCell) -> tuple[float, float, float]:
    (found,) = simulate_rates(2 * RUNS, [cell])
    return found.promoted / (2 * RUNS), found.rolled_back / (2 * RUNS), found.mean_blocks


@pytest.mark.parametrize("cell", [GOODPUT, NARROW])
def test_equal_goodput_of_blocks_that_differ_is_not_taken_back(cell: RateCell) -> None:
    """Whoever takes the requests of a block for independent ones takes back a sixth of the narrow cell."""
    assert _rates(cell._replace(worse=0))[1] < 0.005


@pytest.mark.parametrize(("cell", "most"), [(GOODPUT, 0.06), (NARROW, 0.1)])
def test_goodput_at_the_margin_is_rarely_promoted(cell: RateCell, most: float) -> None:
    """Taken for independent requests 45 % of the narrow cell are promoted, where a block is all good or all bad."""
    assert _rates(cell)[0] < most


def test_failures_at_the_margin_are_rarely_promoted() -> None:
    assert _rates(FAILURES)[0] < 0.05


def test_failures_in_a_quarter_of_the_blocks_are_promoted_hardly_more_often_than_they_stay_away() -> None:
    """In 7.5 % of these runs the first nine blocks have none, and no failure in nine blocks promotes."""
    promoted, _, _ = _rates(FAILURES._replace(blocks_hit=1 / 4))

    assert 0.06 < promoted < 0.1  # 8.5 %


def test_no_failure_at_all_is_sure_after_nine_blocks() -> None:
    assert _rates(FAILURES._replace(worse=0)) == (1.0, 0.0, 9.0)


def test_failures_far_beyond_the_margin_are_taken_back() -> None:
    promoted, back, blocks = _rates(FAILURES._replace(worse=10))

    assert (promoted, back) == (0, 1)
    assert blocks < 9


@pytest.mark.parametrize("excess", [0.0, 0.02])
def test_as_many_requests_are_late_as_the_cell_says(excess: float) -> None:
    counts = late(np.random.default_rng(6), 4_000, 0.1, excess)

    assert counts.mean(axis=(0, 1)) / REQUESTS == pytest.approx([0.1 + excess, 0.1], abs=0.003)


def test_failures_come_in_as_many_blocks_as_the_cell_says() -> None:
    counts = failing(np.random.default_rng(7), 4_000, 0.005, 1 / 10)

    assert counts.mean(axis=(0, 1)) / REQUESTS == pytest.approx([0.005, 0.0], rel=0.03)
    assert (counts[..., 0] > 0).mean() == pytest.approx(0.1, abs=0.003)
