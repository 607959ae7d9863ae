"""Jobs on a real control plane, with programs that really run: adopted, broken in every way, cancelled.

The programs are those of `tests.probes`, which do as their payload says.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.jobs import OF_JOB, KubernetesJobs
from headway.adapters.kubernetes.kinds import CONFIG_MAP
from headway.adapters.kubernetes.site import BATCH_ACCOUNT
from headway.domain.job import Job, JobStatus
from headway.errors import BackendUnavailable, Conflict, Refused

from .handed import Handed, handed, nothing_stored
from .rig.annotations import ENDS_IN, FAULT
from .rig.api import JOB, NODE, POD, Kind, wait_until
from .rig.nodes import H100, nodes
from .sites import KubernetesSite
from .storm import storm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

PATIENCE_S = 1.0
QUOTA, MAP = Kind("v1", "ResourceQuota"), Kind("v1", "ConfigMap")
B200 = replace(H100, product="NVIDIA-B200")


@pytest.fixture
def case(kubernetes_site: KubernetesSite, rig: object, tmp_path: Path) -> Iterator[Handed]:
    """Jobs of a prepared namespace."""
    with handed(kubernetes_site, tmp_path, package="tests.probes", patience_s=PATIENCE_S) as made:
        yield made


def make_job(name: str = "probe-1", *, deadline_s: int = 60, accelerator: str = "", **payload: object) -> Job:
    """A job whose program does as its payload says."""
    return Job(
        name=name,
        program="bench",
        environment="airflow",
        payload=dict(payload),
        deadline_s=deadline_s,
        accelerator=accelerator,
        accelerators=1 if accelerator else 0,
    )


def until(jobs: KubernetesJobs, condition: Callable[[JobStatus], bool], within_s: float = 30) -> JobStatus:
    """Look at the job until a condition holds."""
    ends = monotonic() + within_s
    while not condition(status := jobs.status("probe-1")):
        assert monotonic() < ends, f"still {status}"
        sleep(0.1)
    return status


def ended(jobs: KubernetesJobs) -> JobStatus:
    """Wait for the job's end."""
    return until(jobs, lambda status: status.ended)


def pods(case: Handed) -> list[dict[str, Any]]:
    """The pods of the job."""
    return case.at.api.list(POD, case.site.namespace, labelSelector=f"{OF_JOB}=probe-1")


def running_pod(case: Handed) -> dict[str, Any]:
    """The pod of the job once its program runs."""
    wait_until(lambda: [one for one in pods(case) if one["status"]["phase"] == "Running"], "the program runs")
    [pod] = pods(case)
    return pod


def finish(case: Handed) -> None:
    """Let a program that waits end."""
    (case.work(running_pod(case)) / "go").touch()


def left(case: Handed) -> list[str]:
    """What is there of the job."""
    namespace = case.site.namespace
    found = [kind.name for kind in (JOB, MAP) if case.at.api.get(kind, "probe-1", namespace)]
    return [*found, *(one["metadata"]["name"] for one in pods(case))]


def with_template(case: Handed, folder: Path, change: Callable[[dict[str, Any]], None]) -> KubernetesJobs:
    """Return jobs whose template is changed: faults that a pod is born with, and quicker ends."""
    target = folder / "templates"
    shutil.copytree(case.site.templates, target)
    content = yaml.safe_load((target / "job.yaml").read_text())
    change(content["spec"]["template"])
    (target / "job.yaml").write_text(yaml.safe_dump(content))
    return KubernetesJobs(case.at.client, replace(case.site, templates=target), nothing_stored, patience_s=PATIENCE_S)


# --- While it runs ----------------------------------------------------------------------------------------------------


def test_its_progress_and_its_log_are_shown(case: Handed) -> None:
    """What the program said last of its progress, whatever else it prints."""
    case.jobs.submit(make_job(hold=True, say=["  3.0 % reading", " 41.5 % fetching", "a library warns"]))
    status = until(case.jobs, lambda status: status.progress_pct == 41.5)
    assert (status.phase, status.reason) == ("running", "fetching")
    assert case.jobs.log_tail("probe-1", 2) == " 41.5 % fetching\na library warns"
    case.jobs.cancel("probe-1")
    assert case.jobs.log_tail("probe-1") == ""


