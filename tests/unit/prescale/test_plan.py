"""The forecast only raises, observation lowers, and what is wrong with the input never lowers the floor."""

import math
from dataclasses import replace
from datetime import timedelta

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from headway.domain.series import QuantileForecast
from headway.errors import ConfigError
from headway.prescale.plan import Limits, Observed, Plan, Rule, plan
from tests.unit.prescale.data import START, flat

LEAD_S = 300
AT = START + timedelta(minutes=2)
FORECAST = flat([4.0, 4.0, 4.0, 4.0])
SEEN = Observed(AT, load=4.0, running=5)
LIMITS = Limits(minimum=1, maximum=40, max_step=2)

LOADS = st.one_of(st.none(), st.floats(0, 1e9), st.sampled_from([math.nan, math.inf, -1.0, 0.0]))
MEDIANS = st.lists(st.floats(0, 50), min_size=4, max_size=4)
OBSERVED = st.builds(
    Observed,
    at=st.just(AT),
    load=LOADS,
    running=st.integers(0, 40),
    pending=st.integers(0, 10),
    last_bin=st.one_of(st.none(), st.floats(0, 50), st.just(math.nan)),
    zero_confirmed=st.booleans(),
)
FORECASTS = st.one_of(st.none(), st.builds(flat, MEDIANS))
BOUNDS = st.builds(
    lambda low, more, step, budget: Limits(low, low + more, step, budget),
    st.integers(0, 20),
    st.integers(0, 40),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(0, 60)),
)


def made(
    observed: Observed = SEEN,
    forecast: QuantileForecast | None = FORECAST,
    limits: Limits = LIMITS,
    lead_s: float = LEAD_S,
    rule: Rule = Rule(),  # noqa: B008 - frozen
) -> Plan:
    return plan(observed, forecast, lead_s=lead_s, limits=limits, rule=rule)


@given(OBSERVED, FORECASTS, BOUNDS)
def test_the_same_input_gives_the_same_plan(
    observed: Observed, forecast: QuantileForecast | None, limits: Limits
) -> None:
    assert made(observed, forecast, limits) == made(observed, forecast, limits)


@given(OBSERVED, FORECASTS, BOUNDS)
def test_the_floor_lies_within_minimum_and_maximum_and_has_a_reason(
    observed: Observed, forecast: QuantileForecast | None, limits: Limits
) -> None:
    found = made(observed, forecast, limits)

    assert limits.minimum <= found.floor <= limits.maximum
    assert found.reasons


@given(OBSERVED, FORECASTS, BOUNDS)
def test_a_plan_adds_at_most_a_step_and_nothing_above_the_budget(
    observed: Observed, forecast: QuantileForecast | None, limits: Limits
) -> None:
    found = made(observed, forecast, limits)

    assert found.floor <= max(observed.asked + limits.max_step, limits.minimum)
    if limits.budget is not None:
        assert found.floor <= max(limits.budget, observed.asked, limits.minimum)


@given(OBSERVED, FORECASTS, st.integers(0, 40), st.integers(0, 40))
def test_a_budget_takes_nothing_away(
    observed: Observed, forecast: QuantileForecast | None, budget: int, maximum: int
) -> None:
    """With a budget the floor is what it would be without, or what is there, or the budget."""
    free = made(observed, forecast, Limits(0, maximum)).floor
    bound = made(observed, forecast, Limits(0, maximum, budget=budget)).floor

    assert bound >= min(free, max(observed.asked, budget), maximum)


@given(OBSERVED, MEDIANS, st.floats(1, 5), BOUNDS)
def test_more_forecast_never_lowers_the_floor(
    observed: Observed, medians: list[float], more: float, limits: Limits
) -> None:
    less = made(observed, flat(medians), limits)
    grown = made(observed, flat([more * value for value in medians]), limits)

    assert grown.floor >= less.floor


@given(st.floats(0.01, 200), MEDIANS, st.floats(0.1, 50))
def test_a_forecast_never_asks_for_less_than_the_load_at_its_target(
    load: float, medians: list[float], last_bin: float
) -> None:
    """The forecast only raises: one that falls, to zero even, leaves the need of the load that is there."""
    found = made(replace(SEEN, load=load, last_bin=last_bin), flat(medians))

    assert found.growth >= 1
    assert found.wanted >= math.ceil(load / Rule().target - 1e-6)


@given(st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, -3.0, 0.0])), FORECASTS, st.integers(1, 40))
def test_missing_data_never_lowers(load: float | None, forecast: QuantileForecast | None, asked: int) -> None:
    found = made(replace(SEEN, load=load, running=asked), forecast)

    assert found.floor >= asked
    assert found.problems


