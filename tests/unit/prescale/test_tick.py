"""The tick of one model: the floor is up before the peak, and whatever is wrong with the input, it does not fall."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.cluster import ScaleUp
from headway.domain.prescaling import Standing, Tick, history_key, learned_key, plan_key
from headway.domain.traffic import Backend, Route
from headway.errors import BackendUnavailable, HeadwayError
from headway.prescale import shadow, state
from headway.prescale.history import from_parquet
from tests.factories import make_plan
from tests.fakes import FakeWarm
from tests.unit.prescale.world import NOON, SUSTAINED, World, daily, prescaled

EVERY = timedelta(minutes=10)


@pytest.fixture(scope="module")
def learned() -> World:
    """A model with a fortnight of history and one tick behind it, just before noon."""
    world = World()
    world.has(3)
    world.remember(NOON - EVERY)
    world.tick(NOON - EVERY)
    return world


@pytest.fixture
def world(learned: World) -> World:
    """The same for one test: three replicas, and three is their floor."""
    copied = learned.copy()
    copied.has(3, floor=3)
    return copied


def at(hour: float) -> datetime:
    """Return a time of the day of the tests."""
    return NOON.replace(hour=0) + timedelta(hours=hour)


def test_replicas_are_up_before_the_load_needs_them(world: World) -> None:
    """A replica serves a lead time after it was asked for; between two ticks nobody adds one."""
    floors: list[tuple[datetime, int]] = []
    now = at(12.5)
    while now <= at(16.5):
        floors.append((now, world.tick(now).floor))
        world.has(floors[-1][1])
        now += EVERY

    for minute in range(30, 240):
        moment = at(12.5) + timedelta(minutes=minute)
        asked = [floor for when, floor in floors if when <= moment - timedelta(seconds=600)]
        since = [floor for when, floor in floors if moment - timedelta(seconds=600) < when <= moment]
        assert min([asked[-1], *since]) >= daily(moment) / SUSTAINED, moment
    assert floors[-1][1] < max(floor for _, floor in floors), "the floor falls when the peak is over"


def test_the_same_tick_twice_changes_nothing(world: World) -> None:
    """A tick that died half-way is run again by Airflow."""
    world.tick()
    kept, floor = dict(world.objects.kept), world.floor

    world.tick()

    assert world.floor == floor
    assert world.objects.kept[history_key("tiny")] == kept[history_key("tiny")]
    assert world.plan() == Tick.model_validate_json(kept[plan_key("tiny")])


def test_what_is_learned_is_stored_once_an_hour_and_learned_anew_once_a_day(world: World) -> None:
    """Between, the few bins since are rolled in: a thousand models must not be written every ten minutes."""
    stored, now = [], NOON
    first = state.from_npz(world.objects.kept[learned_key("tiny")]).learned_at
    for _ in range(12):
        before = world.objects.kept[learned_key("tiny")]
        made = world.tick(now)
        assert made.mode == "forecast"
        stored.append(world.objects.kept[learned_key("tiny")] != before)
        now += EVERY

    # An hour has one moment of the model, a day too.
    assert sum(stored) == 2 + (state.from_npz(before).learned_at != first)


@pytest.mark.parametrize("key", [history_key("tiny"), learned_key("tiny"), plan_key("tiny")])
@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_document_is_made_anew_and_told(world: World, key: str, damage: bytes | None) -> None:
    """The store is no place that the floor may depend on."""
    whole = world.objects.kept[key]
    world.objects.kept[key] = whole[: len(whole) // 2] if damage is None else damage

    made = world.tick()

    assert made.floor >= 3
    assert any("cannot be used" in note or "is lost" in note for note in made.notes)
    assert world.objects.kept[key] != damage


def blind(world: World) -> None:
    world.metrics.down = True


def empty(world: World) -> None:
    world.metrics.per_s = world.metrics.served = lambda _: None


def renamed(world: World) -> None:
    world.metrics.served, world.metrics.per_s = world.metrics.per_s, lambda _: None


def nan(world: World) -> None:
    world.metrics.per_s = lambda _: math.nan


def zero(world: World) -> None:
    world.metrics.served, world.metrics.per_s = world.metrics.per_s, lambda _: 0.0


def negative(world: World) -> None:
    world.metrics.per_s = lambda _: -5.0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (blind, "The metrics do not answer (no Prometheus at http://metrics answers)"),
        (empty, "missing is not zero"),
        (renamed, "the gateway is not read, or its metric was renamed"),
        (nan, "missing is not zero"),
        (zero, "exactly zero, and no second source says so"),
        (negative, "missing is not zero"),
    ],
)
def test_without_a_load_the_floor_does_not_fall(world: World, fault: Callable[[World], None], said: str) -> None:
    """For a whole day: what is missing is not zero, whoever says so."""
    world.has(8, floor=8)
    fault(world)

    for hour in (0, 20):
        made = world.tick(NOON + timedelta(hours=hour))
        assert made.floor >= 8
        assert world.floor >= 8
        assert made.load is None
        assert sum(said in problem for problem in made.problems) == 1


def test_metrics_that_were_away_at_the_first_tick_cost_no_history(world: World) -> None:
    """The next tick reads all the days that it may."""
    world.objects.kept.clear()
    blind(world)
    assert world.tick().floor >= 3

    world.metrics.down = False
    assert world.tick(NOON + EVERY).mode == "forecast"
    history = from_parquet(world.objects.kept[history_key("tiny")])
    assert NOON - history.start_at > timedelta(days=13)


def test_the_forecast_raises_the_floor_while_nobody_measures(world: World) -> None:
    """An outage of the metrics in the morning must not cost the afternoon its replicas."""
    blind(world)

    assert world.tick(at(12.5)).floor > 3


def test_a_bin_that_is_missing_at_the_end_is_not_zero(world: World) -> None:
    """The newest bins may come late."""
    measured = world.metrics.per_s
    world.metrics.per_s = lambda moment: None if NOON - 2 * EVERY <= moment < NOON else measured(moment)
    world.metrics.per_s = lambda moment: measured(moment) if moment < NOON - EVERY else None

    made = world.tick()

    assert made.floor >= 3
    assert np.isnan(from_parquet(world.objects.kept[history_key("tiny")]).columns["requests_per_s"][-1])


def test_one_giant_spike_adds_no_more_than_a_step(world: World) -> None:
    """And when it is over, the next tick is as it would have been."""
    world.metrics.per_s = lambda moment: 1e9 if moment > NOON - timedelta(minutes=2) else daily(moment)
    assert world.tick().floor == 5

    world.metrics.per_s = daily
    after = world.tick(NOON + EVERY)
    assert after.floor <= 6
    assert after.wanted < 8


def test_three_hours_of_history_are_enough_to_react(world: World) -> None:
    """With a note that no day is known yet."""
    world.objects.kept.clear()
    world.remember(NOON, days=0.125)

    made = world.tick()

    assert made.floor >= daily(NOON) / SUSTAINED
    assert any("no day is known yet" in note for note in made.notes)


def test_a_model_without_any_history_reacts(world: World) -> None:
    """The first minutes of a model: a load, and nothing before it."""
    world.objects.kept.clear()
    world.metrics.per_s = lambda moment: 6.0 if moment > NOON - timedelta(minutes=3) else None

    made = world.tick()

    assert (made.mode, made.floor) == ("reactive", 4)


def test_a_model_that_nobody_asks_needs_the_least(world: World) -> None:
    """Constant zero, confirmed by the engines' own counter, is a load."""
    world.objects.kept.clear()
    world.remember(NOON, per_s=lambda _: 0.0)
    world.metrics.per_s = lambda _: 0.0

    made = world.tick()

    assert (made.floor, made.problems) == (1, ())
    assert world.floor == 1