def test_an_image_without_our_code_gets_it(case: Handed) -> None:
    """What is asked of the serving environment is asked in its own image; the code is copied beside it first."""
    image = "registry.example/ray-llm@sha256:" + "a" * 64
    job = make_job(hold=True, result={"answer": 42}).model_copy(update={"image": image})
    case.jobs.submit(job)
    pod = running_pod(case)
    assert [one["image"] for one in pod["spec"]["containers"]] == [image]
    code = case.work(pod).with_name("headway-code")
    assert (code / "headway" / "pods" / "run.py").exists()
    finish(case)
    assert ended(case.jobs).result == {"answer": 42}


# --- Adoption ---------------------------------------------------------------------------------------------------------


def test_a_job_outlives_who_asked_for_it(case: Handed, cluster: Any) -> None:
    """Another process finds it by its name, adopts it, and reads what it came to; it was started once."""
    case.jobs.submit(make_job(hold=True, result={"answer": 42}))
    running_pod(case)
    client = Client.connect(cluster.kubeconfig)
    other = KubernetesJobs(client, case.site, nothing_stored)
    assert other.submit(make_job(hold=True)).phase == "running"
    finish(case)
    status = ended(other)
    assert (status.phase, status.result) == ("succeeded", {"answer": 42})
    assert other.submit(make_job(hold=True)) == status
    assert len(case.hands.started) == 1
    client.close()


