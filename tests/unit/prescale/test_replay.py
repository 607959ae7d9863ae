"""The simulation neither makes nor loses replicas, and nobody beats the oracle."""

from collections.abc import Iterator
from functools import cache

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from headway.domain.series import Floats
from headway.errors import ConfigError
from headway.prescale.plan import Rule
from headway.prescale.replay import (
    HEADWAY,
    PEAK_REPLICAS,
    POLICIES,
    Scene,
    compare,
    cron,
    headway,
    oracle,
    reactive,
    scene,
    serve,
)
from tests.unit.prescale.data import DAY, daily, flat, series

LEADS = st.integers(0, 12)
RATES = arrays(np.float64, st.integers(2, 12), elements=st.floats(0, 100)).filter(lambda rates: rates.max() > 1)
ASKED = st.lists(st.floats(1, 40), min_size=1, max_size=20)


def staged(rates: Floats, lead_min: int, *, first: int = 0) -> Scene:
    """Return a scene whose forecasts know what comes; where nothing was measured they say what was before."""
    filled = rates.copy()
    for index in np.flatnonzero(np.isnan(filled)):
        filled[index] = filled[index - 1]
    ahead = np.concatenate([filled, np.full(6, filled[-1])])
    bins = series(rates)
    said = [flat(ahead[at : at + 6], start=bins.at(at)) for at in range(first, len(rates))]
    return scene(bins, said, first=first, lead_min=lead_min)


@cache
def noisy_day(lead_min: int) -> Scene:
    """Return a day of noisy traffic after eight of history."""
    return staged(daily(9, noise=0.25), lead_min, first=8 * DAY)


def everywhere(asked: list[float], minutes: int) -> Iterator[float]:
    while True:
        for one in asked:
            for _ in range(minutes):
                yield one


@given(RATES, LEADS)
def test_the_oracle_has_no_bad_minute_and_costs_one(rates: Floats, lead_min: int) -> None:
    stage = staged(rates, lead_min)

    found = serve(stage, oracle(stage))

    assert found.bad_min_a_day == 0
    assert found.cost == 1


@given(RATES, LEADS, st.lists(st.sampled_from((-1, 0, 0, 0, 1)), min_size=1, max_size=20), st.integers(1, 60))
def test_to_serve_every_minute_is_to_ask_for_what_the_oracle_does(
    rates: Floats, lead_min: int, more: list[int], minutes: int
) -> None:
    """One replica less at any minute leaves a bad one, so the cost against the oracle means what it says."""
    stage = staged(rates, lead_min)
    best = oracle(stage)
    change = everywhere([float(one) for one in more], minutes)
    asked = np.maximum(best + np.array([next(change) for _ in best]), 1)

    found = serve(stage, asked)

    assert (found.bad_min_a_day == 0) == bool((asked >= best).all())


@given(RATES, LEADS, ASKED, st.integers(1, 15))
def test_more_replicas_cost_more_and_leave_no_more_bad_minutes(
    rates: Floats, lead_min: int, asked: list[float], minutes: int
) -> None:
    stage = staged(rates, lead_min)
    given_asked = everywhere(asked, minutes)
    wanted = np.array([next(given_asked) for _ in stage.load])

    less, more = serve(stage, wanted), serve(stage, wanted + 1)

    assert more.cost > less.cost
    assert more.bad_min_a_day <= less.bad_min_a_day


@given(RATES, ASKED, st.integers(1, 15))
def test_a_longer_lead_time_never_serves_better(rates: Floats, asked: list[float], minutes: int) -> None:
    bad = []
    for lead_min in (0, 2, 5, 10):
        stage = staged(rates, lead_min)
        given_asked = everywhere(asked, minutes)
        bad.append(serve(stage, np.array([next(given_asked) for _ in stage.load])).bad_min_a_day)

    assert bad == sorted(bad)


def test_a_replica_serves_a_lead_time_after_it_was_asked_for() -> None:
    """A step from one to two replicas' load leaves exactly the lead time short."""
    stage = staged(np.full(12, 10.0), 5)
    asked = np.where(np.arange(120) < 60, PEAK_REPLICAS - 1, PEAK_REPLICAS)

    found = serve(stage, asked)

    assert found.bad_min_a_day == pytest.approx((60 + 5) * 1440 / 120)
    assert found.replica_hours == pytest.approx(2 * PEAK_REPLICAS - 1)


def test_minutes_that_were_not_measured_do_not_count() -> None:
    rates = np.full(12, 10.0)
    rates[6:] = np.nan
    stage = staged(rates, 5)

    found = serve(stage, np.where(np.arange(120) < 60, PEAK_REPLICAS, 1))

    assert found.bad_min_a_day == 0
    assert found.cost == 1