def test_a_dag_that_was_dead_for_a_day_sets_the_floor_right_with_its_next_tick(world: World) -> None:
    """The bins since are read and rolled in; the floor falls by what is measured."""
    world.has(9, floor=9)

    made = world.tick(at(24 + 3))

    assert made.problems == ()
    assert made.floor == 2
    assert world.floor == 2
    history = from_parquet(world.objects.kept[history_key("tiny")]).columns["requests_per_s"]
    assert np.isfinite(history[-100:-1]).all()


def test_a_budget_below_the_need_takes_nothing_away(world: World) -> None:
    """It is told, and adds nothing."""
    world.profile = prescaled(prescale={"budget_replicas": 2})

    made = world.tick()

    assert made.floor == 3
    assert any("budget of 2 is below" in problem for problem in made.problems)


def test_a_step_and_a_maximum_are_kept(world: World) -> None:
    """However much is wanted."""
    world.profile = prescaled(prescale={"max_replicas_step": 1})
    assert world.tick().floor == 4

    world.profile = prescaled(replicas={"min": 1, "max": 3})
    assert world.tick().floor == 3


@pytest.mark.parametrize("night", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_the_day_after_a_change_of_the_clock_is_ready_at_its_own_time(night: datetime) -> None:
    """The users' peak stays at their time of day, which is another one in UTC."""
    zone = ZoneInfo("Europe/Berlin")

    def load(moment: datetime) -> float:
        local = moment.astimezone(zone)
        return 9.0 if 8 <= local.hour < 18 else 1.0

    world = World(profile=prescaled(prescale={"timezone": "Europe/Berlin", "lead_time_s": 300}))
    world.metrics.per_s = load
    opens = datetime(night.year, night.month, night.day, 8, tzinfo=zone).astimezone(UTC) + timedelta(days=1)
    world.remember(opens - timedelta(hours=2), per_s=load)
    world.has(1)
    early, late = opens - timedelta(minutes=60), opens - timedelta(minutes=10)

    assert world.tick(early).floor == 1, "an hour before, which is the time of last week in UTC, nobody comes"
    assert world.tick(late).floor == 3, "one step up, ten minutes before they come"


@pytest.mark.parametrize("broken", ["objects", "ledger"])
def test_a_store_that_is_away_changes_nothing(world: World, broken: str) -> None:
    """The tick fails with one sentence; the floor is as it was."""
    world.profile = prescaled(prescale={"requests_per_s": None})
    getattr(world, broken).down = True

    with pytest.raises(BackendUnavailable, match="does not answer"):
        world.tick()

    assert world.floor == 3


@pytest.mark.parametrize("phase", ["failed", "absent"])
def test_a_cluster_that_is_down_changes_nothing(world: World, phase: str) -> None:
    """It says which, why, and that the floor stays."""
    if phase == "failed":
        world.clusters.fail(world.stable, "its program died")
    else:
        world.clusters.delete(world.stable)

    with pytest.raises(HeadwayError, match=f"{world.stable}.* is {phase}.*its floor stays"):
        world.tick()


def test_what_a_replica_sustains_must_be_known(world: World) -> None:
    """Without it the floor holds, and the sentence says what to do."""
    world.profile = prescaled(prescale={"requests_per_s": None})

    made = world.tick()

    assert (made.floor, made.by) == (3, "hold")
    assert any("set `prescale.requests_per_s`" in problem for problem in made.problems)


def test_a_paused_model_is_planned_and_left_alone(world: World) -> None:
    """A person froze it; the plan says what would be done."""
    world.traffic.shift(world.traffic.route("tiny").model_copy(update={"paused": True}))

    made = world.tick()

    assert (made.mode, made.floor) == ("paused", 5)
    assert world.floor == 3


def test_shadow_mode_changes_nothing(world: World) -> None:
    """All is planned, priced and kept."""
    world.profile = prescaled(prescale={"shadow": True})

    made = world.tick()

    assert (made.mode, made.floor) == ("shadow", 5)
    assert world.floor == 3
    noted = from_parquet(world.objects.kept[history_key("tiny")]).columns
    assert noted["asked"][-1] == 5
    assert noted["busy"][-1] == pytest.approx(made.load)
    assert noted["reactive"][-1] == math.ceil((made.load or 0) / 0.8)


def test_a_profile_that_does_not_ask_for_it_any_more_has_its_range_back(world: World) -> None:
    """Otherwise the last floor would stay for ever."""
    world.profile = prescaled(prescale={"enabled": False})

    assert world.tick().mode == "off"
    assert world.floor == 1


def test_a_model_that_nothing_serves_is_no_fault(world: World) -> None:
    """Before its first release there is nothing to plan."""
    world.traffic.remove("tiny")

    made = world.tick()

    assert (made.mode, made.problems) == ("off", ())


def test_while_traffic_shifts_stable_keeps_what_it_has_and_the_candidate_gets_its_share(world: World) -> None:
    """All of the traffic may come back to stable at any moment."""
    world.has(8, floor=8)
    candidate = make_plan(world.profile).cluster.model_copy(update={"name": "tiny-next"})
    world.clusters.apply(candidate)
    route = world.traffic.route("tiny")
    into = Backend(cluster="tiny-next", release="tiny-v2-r1", version=2, cluster_digest="d" * 64)
    world.traffic.shift(route.model_copy(update={"candidate": into, "candidate_pct": 50}))

    floor = world.tick(at(3)).floor

    assert floor < 8
    assert world.floor == 8
    assert world.clusters.specs["tiny-next"].replicas.min == math.ceil(floor / 2)


def test_what_served_before_a_promotion_keeps_the_least_that_the_profile_wants(world: World) -> None:
    """It is there for the way back; the peak's replicas are paid for once."""
    before = make_plan(world.profile).cluster.model_copy(
        update={"name": "tiny-before", "replicas": world.profile.replicas.model_copy(update={"min": 8})}
    )
    world.clusters.apply(before)
    route = world.traffic.route("tiny")
    previous = Backend(cluster="tiny-before", release="tiny-v0-r1", version=1, cluster_digest="d" * 64)
    world.traffic.shift(route.model_copy(update={"previous": previous}))

    world.tick()

    assert world.clusters.specs["tiny-before"].replicas == world.profile.replicas


def test_lead_times_are_learned_from_real_scale_ups(world: World) -> None:
    """Five of twenty minutes each: the plan looks farther ahead than the ten minutes it was told."""
    world.clusters.scaled[world.stable] = [
        ScaleUp(NOON - timedelta(minutes=20, seconds=-number), NOON + timedelta(seconds=number), 4)
        for number in range(5)
    ]
    assert world.tick(NOON + EVERY).lead_s == 1200

    again = world.tick(NOON + 2 * EVERY)
    assert again.lead_times_s == (1200.0,) * 5, "each is counted once"


def test_a_scale_up_that_took_no_time_is_no_lead_time(world: World) -> None:
    """A clock that was set back must not make the plan late."""
    world.clusters.scaled[world.stable] = [ScaleUp(NOON, NOON, 4), ScaleUp(NOON, NOON - timedelta(minutes=1), 4)]

    made = world.tick()

    assert made.lead_times_s == ()
    assert made.lead_s == 600


def test_a_forecast_that_lost_three_days_is_not_followed(world: World) -> None:
    """The tick says so, plans by the load alone, and goes on pricing what the forecast would have asked for."""
    lost = tuple(
        Standing(day=f"2026-11-{day}", policy=policy, cost=cost, bad_min=bad)
        for day in (22, 23, 24)
        for policy, cost, bad in ((shadow.HEADWAY, 1.5, 60.0), (shadow.REACTIVE, 1.2, 10.0))
    )
    world.profile = prescaled(prescale={"lead_time_s": 3600, "max_replicas_step": 9})
    last = world.plan()
    assert last is not None
    world.objects.write(plan_key("tiny"), last.model_copy(update={"standings": lost}).model_dump_json().encode())

    made = world.tick()

    assert (made.mode, made.by) == ("reactive", "reactive")
    assert made.demoted.startswith("The forecast cost more than reactive")
    assert made.demoted in made.notes
    assert made.problems == ()
    noted = from_parquet(world.objects.kept[history_key("tiny")]).columns["asked"][-1]
    assert noted > made.floor


def test_a_launch_that_is_known_is_prepared_for(world: World) -> None:
    """By its factor; a calendar that cannot be read is the caller's to tell."""
    starts = NOON + timedelta(minutes=10)
    text = "\r\n".join(
        [
            "BEGIN:VCALENDAR",
            "VERSION:2.0",
            "PRODID:test",
            "BEGIN:VEVENT",
            "UID:1",
            "SUMMARY:launch",
            "DESCRIPTION:factor: 3",
            f"DTSTART:{starts:%Y%m%dT%H%M%SZ}",
            f"DTEND:{starts + timedelta(hours=2):%Y%m%dT%H%M%SZ}",
            "END:VEVENT",
            "END:VCALENDAR",
        ]
    )
    usual, known = world.copy().tick(), world.tick(calendar=text, problems=["of the caller"])

    assert known.wanted > 2 * usual.wanted
    assert "of the caller" in known.problems


def test_the_fan_and_the_ladder_are_kept_for_those_who_look(world: World) -> None:
    """48 hours, and each rung for no less than the next."""
    made = world.tick()

    assert made.fan is not None
    assert [len(row) for row in made.fan.values] == [288] * 4
    assert made.fan.forecast().value_at(at(14), 0.5) == pytest.approx(5, rel=0.15)
    assert [rung.count for rung in made.ladder] == sorted((rung.count for rung in made.ladder), reverse=True)
    assert made.headroom
    assert world.plan() == made


class Input(NamedTuple):
    """What a tick may find."""

    rate: float | None
    served: float | None
    running: int
    pending: int
    floor: int
    budget: int | None
    bins: int


INPUTS = st.builds(
    Input,
    rate=st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -1.0, 0.0]), st.floats(0, 1e6)),
    served=st.one_of(st.none(), st.floats(0, 1e3)),
    running=st.integers(0, 12),
    pending=st.integers(0, 6),
    floor=st.integers(1, 8),
    budget=st.one_of(st.none(), st.integers(1, 12)),
    bins=st.integers(0, 30),
)


