"""Traffic moves by steps, each watched, and goes back at the first breach."""

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from headway.domain.prescaling import Fan, Mode, Tick, plan_key
from headway.domain.release import ReleasePlan
from headway.domain.traffic import Backend, Route, TrafficSplit
from headway.errors import CanaryFailed, Conflict
from headway.ports import UPTIME
from headway.release import rollout, shift
from tests.factories import make_plan, make_profile, make_ref, make_selection
from tests.fakes import FakeClusters, FakeMetrics, FakeObjects, FakeTraffic

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


class World:
    """A gateway with a stable cluster and a candidate of the plan."""

    def __init__(self, plan: ReleasePlan, *, first: bool = False) -> None:
        self.plan = plan
        self.traffic = FakeTraffic()
        self.clusters = FakeClusters()
        self.metrics = FakeMetrics()
        self.objects = FakeObjects()
        self.now = NOW
        stable_plan = make_plan(selection=make_selection(version=1, content="9"))
        stable = None if first else rollout.backend_of(stable_plan, make_ref("old"))
        if not first:
            self.clusters.apply(stable_plan.cluster)
        self.clusters.apply(plan.cluster)
        self.traffic.shift(Route(model="tiny", stable=stable, candidate=rollout.backend_of(plan, make_ref("new", 2))))

    def tick(self, after_s: float = 0) -> shift.ShiftProgress:
        self.now += timedelta(seconds=after_s)
        return shift.tick(
            self.plan,
            traffic=self.traffic,
            clusters=self.clusters,
            metrics=self.metrics,
            objects=self.objects,
            now=self.now,
        )

    def served(self, side: str, requests: float, errors: float = 0, *, slow: float = 0, shut_out: float = 0) -> None:
        """Let the gateway have counted this much: the slow ones took 2 to 4 s, the others less than 0.1 s."""
        labels = {"model": "tiny", "side": side}
        self.metrics.put("headway_requests_total", labels, self.now, requests)
        self.metrics.put("headway_request_errors_total", labels, self.now, errors)
        self.metrics.put("headway_ejections_total", labels, self.now, shut_out)
        for edge, count in (("0.1", requests - slow), ("4", requests), ("+Inf", requests)):
            self.metrics.put("headway_request_seconds_bucket", {**labels, "le": edge}, self.now, count)

    def step(self, pct: int) -> None:
        """Bring the candidate to a share, with nothing wrong."""
        while self.tick(10).candidate_pct < pct:
            pass


def test_traffic_moves_by_the_steps_of_the_profile_and_the_old_cluster_stays_warm() -> None:
    """10, 50, 100 %, each baked, then the candidate is stable and the old one is one change away."""
    world = World(make_plan())

    shares = [world.tick().candidate_pct, world.tick(5).candidate_pct, world.tick(5).candidate_pct]
    shares += [world.tick(10).candidate_pct, world.tick(10).candidate_pct]

    assert shares == [10, 10, 50, 100, 100]
    route = world.traffic.route("tiny")
    assert route.stable is not None
    assert route.previous is not None
    assert (route.stable.release, route.previous.release, route.candidate) == ("new", "old", None)
    assert route.keep_previous_until == (world.now + timedelta(seconds=86400)).isoformat()


def test_a_tick_after_the_end_changes_nothing() -> None:
    """A retried task finds the work done."""
    world = World(make_plan())
    for _ in range(5):
        world.tick(10)
    moves = len(world.traffic.history)

    assert world.tick(10).phase == "done"
    assert len(world.traffic.history) == moves


def test_a_first_release_has_nothing_to_compare_with_and_takes_all() -> None:
    """Without stable there is no step that protects anybody."""
    world = World(make_plan(), first=True)

    assert world.tick().phase == "done"
    assert world.traffic.route("tiny").previous is None


def test_a_breach_sends_all_traffic_back_at_once() -> None:
    """Users never stay on a bad candidate until the end of the bake."""
    world = World(make_plan())
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("candidate", 100, 20)

    with pytest.raises(CanaryFailed, match=r"20 of 100 live requests failed.*20.0 %, surely more than .* limit is 1 %"):
        world.tick(1)

    assert world.traffic.route("tiny").split == TrafficSplit(stable_pct=100, candidate_pct=0)