def test_four_at_once_start_one(case: Handed) -> None:
    """Whoever comes second adopts; nobody fails, and the input belongs to the one Job."""
    found: list[JobStatus] = []
    threads = [threading.Thread(target=lambda: found.append(case.jobs.submit(make_job(hold=True)))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [one.phase for one in found] == ["running"] * 4
    [pod] = pods(case)
    finish(case)
    assert ended(case.jobs).phase == "succeeded"
    made = case.at.api.get(JOB, "probe-1", case.site.namespace)
    kept = case.at.api.get(MAP, "probe-1", case.site.namespace)
    assert made is not None
    assert kept is not None
    assert [one["uid"] for one in kept["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    assert case.hands.started == [f"{pod['metadata']['name']}/main"]


def test_a_job_that_is_on_its_way_out_is_waited_for(case: Handed, tmp_path: Path) -> None:
    """Somebody deletes it while it runs: the next try is a new Job with an input of its own, not the dying one."""

    def slow(template: dict[str, Any]) -> None:
        template["metadata"]["annotations"][ENDS_IN] = "1500ms"

    jobs = with_template(case, tmp_path, slow)
    jobs.submit(make_job(hold=True))
    first = running_pod(case)
    case.at.api.delete(JOB, "probe-1", case.site.namespace, propagation="Foreground")
    assert jobs.status("probe-1").phase == "retryable"
    assert jobs.submit(make_job(result={"answer": 42})).phase in ("running", "succeeded")
    assert ended(jobs).result == {"answer": 42}
    assert first["metadata"]["uid"] not in {one["metadata"]["uid"] for one in pods(case)}


def test_the_input_of_a_job_that_is_gone_is_not_taken_for_the_next(case: Handed) -> None:
    """Kubernetes collects it some time after its Job; the next run's own stays."""
    for answer in range(3):
        case.jobs.submit(make_job(result={"answer": answer}))
        assert ended(case.jobs).result == {"answer": answer}
        case.at.api.delete(JOB, "probe-1", case.site.namespace)
        wait_until(lambda: case.at.api.get(JOB, "probe-1", case.site.namespace) is None, "the Job is gone")


def test_an_input_whose_job_was_never_made_goes_with_cancel(case: Handed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever submitted it was killed between the two; the next try goes on, and a cancel leaves nothing."""
    client = case.at.client
    real, killed = client.create, RuntimeError("killed")

    def die(*_: Any) -> Any:
        raise killed

    monkeypatch.setattr(client, "create", die)
    with pytest.raises(RuntimeError, match="killed"):
        case.jobs.submit(make_job())
    assert left(case) == ["ConfigMap"]
    case.jobs.cancel("probe-1")
    assert left(case) == []

    with pytest.raises(RuntimeError, match="killed"):
        case.jobs.submit(make_job(result={"answer": 42}))
    monkeypatch.setattr(client, "create", real)
    case.jobs.submit(make_job(result={"answer": 42}))
    assert ended(case.jobs).result == {"answer": 42}


def test_what_is_not_ours_stays_untouched(case: Handed) -> None:
    """Somebody else's Job, and somebody else's ConfigMap, under our name."""
    api, namespace = case.at.api, case.site.namespace
    metadata = {"name": "probe-1", "namespace": namespace}
    theirs = api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"theirs": "yes"}})
    with pytest.raises(Conflict, match=f"ConfigMap {namespace}/probe-1 is there and not headway's"):
        case.jobs.submit(make_job())
    assert api.get(MAP, "probe-1", namespace) == theirs
    assert api.get(JOB, "probe-1", namespace) is None


# --- Ways to fail -----------------------------------------------------------------------------------------------------


def test_a_pod_that_somebody_deleted_is_tried_again(case: Handed) -> None:
    """The loss is no word of the program; the next try is a new run."""
    case.jobs.submit(make_job(hold=True, result={"answer": 42}))
    case.at.api.delete(POD, running_pod(case)["metadata"]["name"], case.site.namespace)
    status = ended(case.jobs)
    assert status.phase == "retryable", status
    assert case.jobs.submit(make_job(hold=True, result={"answer": 42})).phase == "running"
    finish(case)
    assert ended(case.jobs).result == {"answer": 42}


FAULTS = {
    "oom": ("failed", "killed for memory (OOMKilled) at its limit of 4Gi"),
    "evicted": ("retryable", "was evicted from node"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_node_did_is_told(case: Handed, fault: str) -> None:
    """Too little memory needs a person; an eviction needs another try."""
    phase, words = FAULTS[fault]
    case.jobs.submit(make_job(hold=True))
    case.at.api.annotate(POD, running_pod(case)["metadata"]["name"], {FAULT: fault}, case.site.namespace)
    status = ended(case.jobs)
    assert status.phase == phase
    assert words in status.reason


def test_an_image_that_is_not_there_ends_the_job(case: Handed, tmp_path: Path) -> None:
    """Waiting brings no image: after a moment it has failed, the reason names the image and stays, nothing runs."""

    def no_image(template: dict[str, Any]) -> None:
        template["metadata"]["annotations"][FAULT] = "image-pull"

    jobs = with_template(case, tmp_path, no_image)
    assert jobs.submit(make_job()).phase == "running"
    status = ended(jobs)
    assert status.phase == "failed"
    assert "image headway-pods" in status.reason
    wait_until(lambda: not pods(case), "its pod is gone")
    assert jobs.status("probe-1") == status


def test_a_secret_that_is_missing_is_named(case: Handed) -> None:
    """The kubelet says which one; a person makes it."""
    case.at.api.delete(Kind("v1", "Secret"), "headway-s3-bench", case.site.namespace)
    case.jobs.submit(make_job())
    status = ended(case.jobs)
    assert status.phase == "failed"
    assert 'secret "headway-s3-bench" not found' in status.reason


def test_a_job_that_no_node_takes_waits_until_its_deadline(case: Handed) -> None:
    """A node may come; at the deadline the reason is still known."""
    case.jobs.submit(make_job(accelerator="NVIDIA-B200", deadline_s=4))
    waits = until(case.jobs, lambda status: "no node takes pod" in status.reason)
    assert waits.phase == "running"
    assert "1 x NVIDIA-B200 are missing" in waits.reason
    status = ended(case.jobs)
    assert status.phase == "failed"
    assert "deadline of 4 s" in status.reason
    assert "1 x NVIDIA-B200 are missing" in status.reason


def test_a_deadline_ends_the_program(case: Handed) -> None:
    """It has failed for being slow, and its process is gone."""
    case.jobs.submit(make_job(hold=True, deadline_s=2))
    running_pod(case)
    status = ended(case.jobs)
    assert (status.phase, status.reason) == ("failed", "it took longer than its deadline of 2 s and was ended")
    wait_until(lambda: not list(case.hands.folder.glob("*")), "its process has ended")


def test_a_node_that_is_lost_does_not_hold_the_job(case: Handed, rig: Any, tmp_path: Path) -> None:
    """A pod that nobody can end any more is given up, and the next try does not wait for it."""

    def lingers(template: dict[str, Any]) -> None:
        template["spec"]["terminationGracePeriodSeconds"] = 1
        template["metadata"]["annotations"][ENDS_IN] = "1h"

    jobs = with_template(case, tmp_path, lingers)
    rig.add_nodes(nodes(B200, "lost", 1))
    try:
        jobs.submit(make_job(hold=True, accelerator=B200.product))
        running_pod(case)
        case.hands.frozen.add("lost-0")
        rig.fault("lost-0", "not-ready")
        status = ended(jobs)
        assert (status.phase, status.reason) == ("retryable", "its node lost-0 is lost, and the pod with it")
        jobs.cancel("probe-1")
        assert left(case) == []
    finally:
        case.at.api.delete(NODE, "lost-0")


def test_without_rights_nothing_is_made(case: Handed, rig: Any) -> None:
    """The refusal names what is forbidden."""
    client = Client.connect(rig.account_kubeconfig(BATCH_ACCOUNT, case.site.namespace))
    with pytest.raises(Refused, match=r"403 Forbidden.*give this account the right"):
        KubernetesJobs(client, case.site, nothing_stored).submit(make_job())
    assert left(case) == []
    client.close()


def test_a_full_quota_is_waited_for(case: Handed) -> None:
    """The reason says whose quota; when there is room the job runs by itself."""
    metadata = {"name": "full", "namespace": case.site.namespace}
    case.at.api.create(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "0"}}}
    )
    wait_until(lambda: (case.at.api.get(QUOTA, "full", case.site.namespace) or {}).get("status"), "the quota counts")
    case.jobs.submit(make_job(result={"answer": 42}))
    status = until(case.jobs, lambda status: "quota" in status.reason)
    assert status.phase == "running"
    assert "exceeded quota: full" in status.reason
    case.at.api.delete(QUOTA, "full", case.site.namespace)
    assert ended(case.jobs).result == {"answer": 42}


# --- The end ----------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_is_gone_when_cancel_returns(case: Handed, tmp_path: Path) -> None:
    """Also one that hangs and takes its time to end: Job, pod and input are gone then, not soon after."""

    def slow(template: dict[str, Any]) -> None:
        template["metadata"]["annotations"][ENDS_IN] = "1500ms"

    jobs = with_template(case, tmp_path, slow)
    jobs.submit(make_job(hold=True))
    running_pod(case)
    started = monotonic()
    jobs.cancel("probe-1")
    assert left(case) == []
    assert monotonic() - started > 1.4
    assert jobs.status("probe-1").phase == "absent"


# --- The API server ---------------------------------------------------------------------------------------------------


def test_an_api_server_that_dies_costs_a_look(case: Handed, rig: Any) -> None:
    """While it is away the look fails and may be repeated; the program runs on, and its result is not lost."""
    case.jobs.submit(make_job(hold=True, result={"answer": 42}))
    pod = running_pod(case)
    rig.kill("api")
    with pytest.raises(BackendUnavailable):
        case.jobs.status("probe-1")
    (case.work(pod) / "go").touch()
    wait_until(lambda: not (case.work(pod) / "go").exists() or (case.work(pod) / "result.json").exists(), "it ends")
    rig.restart("api")
    assert ended(case.jobs).result == {"answer": 42}
    assert len(case.hands.started) == 1


def test_a_storm_of_429_is_sat_out(case: Handed, cluster: Any) -> None:
    """Every request is turned away twice; the job is started once, read and cancelled all the same."""
    with storm(cluster.kubeconfig) as (played, client):
        played.turns["*"] = (429, 2)
        jobs = KubernetesJobs(client, case.site, nothing_stored)
        jobs.submit(make_job(hold=True, result={"answer": 42}))
        finish(case)
        assert ended(jobs).result == {"answer": 42}
        assert played.seen["POST", 429] >= 2
    assert len(case.hands.started) == 1


def test_a_conflict_leaves_nothing_half_made(case: Handed, cluster: Any) -> None:
    """A write that is refused for a conflict may be repeated by whoever wanted it; until then nothing is there."""
    with storm(cluster.kubeconfig) as (played, client):
        played.turns["POST"] = (409, 1)
        jobs = KubernetesJobs(client, case.site, nothing_stored)
        with pytest.raises(Conflict) as caught:
            jobs.submit(make_job(result={"answer": 42}))
        assert caught.value.retryable
        assert left(case) == []
        jobs.submit(make_job(result={"answer": 42}))
        assert ended(jobs).result == {"answer": 42}
    assert case.at.client.get(CONFIG_MAP, "probe-1", case.site.namespace) is not None
