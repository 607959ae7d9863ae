"""What every `Clusters` adapter promises.

The local one runs with a stand-in for Ray. With Ray and vLLM it is held to it in `tests/component`, where a cluster is
started once and shared: each start costs one to three minutes on CPU.
"""

import pytest

from headway.errors import NotFound
from headway.ports import Clusters
from tests.factories import make_plan

SPEC = make_plan().cluster


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


def test_capacity_is_within_the_machine(clusters: Clusters) -> None:
    """Free is never more than there is."""
    capacity = clusters.capacity()

    assert 0 <= capacity.free_bytes <= capacity.total_bytes