@pytest.mark.parametrize(("requests", "errors"), [(100, 2), (1000, 15), (10, 1), (0, 0)])
def test_a_few_failures_among_few_requests_prove_nothing(requests: float, errors: float) -> None:
    """2 of 100 happen to every fourth candidate whose true rate is the limit of 1 %."""
    world = World(make_plan())
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("candidate", requests, errors)

    assert world.tick(8).candidate_pct == 50


def test_a_candidate_on_which_nothing_works_is_gone_after_a_handful_of_requests() -> None:
    """Every request fails on it and is saved by stable, so that the gateway counts two attempts each."""
    world = World(make_plan())
    world.tick()
    failed = 0
    while world.traffic.route("tiny").candidate_pct > 0:
        failed += 1
        world.now += timedelta(seconds=0.05)
        world.served("candidate", 2 * failed, failed)
        with suppress(CanaryFailed):
            world.tick()

    assert failed <= 12


def test_what_the_gateway_shut_out_twice_is_taken_back_however_few_failures_show() -> None:
    """Of ten thousand requests stable saved nearly all while the candidate was shut out: 0.1 % failed."""
    world = World(make_plan())
    world.served("candidate", 0)
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("candidate", 10_000, 5, shut_out=1)
    assert world.tick(0).phase == "baking"
    world.now += timedelta(seconds=2)
    world.served("candidate", 20_000, 10, shut_out=2)

    with pytest.raises(CanaryFailed, match="shut the candidate out 2 times"):
        world.tick()


def test_what_breaks_after_a_long_good_time_is_found_at_once() -> None:
    """An hour of good requests is no credit for the ones that fail now."""
    world = World(make_plan(make_profile(shift={"steps_pct": (50, 100), "bake_s": 7200})))
    world.tick()
    for _ in range(360):
        world.now += timedelta(seconds=10)
        served = (world.now - NOW).total_seconds() * 10
        world.served("candidate", served)
        world.served("stable", served)
    assert world.tick().phase == "baking"
    world.now += timedelta(seconds=10)
    world.served("candidate", served + 100, 40)

    with pytest.raises(CanaryFailed, match=r"40 of \d+ live requests failed"):
        world.tick()


def test_a_slower_candidate_is_taken_back() -> None:
    """A tenth of stable's requests is slow before and during the step, and half of the candidate's."""
    world = World(make_plan())
    world.served("stable", 1000, slow=50)
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("stable", 1900, slow=95)
    world.served("candidate", 100, slow=60)

    with pytest.raises(CanaryFailed, match=r"60 of 100 live requests took over 0.2 s on the candidate, 2 times"):
        world.tick()


def test_when_everything_slows_down_the_candidate_is_not_blamed() -> None:
    """A busy hour hits both sides: nine of ten requests are slow, and a tenth of them is the candidate's."""
    world = World(make_plan())
    world.served("stable", 1000, slow=50)
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("stable", 10_000, slow=8000)
    world.served("candidate", 1000, slow=900)

    assert world.tick().phase == "baking"


def test_at_the_last_step_stables_own_past_is_the_measure() -> None:
    """Nobody is beside the candidate then; a tenth was slow before, half is now."""
    world = World(make_plan(make_profile(shift={"steps_pct": (50, 100), "bake_s": 10})))
    world.served("stable", 1000, slow=50)
    world.step(50)
    world.served("stable", 2000, slow=100)
    world.served("candidate", 1000, slow=50)
    world.step(100)
    world.now += timedelta(seconds=2)
    world.served("candidate", 1500, slow=75)
    assert world.tick().phase == "baking"
    world.now += timedelta(seconds=2)
    world.served("candidate", 2000, slow=325)

    with pytest.raises(CanaryFailed, match="at most"):
        world.tick()


def test_without_enough_of_stables_past_no_latency_is_judged() -> None:
    """Nobody knows what slow means; failures still count."""
    world = World(make_plan())
    world.served("stable", 10)
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("candidate", 500, slow=500)

    assert world.tick(10).candidate_pct == 50


