"""Each bad input that the pre-scaling promises to survive, by its name, over hours of one model's life.

What a part does with it stands in that part's own tests; here is only the promise of the whole: the floor does not fall
because of it, and the plan says what happened.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from headway.domain import engine_series
from headway.domain.prescaling import Tick, history_key, learned_key, plan_key
from headway.domain.release import record_key
from headway.domain.series import QuantileForecast, Series
from headway.errors import ConfigError, HeadwayError
from headway.ports import REQUESTS, Sample
from headway.prescale.forecast import ensemble, members
from headway.prescale.forecast.members import Member
from headway.prescale.throughput import RECORD, Sustained
from tests.unit.prescale.world import NOON, OUTPUT, PROMPT, SUSTAINED, PlayedMetrics, World, daily, prescaled

FALLING = NOON + timedelta(hours=4)
"""After the peak: a tick that saw the load would lower the floor within the next hours."""
BEFORE = 6
"""The floor that the day has left behind, above all that the rest of it needs."""


@pytest.fixture(scope="module")
def learned() -> World:
    """A model with some days of history and a tick behind it."""
    world = World()
    world.remember(FALLING - timedelta(minutes=10), days=2.5)
    world.has(BEFORE)
    world.tick(FALLING - timedelta(minutes=10))
    return world


@pytest.fixture
def world(learned: World) -> World:
    """The same for one test, with six replicas that are no longer needed."""
    found = learned.copy()
    found.has(BEFORE, floor=BEFORE)
    return found


def live(world: World, *, hours: float, start: datetime = FALLING) -> list[Tick]:
    """Let the DAG run for some hours; the cluster has what it must have."""
    made = []
    for minute in range(0, round(hours * 60), 10):
        made.append(world.tick(start + timedelta(minutes=minute)))
        world.has(world.floor)
    return made


def lately(world: World, value: float | None, *, since: datetime = FALLING - timedelta(minutes=20)) -> None:
    """Let the gateway's metric have one value since a time."""
    world.metrics.per_s = lambda moment: daily(moment) if moment < since else value


def test_without_any_fault_the_floor_falls(world: World) -> None:
    """Otherwise nothing below would prove anything."""
    made = live(world, hours=2)

    assert world.floor < BEFORE
    assert all(not tick.problems for tick in made)


def no_prometheus(world: World) -> None:
    world.metrics.down = True


def empty_answer(world: World) -> None:
    world.metrics.per_s = world.metrics.served = lambda _moment: None


def not_a_number(world: World) -> None:
    lately(world, math.nan)


def renamed(world: World) -> None:
    lately(world, None)
    world.metrics.served = daily


def zero(world: World) -> None:
    lately(world, 0.0)
    world.metrics.served = daily


def negative(world: World) -> None:
    lately(world, -4.0)


def endless(world: World) -> None:
    lately(world, math.inf)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (no_prometheus, "metrics do not answer"),
        (empty_answer, "has no sample of tiny"),
        (not_a_number, "missing is not zero"),
        (renamed, "its metric was renamed"),
        (zero, "exactly zero, and no second source says so"),
        (negative, "missing is not zero"),
        (endless, "missing is not zero"),
    ],
)
def test_metrics_that_say_nothing_lower_nothing(world: World, fault: Callable[[World], None], said: str) -> None:
    """No Prometheus, an empty answer, NaN, another name, constant zero, below zero: all along, and it is said."""
    fault(world)

    for made in live(world, hours=1):
        assert made.floor >= BEFORE
        assert made.load is None
        assert any(said in problem for problem in made.problems), made.problems
    assert world.floor >= BEFORE


class Counted(PlayedMetrics):
    """The gateway's counter itself, read every 30 s, which begins again at some time."""

    resets_at: datetime = FALLING + timedelta(minutes=9)

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        if name != REQUESTS or (end - start) > timedelta(hours=6):
            return super().rate(name, labels, start, end, step_s)
        self.series.clear()
        state, at = 1e6, start - timedelta(minutes=5)
        while at <= end:
            state = 0.0 if abs((at - self.resets_at).total_seconds()) < 15 else state + 30 * daily(at)
            self.put(name, labels, at, state)
            at += timedelta(seconds=30)
        return super(PlayedMetrics, self).rate(name, labels, start, end, step_s)


def test_a_counter_that_begins_again_is_no_fall(world: World) -> None:
    """The gateway restarts within the window of the load: what is lost is half a minute of requests."""
    world.metrics = Counted()

    made = live(world, hours=1)

    for tick in made:
        needed = daily(datetime.fromisoformat(tick.at)) / SUSTAINED
        assert tick.load == pytest.approx(needed, rel=0.3)
        assert tick.floor >= math.ceil(needed * 0.9)