@given(OBSERVED, st.integers(0, 20), st.integers(1, 20), FORECASTS)
def test_a_minimum_above_the_maximum_lowers_nothing(
    observed: Observed, maximum: int, more: int, forecast: QuantileForecast | None
) -> None:
    found = made(observed, forecast, Limits(minimum=maximum + more, maximum=maximum))

    assert found.floor >= observed.asked
    assert f"The minimum of {maximum + more} is above the maximum of {maximum}" in " ".join(found.problems)


@given(OBSERVED, st.sampled_from([math.nan, math.inf, -1.0]))
def test_a_broken_forecast_lowers_nothing(observed: Observed, value: float) -> None:
    """It may have been all that kept the floor up; the load may still raise it."""
    broken = QuantileForecast(START, 600, (0.5, 0.9), np.full((2, 4), value))
    limits = Limits(maximum=1000, max_step=100)

    found = made(observed, broken, limits)

    assert found.floor >= max(observed.asked, made(observed, None, limits).floor)
    assert "values that no load can have" in " ".join(found.problems)


def test_replicas_on_their_way_are_not_asked_for_twice() -> None:
    """While pods load, each plan asks for the same number and not for more."""
    wanted = made(replace(SEEN, running=3)).floor
    waiting = made(replace(SEEN, running=3, pending=wanted - 3)).floor

    assert waiting == wanted == 5


def test_growth_is_anchored_at_the_load_that_is_there() -> None:
    """A forecast that is too low by half still knows how fast traffic grows."""
    rising = flat([1.0, 2.0, 4.0, 8.0], spread=0.0)
    at = START + timedelta(minutes=15)

    found = made(replace(SEEN, at=at, load=8.0, running=20), rising, lead_s=600)

    assert found.by == "growth"
    assert found.growth == pytest.approx(2)
    assert found.floor == math.ceil(16 / Rule().target)
    assert found.reasons == ("A load of 8.00 busy replicas grows by x2.00 in 10 min 00 s; each is to be 90% busy.",)


def test_growth_counts_from_when_the_load_was_measured() -> None:
    """What came between the measurement and the plan has grown as well."""
    rising = flat([2.0, 3.0, 4.0, 5.0], spread=0.0)
    seen = Observed(START + timedelta(minutes=15), load=8.0, running=20)

    fresh = made(seen, rising, lead_s=600)
    older = made(replace(seen, load_at=START + timedelta(minutes=10)), rising, lead_s=600)

    assert fresh.growth == pytest.approx(4 / 3)
    assert older.growth == pytest.approx(4 / 2.5)


def test_wild_hours_get_more_room_than_calm_ones() -> None:
    calm, wild = made(forecast=flat([4.0] * 4, spread=0.0)), made(forecast=flat([4.0] * 4, spread=0.6))

    assert (calm.floor, calm.by) == (5, "growth")
    assert (wild.wanted, wild.by) == (7, "margin")
    assert wild.reasons[0].endswith("and may exceed that by 2.40.")


def test_what_serves_sooner_needs_less_room() -> None:
    """In a minute the load cannot go as far as in five; beyond that the forecast's own distance is all there is."""
    wild = flat([4.0] * 4, spread=0.8)
    rule = Rule(quantile=0.5)

    assert [made(forecast=wild, lead_s=lead_s, rule=rule).wanted for lead_s in (0, 75, 300, 600)] == [5, 6, 8, 8]


def test_the_forecast_raises_before_the_load_is_there() -> None:
    found = made(replace(SEEN, load=1.0), flat([4.0, 9.0, 9.0, 9.0]), lead_s=900)

    assert found.by == "limits"
    assert found.floor == SEEN.asked + LIMITS.max_step
    assert found.wanted == math.ceil(9 * 1.12)
    assert found.reasons[-1] == "11 are wanted; one plan adds at most 2 to the 5 asked for."


def test_before_the_middle_of_its_first_step_a_forecast_starts_from_what_was_measured() -> None:
    """Otherwise the growth from the last bin to the first step would be missed for ten minutes."""
    start = replace(SEEN, at=START, load=4.0, running=9)

    with_bin = made(replace(start, last_bin=2.0), flat([4.0] * 4, spread=0.0))

    assert with_bin.growth == pytest.approx(4 / 3)
    assert made(start, flat([4.0] * 4, spread=0.0)).growth == 1


