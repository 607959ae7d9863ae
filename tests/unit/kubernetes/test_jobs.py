"""The objects of jobs, and what is read from the objects that a cluster makes of them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.kubernetes import job_objects, programs, stage_view
from headway.adapters.kubernetes.jobs import phase_of, without_pod
from headway.adapters.kubernetes.site import GPU, PRODUCT, Site
from headway.domain.job import Job, JobPhase, Program
from headway.domain.profile import Hardware
from headway.domain.release import ReleasePlan
from headway.release import quantize, stage
from tests.factories import make_plan
from tests.fakes import FakeJobs, FakeWeightStore
from tests.kubernetes_pods import incoherent, not_restricted
from tests.kubernetes_schema import faults
from tests.unit.test_quantize import store

SITE = Site(templates=Path(__file__).resolve().parents[3] / "k8s" / "templates", pull_secret="registry")
H100 = "NVIDIA-H100-80GB-HBM3"
DIGEST = "ab" * 32
AT = datetime(2026, 12, 1, 12, tzinfo=UTC)

PROGRAMS: tuple[Program, ...] = ("quantize", "quality", "bench", "tasks")
JOBS = st.builds(
    Job,
    name=st.just("job-1"),
    program=st.sampled_from(PROGRAMS),
    environment=st.just("airflow"),
    payload=st.fixed_dictionaries({}, optional={"artifact_digest": st.just(DIGEST), "text": st.text()}),
    deadline_s=st.integers(1, 90_000),
    accelerator=st.sampled_from(["", "cpu", H100]),
    accelerators=st.integers(0, 8),
    memory_bytes=st.integers(0, 10**12),
    disk_bytes=st.integers(0, 10**13),
    model=st.sampled_from(["", "tiny", "Llama 3.1/8B"]),
    release=st.sampled_from(["", "20261130-120310-4f0c2a"]),
    image=st.sampled_from(["", "registry.example/ray-llm@sha256:" + "a" * 64]),
)


def stage_job(accelerator: str = H100, root: str = SITE.node_root) -> Job:
    """A job that stages an artifact."""
    payload = {"artifact_digest": DIGEST, "artifact_uri": f"s3://headway/artifacts/{DIGEST}/", "dest_root": root}
    return Job(
        name="stage-abababababab-123456",
        program="stage",
        environment="airflow",
        payload=payload,
        deadline_s=60,
        accelerator=accelerator,
        model="Llama 3.1/8B",
    )


# --- The objects ------------------------------------------------------------------------------------------------------


@given(JOBS)
def test_a_job_of_any_shape_is_valid_and_restricted(job: Job) -> None:
    """What the API server and Pod Security would refuse is not made."""
    made = job_objects.batch_job(SITE, job)
    assert [*faults(made), *incoherent(made), *not_restricted(made)] == []
    assert made["spec"]["backoffLimit"] == 0
    assert made["spec"]["activeDeadlineSeconds"] == job.deadline_s
    [main] = made["spec"]["template"]["spec"]["containers"]
    wanted = 0 if job.accelerator in ("", "cpu") else job.accelerators
    assert int(main["resources"]["limits"].get(GPU, 0)) == wanted


@pytest.mark.parametrize("accelerator", ["", "cpu", H100])
def test_a_stage_set_is_valid_and_restricted(accelerator: str) -> None:
    """Only the program writes to the node; ready means that the artifact's directory is there."""
    made = job_objects.stage_set(SITE, stage_job(accelerator))
    assert [*faults(made), *incoherent(made), *not_restricted(made)] == []
    spec = made["spec"]["template"]["spec"]
    [waits], [stages] = spec["containers"], spec["initContainers"]
    assert waits["readinessProbe"]["exec"]["command"] == ["test", "-d", f"{SITE.node_root}/{DIGEST}"]
    assert [one["readOnly"] for one in waits["volumeMounts"]] == [True]
    [node] = [one for one in stages["volumeMounts"] if one["name"] == programs.NODE_VOLUME]
    assert "readOnly" not in node


def test_releases_of_one_artifact_share_a_set() -> None:
    """A later job does not roll the pods that have the artifact; another accelerator has a set of its own."""
    one = stage_job()
    other = one.model_copy(
        update={"name": "stage-abababababab-654321", "payload": {**one.payload, "pins": ["cd" * 32]}}
    )
    assert job_objects.stage_set(SITE, one) == job_objects.stage_set(SITE, other)
    assert job_objects.set_name(DIGEST, H100) != job_objects.set_name(DIGEST, "NVIDIA-H200")
    assert len(job_objects.set_name(DIGEST, "X" * 90)) <= 63


# --- What a release asks for ------------------------------------------------------------------------------------------


def asked(plan: ReleasePlan, weights: FakeWeightStore) -> dict[str, Job]:
    """What the steps quantize and stage submit, by program."""
    jobs = FakeJobs()
    quantize.advance(plan, jobs, weights, None)
    if weights.manifest(plan.artifact_digest) is not None:
        stage.begin(plan, jobs, weights, release="r1")
    return {job.program: job for job in jobs.jobs.values()}


def test_a_release_names_the_hardware_of_its_profile() -> None:
    """Who measures gets the accelerators of a replica, validators one in the image that serves, staging none."""
    plan = make_plan()
    hardware = Hardware(accelerator=H100, per_replica=2)
    plan = plan.model_copy(update={"profile": plan.profile.model_copy(update={"hardware": hardware})})
    first = asked(plan, FakeWeightStore())["quantize"]
    assert (first.accelerator, first.accelerators, first.model) == (H100, 2, plan.model)
    assert first.disk_bytes == 3 * plan.selection.size_bytes
    later = asked(plan, store(plan, perplexity=10, artifact=True))
    assert (later["quality"].accelerators, later["quality"].image) == (1, plan.serving_image)
    assert (later["stage"].accelerator, later["stage"].accelerators) == (H100, 0)


