"""Task accuracy after the benchmark: asked only where the profile wants it and the candidate has not lost already."""

from headway.domain.job import Job, JobStatus
from headway.domain.task_jobs import TaskJob, TaskResult, TaskScore
from tests.unit.airflow import played
from tests.unit.airflow.fake_backend import FakeBackend
from tests.unit.airflow.walk import walk
from tests.unit.airflow.world import outcome, profile

TASKS = {"names": ["sums"], "chat": True, "limit": 50, "min_score": {"sums": 0.5}}


def solving(share: float) -> played.Play:
    """Play a candidate that solves this share of the samples."""

    def play(job: Job) -> JobStatus:
        asked = TaskJob.model_validate(job.payload)
        solved = round(100 * share)
        scores = tuple(
            TaskScore(
                task="sums",
                side=target.side,
                metric="acc",
                higher_is_better=True,
                values=(1.0,) * solved + (0.0,) * (100 - solved),
                samples_digest="s",
            )
            for target in asked.targets
        )
        return played.done(job, TaskResult(release=asked.release, scores=scores, records_sha256="r").to_json())

    return play


def asked(world: FakeBackend) -> list[str]:
    """Return the jobs of the tasks program."""
    return [job.name for job in world.jobs.jobs.values() if job.program == "tasks"]


def test_a_candidate_that_solves_its_tasks_is_promoted(world: FakeBackend) -> None:
    """The check stands beside the others in the verdict."""
    world.kept_profiles["tiny"] = profile(quality={"tasks": TASKS})
    world.jobs.plays["tasks"] = solving(0.9)

    walked = walk()

    assert set(walked.states.values()) == {"success"}, walked.errors
    assert len(asked(world)) == 1


def test_a_candidate_that_does_not_is_rolled_back(world: FakeBackend) -> None:
    """However fast it is."""
    world.kept_profiles["tiny"] = profile(quality={"tasks": TASKS})
    world.jobs.plays["tasks"] = solving(0.1)

    walked = walk()

    assert walked.states["canary"] == "failed"
    assert "sums" in str(walked.errors["canary"])
    assert outcome(world, 1) == "rolled_back"


def test_a_job_that_failed_holds_the_release(world: FakeBackend) -> None:
    """It says nothing about the candidate, so a person decides."""
    world.kept_profiles["tiny"] = profile(quality={"tasks": TASKS})
    world.jobs.plays["tasks"] = lambda job: JobStatus(name=job.name, phase="failed", reason="no such task")

    walk()

    assert outcome(world, 1) == "held"


def test_a_candidate_that_lost_the_benchmark_is_not_asked(world: FakeBackend) -> None:
    """Hours of questions would change nothing."""
    walk("one")
    world.kept_profiles["tiny"] = profile(quality={"tasks": TASKS})
    world.jobs.plays |= {"bench": played.bench(world.weights, slower=4.0), "tasks": solving(0.9)}

    walk("two", minute=1, version=2)

    assert asked(world) == []
    assert outcome(world, 2) == "rolled_back"