def test_three_hours_of_history_are_said_and_never_fall_below_the_load() -> None:
    """No day is known: the recent level, with its own errors."""
    world = World()
    world.remember(NOON, days=0.125)
    world.metrics.per_s = lambda moment: daily(moment) if moment > NOON - timedelta(hours=3) else None
    world.has(BEFORE)

    for made in live(world, hours=2, start=NOON):
        assert made.floor >= math.ceil(daily(datetime.fromisoformat(made.at)) / SUSTAINED)
        assert any("no day is known yet" in note for note in made.notes)


@pytest.mark.parametrize("height", [1e3, 1e9, 1e308])
def test_one_giant_spike_adds_a_step_and_nothing_after_it_falls_below_the_load(world: World, height: float) -> None:
    """Of ten minutes, whatever its height; the forecast does not learn it."""
    spike = FALLING, FALLING + timedelta(minutes=10)
    world.metrics.per_s = lambda moment: height if spike[0] <= moment < spike[1] else daily(moment)

    made = live(world, hours=1)

    assert max(tick.floor for tick in made) <= BEFORE + 2
    for tick in made:
        assert tick.floor >= math.ceil(daily(datetime.fromisoformat(tick.at)) / SUSTAINED)
    assert any("were taken as missing" in note for note in made[-1].notes)


@pytest.mark.parametrize(
    "midnight", ["2026-03-29T00:00:00+00:00", "2026-10-25T00:00:00+00:00"], ids=["forward", "back"]
)
def test_a_night_in_which_the_clock_changes_lowers_nothing_below_the_load(midnight: str) -> None:
    """Berlin's clock changes at 1:00 UTC; a night shift works at 1:30 by UTC, so the load is high all along."""
    start = datetime.fromisoformat(midnight) + timedelta(minutes=40)
    steady = SUSTAINED * 3
    world = World(profile=prescaled(prescale={"timezone": "Europe/Berlin"}))
    world.metrics.per_s = lambda _moment: steady
    world.remember(start, days=2.5, per_s=lambda _moment: steady)
    world.has(4)

    for made in live(world, hours=1, start=start):
        assert made.floor >= 4
        assert not made.problems


def test_a_bin_that_is_missing_at_the_end_is_not_zero(world: World) -> None:
    """The newest half an hour comes late each time: the load holds, and no forecast learns an outage."""
    usual = world.copy().tick(FALLING)
    world.metrics.per_s = lambda moment: daily(moment) if moment < FALLING - timedelta(minutes=30) else None

    made = world.tick(FALLING)

    assert made.floor >= BEFORE
    assert made.fan is not None
    assert usual.fan is not None
    middles = [tick.forecast().value_at(FALLING + timedelta(minutes=20), 0.5) for tick in (made.fan, usual.fan)]
    assert middles[0] == pytest.approx(middles[1], rel=0.3)


@lru_cache
def said(among: tuple[Member, ...]) -> QuantileForecast:
    """Return what members say after a day and a half."""
    past = Series(NOON, 600, np.array([daily(NOON + timedelta(minutes=10 * index)) for index in range(216)]))
    return ensemble.forecast(ensemble.learn(past, among=among), past, steps=12, among=among)


STANDARD = members.standard()


@pytest.mark.parametrize(
    ("says", "note"),
    [
        (lambda origins, steps: np.full((len(origins), len(steps)), 1e30), ""),
        (lambda origins, steps: np.full((len(origins), len(steps)), math.nan), ""),
        (lambda origins, _steps: np.zeros((len(origins), 1, 7)), "was left out: broken"),
        (lambda _origins, _steps: 1 / 0, "was left out: broken"),
    ],
    ids=["explodes", "says nothing", "says something else", "raises"],
)
def test_a_member_that_breaks_changes_no_forecast(says: Callable[..., Any], note: str) -> None:
    """It is as if it were not there, and one that raises is named."""
    broken = Member("broken", lambda _seen, origins, steps: says(origins, steps))
    with_it, without = said((*STANDARD, broken)), said(STANDARD)

    np.testing.assert_allclose(with_it.values, without.values)
    assert any(note in one for one in with_it.notes)


@pytest.mark.parametrize("budget", [1, 3, 5])
def test_a_budget_below_the_need_lowers_nothing_that_is_needed(world: World, budget: int) -> None:
    """It is told, nothing is added, and what the load needs stays."""
    world.profile = prescaled(prescale={"budget_replicas": budget})
    world.metrics.per_s = lambda _moment: SUSTAINED * BEFORE

    for made in live(world, hours=0.5):
        assert made.floor == BEFORE
        assert any(f"budget of {budget} is below" in problem for problem in made.problems)


def test_a_minimum_above_the_maximum_is_refused_before_it_reaches_a_cluster() -> None:
    """In the profile already; a plan that gets one all the same holds (its own test)."""
    with pytest.raises(ConfigError, match="min must not be above max"):
        prescaled(replicas={"min": 5, "max": 3})


