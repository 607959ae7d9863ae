"""Bounds that hold at every look."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.judge import always_valid

shares = st.floats(0.001, 0.999)
alphas = st.sampled_from([0.05, 0.01, 0.000625])


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    """Events among trials."""
    trials = draw(st.integers(1, 20_000))
    return draw(st.integers(0, trials)), trials


@given(counts(), alphas, st.sampled_from([1, 4]))
def test_the_bounds_surround_what_was_seen(seen: tuple[int, int], alpha: float, burst: int) -> None:
    """And they are shares."""
    low, high = always_valid.interval(*seen, alpha, burst=burst)

    assert 0 <= low <= seen[0] / seen[1] <= high <= 1


@given(counts(), alphas)
def test_events_and_their_absence_are_treated_alike(seen: tuple[int, int], alpha: float) -> None:
    """Counting the good ones gives the mirrored bounds."""
    low, high = always_valid.interval(*seen, alpha)
    mirrored = always_valid.interval(seen[1] - seen[0], seen[1], alpha)

    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-9)


@given(counts(), alphas)
def test_more_of_the_same_is_surer(seen: tuple[int, int], alpha: float) -> None:
    """Four times the data at the same share shrinks the bounds."""
    low, high = always_valid.interval(*seen, alpha)
    nearer = always_valid.interval(4 * seen[0], 4 * seen[1], alpha)

    assert low - 1e-9 <= nearer[0]
    assert nearer[1] <= high + 1e-9


@given(counts(), shares, alphas)
def test_longer_bursts_are_less_sure_and_worth_fewer_requests(
    seen: tuple[int, int], limit: float, alpha: float
) -> None:
    """Bursts of four make four requests count as one."""
    assert always_valid.log_evidence(4 * seen[0], 4 * seen[1], limit, burst=4) == pytest.approx(
        always_valid.log_evidence(*seen, limit)
    )
    assert always_valid.lower_bound(*seen, alpha, burst=4) <= always_valid.lower_bound(*seen, alpha) + 1e-9


@given(counts(), shares, alphas)
def test_the_bound_and_the_test_agree(seen: tuple[int, int], limit: float, alpha: float) -> None:
    """A limit is surely exceeded if it lies below the lower bound, and not if above it."""
    bound = always_valid.lower_bound(*seen, alpha)

    if limit < bound - 1e-9:
        assert always_valid.above(*seen, limit, alpha)
    if limit > bound + 1e-9:
        assert not always_valid.above(*seen, limit, alpha)


@given(shares, st.integers(0, 60), st.integers(0, 60))
def test_one_request_more_adds_nothing_on_average_at_the_limit(limit: float, events: int, others: int) -> None:
    """The evidence is a martingale at the limit; that is all that its bounds rest on."""
    trials = events + others
    now = math.exp(always_valid.log_evidence(events, trials, limit))
    then = limit * math.exp(always_valid.log_evidence(events + 1, trials + 1, limit)) + (1 - limit) * math.exp(
        always_valid.log_evidence(events, trials + 1, limit)
    )

    assert then == pytest.approx(now, rel=1e-6, abs=1e-9)


@given(shares, st.floats(0, 1), st.integers(0, 60), st.integers(0, 60))
def test_below_the_limit_evidence_is_lost_on_average(limit: float, part: float, events: int, others: int) -> None:
    """Whatever the rate is at that moment, so it may change with every request."""
    rate, trials = limit * part, events + others
    now = math.exp(always_valid.log_evidence(events, trials, limit))
    then = rate * math.exp(always_valid.log_evidence(events + 1, trials + 1, limit)) + (1 - rate) * math.exp(
        always_valid.log_evidence(events, trials + 1, limit)
    )

    assert then <= now * (1 + 1e-6) + 1e-9


@given(
    st.lists(st.integers(0, 4), min_size=4, max_size=4), st.floats(0.05, 0.9), st.integers(0, 30), st.integers(0, 30)
)
def test_within_a_burst_requests_may_depend_on_each_other(
    weights: list[int], limit: float, events: int, others: int
) -> None:
    """Four requests that fail all together, or any other joint law with the limit as mean of each, add nothing."""
    # A mixture of "the same k of 4 fail, whichever they are", scaled to a mean share of `limit` at most.
    total = sum(weights)
    if total == 0:
        return
    mean = sum(weight * (k + 1) / 4 for k, weight in enumerate(weights)) / total
    some = min(1.0, limit / mean)
    trials = events + others
    now = math.exp(always_valid.log_evidence(events, trials, limit, burst=4))
    then = (1 - some) * math.exp(always_valid.log_evidence(events, trials + 4, limit, burst=4)) + sum(
        some * weight / total * math.exp(always_valid.log_evidence(events + k + 1, trials + 4, limit, burst=4))
        for k, weight in enumerate(weights)
    )

    assert then <= now * (1 + 1e-6) + 1e-9


def test_the_truth_stays_inside_however_often_one_looks() -> None:
    """400 runs with 2,000 looks each: the nominal 10 % of misses is not exceeded."""
    rng = np.random.default_rng(7)
    alpha, rate, runs, looks = 0.1, 0.03, 400, 2000
    missed = 0
    for _ in range(runs):
        failed = np.cumsum(rng.random(looks) < rate)
        # The bounds miss the truth exactly where the evidence against it, from either side, is high enough.
        missed += any(
            always_valid.above(k, n, rate, alpha / 2) or always_valid.above(n - k, n, 1 - rate, alpha / 2)
            for n, k in zip(range(1, looks + 1, 5), failed[::5].tolist(), strict=True)
        )

    assert missed / runs <= alpha


def test_the_starts_spend_no_more_than_the_budget() -> None:
    """However many there will be."""
    assert sum(always_valid.alpha_of_start(0.01, start) for start in range(100_000)) <= 0.01
    assert always_valid.alpha_of_start(0.01, 0) == 0.005


@given(shares, st.floats(1, 5), shares)
def test_the_part_of_the_events_follows_from_the_rates(share: float, times: float, rate: float) -> None:
    """Bayes: rates `times * rate` and `rate` at shares `share` and the rest."""
    expected = share * times * rate / (share * times * rate + (1 - share) * rate)

    assert always_valid.part_of(share, times) == pytest.approx(expected)


@pytest.mark.parametrize(("rate", "most"), [(1.0, 8), (0.2, 100), (0.05, 1100), (0.02, 12_000)])
def test_how_many_requests_it_takes_is_known_beforehand(rate: float, most: int) -> None:
    """With the default budget of one check at the first start, and bursts of four."""
    alpha = 0.01 / 8 / 2
    needed = always_valid.events_needed(0.01, alpha, burst=4, rate=rate)

    assert needed <= most
    assert always_valid.above(rate * needed, needed, 0.01, alpha, burst=4)
    assert not always_valid.above(rate * (needed - 1), needed - 1, 0.01, alpha, burst=4)


def test_what_cannot_be_told_apart_is_an_error() -> None:
    """A rate at the limit is never found above it."""
    with pytest.raises(ValueError, match="not told from the limit"):
        always_valid.events_needed(0.01, 0.001, rate=0.01, most=10_000)


@pytest.mark.parametrize(("events", "trials"), [(-1, 5), (6, 5)])
def test_counts_that_contradict_themselves_are_an_error(events: float, trials: float) -> None:
    """More failures than requests is a fault of who counted."""
    with pytest.raises(ValueError, match="must be 0 or more"):
        always_valid.log_evidence(events, trials, 0.1)


def test_a_limit_of_nothing_is_broken_by_one_event() -> None:
    """And a limit of everything by none."""
    assert always_valid.above(1, 10, 0.0, 0.01)
    assert not always_valid.above(0, 10, 0.0, 0.01)
    assert not always_valid.above(10, 10, 1.0, 0.01)
    assert not always_valid.above(0, 0, 0.5, 0.01)
