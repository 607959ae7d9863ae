"""What every `Clusters` adapter promises.

The local one runs with a stand-in for Ray. With Ray and vLLM it is held to it in `tests/component`, where a cluster is
started once and shared: each start costs one to three minutes on CPU.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic, sleep

import pytest

from headway.domain.cluster import ScaleUp
from headway.errors import ConfigError, NotFound
from headway.ports import Clusters
from headway.units import MIB
from tests.factories import make_plan

SPEC = make_plan().cluster
BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
WITHIN_S = 60.0


def test_an_unknown_cluster_is_absent(clusters: Clusters) -> None:
    """Asking and deleting change nothing."""
    assert clusters.status("nobody").phase == "absent"
    clusters.delete("nobody")


def test_a_cluster_keeps_its_spec_and_is_listed_by_model(clusters: Clusters) -> None:
    """Whoever comes later reads from the cluster itself what it is."""
    clusters.apply(SPEC)

    assert clusters.status(SPEC.name).spec == SPEC
    assert [c.name for c in clusters.list(SPEC.model)] == [SPEC.name]
    assert clusters.list("another") == []
    clusters.delete(SPEC.name)


def test_applying_again_adopts(clusters: Clusters) -> None:
    """One name, one cluster."""
    clusters.apply(SPEC)
    clusters.apply(SPEC)

    assert len(clusters.list()) == 1
    clusters.delete(SPEC.name)
    assert clusters.status(SPEC.name).phase == "absent"


def test_a_floor_needs_a_cluster(clusters: Clusters) -> None:
    """And says which one is missing."""
    with pytest.raises(NotFound, match="nobody"):
        clusters.floor("nobody", SPEC.replicas)


def test_a_range_that_contradicts_itself_is_refused(clusters: Clusters) -> None:
    """Serve would refuse it too, and a cluster must not die of it."""
    clusters.apply(SPEC)

    with pytest.raises(ConfigError, match="3 to 2 replicas"):
        clusters.floor(SPEC.name, SPEC.replicas.model_copy(update={"min": 3, "max": 2}))

    assert clusters.status(SPEC.name).spec == SPEC


def test_replicas_that_came_are_told_with_their_time(clusters: Clusters) -> None:
    """Lead times are learned from them; the cluster's own first start is none of them."""
    clusters.apply(SPEC)
    wait_until_ready(clusters)
    assert list(clusters.scale_ups(SPEC.name, BEFORE)) == []

    clusters.floor(SPEC.name, SPEC.replicas.model_copy(update={"min": 2, "max": 3}))

    (came,) = wait_for_scale_ups(clusters, 1)
    assert came.replicas == 2
    assert came.asked_at < came.ready_at
    assert list(clusters.scale_ups(SPEC.name, came.ready_at)) == [], "whoever knows it asks for what came later"
    clusters.floor(SPEC.name, SPEC.replicas.model_copy(update={"min": 1, "max": 3}))
    assert list(clusters.scale_ups(SPEC.name, BEFORE)) == [came]
    clusters.delete(SPEC.name)
    assert list(clusters.scale_ups(SPEC.name, BEFORE)) == []


def wait_until_ready(clusters: Clusters) -> None:
    """Look until the cluster serves."""
    end = monotonic() + WITHIN_S
    while (status := clusters.status(SPEC.name)).phase != "ready":
        assert monotonic() < end, status.reason
        sleep(0.1)


def wait_for_scale_ups(clusters: Clusters, count: int) -> Sequence[ScaleUp]:
    """Look until so many scale-ups are told."""
    end = monotonic() + WITHIN_S
    while len(found := clusters.scale_ups(SPEC.name, BEFORE)) < count:
        assert monotonic() < end, "the replicas never came"
        sleep(0.1)
    return found


def test_a_small_cluster_has_room_and_one_beyond_every_machine_never_will(clusters: Clusters) -> None:
    """The second is not worth waiting for; both come with the numbers."""
    small = clusters.room(SPEC.model_copy(update={"memory_bytes": 16 * MIB}))
    beyond = clusters.room(SPEC.model_copy(update={"memory_bytes": 1 << 50}))

    assert (small.fits, small.possible, small.replicas >= 1) == (True, True, True)
    assert (beyond.fits, beyond.possible, beyond.replicas) == (False, False, 0)
    assert "GiB" in beyond.detail