@settings(max_examples=25)
@given(found=INPUTS)
def test_whatever_is_found_only_a_load_that_can_be_believed_lowers_the_floor(found: Input) -> None:
    """And no tick asks for more than step, maximum and budget allow."""
    world = World(profile=prescaled(prescale={"budget_replicas": found.budget}))
    target = max(found.running + found.pending, found.floor)
    world.has(min(found.running, target), target, floor=found.floor)
    world.remember(NOON, days=found.bins / 144)
    lately = NOON - timedelta(minutes=2)
    world.metrics.per_s = lambda moment: found.rate if moment > lately else daily(moment)
    world.metrics.served = lambda moment: found.served if moment > lately else daily(moment)

    made = world.tick()

    # A maximum below what runs takes away: a person has set it.
    kept = min(target, world.profile.replicas.max)
    if made.load is None:
        assert world.floor >= kept
        assert made.problems
    else:
        assert world.floor >= min(math.ceil(min(made.load, 100)), kept)
    assert world.floor <= min(target + 2, world.profile.replicas.max)
    if found.budget is not None and found.budget >= target:
        assert world.floor <= found.budget


def test_a_spare_replica_is_kept(world: World) -> None:
    """The load still fits when one is lost, and the plan says so."""
    world.profile = prescaled(prescale={"spare": "replica", "max_replicas_step": 9})

    made = world.tick()

    assert made.floor >= math.ceil(made.load or 0) + 1


