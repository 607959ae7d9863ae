"""The step submits once, and believes only a result that names what the plan names."""

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.domain.job import JobStatus
from headway.domain.release import ReleasePlan, StepRecord, record_key
from headway.domain.traffic import Backend, Route
from headway.domain.weight_jobs import StageResult
from headway.domain.weights import SCHEMA, read_manifest
from headway.errors import BackendError, BackendUnavailable, ConfigError, IntegrityError, NotFound, Refused
from headway.pods import disk, fetch
from headway.release import stage
from tests.factories import make_plan, make_selection
from tests.fakes import FakeClusters, FakeJobs, FakeLedger, FakeTraffic, FakeWeightStore
from tests.unit.test_quantize import store


def world() -> tuple[ReleasePlan, FakeJobs, FakeWeightStore]:
    """A plan whose artifact is in the store."""
    plan = make_plan()
    return plan, FakeJobs(), store(plan, artifact=True)


def result(plan: ReleasePlan, **changes: str) -> dict[str, object]:
    """What the program leaves."""
    kept = StageResult(
        outcome="staged", path=plan.cluster.model_dir, artifact_digest=plan.artifact_digest, size_bytes=1, seconds=1
    )
    return {**kept.to_json(), **changes}


def test_the_job_goes_where_the_cluster_looks() -> None:
    """The directory is the plan's."""
    plan, jobs, weights = world()
    name = stage.begin(plan, jobs, weights).name
    stage.begin(plan, jobs, weights)

    assert jobs.starts == [name]
    assert f"{jobs.jobs[name].payload['dest_root']}/{plan.artifact_digest}" == plan.cluster.model_dir


def test_each_release_asks_the_node_anew() -> None:
    """What an earlier release staged may have been cleared away since."""
    plan, jobs, weights = world()
    first = stage.begin(plan, jobs, weights, release="r1").name
    jobs.end(first, phase="succeeded", result=result(plan))
    second = stage.begin(plan, jobs, weights, release="r2")

    assert second.phase == "running"
    assert stage.finish(plan, jobs, weights, release="r1").outcome == "staged"


def test_a_staged_artifact_is_taken() -> None:
    """The result names digest and directory."""
    plan, jobs, weights = world()
    jobs.end(stage.begin(plan, jobs, weights).name, phase="succeeded", result=result(plan))

    assert stage.finish(plan, jobs, weights).path == plan.cluster.model_dir


@pytest.mark.parametrize("change", [{"path": "/elsewhere"}, {"artifact_digest": "b" * 64}])
def test_a_result_of_something_else_is_not_believed(change: dict[str, str]) -> None:
    """The artifact is checked, not the event."""
    plan, jobs, weights = world()
    jobs.end(stage.begin(plan, jobs, weights).name, phase="succeeded", result=result(plan, **change))

    with pytest.raises(IntegrityError):
        stage.finish(plan, jobs, weights)


def test_an_artifact_that_is_not_there_starts_no_job() -> None:
    """Nothing to stage."""
    jobs = FakeJobs()
    with pytest.raises(NotFound, match="quantize"):
        stage.begin(make_plan(), jobs, FakeWeightStore())
    assert jobs.starts == []


def test_a_full_disk_is_said_in_the_program_s_own_words() -> None:
    """With numbers."""
    plan, jobs, weights = world()
    name = stage.begin(plan, jobs, weights).name
    said = "90.0 GiB more are needed in /nvme, which has 20.0 GiB free"
    jobs.statuses[name] = JobStatus(name=name, phase="failed", reason=said, result={"error": said, "kind": "Refused"})

    with pytest.raises(BackendError, match=r"90\.0 GiB") as caught:
        stage.finish(plan, jobs, weights)
    assert not caught.value.retryable


def test_a_killed_program_is_started_again() -> None:
    """A retried task submits it anew."""
    plan, jobs, weights = world()
    name = stage.begin(plan, jobs, weights).name
    jobs.end(name, phase="retryable", reason="it was killed")
    with pytest.raises(BackendUnavailable):
        stage.finish(plan, jobs, weights)
    stage.begin(plan, jobs, weights)

    assert jobs.starts == [name, name]


def test_a_directory_not_named_by_its_artifact_is_refused() -> None:
    """An old plan with a new digest."""
    plan, jobs, weights = world()
    other = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"model_dir": "/nodes/latest"})})

    with pytest.raises(ConfigError):
        stage.begin(other, jobs, weights)


def test_the_job_names_the_bytes_and_what_must_stay() -> None:
    """An artifact that was deleted and made again is another one, and what serves is never evicted."""
    plan, jobs, weights = world()
    name = stage.begin(plan, jobs, weights, pins=("e" * 64,)).name
    manifest = weights.manifest(plan.artifact_digest)

    assert manifest is not None
    assert jobs.jobs[name].payload["content_digest"] == manifest.content_digest
    assert jobs.jobs[name].payload["pins"] == ["e" * 64]


