"""The life of a cluster under a real supervisord, with a stand-in for Ray (`tests.probes.ray_head`)."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest
import requests

from headway.adapters.local import cluster_files
from headway.adapters.local.clusters import LocalClusters
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.processes import strays
from headway.domain.cluster import ClusterSpec, ClusterStatus
from headway.errors import Conflict, Refused
from tests.factories import make_plan

pytestmark = pytest.mark.component

WITHIN_S = 60.0


def spec(name: str = "tiny-1", *, goes: str = "well") -> ClusterSpec:
    """A cluster whose model's directory says how it goes."""
    return make_plan().cluster.model_copy(update={"name": name, "model_dir": f"/nodes/{goes}", "cluster_digest": name})


@pytest.fixture
def clusters(supervised: LocalLayout) -> Iterator[LocalClusters]:
    """The adapter, with everything that it started gone at the end."""
    adapter = stand_in(supervised)
    yield adapter
    for status in adapter.list():
        adapter.delete(status.name)


def stand_in(layout: LocalLayout) -> LocalClusters:
    """Return the adapter with the stand-in for Ray."""
    return LocalClusters(layout, ray=[str(layout.python("airflow")), "-m", "tests.probes.ray_head"])


def wait_for(clusters: LocalClusters, name: str, condition: Callable[[ClusterStatus], bool]) -> ClusterStatus:
    """Look until the condition holds."""
    end = monotonic() + WITHIN_S
    while not condition(status := clusters.status(name)):
        assert monotonic() < end, f"still {status.phase}: {status.reason}"
        sleep(0.1)
    return status


def ready(status: ClusterStatus) -> bool:
    """Whether it answers."""
    return status.phase == "ready"


def pids(layout: LocalLayout, name: str) -> list[int]:
    """Return every process of a cluster."""
    return strays({"HEADWAY_STACK": layout.stack_mark, "HEADWAY_CLUSTER": name})


def test_a_cluster_comes_up_answers_and_leaves_nothing(clusters: LocalClusters, supervised: LocalLayout) -> None:
    """Not even the processes that outlive their head, nor Ray's folder."""
    clusters.apply(spec())
    status = wait_for(clusters, "tiny-1", ready)
    assert (status.replicas_ready, status.replicas_target) == (1, 1)
    assert status.endpoint is not None
    assert requests.get(f"{status.endpoint}/v1/models", timeout=5).ok
    assert len(pids(supervised, "tiny-1")) >= 3

    clusters.delete("tiny-1")

    assert pids(supervised, "tiny-1") == []
    assert clusters.status("tiny-1").phase == "absent"
    assert not list(supervised.clusters.glob("tiny-1"))
    assert not list(Path("/tmp").glob(f"headway-{supervised.stack_mark}-*"))


@pytest.mark.parametrize("victim", ["ray", "program"])
def test_a_killed_cluster_comes_back_by_itself(clusters: LocalClusters, supervised: LocalLayout, victim: str) -> None:
    """And is not called ready before it has answered in its new life."""
    clusters.apply(spec())
    wait_for(clusters, "tiny-1", ready)
    before = pids(supervised, "tiny-1")
    wanted = "ray_head" if victim == "ray" else "cluster_main"
    (killed,) = [p for p in before if wanted in " ".join(psutil.Process(p).cmdline())]

    os.kill(killed, signal.SIGKILL)

    wait_for(clusters, "tiny-1", lambda s: s.phase != "ready")
    wait_for(clusters, "tiny-1", ready)
    assert not set(before) & set(pids(supervised, "tiny-1")), "processes of the former life are still there"


def test_two_clusters_share_no_port(clusters: LocalClusters, supervised: LocalLayout) -> None:
    """Stable and candidate stand side by side."""
    clusters.apply(spec("tiny-1"))
    clusters.apply(spec("tiny-2"))
    wait_for(clusters, "tiny-1", ready)
    wait_for(clusters, "tiny-2", ready)

    one, two = cluster_files.every(supervised)

    assert one.slot != two.slot
    assert abs(one.ports.first - two.ports.first) >= cluster_files.NAMED_PORTS
    assert one.ports.worker_last < two.ports.worker_first


def test_a_slot_is_used_again_and_not_while_somebody_has_its_ports(
    clusters: LocalClusters, supervised: LocalLayout
) -> None:
    """The lowest free one; a foreign program on one of its ports is stepped over."""
    clusters.apply(spec("tiny-1"))
    clusters.delete("tiny-1")
    clusters.apply(spec("tiny-2"))
    taken = cluster_files.read(supervised, "tiny-2")
    assert taken is not None
    assert taken.slot == 0

    with _listening(supervised.cluster_ports(1).at(cluster_files.GCS)):
        clusters.apply(spec("tiny-3"))

    stepped_over = cluster_files.read(supervised, "tiny-3")
    assert stepped_over is not None
    assert stepped_over.slot == 2