@pytest.mark.parametrize(
    ("observed", "forecast", "lead_s", "words"),
    [
        (replace(SEEN, load=None), FORECAST, LEAD_S, "No load was measured; missing is not zero."),
        (replace(SEEN, load=math.nan), FORECAST, LEAD_S, "The measured load is nan, which is no load"),
        (replace(SEEN, load=-2.0), FORECAST, LEAD_S, "The measured load is -2.0, which is no load"),
        (replace(SEEN, load=0.0), FORECAST, LEAD_S, "exactly zero, and no second source says so"),
        (replace(SEEN, load_at=AT - timedelta(minutes=20)), FORECAST, LEAD_S, "measured 20 min 00 s ago"),
        (replace(SEEN, load_at=AT + timedelta(minutes=20)), FORECAST, LEAD_S, "in the future; a clock is wrong"),
        (SEEN, None, LEAD_S, "There is no forecast"),
        (replace(SEEN, at=START + timedelta(hours=1)), flat([4.0] * 9), LEAD_S, "began 1 h 00 min ago"),
        (replace(SEEN, at=START - timedelta(hours=1)), flat([4.0] * 9), LEAD_S, "begins 1 h 00 min in the future"),
        (SEEN, FORECAST, 3600, "ends before the lead time (1 h 00 min)"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    observed: Observed, forecast: QuantileForecast | None, lead_s: float, words: str
) -> None:
    (problem,) = made(observed, forecast, lead_s=lead_s).problems

    assert words in problem


def test_a_stale_forecast_leaves_a_reactive_plan() -> None:
    """A dead DAG costs the lead over traffic, not the replicas for the traffic that is there."""
    found = made(replace(SEEN, at=START + timedelta(hours=1)), flat([4.0] * 9))

    assert found.by == "reactive"
    assert found.floor == math.ceil(4 / Rule().reactive_target)


def test_a_forecast_from_the_future_lowers_nothing() -> None:
    found = made(replace(SEEN, at=START - timedelta(hours=1), running=9))

    assert (found.floor, found.by) == (9, "hold")
    assert found.reasons == ("Without a forecast that can be read the floor holds at 9.",)


@pytest.mark.parametrize("load", [7.0, 1e12, 1.7e308])
@pytest.mark.parametrize("forecast", [FORECAST, None])
def test_a_giant_spike_adds_one_step(load: float, forecast: QuantileForecast | None) -> None:
    found = made(replace(SEEN, load=load), forecast)

    assert found.floor == SEEN.asked + LIMITS.max_step
    assert "one plan adds at most 2" in found.reasons[-1]


def test_a_budget_below_the_need_holds_what_is_there_and_says_so() -> None:
    found = made(replace(SEEN, load=9.0), limits=Limits(1, 40, budget=3))

    assert found.floor == 5
    (problem,) = found.problems
    assert problem.startswith("The budget of 3 is below the 5 replicas that are needed and there; none is taken away")


def test_observation_lowers() -> None:
    """When traffic is gone and a second source agrees, the floor goes to the minimum."""
    quiet = flat([0.1] * 4)

    assert made(replace(SEEN, load=0.1, running=20), quiet).floor == 1
    assert made(replace(SEEN, load=0.0, running=20, zero_confirmed=True), quiet).floor == 1


def test_constant_zero_is_no_reason_to_let_go() -> None:
    """A metric that was renamed reads as zero for ever, in the forecast too."""
    found = made(replace(SEEN, load=0.0), flat([0.0] * 4))

    assert (found.floor, found.by) == (5, "hold")


@pytest.mark.parametrize("lead_s", [math.nan, math.inf, -1.0])
def test_what_is_no_lead_time_is_refused(lead_s: float) -> None:
    with pytest.raises(ConfigError, match="a lead time of"):
        made(lead_s=lead_s)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="the rule's target is 0"):
        Rule(target=0.0)
    with pytest.raises(ConfigError, match="negative limit or a step below 1"):
        Limits(max_step=0)
    with pytest.raises(ConfigError, match="neither can be negative"):
        replace(SEEN, running=-1)


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40))
def test_what_is_there_for_a_peak_stays_until_the_peak_is_over(until: int, peak: int, asked: int) -> None:
    """A peak may be over when a replica asked for now would serve: what was asked for it before must still be there.

    It raises nothing: for a peak that near it is too late.
    """
    medians = [0.5] * 7
    medians[until] = float(peak)

    found = made(
        replace(SEEN, load=0.5, running=asked), flat(medians), replace(LIMITS, minimum=1, max_step=40), lead_s=3600
    )

    assert min(peak, asked) <= found.floor <= max(asked, 2)


@given(st.integers(1, 20), st.integers(0, 20), st.sampled_from(["no load", "broken forecast"]))
def test_what_was_asked_for_holds_even_if_the_cluster_has_not_heard_of_it(
    floor: int, running: int, lacking: str
) -> None:
    """The floor was set a moment ago, the target follows; what is missing now is no reason to take it back."""
    load = None if lacking == "no load" else 0.5
    forecast = flat([0.5] * 4) if lacking == "no load" else flat([math.nan] * 4)

    found = made(replace(SEEN, load=load, running=running, floor=floor), forecast)

    assert found.floor >= max(floor, running)
