"""The way back: where it goes, how often, and what is said when there is none."""

from datetime import UTC, datetime

import pytest

from headway.domain.traffic import Backend, Route
from headway.errors import Conflict, Refused
from headway.release import record, rollback
from tests.factories import make_plan
from tests.fakes import FakeClusters, FakeRegistry, FakeTraffic

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def backend(version: int) -> Backend:
    return Backend(cluster=f"tiny-{version}", release=f"r{version}", version=version, cluster_digest=str(version) * 64)


def running(*versions: int) -> FakeClusters:
    clusters = FakeClusters()
    for version in versions:
        clusters.apply(make_plan().cluster.model_copy(update={"name": f"tiny-{version}"}))
    return clusters


def serving(**route: object) -> FakeTraffic:
    traffic = FakeTraffic()
    traffic.shift(Route.model_validate({"model": "tiny", **route}))
    return traffic


def test_all_traffic_goes_to_the_previous_cluster() -> None:
    """A rollback is one change of the split; the way forth stays open."""
    traffic = serving(stable=backend(2), previous=backend(1), keep_previous_until="2026-12-01T00:00:00+00:00")

    outcome = rollback.run(rollback.decide("tiny", traffic), traffic, running(1, 2))

    route = traffic.route("tiny")
    assert (route.stable, route.previous) == (backend(1), backend(2))
    assert route.keep_previous_until == "2026-12-01T00:00:00+00:00"
    assert (outcome.leave.version, outcome.back.version) == (2, 1)


def test_a_second_try_does_not_go_back_twice() -> None:
    """A task that died after the shift is tried again."""
    traffic = serving(stable=backend(2), previous=backend(1))
    plan = rollback.decide("tiny", traffic)
    clusters = running(1, 2)
    rollback.run(plan, traffic, clusters)

    rollback.run(plan, traffic, clusters)

    assert traffic.route("tiny").stable == backend(1)
    assert len(traffic.history) == 2


def test_during_a_shift_the_candidate_is_taken_back() -> None:
    """Whoever presses the button then wants stable, not the version before it."""
    traffic = serving(stable=backend(2), candidate=backend(3), candidate_pct=50, previous=backend(1))

    outcome = rollback.run(rollback.decide("tiny", traffic), traffic, running(1, 2, 3))

    route = traffic.route("tiny")
    assert (route.stable, route.candidate, route.previous) == (backend(2), None, backend(1))
    assert outcome.leave == backend(3)


def test_without_a_previous_cluster_it_says_what_to_do() -> None:
    """A clear refusal instead of an outage."""
    with pytest.raises(Refused, match=r"no previous cluster \(version 2 serves\).*headway release tiny --version N"):
        rollback.decide("tiny", serving(stable=backend(2)))
    with pytest.raises(Refused, match="no stable cluster"):
        rollback.decide("tiny", FakeTraffic())


def test_it_never_sends_users_to_a_cluster_that_does_not_answer() -> None:
    """The bad version that answers is better than the good one that is gone."""
    traffic = serving(stable=backend(2), previous=backend(1))

    with pytest.raises(Refused, match="tiny-1 is absent; release that version again"):
        rollback.run(rollback.decide("tiny", traffic), traffic, running(2))

    assert traffic.route("tiny").stable == backend(2)


def test_traffic_that_moved_meanwhile_is_not_touched() -> None:
    """Somebody else acted between the decision and the shift."""
    traffic = serving(stable=backend(2), previous=backend(1))
    plan = rollback.decide("tiny", traffic)
    traffic.shift(Route(model="tiny", stable=backend(4), previous=backend(3)))

    with pytest.raises(Conflict, match="moved"):
        rollback.run(plan, traffic, running(1, 2, 3, 4))


def test_a_smaller_cluster_is_said() -> None:
    """What is left may be too small for the load."""
    traffic = serving(stable=backend(2), previous=backend(1))
    clusters = running(1, 2)
    big = clusters.specs["tiny-2"].replicas.model_copy(update={"min": 3, "max": 3})
    clusters.floor("tiny-2", big)

    outcome = rollback.run(rollback.decide("tiny", traffic), traffic, clusters)

    assert "1 replicas, and tiny-2 had 3" in outcome.warning


def test_the_version_remembers_that_it_was_taken_back() -> None:
    """Otherwise the alias brings it back five minutes later."""
    traffic, registry = serving(stable=backend(2), previous=backend(1)), FakeRegistry()
    outcome = rollback.run(rollback.decide("tiny", traffic), traffic, running(1, 2))

    rollback.remember(outcome, registry, NOW)

    assert record.read_state(registry.tags("tiny", 2))["2" * 64].outcome == "rolled_back"
    assert registry.tags("tiny", 2)[record.REASON_TAG] == "a person went back to version 1"