def test_when_all_slots_are_taken_it_says_so(clusters: LocalClusters, supervised: LocalLayout) -> None:
    """Nothing is started, and capacity knows."""
    for number in range(6):
        record = cluster_files.ClusterRecord(spec(f"tiny-{number}"), number, supervised.cluster_ports(number), 0.0)
        cluster_files.write(supervised, record)

    room = clusters.room(spec())
    assert (room.fits, room.replicas) == (False, 0)
    assert "all 6 slots are taken" in room.detail
    with pytest.raises(Refused, match="6 of 6 slots are taken"):
        clusters.apply(spec("tiny-7"))


@pytest.mark.parametrize(("goes", "reason"), [("broken", "ValueError: shard 1 is cut off"), ("dies", "died 3 times")])
def test_a_cluster_that_cannot_run_has_failed_with_the_reason(clusters: LocalClusters, goes: str, reason: str) -> None:
    """In the engine's own words where there are any; a start that always dies does not look like one that is slow."""
    clusters.apply(spec(goes=goes))

    assert reason in wait_for(clusters, "tiny-1", lambda s: s.phase == "failed").reason


@pytest.mark.parametrize(("goes", "reason"), [("slow", "deploying"), ("mute", "HTTP 500")])
def test_running_is_not_ready(clusters: LocalClusters, goes: str, reason: str) -> None:
    """An application that Serve calls running may answer nothing."""
    clusters.apply(spec(goes=goes))

    status = wait_for(clusters, "tiny-1", lambda s: reason in s.reason)

    assert (status.phase, status.endpoint) == ("starting", None)


def test_the_floor_moves_without_a_restart(clusters: LocalClusters, supervised: LocalLayout) -> None:
    """Serve gets the changed numbers; the processes stay."""
    clusters.apply(spec())
    wait_for(clusters, "tiny-1", ready)
    before = pids(supervised, "tiny-1")

    clusters.floor("tiny-1", spec().replicas.model_copy(update={"min": 2, "max": 3}))

    status = wait_for(clusters, "tiny-1", lambda s: s.replicas_target == 2)
    assert status.spec is not None
    assert (status.spec.replicas.min, status.spec.replicas.max) == (2, 3)
    assert pids(supervised, "tiny-1") == before


def test_a_cluster_that_grows_stays_ready(clusters: LocalClusters, supervised: LocalLayout) -> None:
    """Serve calls it deploying meanwhile; its users are served, and a shift must not take it for broken."""
    clusters.apply(spec(goes="growing"))
    wait_for(clusters, "tiny-1", ready)

    clusters.floor("tiny-1", spec().replicas.model_copy(update={"min": 2, "max": 3}))
    status = wait_for(clusters, "tiny-1", lambda s: s.replicas_target == 2)
    assert (status.phase, status.replicas_ready, status.reason) == ("ready", 1, "Serve: deploying")
    assert status.endpoint is not None
    assert "promised to 1 that start" in clusters.room(spec()).detail, "the second replica still takes its memory"
    (cluster_files.folder(supervised, "tiny-1") / "come").touch()

    wait_for(clusters, "tiny-1", lambda s: (s.phase, s.replicas_ready, s.reason) == ("ready", 2, ""))
    assert "promised" not in clusters.room(spec()).detail


def test_a_scale_up_outlives_the_cluster_that_had_it(clusters: LocalClusters, supervised: LocalLayout) -> None:
    """What a crash cuts off was no scale-up; what came before it is still told."""
    clusters.apply(spec())
    wait_for(clusters, "tiny-1", ready)
    clusters.floor("tiny-1", spec().replicas.model_copy(update={"min": 2, "max": 3}))
    end, before = monotonic() + WITHIN_S, datetime(2020, 1, 1, tzinfo=UTC)
    while not (told := clusters.scale_ups("tiny-1", before)):
        assert monotonic() < end
        sleep(0.1)

    (ray,) = [p for p in pids(supervised, "tiny-1") if "ray_head" in " ".join(psutil.Process(p).cmdline())]
    os.kill(ray, signal.SIGKILL)
    wait_for(clusters, "tiny-1", lambda s: s.phase != "ready")
    wait_for(clusters, "tiny-1", lambda s: s.phase == "ready" and s.replicas_ready == 2)

    assert clusters.scale_ups("tiny-1", before) == told


def test_one_name_is_one_cluster(clusters: LocalClusters) -> None:
    """Names come from digests; a name with another digest is somebody's mistake, and nothing is replaced."""
    clusters.apply(spec())

    with pytest.raises(Conflict, match="delete it first"):
        clusters.apply(spec().model_copy(update={"cluster_digest": "other"}))


def test_memory_that_a_start_will_take_is_promised(clusters: LocalClusters) -> None:
    """Two releases at once do not both count on the same free memory."""
    clusters.apply(spec(goes="slow"))

    assert "promised to 1 that start" in clusters.room(spec()).detail


def _listening(port: int) -> socket.socket:
    """Return a socket that listens there."""
    server = socket.socket()
    server.bind(("127.0.0.1", port))
    server.listen()
    return server