def test_engines_whose_counters_were_renamed_do_not_make_requests_short() -> None:
    """What the gateway counts stays as it is; how long requests are is not known any more."""
    world = World(profile=prescaled(prescale={"requests_per_s": None}))
    stable = world.traffic.route("tiny").stable
    assert stable is not None
    found = Sustained(
        requests_per_s=SUSTAINED,
        prompt_tokens=PROMPT / 4,
        output_tokens=OUTPUT / 4,
        requests=100,
        measured_in_flight=1,
        in_flight=8,
        measured_requests_per_s=0.5,
        sentence="Measured.",
    )
    world.ledger.append(record_key("tiny", stable.release, RECORD), found.model_dump())
    world.metrics = Unmeasured(per_s=lambda _moment: SUSTAINED)
    world.remember(NOON, days=0.1, per_s=lambda _moment: SUSTAINED)
    world.has(4, floor=4)

    made = live(world, hours=3.5, start=NOON)

    assert [tick.load for tick in made] == [pytest.approx(4)] * len(made)
    assert all(tick.floor >= 4 for tick in made)
    assert made[0].fan is not None
    assert made[0].fan.forecast().value_at(NOON, 0.5) == pytest.approx(4, rel=0.1)
    assert any("report no lengths of requests" in problem for problem in made[-1].problems)


class Unmeasured(PlayedMetrics):
    """Engines whose counters of tokens are gone after an hour."""

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        found = super().rate(name, labels, start, end, step_s)
        counted = name in {engine_series.PROMPT_TOKENS.name, engine_series.GENERATION_TOKENS.name}
        return [one for one in found if not counted or one.at < NOON + timedelta(hours=1)]


def test_a_cluster_that_does_not_say_yet_what_was_asked_for_holds_its_floor(world: World) -> None:
    """The floor was raised a moment ago, the cluster still tells the replicas of before, and then the metrics go."""
    world.metrics.down = True
    world.has(2, 2, floor=BEFORE)

    assert world.tick(FALLING).floor >= BEFORE
    assert world.floor >= BEFORE


def test_a_paused_model_that_is_switched_off_gets_its_range_back_when_it_is_resumed(world: World) -> None:
    """A tick while it is paused must not count as the last one."""
    route = world.traffic.route("tiny")
    world.profile = prescaled(prescale={"enabled": False})
    world.traffic.kept["tiny"] = route.model_copy(update={"paused": True})

    assert world.tick(FALLING).mode == "paused"
    assert world.floor == BEFORE

    world.traffic.kept["tiny"] = route
    assert world.tick(FALLING + timedelta(minutes=10)).mode == "off"
    assert world.floor == 1


def test_a_day_without_a_tick_leaves_the_floor_and_the_next_one_sets_it_right(world: World) -> None:
    """Nothing lowers it in between, and the first tick needs nothing that was missed."""
    world.has(BEFORE, floor=BEFORE)
    later = FALLING + timedelta(hours=36)

    made = world.tick(later)

    assert made.load == pytest.approx(daily(later - timedelta(minutes=1)) / SUSTAINED, rel=0.01)
    assert not made.problems
    assert world.floor < BEFORE


@pytest.mark.parametrize("key", [history_key("tiny"), learned_key("tiny"), plan_key("tiny")])
def test_two_ticks_at_once_end_in_the_floor_of_one(world: World, key: str) -> None:
    """Even where the lease did not keep them apart, and one wrote over what the other had read."""
    other = world.copy()
    alone = other.tick(FALLING)
    before = world.objects.kept[key]
    world.tick(FALLING)
    world.objects.kept[key] = before

    assert world.tick(FALLING).floor == alone.floor == world.floor


@pytest.mark.parametrize(
    "damage",
    [
        {"at": "noon"},
        {"at": "2026-11-25T12:00:00"},
        {"lead_times_s": [0.0]},
        {"standings": [{"day": "x", "policy": "headway", "cost": 1, "bad_min": 1}] * 3},
    ],
)
def test_a_plan_that_cannot_be_calculated_with_is_made_anew(world: World, damage: Mapping[str, Any]) -> None:
    """It is valid JSON, and no model may be stuck with it for ever."""
    kept = json.loads(world.objects.kept[plan_key("tiny")])
    world.objects.kept[plan_key("tiny")] = json.dumps({**kept, **damage}).encode()

    made = world.tick(FALLING)

    assert any("The last plan is lost" in note for note in made.notes)
    assert world.plan() == made


def test_a_store_that_comes_back_in_the_middle_of_a_tick_loses_no_floor(world: World) -> None:
    """It answers the first reads, then no more: the tick ends in one of headway's errors, and the next one is whole."""
    answers = iter([True] * 2)
    read = world.objects.read

    def fragile(key: str) -> bytes | None:
        world.objects.down = not next(answers, False)
        return read(key)

    world.objects.read = fragile  # type: ignore[method-assign]
    lately(world, None)
    with pytest.raises(HeadwayError, match="the store does not answer"):
        world.tick(FALLING)
    assert world.floor == BEFORE

    del world.objects.read
    world.objects.down = False
    assert world.tick(FALLING).floor >= BEFORE