# --- Room for what comes ----------------------------------------------------------------------------------------------

GPU = "NVIDIA-L40S"


HARDWARE = {"accelerator": GPU, "per_replica": 2}


@pytest.fixture
def roomy(world: World) -> World:
    """A model on GPUs, two a replica, that needs up to 25 of them; room can be held."""
    world.profile = prescaled(hardware=HARDWARE, replicas={"min": 1, "max": 40}, prescale={"requests_per_s": 0.4})
    world.warm = FakeWarm()
    world.has(10, floor=10)
    return world


def room(world: World) -> int:
    """Return for how many replicas room is held."""
    assert world.warm is not None
    held = list(world.warm.held())
    assert all((one.model, one.accelerator, one.per_replica) == ("tiny", GPU, 2) for one in held)
    return sum(one.replicas for one in held)


def test_room_is_held_before_replicas_are_asked_for_and_never_twice(roomy: World) -> None:
    """What the ladder wants to be ready for is up, asked for, or held: on the way to the peak, and after it."""
    held = []
    for hour in (11.5, 12.5, 18.0):
        made = roomy.tick(at(hour))
        wanted = next(rung.count for rung in made.ladder if rung.name == "pause pods")
        assert room(roomy) == max(wanted - max(made.floor, made.running), 0)
        held.append(room(roomy))
        roomy.has(made.floor)

    assert min(held[:2]) > 0
    assert held[2] == 0, "nothing is held when the peak is over"


