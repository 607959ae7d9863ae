"""What reconcile starts and ends, and what it leaves alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway.domain.cluster import ClusterStatus
from headway.domain.traffic import Backend, Route
from headway.release import reconcile, record
from tests.fakes import FakeRegistry

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DIGEST = "d" * 64


def backend(version: int, digest: str = "0" * 64) -> Backend:
    return Backend(cluster=f"tiny-{version}", release=f"r{version}", version=version, cluster_digest=digest)


def wanted(**changes: Any) -> reconcile.Desired:
    return reconcile.Desired(**{"model": "tiny", "version": 2, "cluster_digest": DIGEST, "releases": 3, **changes})


def remembered(outcome: Any, at: datetime = NOW, key: str = DIGEST) -> dict[str, str]:
    registry = FakeRegistry()
    state = record.VersionState(outcome=outcome, release="r", at=at.isoformat())
    record.remember_state(registry, "tiny", 2, key, state)
    return dict(registry.tags("tiny", 2))


def status(name: str) -> ClusterStatus:
    from tests.factories import make_plan

    return ClusterStatus(name=name, phase="ready", spec=make_plan().cluster.model_copy(update={"name": name}))


def test_an_alias_that_names_what_nobody_judged_starts_a_release() -> None:
    """An event of the registry may be lost; the wish is not."""
    due = reconcile.start(wanted(), Route(model="tiny", stable=backend(1)), busy=False, now=NOW)

    assert due is not None
    assert (due.model, due.version) == ("tiny", 2)
    assert due.run_id == "reconcile__tiny__v2__dddddddddddd__4"


def test_asking_twice_names_the_same_run_until_it_has_begun() -> None:
    """A second start is a duplicate for Airflow, not a second release."""
    assert reconcile.run_id(wanted()) == reconcile.run_id(wanted())
    assert reconcile.run_id(wanted(releases=4)) != reconcile.run_id(wanted())


def test_a_model_name_that_airflow_would_refuse_still_gets_a_run() -> None:
    """Run ids hold letters, digits and a few signs only."""
    assert reconcile.run_id(wanted(model="Org/Model 7B")).split("__")[1].startswith("org-model-7b-")


def test_what_serves_already_is_left_alone() -> None:
    """The same cluster digest is the same cluster, whatever the version's number."""
    assert reconcile.start(wanted(), Route(model="tiny", stable=backend(1, DIGEST)), busy=False, now=NOW) is None


def test_a_paused_or_busy_model_is_left_alone() -> None:
    """A person froze it, or a release is on its way."""
    assert reconcile.start(wanted(), Route(model="tiny", paused=True), busy=False, now=NOW) is None
    assert reconcile.start(wanted(), Route(model="tiny"), busy=True, now=NOW) is None


@pytest.mark.parametrize("outcome", ["rejected", "rolled_back", "held"])
def test_a_verdict_is_remembered(outcome: str) -> None:
    """The alias that still points at a refused version does not bring it back, not after a year either."""
    tags = remembered(outcome, at=NOW - timedelta(days=365))

    assert reconcile.start(wanted(tags=tags), Route(model="tiny", stable=backend(1)), busy=False, now=NOW) is None


def test_a_changed_profile_is_another_pair() -> None:
    """Another engine setting makes another cluster digest, about which nobody has a verdict."""
    tags = remembered("rejected", key="e" * 64)

    assert reconcile.start(wanted(tags=tags), Route(model="tiny"), busy=False, now=NOW) is not None


@pytest.mark.parametrize(("minutes", "starts"), [(5, False), (59, False), (60, True), (600, True)])
def test_a_failure_that_may_pass_is_tried_once_an_hour(minutes: int, starts: bool) -> None:
    """A broken machine must not be hammered, and must not need a person either."""
    tags = remembered("failed", at=NOW - timedelta(minutes=minutes))

    due = reconcile.start(wanted(tags=tags), Route(model="tiny"), busy=False, now=NOW)

    assert (due is not None) is starts


def test_an_alias_that_was_moved_back_releases_the_old_version_again() -> None:
    """Moving the alias back is a wish, although that version has a verdict."""
    route = Route(model="tiny", stable=backend(3))
    tags = remembered("promoted")

    assert reconcile.start(wanted(tags=tags, alias_at_release=3), route, busy=False, now=NOW) is not None


def test_a_version_that_a_person_released_by_number_stays() -> None:
    """The alias was not moved since, so it does not take the traffic back five minutes later."""
    route = Route(model="tiny", stable=backend(1))
    tags = remembered("promoted")

    assert reconcile.start(wanted(tags=tags, alias_at_release=2), route, busy=False, now=NOW) is None
    assert reconcile.start(wanted(tags=tags, alias_at_release=None), route, busy=False, now=NOW) is None


def test_a_promoted_version_that_nothing_serves_any_more_is_brought_back() -> None:
    """A gateway that was wiped or restored empty must not stay empty because of an old success."""
    due = reconcile.start(wanted(tags=remembered("promoted")), Route(model="tiny"), busy=False, now=NOW)

    assert due is not None


def test_the_previous_cluster_expires() -> None:
    """Warm capacity that nobody goes back to is paid for nothing."""
    early = Route(model="tiny", stable=backend(2), previous=backend(1), keep_previous_until="2026-11-30T12:00:01+00:00")
    late = early.model_copy(update={"keep_previous_until": "2026-11-30T12:00:00+00:00"})
    clusters = [status("tiny-1"), status("tiny-2")]

    assert reconcile.expired([early], clusters, {"tiny": False}, NOW) == []
    assert [a.kind for a in reconcile.expired([late], clusters, {"tiny": False}, NOW)] == ["end-previous"]


def test_a_candidate_without_a_release_is_taken_back() -> None:
    """A release that died with its machine leaves a candidate that nobody watches."""
    route = Route(model="tiny", stable=backend(1), candidate=backend(2), candidate_pct=50)

    assert [a.kind for a in reconcile.expired([route], [], {"tiny": False}, NOW)] == ["end-candidate"]
    assert reconcile.expired([route], [], {"tiny": True}, NOW) == []
    assert reconcile.without_candidate(route).split.stable_pct == 100


def test_a_held_candidate_waits_for_a_person_until_its_time_is_over() -> None:
    """HOLD keeps the candidate for `hold_s`."""
    held = Route(model="tiny", stable=backend(1), candidate=backend(2), hold_until="2026-11-30T13:00:00+00:00")

    assert reconcile.expired([held], [status("tiny-2")], {"tiny": False}, NOW) == []
    later = NOW + timedelta(hours=1)
    assert [a.kind for a in reconcile.expired([held], [], {"tiny": False}, later)] == ["end-candidate"]


def test_a_cluster_that_no_route_names_ends_unless_a_release_is_at_work() -> None:
    """Memory that nobody uses belongs to the next candidate; a starting candidate is not in the route yet."""
    clusters = [status("tiny-9")]

    assert [a.cluster for a in reconcile.expired([], clusters, {"tiny": False}, NOW)] == ["tiny-9"]
    assert reconcile.expired([], clusters, {"tiny": True}, NOW) == []


def test_a_lease_that_could_not_be_read_protects() -> None:
    """Not knowing is no reason to delete."""
    route = Route(model="tiny", candidate=backend(2))

    assert reconcile.expired([route], [status("tiny-9")], {}, NOW) == []