def test_what_happened_before_the_step_is_not_held_against_it() -> None:
    """Counters are read from the step on: the benchmark's own errors do not count."""
    world = World(make_plan())
    world.served("candidate", 1000, 500)
    world.tick()
    world.now += timedelta(seconds=1)
    world.served("candidate", 1100, 500)

    assert world.tick(10).candidate_pct == 50


def test_requests_in_flight_at_the_step_count_as_tried() -> None:
    """Their failures come after the step, so they must be among those that could fail."""
    world = World(make_plan())
    world.metrics.put("headway_requests_active", {"model": "tiny", "side": "candidate"}, world.now, 2000)
    world.served("candidate", 2000, 0)
    world.tick()
    world.now += timedelta(seconds=1)
    world.served("candidate", 2010, 20)

    assert world.tick(10).candidate_pct == 50


@pytest.mark.parametrize(
    ("requests", "errors", "found"), [(1010, 10, "baking"), (400, 3, "baking"), (400, 80, "80 of 400")]
)
def test_a_gateway_that_restarted_during_the_step_counts_from_zero(requests: float, errors: float, found: str) -> None:
    """Whether its counters stand below or above where they were before."""
    world = World(make_plan())
    world.served("candidate", 1000)
    world.served("stable", 1000)
    world.tick()
    world.now += timedelta(seconds=8)
    world.metrics.put(UPTIME, {}, world.now, 5.0)
    world.served("candidate", requests, errors)
    world.served("stable", requests)

    try:
        said: str = world.tick(1).phase
    except CanaryFailed as error:
        said = error.message
    assert found in said


def test_what_was_not_read_at_the_step_is_not_counted_from_it() -> None:
    """The scraper was down then, so the benchmark's old failures would look like the step's; later ones still count."""
    world = World(make_plan(make_profile(shift={"steps_pct": (10, 100), "bake_s": 300})))
    world.tick()
    world.metrics.began = None
    world.now += timedelta(seconds=5)
    world.metrics.put(UPTIME, {}, world.now, 9000.0)
    world.served("candidate", 1000, 500, shut_out=7)
    assert world.tick().phase == "baking"

    world.now += timedelta(seconds=60)
    world.metrics.put(UPTIME, {}, world.now, 9060.0)
    world.served("candidate", 1100, 560, shut_out=7)
    with pytest.raises(CanaryFailed, match="60 of 100 live requests"):
        world.tick()


def test_no_step_is_taken_while_nobody_reads_the_gateway() -> None:
    """No figures are no good figures; the candidate keeps the share that it has, and a dead cluster still counts."""
    world = World(make_plan())
    world.metrics.began = None

    assert world.tick().candidate_pct == 0
    assert "nobody reads" in world.tick(3600).detail
    world.metrics.began = NOW
    assert world.tick().candidate_pct == 10
    world.metrics.began = None
    assert world.tick(3600).candidate_pct == 10


def test_a_candidate_that_dies_sends_all_traffic_back() -> None:
    """The cluster's own word counts before any counter."""
    world = World(make_plan())
    world.tick()
    world.clusters.fail(world.plan.cluster.name, "the engine died")

    with pytest.raises(CanaryFailed, match="the engine died"):
        world.tick(1)

    assert world.traffic.route("tiny").candidate_pct == 0


def test_the_share_waits_for_the_replicas_it_needs() -> None:
    """Capacity moves with the split (design rule 13.5)."""
    world = World(make_plan(make_profile(replicas={"min": 1, "max": 4})))
    stable = world.traffic.route("tiny").stable
    assert stable is not None
    world.clusters.floor(stable.cluster, world.plan.profile.replicas.model_copy(update={"min": 4}))

    assert world.tick().candidate_pct == 10
    # The fake brings replicas at once, so the tick after the floor finds them.
    assert world.tick(10).phase == "scaling"
    assert world.clusters.specs[world.plan.cluster.name].replicas.min == 2
    assert world.tick(1).candidate_pct == 50


