"""Traffic moves by steps, each watched, and goes back at the first breach."""

from datetime import UTC, datetime, timedelta

import pytest

from headway.domain.release import ReleasePlan
from headway.domain.traffic import Backend, Route, TrafficSplit
from headway.errors import CanaryFailed, Conflict
from headway.release import rollout, shift
from tests.factories import make_plan, make_profile, make_ref, make_selection
from tests.fakes import FakeClusters, FakeMetrics, FakeTraffic

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


class World:
    """A gateway with a stable cluster and a candidate of the plan."""

    def __init__(self, plan: ReleasePlan, *, first: bool = False) -> None:
        self.plan = plan
        self.traffic = FakeTraffic()
        self.clusters = FakeClusters()
        self.metrics = FakeMetrics()
        self.now = NOW
        stable_plan = make_plan(selection=make_selection(version=1, content="9"))
        stable = None if first else rollout.backend_of(stable_plan, make_ref("old"))
        if not first:
            self.clusters.apply(stable_plan.cluster)
        self.clusters.apply(plan.cluster)
        self.traffic.shift(Route(model="tiny", stable=stable, candidate=rollout.backend_of(plan, make_ref("new", 2))))

    def tick(self, after_s: float = 0) -> shift.ShiftProgress:
        self.now += timedelta(seconds=after_s)
        return shift.tick(self.plan, traffic=self.traffic, clusters=self.clusters, metrics=self.metrics, now=self.now)

    def served(self, side: str, requests: float, errors: float, seconds: float) -> None:
        labels = {"model": "tiny", "side": side}
        self.metrics.put("headway_requests_total", labels, self.now, requests)
        self.metrics.put("headway_request_errors_total", labels, self.now, errors)
        self.metrics.put("headway_request_seconds_count", labels, self.now, requests)
        self.metrics.put("headway_request_seconds_sum", labels, self.now, seconds)


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


@pytest.mark.parametrize(
    ("stable", "candidate", "message"),
    [
        ((100, 0, 50.0), (100, 2, 50.0), "2 of 100 live requests failed.*2.0 %.*limit is 1.0 %"),
        ((100, 0, 50.0), (100, 0, 120.0), "2.40 times as long.*limit is 2.0"),
    ],
)
def test_a_breach_sends_all_traffic_back_at_once(
    stable: tuple[float, float, float], candidate: tuple[float, float, float], message: str
) -> None:
    """Users never stay on a bad candidate until the end of the bake."""
    world = World(make_plan())
    world.served("stable", 0, 0, 0)
    world.served("candidate", 0, 0, 0)
    world.tick()
    world.now += timedelta(seconds=2)
    world.served("stable", *stable)
    world.served("candidate", *candidate)

    with pytest.raises(CanaryFailed, match=message):
        world.tick(1)

    assert world.traffic.route("tiny").split == TrafficSplit(stable_pct=100, candidate_pct=0)


def test_what_happened_before_the_step_is_not_held_against_it() -> None:
    """Counters are read from the step on: the benchmark's own errors do not count."""
    world = World(make_plan())
    world.served("candidate", 1000, 500, 900)
    world.tick()
    world.now += timedelta(seconds=1)
    world.served("candidate", 1100, 500, 950)

    assert world.tick(10).candidate_pct == 50


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


def test_another_release_in_the_route_is_left_alone() -> None:
    """A shift that woke up late does not move somebody else's traffic."""
    world = World(make_plan())
    other = Backend(cluster="other", release="newest", version=3, cluster_digest="f" * 64)
    world.traffic.shift(world.traffic.route("tiny").model_copy(update={"candidate": other}))

    with pytest.raises(Conflict, match="found other"):
        world.tick()
