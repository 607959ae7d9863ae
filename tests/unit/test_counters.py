"""How counters grew: what holds for any of them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.counters import growth

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
STEP_S = 60
READS = 31
"""A counter is read every ten seconds for five minutes."""
SECONDS = [10.0 * index for index in range(READS)]
Counter = list[tuple[datetime, float]]

grows = st.lists(st.floats(0, 1e6), min_size=READS - 1, max_size=READS - 1)
counters = st.builds(
    lambda first, grown: [
        (NOW + timedelta(seconds=second), first + sum(grown[:index])) for index, second in enumerate(SECONDS)
    ],
    st.floats(0, 1e9),
    grows,
)


def rates(series: list[Counter], step_s: int = STEP_S) -> list[float]:
    return [step.per_s for step in growth(series, NOW, NOW + timedelta(seconds=300), step_s, gap_s=60)]


@given(st.lists(counters, min_size=1, max_size=4))
def test_what_grew_is_neither_lost_nor_counted_twice(series: list[Counter]) -> None:
    """The steps of any length add up to what the counters grew by in all."""
    total = sum(one[-1][1] - one[0][1] for one in series)

    for step_s in (10, 60, 100, 300):
        found = rates(series, step_s)
        assert sum(found) * step_s == pytest.approx(total, rel=1e-6, abs=1e-3)
        assert min(found) >= 0


@given(counters, st.integers(1, READS - 1))
def test_a_restart_loses_what_was_not_read_and_nothing_else(counter: Counter, place: int) -> None:
    """A counter that begins again at zero goes on growing from there, and never falls."""
    before, after = counter[:place], [(at, value - counter[place - 1][1]) for at, value in counter[place:]]
    if after[0][1] >= before[-1][1]:
        after = [(at, value - after[0][1]) for at, value in after]
    found = sum(rates([before + after])) * STEP_S

    assert 0 <= found <= (counter[-1][1] - counter[0][1]) * (1 + 1e-6) + 1e-3
    if after[0][1] > 0 or before[-1][1] > 0:
        assert found >= (counter[place - 1][1] - counter[0][1] + after[-1][1] - after[0][1]) * (1 - 1e-6) - 1e-3


@given(counters, counters)
def test_series_do_not_see_each_other(first: Counter, second: Counter) -> None:
    """One that comes late or goes early changes the sum by what itself grew, and by nothing else."""
    late = second[12:]
    both, alone = rates([first, late]), rates([first])

    assert both[:2] == pytest.approx(alone[:2])
    assert sum(both) * STEP_S - sum(alone) * STEP_S == pytest.approx(late[-1][1] - late[0][1], rel=1e-6, abs=1e-2)
    assert rates([late, first]) == pytest.approx(both)


def test_a_gap_is_missing_in_each_step_that_it_fills() -> None:
    """It is known by how much the counter grew meanwhile, and not when."""
    counter = [(NOW + timedelta(seconds=s), 2.0 * s) for s in (*range(0, 61, 10), *range(240, 301, 10))]

    found = growth([counter], NOW, NOW + timedelta(seconds=300), STEP_S, gap_s=60)

    assert [(step.at - NOW).total_seconds() for step in found] == [0, 240]
    assert [step.per_s for step in found] == pytest.approx([2.0, 2.0])


def test_no_sample_and_a_single_one_say_nothing() -> None:
    """A counter has to be read twice before it is known to have grown or not."""
    assert rates([]) == []
    assert rates([[(NOW, 5.0)], []]) == []
