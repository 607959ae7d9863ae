"""Replicas come from what was measured, and what moves together stays together."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from headway.domain.bench import RequestRecord
from headway.domain.series import Floats
from headway.errors import ConfigError
from headway.prescale.capacity import (
    Paths,
    Spare,
    Throughput,
    busy,
    busy_forecast,
    headroom,
    joint_paths,
    measured,
    replicas,
    scaled_forecast,
)
from tests.unit.prescale.data import DAY, daily, flat

LOADS = st.floats(0, 1e4)
TARGETS = st.floats(0.05, 1)


def history(rate: Floats, prompt: Floats | float = 100.0, output: Floats | float = 50.0) -> Paths:
    wide = np.broadcast_to
    parts = (rate, wide(prompt, rate.shape), wide(output, rate.shape), np.zeros_like(rate))
    return Paths(*(np.asarray(part, dtype=float)[None, :] for part in parts))


@given(LOADS, TARGETS)
def test_replicas_carry_the_load_at_the_target_and_none_is_too_many(load: float, target: float) -> None:
    count = replicas(load, target=target)

    assert load <= count * target + 1e-6
    assert count == 0 or load > (count - 1) * target - 1e-6


@given(st.floats(0.01, 1e4), TARGETS)
def test_with_a_spare_one_replica_may_be_lost(load: float, target: float) -> None:
    count = replicas(load, target=target, spare=Spare("replica"))

    assert headroom(load, count).survives_loss
    assert count >= replicas(load, target=target)


@given(st.floats(0.01, 1e4), TARGETS, st.integers(2, 9))
def test_with_a_zone_spare_any_zone_may_be_lost_and_no_replica_is_too_many(
    load: float, target: float, zones: int
) -> None:
    """However the replicas fell: an even spread differs by one between zones, and the fullest one goes."""
    spare = Spare("zone", zones)
    count = replicas(load, target=target, spare=spare)
    in_zone = [len(range(zone, count, zones)) for zone in range(zones)]

    assert all(count - lost >= load - 1e-6 for lost in in_zone)
    assert headroom(load, count, spare).survives_loss
    fewer = count - 1
    assert fewer * target < load - 1e-9 or fewer - spare.lost(fewer) < math.ceil(load - 1e-9)


@given(st.integers(0, 10**6), st.sampled_from([Spare(), Spare("replica"), Spare("zone", 2), Spare("zone", 3)]))
def test_what_is_left_after_the_loss_is_what_was_asked_for(needed: int, spare: Spare) -> None:
    """And nothing is spared where nothing is needed: a model without traffic does not hold a zone."""
    count = spare.least(needed)

    assert count - spare.lost(count) >= needed
    assert needed == 0 or count - 1 - spare.lost(count - 1) < needed
    assert spare.least(0) == 0


def test_the_only_zone_cannot_be_spared() -> None:
    """It would take all replicas with it, however many there are."""
    with pytest.raises(ConfigError, match="name 2 zones or more"):
        replicas(1.0, spare=Spare("zone", 1))


@given(LOADS, LOADS, TARGETS)
def test_more_load_never_needs_fewer_replicas(one: float, other: float, target: float) -> None:
    low, high = sorted((one, other))

    assert replicas(low, target=target) <= replicas(high, target=target)


@pytest.mark.parametrize("load", [math.nan, math.inf, -1.0])
def test_what_is_no_load_is_refused(load: float) -> None:
    with pytest.raises(ConfigError, match="is no load"):
        replicas(load)


@pytest.mark.parametrize("target", [0.0, 1.1, math.nan])
def test_what_is_no_target_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="at most 1"):
        replicas(1.0, target=target)


def test_headroom_says_what_a_loss_would_mean() -> None:
    found = headroom(3.5, 4)

    assert found.share == pytest.approx(0.125)
    assert not found.survives_loss
    assert found.reason == "4 replicas are 88% busy, without one 117%: the load does not fit."
    assert headroom(3.0, 4).survives_loss
    assert headroom(0.5, 1).reason == "1 replica is 50% busy; without one nothing serves."
    assert not headroom(0.5, 1).survives_loss


def test_headroom_says_what_the_loss_of_a_zone_would_mean() -> None:
    found = headroom(2.5, 5, Spare("zone", 3))

    assert found.reason == "5 replicas are 50% busy, without the fullest of 3 zones 83%: the load still fits."
    assert not headroom(3.5, 5, Spare("zone", 3)).survives_loss
    assert headroom(0.5, 1, Spare("zone", 3)).share_after_loss is None


def test_a_load_like_the_measured_one_keeps_one_replica_busy() -> None:
    """Whatever the lengths were: the throughput is a statement about the load it was measured under."""
    throughput = Throughput(8.0, prompt_tokens=700, output_tokens=120, cached_share=0.3)
    one = np.ones((1, 1))

    assert busy(Paths(8.0 * one, 700 * one, 120 * one, 0.3 * one), throughput)[0, 0] == pytest.approx(1)


def test_longer_answers_need_more_and_cached_prompts_less() -> None:
    throughput = Throughput(8.0, prompt_tokens=700, output_tokens=120)
    one = np.ones((1, 1))

    usual = busy(Paths(8 * one, 700 * one, 120 * one, 0 * one), throughput)
    longer = busy(Paths(8 * one, 700 * one, 240 * one, 0 * one), throughput)
    cached = busy(Paths(8 * one, 700 * one, 120 * one, 0.9 * one), throughput)

    assert cached < usual < longer


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"requests_per_s": 0.0}, "requests_per_s is 0"),
        ({"requests_per_s": math.nan}, "requests_per_s is nan"),
        ({"output_tokens": -1.0}, "output_tokens is -1"),
        ({"prompt_tokens": -1.0}, "prompt_tokens is -1"),
        ({"cached_share": 1.5}, "a share from 0 to 1"),
    ],
)
def test_a_throughput_that_cannot_be_is_refused(given: dict[str, float], words: str) -> None:
    usual = {"requests_per_s": 8.0, "prompt_tokens": 700.0, "output_tokens": 120.0}

    with pytest.raises(ConfigError, match=words):
        Throughput(**(usual | given))


def requests(first_s: float, count: int, took_s: float, error: str | None = None) -> list[RequestRecord]:
    return [
        RequestRecord(
            block=0,
            side="stable",
            index=i,
            prompt_sha256="",
            scheduled_s=first_s + i / 10,
            sent_s=first_s + i / 10,
            ended_s=first_s + i / 10 + took_s,
            prompt_tokens=100,
            output_tokens=20,
            error=error,
        )
        for i in range(count)
    ]


@given(st.integers(0, 100), st.floats(1, 500))
def test_a_cold_start_cannot_get_into_the_throughput(cold: int, took_s: float) -> None:
    """However many slow requests the warm-up had, what is measured after it is the same."""
    warm = requests(60, 200, 2.0)

    found = measured([*requests(0, cold, took_s), *warm], warm_s=60, until_s=90, cached_share=0.5)

    assert found == measured(warm, warm_s=60, until_s=90, cached_share=0.5)
    assert found.requests_per_s == pytest.approx(10, rel=0.1)
    assert (found.prompt_tokens, found.output_tokens, found.cached_share) == (100, 20, 0.5)


def test_what_failed_is_no_throughput() -> None:
    """A server that refuses quickly would seem the fastest of all."""
    warm = requests(60, 200, 2.0)

    assert measured([*warm, *requests(60, 200, 0.01, "HTTP 503")], warm_s=60, until_s=90) == measured(
        warm, warm_s=60, until_s=90
    )


def test_a_few_requests_are_no_measurement() -> None:
    with pytest.raises(ConfigError, match="19 of 19 requests"):
        measured(requests(0, 19, 1.0), warm_s=0, until_s=60)


def test_shared_load_counts_for_each_replica() -> None:
    alone = measured(requests(0, 100, 1.0), warm_s=0, until_s=60)
    shared = measured(requests(0, 100, 1.0), warm_s=0, until_s=60, replicas=4)

    assert shared.requests_per_s == pytest.approx(alone.requests_per_s / 4)


def test_a_busy_hour_with_long_answers_needs_more_than_its_parts_say() -> None:
    """What is independent evens out; what moves together does not, and a path keeps it together."""
    rate = daily(6, noise=0.3)
    usual = np.array([np.median(rate[start::DAY]) for start in range(DAY)])
    over = rate / usual[np.arange(len(rate)) % DAY]
    throughput = Throughput(10.0, prompt_tokens=0, output_tokens=50)
    forecast = flat([100.0], spread=0.3)

    together = busy_forecast(forecast, history(rate, 0.0, 50 * over), throughput).value_at(forecast.start_at, 0.9)
    against = busy_forecast(forecast, history(rate, 0.0, 50 / over), throughput).value_at(forecast.start_at, 0.9)

    alone = scaled_forecast(forecast, 10.0).value_at(forecast.start_at, 0.9)
    assert against < alone < together


def test_equal_lengths_leave_the_quantiles_of_the_rate() -> None:
    forecast = flat([100.0, 200.0])
    throughput = Throughput(10.0, prompt_tokens=100, output_tokens=50)

    found = busy_forecast(forecast, history(daily(3)), throughput)

    for level in (0.5, 0.8, 0.9):
        np.testing.assert_allclose(found.quantile(level), forecast.quantile(level) / 10, rtol=0.01)
    assert (np.diff(found.values, axis=0) >= 0).all()


def test_paths_need_a_history() -> None:
    with pytest.raises(ConfigError, match="a history of 23 bins"):
        joint_paths(flat([1.0]), history(daily(1)[:23]))


def test_paths_with_a_hole_are_refused() -> None:
    hole = daily(1)
    hole[3] = np.nan

    with pytest.raises(ConfigError, match="negative or missing"):
        history(hole)


def test_a_replica_that_sustains_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="sustains 0"):
        scaled_forecast(flat([1.0]), 0.0)