def test_pins_are_what_serves_what_asks_and_what_served_before() -> None:
    """Of every model; of a cluster that is gone by the record of its release."""
    clusters, traffic, ledger = FakeClusters(), FakeTraffic(), FakeLedger()
    running, gone = make_plan(), make_plan(selection=make_selection(content="b"))
    clusters.apply(running.cluster)
    record = StepRecord(release="r0", step="stage", started_at="t", ended_at="t", outcome="done", detail=result(gone))
    ledger.append(record_key("other", "r0", "stage"), record.to_json())
    lost = Backend(cluster="gone", release="r0", version=1, cluster_digest=gone.cluster_digest)
    unknown = lost.model_copy(update={"cluster": "unknown", "release": "r-unknown"})
    traffic.shift(Route(model="other", stable=unknown, previous=lost))

    assert stage.pins(clusters, traffic, ledger) == tuple(sorted({running.artifact_digest, gone.artifact_digest}))


@pytest.mark.parametrize("version", [SCHEMA + 1, 99])
def test_a_manifest_of_a_newer_headway_asks_for_an_upgrade(version: int) -> None:
    """In one sentence, before anything is said about fields that this one does not know."""
    data = {"schema_version": version, "artifact_digest": "a" * 64, "files": [], "chunks": {}}

    with pytest.raises(ConfigError, match=f"schema version {version}.*Upgrade"):
        read_manifest(data, "s3://b/manifest.json")


@given(
    path=st.text(max_size=20),
    sha256=st.sampled_from(["../../etc/x", "A" * 64, "a" * 63, "a" * 64 + "\n", ""]) | st.text(max_size=70),
    size=st.integers(max_value=-1),
    which=st.sampled_from(["sha256", "parts", "size"]),
)
def test_a_manifest_whose_digests_are_none_is_refused(path: str, sha256: str, size: int, which: str) -> None:
    """They become names on the node's disk."""
    assume(which == "size" or not re.fullmatch("[0-9a-f]{64}", sha256))
    good = {"path": path, "size_bytes": 1, "sha256": "a" * 64, "parts": ["a" * 64]}
    kinds: dict[str, dict[str, object]] = {
        "sha256": {"sha256": sha256},
        "parts": {"parts": [sha256]},
        "size": {"size_bytes": size},
    }
    bad = kinds[which]

    with pytest.raises(IntegrityError):
        read_manifest({"artifact_digest": "a" * 64, "files": [{**good, **bad}]}, "s3://b/manifest.json")


def test_a_manifest_with_a_name_twice_is_refused() -> None:
    """Which of the two would it be?"""
    file = {"path": "x", "size_bytes": 1, "sha256": "a" * 64, "parts": ["a" * 64]}
    with pytest.raises(IntegrityError, match=r"\['x'\] more than once"):
        read_manifest({"artifact_digest": "a" * 64, "files": [file, {**file, "sha256": "b" * 64}]}, "m")


@given(st.text())
def test_only_a_plain_name_can_be_written(name: str) -> None:
    """Whatever passes lies in its folder, and is visible there."""
    try:
        fetch.require_plain(name)
    except Refused:
        return
    assert (Path("/node/x") / name).parent == Path("/node/x")
    assert os.path.normpath(f"/node/x/{name}") == f"/node/x/{name}"
    assert not name.startswith(".")


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
36 22 0:33 / /mnt rw - tmpfs tmpfs rw
40 36 0:40 / /mnt/nfs rw shared:1 - nfs4 server:/x rw
41 40 0:41 / /mnt/nfs/local rw - xfs /dev/vdb rw
42 22 0:42 / /mnt/with\\040blank rw - lustre x rw
43 22 0:43 / /mnt/fuse rw - fuse.rclone x rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/x", "ext4", False),
        ("/mnt/a", "tmpfs", False),
        ("/mnt/nfs", "nfs4", True),
        ("/mnt/nfsish/a", "tmpfs", False),
        ("/mnt/nfs/a/b", "nfs4", True),
        ("/mnt/nfs/local/a", "xfs", False),
        ("/mnt/with blank/a", "lustre", True),
        ("/mnt/fuse/a", "fuse.rclone", True),
    ],
)
def test_a_file_system_that_others_share_is_known_by_its_mount(path: str, kind: str, shared: bool) -> None:
    """By the longest mount point above the path, and not by the beginning of a name."""
    assert disk.file_system(Path(path), MOUNTS) == (kind, shared)


@pytest.mark.parametrize("code", disk.NO_SPACE)
def test_a_full_disk_is_a_refusal_with_numbers(code: int, tmp_path: Path) -> None:
    """Whether the disk, the quota or the limit of a file is reached."""
    error = disk.disk_error(OSError(code, os.strerror(code)), tmp_path, 5 * 2**30)

    assert isinstance(error, Refused)
    assert not error.retryable
    assert {"needed_bytes": 5 * 2**30, "pinned": {}}.items() <= error.facts.items()
    assert error.facts["free_bytes"] > 0
    assert "5.0 GiB more are needed" in error.message


def test_a_failing_disk_is_no_full_disk(tmp_path: Path) -> None:
    """The remedy is another one."""
    error = disk.disk_error(OSError(errno.EIO, "Input/output error", str(tmp_path / "f")), tmp_path)

    assert not isinstance(error, Refused)
    assert "kernel's log" in error.message