# --- How a run ended --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "phase"), [(1, "failed"), (2, "failed"), (75, "retryable"), (143, "retryable")])
def test_an_exit_code_says_whether_another_try_may_help(code: int, phase: JobPhase) -> None:
    """75 asks for it, and a signal came from outside."""
    assert phase_of(code) == phase


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        ("Pod headway/a-x has condition DisruptionTarget matching FailJob rule at index 0", "retryable"),
        ("Container main for pod headway/a-x failed with exit code 1 matching FailJob rule at index 1", "failed"),
        ("Container main for pod headway/a-x failed with exit code 75 matching FailJob rule at index 1", "retryable"),
        ("Job has reached the specified backoff limit", "retryable"),
        ("", "retryable"),
    ],
)
def test_a_job_remembers_how_its_pod_ended(message: str, phase: JobPhase) -> None:
    """A pod that went with its node leaves its exit code in the Job's condition."""
    status = without_pod("a", message)
    assert (status.phase, bool(status.reason)) == (phase, True)


# --- How far staging is -----------------------------------------------------------------------------------------------


def node(name: str, *, ready: bool = True, taint: str = "", cordoned: bool = False) -> dict[str, Any]:
    """A node of the accelerator."""
    taints = [{"key": GPU, "value": "present", "effect": "NoSchedule"}]
    taints += [{"key": taint, "effect": "NoSchedule"}] if taint else []
    return {
        "metadata": {"name": name, "labels": {PRODUCT: H100}},
        "spec": {"taints": taints, "unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False", "message": "gone"}]},
    }


def pod(on: str, state: str, *, at: int = 0, message: str = "", code: int = 0) -> dict[str, Any]:
    """A pod of the set: `starts`, `stages`, `failed`, `again` (failed, and started again), `waits` or `ready`."""
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
    stage: dict[str, Any] = {"name": stage_view.STAGE, "state": {"waiting": {}}}
    if state in ("stages", "again"):
        stage["state"] = {"running": {"startedAt": AT.isoformat()}}
    if state == "again":
        stage["lastState"] = {"terminated": ended}
    if state in ("failed", "waits", "ready"):
        stage["state"] = {"terminated": ended}
    waits = {"running": {"startedAt": AT.isoformat()}} if state in ("waits", "ready") else {"waiting": {}}
    made = (AT + timedelta(seconds=at)).isoformat()
    return {
        "metadata": {"name": f"stage-{on}-{at}", "creationTimestamp": made},
        "spec": {"nodeName": on, "containers": [], "initContainers": []},
        "status": {
            "conditions": [{"type": "Ready", "status": str(state == "ready")}],
            "initContainerStatuses": [stage],
            "containerStatuses": [{"name": stage_view.WAIT, "state": waits}],
        },
    }


def look(nodes: list[dict[str, Any]], pods: list[dict[str, Any]], later_s: float = 1) -> stage_view.View:
    """Where they stand, some seconds after the pods started."""
    return stage_view.look(nodes, pods, [dict(one) for one in programs.TOLERATIONS], AT.timestamp() + later_s, 60)


STATES = st.sampled_from(["starts", "stages", "failed", "again", "waits", "ready", "none"])
KINDS = st.sampled_from(["open", "not-ready", "cordoned", "tainted"])


@given(st.lists(st.tuples(KINDS, STATES), max_size=6))
def test_it_is_whole_when_every_node_that_counts_has_it(given_nodes: list[tuple[str, str]]) -> None:
    """A node that is not ready, cordoned or kept for others holds nothing up, and is named."""
    nodes, pods = [], []
    for number, (kind, state) in enumerate(given_nodes):
        taint = "spot" if kind == "tainted" else ""
        nodes.append(node(f"n{number}", ready=kind != "not-ready", taint=taint, cordoned=kind == "cordoned"))
        if state != "none":
            pods.append(pod(f"n{number}", state, code=1 if state in ("failed", "again") else 0))
    view = look(nodes, pods)
    counting = [state for kind, state in given_nodes if kind == "open"]
    assert view.whole == (bool(counting) and all(state == "ready" for state in counting))
    assert (len(view.wanted), len(view.done)) == (len(counting), counting.count("ready"))
    assert len(view.away) == len(given_nodes) - len(counting)
    assert (view.failure is not None) == any(state in ("failed", "again") for state in counting)
    assert view.without_pod == ("none" in counting)
    assert f"{len(view.done)} of {len(view.wanted)}" in view.words or not counting


def test_the_newest_pod_of_a_node_counts() -> None:
    """What an earlier one came to, or one that is on its way out, says nothing."""
    gone = pod("n0", "ready", at=1)
    gone["metadata"]["deletionTimestamp"] = AT.isoformat()
    view = look([node("n0")], [pod("n0", "failed", code=1), gone, pod("n0", "stages", at=2)])
    assert (view.whole, view.failure, len(view.behind)) == (False, None, 1)


def test_an_artifact_that_made_room_is_noticed() -> None:
    """A pod that staged well and is not ready long after has lost it; at its start it has not been asked yet."""
    nodes, pods = [node("n0")], [pod("n0", "waits")]
    assert look(nodes, pods).emptied == ()
    assert look(nodes, pods, later_s=61).emptied == tuple(pods)


def test_a_program_that_asks_for_another_try_has_not_given_up() -> None:
    """Kubernetes starts it again; only exit code 1 is its last word."""
    assert look([node("n0")], [pod("n0", "again", code=75)]).failure is None
    failure = look([node("n0")], [pod("n0", "again", code=1, message="no")]).failure
    assert failure == stage_view.Failure("n0", "no")
