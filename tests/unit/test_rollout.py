"""The candidate comes up beside stable without taking anything from it."""

from datetime import UTC, datetime

import pytest

from headway.domain.traffic import Route
from headway.errors import BackendError, Refused
from headway.release import rollout
from headway.units import GIB
from tests.factories import make_plan, make_profile, make_ref, make_selection
from tests.fakes import FakeClusters, FakeTraffic

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
PLAN = make_plan()
REF = make_ref()


def test_a_ready_candidate_is_reachable_and_has_no_traffic() -> None:
    """The benchmark reaches it by header; users do not."""
    clusters, traffic = FakeClusters(), FakeTraffic()

    rollout.begin(PLAN, REF, clusters, traffic)
    rollout.finish(PLAN, REF, clusters, traffic, NOW)

    route = traffic.route("tiny")
    assert route.candidate is not None
    assert (route.candidate.release, route.candidate_pct) == (REF.release, 0)


def test_a_retry_adopts_what_the_first_try_started() -> None:
    """Names come from digests: nothing starts twice."""
    clusters, traffic = FakeClusters(comes_up=False), FakeTraffic()

    rollout.begin(PLAN, REF, clusters, traffic)
    rollout.begin(PLAN, REF, clusters, traffic)

    assert list(clusters.specs) == [PLAN.cluster.name]


def test_a_failed_cluster_of_an_earlier_try_is_replaced() -> None:
    """A crash loop of yesterday does not fail today's release."""
    clusters, traffic = FakeClusters(), FakeTraffic()
    rollout.begin(PLAN, REF, clusters, traffic)
    clusters.fail(PLAN.cluster.name, "out of memory")

    assert rollout.begin(PLAN, REF, clusters, traffic).phase == "ready"
    assert clusters.deleted == [PLAN.cluster.name]


def test_the_warm_previous_cluster_makes_room() -> None:
    """It is the only thing that may be given up; stable is not."""
    clusters, traffic = FakeClusters(total_bytes=24 * GIB), FakeTraffic()
    stable = make_plan(selection=make_selection(content="1"))
    previous = make_plan(selection=make_selection(content="2"))
    for plan in (stable, previous):
        clusters.apply(plan.cluster.model_copy(update={"memory_bytes": 8 * GIB}))
    traffic.shift(
        Route(model="tiny", stable=rollout.backend_of(stable, REF), previous=rollout.backend_of(previous, REF))
    )

    rollout.begin(PLAN, REF, clusters, traffic)

    assert clusters.deleted == [previous.cluster.name]
    assert traffic.route("tiny").previous is None
    assert stable.cluster.name in clusters.specs


def test_no_room_is_refused_with_numbers_and_stable_stays() -> None:
    """The error says what is missing; nothing was started or ended."""
    clusters, traffic = FakeClusters(total_bytes=8 * GIB), FakeTraffic()

    with pytest.raises(Refused, match=r"needs 1 x .* GiB, and 2\.0 GiB of 8\.0 GiB are free"):
        rollout.begin(PLAN, REF, clusters, traffic)

    assert not clusters.specs


def test_a_profile_may_wait_for_room() -> None:
    """Nothing is started until it is there, and what is missing is said meanwhile."""
    plan = make_plan(profile=make_profile(rollout={"no_room": "wait"}))
    clusters, traffic = FakeClusters(total_bytes=8 * GIB), FakeTraffic()

    waiting = rollout.begin(plan, REF, clusters, traffic)
    assert waiting.phase == "absent"
    assert "2.0 GiB of 8.0 GiB are free" in waiting.reason
    assert not clusters.specs
    clusters.used_bytes = 0

    assert rollout.begin(plan, REF, clusters, traffic).phase == "ready"


def test_a_profile_may_begin_with_what_fits() -> None:
    """The least is lowered, the most stays, and nothing else changes; with no room at all it is refused too."""
    plan = make_plan(profile=make_profile(rollout={"no_room": "shrink"}, replicas={"min": 4, "max": 6}))
    needed = plan.cluster.memory_bytes
    clusters, traffic = FakeClusters(total_bytes=3 * needed, used_bytes=needed), FakeTraffic()

    rollout.begin(plan, REF, clusters, traffic)

    begun = clusters.specs[plan.cluster.name]
    assert (begun.replicas.min, begun.replicas.max) == (2, 6)
    assert begun == plan.cluster.model_copy(update={"replicas": begun.replicas, "release": REF.release})
    clusters.delete(plan.cluster.name)
    clusters.used_bytes = 3 * needed
    with pytest.raises(Refused, match="there is no room"):
        rollout.begin(plan, REF, clusters, traffic)


@pytest.mark.parametrize("no_room", ["refuse", "wait", "shrink"])
def test_what_no_machine_can_hold_is_refused_at_once(no_room: str) -> None:
    """Waiting is in vain, and the previous cluster is not given up for nothing."""
    plan = make_plan(profile=make_profile(rollout={"no_room": no_room}))
    clusters, traffic = FakeClusters(total_bytes=GIB, used_bytes=0), FakeTraffic()
    previous = make_plan(selection=make_selection(content="2"))
    clusters.apply(previous.cluster)
    traffic.shift(Route(model="tiny", stable=None, previous=rollout.backend_of(previous, REF)))

    with pytest.raises(Refused, match="no machine can hold a replica of tiny"):
        rollout.begin(plan, REF, clusters, traffic)

    assert previous.cluster.name in clusters.specs


def test_a_candidate_that_is_not_ready_gets_no_route() -> None:
    """The reason is the engine's own."""
    clusters, traffic = FakeClusters(), FakeTraffic()
    rollout.begin(PLAN, REF, clusters, traffic)
    clusters.fail(PLAN.cluster.name, "DEPLOY_FAILED: no kernel")

    with pytest.raises(BackendError, match="DEPLOY_FAILED: no kernel"):
        rollout.finish(PLAN, REF, clusters, traffic, NOW)

    assert traffic.route("tiny").candidate is None


def test_the_previous_cluster_as_candidate_is_no_longer_previous() -> None:
    """One cluster has one role, so taking it back later really ends it."""
    clusters, traffic = FakeClusters(), FakeTraffic()
    stable = make_plan(selection=make_selection(content="1"))
    clusters.apply(stable.cluster)
    clusters.apply(PLAN.cluster)
    traffic.shift(Route(model="tiny", stable=rollout.backend_of(stable, REF), previous=rollout.backend_of(PLAN, REF)))

    rollout.begin(PLAN, REF, clusters, traffic)
    rollout.finish(PLAN, REF, clusters, traffic, NOW)

    route = traffic.route("tiny")
    assert route.previous is None
    assert route.candidate is not None
    assert route.candidate.cluster == PLAN.cluster.name
