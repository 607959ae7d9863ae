"""What a profile wants to be able to lose is kept in spare, by the plan and by every rung of the ladder."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headway.prescale.capacity import NO_SPARE, Spare, headroom
from headway.prescale.ladder import ladder
from headway.prescale.plan import Limits, Observed, plan
from tests.unit.prescale.data import START, flat

SPARES = st.one_of(st.just(Spare("replica")), st.builds(Spare, st.just("zone"), st.integers(2, 5)))
MEDIANS = st.lists(st.floats(0.1, 50), min_size=4, max_size=4)


@given(st.floats(0.1, 50), st.one_of(st.none(), MEDIANS), SPARES)
def test_a_floor_with_a_spare_carries_the_load_after_the_loss(
    load: float, medians: list[float] | None, spare: Spare
) -> None:
    """With a forecast and without one."""
    forecast = None if medians is None else flat(medians)
    limits = Limits(minimum=0, maximum=1000, max_step=1000, spare=spare)

    made = plan(Observed(START, load=load, running=1), forecast, lead_s=900, limits=limits)

    assert headroom(load, made.floor, spare).survives_loss
    assert any("may be lost" in reason for reason in made.reasons)


@given(st.floats(0.1, 50), MEDIANS, SPARES)
def test_a_spare_never_asks_for_fewer(load: float, medians: list[float], spare: Spare) -> None:
    """It is kept beside what the load needs."""
    floors = [
        plan(
            Observed(START, load=load, running=1),
            flat(medians),
            lead_s=900,
            limits=Limits(minimum=0, maximum=1000, max_step=1000, spare=one),
        ).floor
        for one in (NO_SPARE, spare)
    ]

    assert floors[0] <= floors[1]


@given(MEDIANS, SPARES)
def test_every_rung_prepares_for_the_spare_too(medians: list[float], spare: Spare) -> None:
    """A node without weights is no spare."""
    for rung in ladder(flat(medians), START, floor=0, maximum=1000, spare=spare):
        plain = next(one for one in ladder(flat(medians), START, floor=0, maximum=1000) if one.name == rung.name)
        assert rung.count - spare.lost(rung.count) >= plain.count


@pytest.mark.parametrize("spare", [Spare("replica"), Spare("zone", 3)])
def test_without_a_load_the_floor_holds_and_no_spare_is_added_to_what_is_there(spare: Spare) -> None:
    """Otherwise every tick without a measurement would add one."""
    limits = Limits(minimum=1, maximum=40, max_step=5, spare=spare)

    made = plan(Observed(START, load=math.nan, running=4), None, lead_s=900, limits=limits)

    assert (made.floor, made.by) == (4, "hold")
    assert not any("may be lost" in reason for reason in made.reasons)
