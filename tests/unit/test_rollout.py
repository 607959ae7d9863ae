"""The candidate comes up beside stable without taking anything from it."""

from datetime import UTC, datetime

import pytest

from headway.domain.traffic import Route
from headway.errors import BackendError, Refused
from headway.release import rollout
from headway.units import GIB
from tests.factories import make_plan, make_ref, make_selection
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

    with pytest.raises(Refused, match=r"needs .* GiB and 2\.0 GiB of 8\.0 GiB are free"):
        rollout.begin(PLAN, REF, clusters, traffic)

    assert not clusters.specs


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
