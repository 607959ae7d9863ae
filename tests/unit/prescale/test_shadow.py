"""Every tick is priced against others, from what the ticks themselves kept, and a forecast that loses steps back."""

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from headway.domain.prescaling import Standing
from headway.domain.series import Floats, Series
from headway.prescale.capacity import Spare
from headway.prescale.history import COLUMNS, History
from headway.prescale.plan import Limits
from headway.prescale.shadow import CRON, HEADWAY, LOST_DAYS, REACTIVE, Would, demoted, standings, would
from tests.unit.prescale.data import DAY, START, STEP_S, daily

LIMITS = Limits(minimum=1, maximum=30)
LEAD_S = 300.0
COUNTS = st.integers(1, 30)


def history(days: float, **columns: Floats) -> History:
    bins = round(days * DAY)
    empty = np.full(bins, np.nan)
    return History(START, STEP_S, {name: columns.get(name, empty) for name in COLUMNS})


def ticked(days: float = 3, *, more: float = 0.0) -> History:
    """Return what ticks kept that asked for what the load needs, ours for `more` on top."""
    busy = daily(days, level=5.0)
    needed = np.ceil(busy / 0.8)
    return history(days, busy=busy, asked=needed + more, reactive=needed, cron=needed + 1)


def priced(kept: History) -> dict[tuple[str, str], Standing]:
    found = standings(kept, lead_s=LEAD_S, step_s=STEP_S)
    return {(one.day, one.policy): one for one in found}


def asked_at(
    load: float | None, kept: History | None = None, busy: Floats | None = None, limits: Limits = LIMITS
) -> Would:
    kept = kept or history(8)
    known = Series(START, STEP_S, np.full(8 * DAY, np.nan) if busy is None else busy)
    now = START + timedelta(days=8)
    return would(kept, known, load, now=now, lead_s=LEAD_S, limits=limits)


def test_reactive_follows_the_load_and_cron_the_hour_a_week_ago() -> None:
    """8.1 busy replicas are 11 at 80 %; last week's peak in the hour to come was 14.2, so cron asks for 15."""
    busy = np.full(8 * DAY, 2.0)
    busy[DAY + 5] = 14.2
    busy[DAY + 6] = 99.0  # the hour after

    assert asked_at(8.1, busy=busy) == Would(reactive=11, cron=15)


def test_cron_is_ready_for_the_hour_in_which_a_replica_would_serve() -> None:
    """Ten minutes before the hour, with a lead time of five, the next hour counts."""
    busy = np.full(9 * DAY, 2.0)
    busy[DAY + 8] = 14.2
    known = Series(START, STEP_S, busy)
    at = [
        would(history(9), known, 2.0, now=START + timedelta(days=8, minutes=minute), lead_s=LEAD_S, limits=LIMITS).cron
        for minute in (30, 50, 60)
    ]

    assert at == [3, 15, 15]


@pytest.mark.parametrize("load", [None, float("nan"), -1.0])
def test_without_a_load_the_others_hold(load: float | None) -> None:
    """What headway is measured against must not fall for a fault of the measurement either."""
    kept = history(8, reactive=np.where(np.arange(8 * DAY) == 7 * DAY, 9.0, np.nan))

    assert asked_at(load, kept).reactive == 9


def test_the_others_keep_the_same_in_spare() -> None:
    """Or headway would be blamed for what the profile asks of everybody."""
    alone = asked_at(8.1, busy=np.full(8 * DAY, 14.2))
    spare = asked_at(
        8.1, busy=np.full(8 * DAY, 14.2), limits=Limits(minimum=1, maximum=30, spare=Spare("zone", zones=2))
    )

    assert (alone.reactive, alone.cron) == (11, 15)
    assert (spare.reactive, spare.cron) == (18, 30)


@given(st.floats(0, 1e9), COUNTS, COUNTS, st.none() | COUNTS)
def test_the_others_live_within_the_same_limits(load: float, low: int, high: int, budget: int | None) -> None:
    limits = Limits(minimum=min(low, high), maximum=max(low, high), budget=budget)

    found = asked_at(load, limits=limits)

    for asked in (found.reactive, found.cron):
        assert limits.minimum <= asked <= limits.maximum
        assert budget is None or asked <= max(budget, limits.minimum)


def test_each_whole_day_is_priced_and_no_other() -> None:
    """Two and a half days of ticks are two days; the one under way has no standing yet."""
    found = priced(ticked(2.5))

    assert {day for day, _ in found} == {"2026-03-02", "2026-03-03"}
    assert {policy for _, policy in found} == {HEADWAY, REACTIVE, CRON}


def test_only_the_last_seven_days_are_priced() -> None:
    assert {one.day for one in standings(ticked(12), lead_s=LEAD_S, step_s=STEP_S)} == {
        f"2026-03-{day:02d}" for day in range(7, 14)
    }


@given(st.integers(1, 5))
def test_more_replicas_cost_more_and_leave_no_more_short(more: int) -> None:
    found = priced(ticked(1, more=more))
    ours, other = found["2026-03-02", HEADWAY], found["2026-03-02", REACTIVE]

    assert ours.cost is not None
    assert other.cost is not None
    assert ours.cost > other.cost
    assert ours.bad_min <= other.bad_min


