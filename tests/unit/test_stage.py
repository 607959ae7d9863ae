"""The step submits once, and believes only a result that names what the plan names."""

import pytest

from headway.domain.job import JobStatus
from headway.domain.release import ReleasePlan
from headway.domain.weight_jobs import StageResult
from headway.errors import BackendError, BackendUnavailable, ConfigError, IntegrityError, NotFound
from headway.release import stage
from tests.factories import make_plan
from tests.fakes import FakeJobs, FakeWeightStore
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