def test_what_was_not_measured_is_held_and_not_zero() -> None:
    """During the gap nothing is lowered, and what comes after it is not known before."""
    rates = np.array([5.0] * 4 + [np.nan] * 4 + [10.0] * 4)
    stage = staged(rates, 5)
    gap = slice(45, 80)

    held = reactive(stage, target=1.0)[gap]

    # In its last minutes the last bin is drawn towards the next one, so a little above its half of the peak.
    assert np.ptp(held) == 0
    assert held[0] < 0.55 * PEAK_REPLICAS
    assert (headway(stage)[gap] >= held).all()


def test_what_was_asked_for_counts_while_it_starts() -> None:
    """At two more each minute a jump is followed minute by minute, not once in each lead time."""
    rates = np.array([4.0] * 3 + [40.0] * 3)
    unaware = [flat([4.0] * 6, start=series(rates).at(at)) for at in range(len(rates))]
    stage = scene(series(rates), unaware, first=0, lead_min=10)

    asked = headway(stage)

    assert np.diff(asked).max() == 2
    assert np.count_nonzero(np.diff(asked)) >= 9
    # The load is at its peak by minute 35; ten steps of two later so is what was asked for.
    assert asked[40] >= PEAK_REPLICAS


FEW = st.lists(st.floats(0, 100), min_size=3, max_size=3)


@settings(max_examples=25)
@given(FEW, FEW, FEW, st.sampled_from((2, 5, 10)))
def test_no_policy_knows_what_it_cannot(past: list[float], one: list[float], other: list[float], lead_min: int) -> None:
    """What comes later changes nothing that was asked for before; only the oracle and the peak may know."""
    # The peak lies in the past, so that both futures have the same scale.
    past = [100.0, 100.0, *past]
    said = [flat(np.full(6, rate), start=series(np.ones(9)).at(at)) for at, rate in enumerate([*past, *past[-3:]])]
    scenes = [scene(series(np.array(past + after)), said, first=0, lead_min=lead_min) for after in (one, other)]
    # A minute after the middle of the last common bin is drawn towards the next one.
    same = len(past) * 10 - 5

    for name, policy in POLICIES.items():
        if name not in {"oracle", "static peak"}:
            first, second = (policy(stage)[:same] for stage in scenes)
            np.testing.assert_allclose(first, second, err_msg=name)


def test_cron_is_up_when_the_hour_begins() -> None:
    """It asks a lead time before the hour for the highest bin that this hour had a week ago."""
    rates = np.concatenate([daily(7, noise=0.2), daily(1, seed=2)])
    stage = staged(rates, 5, first=7 * DAY)
    a_replica = float(rates[7 * DAY] / stage.load[5]) if stage.load[5] else 1.0

    found = cron(stage) * a_replica

    assert len(found) == len(stage.load)
    for hour in (1, 7, 23):
        highest = rates[hour * 6 : hour * 6 + 6].max()
        assert found[hour * 60 - 5] == pytest.approx(highest, rel=0.02)
        assert found[hour * 60 + 50] == pytest.approx(highest, rel=0.02)


@pytest.mark.parametrize("lead_min", [2, 5, 10])
def test_to_know_what_comes_is_worth_more_than_to_keep_more_in_reserve(lead_min: int) -> None:
    """Less is short than by reacting at 0.8, for less than reacting at 0.7 costs."""
    found = compare(noisy_day(lead_min))

    assert set(found) == set(POLICIES)
    assert found[HEADWAY].bad_min_a_day < found["reactive 0.8"].bad_min_a_day
    assert found[HEADWAY].cost < found["reactive 0.7"].cost
    assert found["static peak"].bad_min_a_day == 0


def test_a_target_is_a_price() -> None:
    """A surer plan costs more and leaves less short: the frontier has two ends."""
    # A forecast that knows what comes leaves nothing short at any target; this one says what was a day ago.
    rates = daily(9, noise=0.25)
    said = [flat(rates[at - DAY : at - DAY + 6], start=series(rates).at(at)) for at in range(8 * DAY, len(rates))]
    stage = scene(series(rates), said, first=8 * DAY, lead_min=5)

    calm = serve(stage, headway(stage, rule=Rule(target=0.7)))
    bold = serve(stage, headway(stage, rule=Rule(target=1.0, quantile=0.5, margin=0.8)))

    assert calm.cost > bold.cost
    assert calm.bad_min_a_day < bold.bad_min_a_day


def test_a_scene_needs_a_forecast_for_each_bin() -> None:
    bins = series(np.full(6, 1.0))

    with pytest.raises(ConfigError, match="1 forecasts for 6 bins"):
        scene(bins, [flat([1.0])], first=0, lead_min=5)
    with pytest.raises(ConfigError, match="no load to serve"):
        scene(series(np.zeros(1)), [flat([1.0])], first=0, lead_min=5)
