"""What every `Jobs` adapter promises."""

from collections.abc import Callable
from time import monotonic, sleep

import pytest

from headway.domain.job import Job, JobStatus
from headway.ports import Jobs
from tests.contract.conftest import JobsCase

WITHIN_S = 40


def make_job(name: str = "probe-1", **payload: object) -> Job:
    """A job whose program does as its payload says."""
    return Job(name=name, program="bench", environment="airflow", payload=dict(payload), deadline_s=30)


def wait_for(jobs: Jobs, name: str, condition: Callable[[JobStatus], bool]) -> JobStatus:
    """Look until the condition holds."""
    end = monotonic() + WITHIN_S
    while not condition(status := jobs.status(name)):
        assert monotonic() < end, f"still {status}"
        sleep(0.1)
    return status


def test_an_unknown_job_is_absent(jobs: JobsCase) -> None:
    """Asking changes nothing."""
    assert jobs.port.status("nobody").phase == "absent"
    assert jobs.port.log_tail("nobody") == ""
    jobs.port.cancel("nobody")


def test_a_job_that_ends_well_gives_its_result(jobs: JobsCase) -> None:
    """The JSON that the program left comes back."""
    jobs.port.submit(make_job(result={"answer": 42}))
    jobs.finish("probe-1", phase="succeeded", result={"answer": 42})

    status = wait_for(jobs.port, "probe-1", lambda s: s.ended)

    assert (status.phase, status.result) == ("succeeded", {"answer": 42})


def test_submitting_again_finds_the_first(jobs: JobsCase) -> None:
    """A retried step adopts what the first try started, running or done."""
    jobs.port.submit(make_job(result={}, hold=True))
    jobs.port.submit(make_job(result={}, hold=True))
    assert jobs.starts("probe-1") == 1

    jobs.finish("probe-1", phase="succeeded", result={})
    wait_for(jobs.port, "probe-1", lambda s: s.ended)
    jobs.port.submit(make_job(result={}, hold=True))

    assert jobs.starts("probe-1") == 1


@pytest.mark.parametrize(("code", "phase"), [(1, "failed"), (75, "retryable")])
def test_a_failure_keeps_its_reason_and_can_be_started_anew(jobs: JobsCase, code: int, phase: str) -> None:
    """Exit 75 asks for another try, exit 1 does not; both may be submitted again."""
    job = make_job(exit=code, result={"error": "the disk is full"})
    jobs.port.submit(job)
    jobs.finish("probe-1", phase=phase, reason="the disk is full")

    status = wait_for(jobs.port, "probe-1", lambda s: s.ended)
    assert (status.phase, status.reason) == (phase, "the disk is full")

    jobs.port.submit(job)
    jobs.finish("probe-1", phase=phase, reason="the disk is full")
    wait_for(jobs.port, "probe-1", lambda s: s.ended)
    assert jobs.starts("probe-1") == 2


def test_a_cancelled_job_is_gone(jobs: JobsCase) -> None:
    """Cancelling twice is fine."""
    jobs.port.submit(make_job(result={}, hold=True))
    jobs.port.cancel("probe-1")
    jobs.port.cancel("probe-1")

    assert jobs.port.status("probe-1").phase == "absent"