def planned(at: datetime, loads: tuple[float, ...], *, mode: Mode = "forecast", lead_s: float = 900) -> Tick:
    """The last plan of the pre-scaling: it expects these loads, one each ten minutes."""
    return Tick(
        model="tiny",
        at=at.isoformat(),
        mode=mode,
        floor=1,
        by="forecast",
        wanted=1,
        growth=1.0,
        running=1,
        pending=0,
        load=loads[0],
        load_at=at.isoformat(),
        lead_s=lead_s,
        requests_per_s=2.0,
        fan=Fan(start_at=at.isoformat(), step_s=600, levels=(0.5, 0.8), values=(loads, loads)),
    )


def keep(world: World, tick: Tick) -> None:
    """Leave a plan where the shift looks for it."""
    world.objects.write(plan_key("tiny"), tick.model_dump_json().encode())


def test_no_step_is_taken_just_before_a_peak() -> None:
    """Half of the replicas would be cold when the load comes; when it stands still again, the shift goes on."""
    world = World(make_plan())
    world.tick()
    keep(world, planned(world.now, (1.0, 2.0, 2.0, 2.0)))

    progress = world.tick(10)

    assert (progress.phase, progress.candidate_pct) == ("waiting", 10)
    assert progress.detail == (
        "the step to 50 % waits, because within 15 min 00 s the load of tiny is expected to rise from 1.00 "
        "to 2.00 busy replicas (80% quantile, at 09:15 UTC)"
    )
    assert world.clusters.specs[world.plan.cluster.name].replicas.min == 1
    keep(world, planned(world.now, (2.0, 2.0, 2.1, 2.0, 2.0)))
    assert world.tick(1).candidate_pct == 50


def test_a_peak_keeps_no_bad_candidate_in_the_traffic() -> None:
    """What waits is the next step; the way back never does."""
    world = World(make_plan())
    world.tick()
    keep(world, planned(world.now, (1.0, 3.0, 3.0)))
    assert world.tick(10).phase == "waiting"

    world.now += timedelta(seconds=60)
    world.served("candidate", 100, 20)

    with pytest.raises(CanaryFailed, match="20 of 100 live requests failed"):
        world.tick(1)
    assert world.traffic.route("tiny").candidate_pct == 0


def test_a_peak_does_not_keep_the_last_promise_back() -> None:
    """All the traffic is on the candidate already; calling it stable moves nothing."""
    world = World(make_plan())
    world.step(100)
    keep(world, planned(world.now, (1.0, 3.0, 3.0)))

    assert world.tick(10).phase == "done"


@pytest.mark.parametrize("mode", ["reactive", "shadow", "paused", "off"])
def test_a_plan_that_is_not_in_force_holds_nobody_up(mode: Mode) -> None:
    """A forecast that lost its trust, or was never given it, must not stop releases."""
    world = World(make_plan())
    keep(world, planned(world.now, (1.0, 3.0, 3.0), mode=mode))

    assert world.tick().candidate_pct == 10


@pytest.mark.parametrize("broken", ["old", "damaged", "silent", "unknown"])
def test_a_plan_that_cannot_be_used_holds_nobody_up(broken: str) -> None:
    """Pre-scaling may be dead for a day; releases go on."""
    world = World(make_plan())
    keep(world, planned(world.now - timedelta(hours=3 if broken == "old" else 0), (1.0, 3.0, 3.0)))
    if broken == "damaged":
        world.objects.write(plan_key("tiny"), b"{")
    if broken == "unknown":
        keep(world, planned(world.now, (math.nan, math.nan)))
    world.objects.down = broken == "silent"

    assert world.tick().candidate_pct == 10


def test_another_release_in_the_route_is_left_alone() -> None:
    """A shift that woke up late does not move somebody else's traffic."""
    world = World(make_plan())
    other = Backend(cluster="other", release="newest", version=3, cluster_digest="f" * 64)
    world.traffic.shift(world.traffic.route("tiny").model_copy(update={"candidate": other}))

    with pytest.raises(Conflict, match="found other"):
        world.tick()