@pytest.mark.parametrize("how", ["off", "shadow", "no stable"])
def test_room_is_given_back_where_no_plan_is_in_force(roomy: World, how: str) -> None:
    """Nobody pays for room that nobody plans with."""
    assert roomy.warm is not None
    roomy.warm.hold("tiny", GPU, 2, 3)
    if how == "no stable":
        roomy.traffic.shift(Route(model="tiny"))
    else:
        wishes = {"shadow": True} if how == "shadow" else {"enabled": False}
        roomy.profile = prescaled(hardware=HARDWARE, prescale=wishes)

    roomy.tick()

    assert room(roomy) == 0


@pytest.mark.parametrize("how", ["paused", "unmeasured"])
def test_room_stays_while_nobody_knows_better(roomy: World, how: str) -> None:
    """A paused model changes in nothing, and a load that nobody measured gives nothing up."""
    assert roomy.warm is not None
    roomy.warm.hold("tiny", GPU, 2, 3)
    if how == "paused":
        roomy.traffic.shift(roomy.traffic.route("tiny").model_copy(update={"paused": True}))
    roomy.metrics.down = how == "unmeasured"

    roomy.tick()

    assert room(roomy) == 3


def test_room_that_cannot_be_held_costs_a_sentence_and_not_the_floor(roomy: World) -> None:
    """The floor is what users feel."""
    roomy.warm = FakeWarm(down=True)
    made = roomy.tick()

    assert roomy.floor == made.floor > 10
    assert any("room that is held for tiny could not be changed" in problem for problem in made.problems)
    assert roomy.plan() == made
