"""What takes longer begins earlier and is surer; how long it takes is measured."""

import math
from datetime import timedelta

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from headway.errors import ConfigError
from headway.prescale.ladder import KEPT, LEAST, RUNGS, LeadTimes, ladder
from tests.unit.prescale.data import START, flat

TIMES = st.lists(st.floats(1, 3600), max_size=60)
STEPS = st.lists(st.floats(0, 30), min_size=8, max_size=8)


@given(TIMES, st.floats(0, 1))
def test_few_scale_ups_never_make_the_lead_time_shorter_than_the_default(times: list[float], level: float) -> None:
    lead = LeadTimes(300)
    for took_s in times:
        lead = lead.append(took_s)

    found = lead.quantile(level)

    if len(times) < LEAST:
        assert found >= max([300, *times])
    else:
        assert found in times[-KEPT:]
        assert np.mean(np.asarray(times[-KEPT:]) <= found) >= level - 1e-9


@given(TIMES.filter(lambda times: len(times) >= LEAST), st.floats(0, 1), st.floats(0, 1))
def test_to_be_surer_takes_longer(times: list[float], one: float, other: float) -> None:
    lead = LeadTimes(300, tuple(times))

    assert lead.quantile(min(one, other)) <= lead.quantile(max(one, other))


@pytest.mark.parametrize("took_s", [math.nan, math.inf, 0.0, -3.0, 90_000.0])
def test_a_time_that_no_scale_up_takes_is_refused(took_s: float) -> None:
    with pytest.raises(ConfigError, match="a lead time of"):
        LeadTimes(300).append(took_s)


@given(STEPS, st.integers(0, 30), st.integers(0, 40), st.lists(st.floats(1, 4000), min_size=3, max_size=3))
def test_no_rung_prepares_for_less_than_the_next(
    medians: list[float], floor: int, maximum: int, took_s: list[float]
) -> None:
    """Also where replicas were measured to take longer than weights."""
    lead_times = {rung.name: LeadTimes(1, (took,) * LEAST) for rung, took in zip(RUNGS, took_s, strict=True)}

    found = ladder(flat(medians), START, floor=floor, maximum=maximum, lead_times=lead_times)

    counts = [rung.count for rung in found]
    assert counts == sorted(counts, reverse=True)
    assert min(counts) >= floor
    assert max(counts) <= max(floor, maximum)


def test_each_rung_looks_as_far_as_it_takes() -> None:
    """A peak in 50 minutes needs weights now, and neither pause pods nor replicas."""
    weights, pause, replicas = ladder(flat([2, 2, 2, 2, 2, 9, 9, 2]), START, floor=2, maximum=20)

    assert weights.count > 9
    assert pause.count < 9
    assert replicas.count < 9
    assert (weights.lead_s, pause.lead_s, replicas.lead_s) == tuple(rung.default_s for rung in RUNGS)
    assert weights.reason == "Within 1 h 00 min, at 99%: up to 12.60 busy replicas; ready for 13."


def test_a_rung_that_was_measured_slower_begins_earlier() -> None:
    forecast = flat([2, 2, 2, 2, 9, 9, 9, 2])
    slow = {"replicas": LeadTimes(600, (2900.0,) * LEAST)}

    usual = ladder(forecast, START, floor=2, maximum=20)[-1]
    earlier = ladder(forecast, START, floor=2, maximum=20, lead_times=slow)[-1]

    assert usual.count < earlier.count == 11


def test_slow_replicas_need_their_weights_as_early() -> None:
    """Weights that are copied in a minute still have to be there for replicas that begin an hour ahead."""
    fast = {"weights on nodes": LeadTimes(60, (60.0,) * LEAST), "replicas": LeadTimes(600, (3000.0,) * LEAST)}

    weights, _, replicas = ladder(flat([2, 2, 2, 2, 9, 9, 9, 2]), START, floor=2, maximum=20, lead_times=fast)

    assert weights.count == replicas.count == 11


def test_a_forecast_without_numbers_lowers_nothing() -> None:
    for rung in ladder(flat([np.nan] * 8), START + timedelta(minutes=1), floor=4, maximum=20):
        assert rung.count == 4
        assert "no number" in rung.reason