def test_a_replica_too_few_all_day_is_a_bad_day() -> None:
    """5.5 busy replicas with 5 asked for: every minute is short, at 5/6 of what the oracle pays."""
    flat = np.full(DAY + 1, 5.5)
    kept = history((DAY + 1) / DAY, busy=flat, asked=np.full(DAY + 1, 5.0))

    one = priced(kept)["2026-03-02", HEADWAY]

    assert one.bad_min == 1440
    assert one.cost == pytest.approx(5 / 6)


def test_minutes_that_nobody_saw_are_neither_good_nor_bad() -> None:
    """An hour without ticks, with far too few asked for before it, adds no bad minute; half a day gone is no price."""
    busy, asked = np.full(DAY + 1, 5.5), np.full(DAY + 1, 6.0)
    busy[60:66], asked[60:66] = np.nan, np.nan
    gone = busy.copy()
    gone[:72] = np.nan

    with_gap = priced(history((DAY + 1) / DAY, busy=busy, asked=asked))["2026-03-02", HEADWAY]
    half = priced(history((DAY + 1) / DAY, busy=gone, asked=asked))["2026-03-02", HEADWAY]

    assert (with_gap.cost, with_gap.bad_min) == (1.0, 0.0)
    assert half.cost is None


def test_what_was_asked_for_stands_until_the_next_tick() -> None:
    """Ticks every twenty minutes leave every other bin without one; the day is known all the same."""
    kept = ticked(2)
    columns = {name: np.where(np.arange(2 * DAY) % 2 == 0, values, np.nan) for name, values in kept.columns.items()}
    columns["busy"] = kept.columns["busy"]
    sparse = History(kept.start_at, kept.step_s, columns)

    costs = [
        next(one.cost for one in standings(sparse, lead_s=LEAD_S, step_s=step_s) if one.policy == HEADWAY)
        for step_s in (STEP_S, 2 * STEP_S)
    ]

    assert costs[0] is None
    assert costs[1] is not None


def test_a_history_without_ticks_has_no_standings() -> None:
    assert standings(history(9), lead_s=LEAD_S, step_s=STEP_S) == ()


def days(*pairs: tuple[float | None, float], first: datetime = START, policy: str = HEADWAY) -> list[Standing]:
    return [
        Standing(day=(first + timedelta(days=index)).date().isoformat(), policy=policy, cost=cost, bad_min=bad)
        for index, (cost, bad) in enumerate(pairs)
    ]


OTHERS = [(1.2, 10.0)] * 4
AFTER = START.date() + timedelta(days=4)
LOST, CHEAPER, CALMER = (1.3, 11.0), (1.1, 11.0), (1.3, 9.0)


@pytest.mark.parametrize(
    ("ours", "steps_back"),
    [
        ([CHEAPER, LOST, LOST, LOST], True),
        ([LOST, LOST, LOST, LOST], True),
        ([LOST, LOST, LOST, CHEAPER], False),
        ([LOST, LOST, CALMER, LOST], False),
        ([LOST, LOST, LOST, OTHERS[0]], False),
        ([LOST, LOST, LOST, (None, 11.0)], False),
    ],
)
def test_a_forecast_steps_back_after_three_days_on_which_it_lost_on_both(
    ours: list[tuple[float | None, float]], steps_back: bool
) -> None:
    """Cheaper or calmer on one of the last three days is reason enough to stay; so is a day that nobody saw."""
    said = demoted([*days(*ours), *days(*OTHERS, policy=REACTIVE)], AFTER)

    assert bool(said) == steps_back
    assert said.count("1.30 x oracle and 11 min short, against 1.20 and 10") == (LOST_DAYS if steps_back else 0)


def test_three_days_that_are_not_in_a_row_are_no_three_days() -> None:
    """The DAG was dead in between, so nobody knows what would have been."""
    ours, others = days(LOST, LOST), days(*OTHERS[:2], policy=REACTIVE)
    later = datetime(2026, 3, 9, tzinfo=UTC)
    more = [*days(LOST, first=later), *days(OTHERS[0], first=later, policy=REACTIVE)]

    assert demoted([*ours, *others, *more], later.date() + timedelta(days=1)) == ""


def test_days_that_nobody_saw_since_then_end_it() -> None:
    """What was lost a week ago says nothing of today's forecast."""
    lost = [*days(*[LOST] * 4), *days(*OTHERS, policy=REACTIVE)]

    assert demoted(lost, AFTER + timedelta(days=1))
    assert demoted(lost, AFTER + timedelta(days=2)) == ""


def test_others_ask_for_no_more_at_once_than_the_plan_may() -> None:
    """Otherwise the plan would be compared with what nobody may do."""
    before = history(1).noted(START + timedelta(hours=23, minutes=50), reactive=2, cron=2)
    limits = Limits(minimum=1, maximum=40, max_step=2)

    found = would(before, before.series("busy"), 20.0, now=START + timedelta(days=1), lead_s=LEAD_S, limits=limits)

    assert found == Would(reactive=4, cron=4)


def test_a_policy_without_rivals_stays() -> None:
    assert demoted(days(LOST, LOST, LOST), START.date() + timedelta(days=3)) == ""
    assert demoted([], AFTER) == ""
