"""Staging on a real control plane: a real DaemonSet; where bytes matter (`case`) the real program and a real store.

All nodes of the rig share one folder of this machine, so one of them downloads and the others find it.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headway.adapters.kubernetes import kinds
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.job_objects import ASKED_BY, SET, set_name
from headway.adapters.kubernetes.site import STAGE_ACCOUNT
from headway.adapters.local.secrets import read_s3
from headway.domain.job import Job, JobStatus
from headway.domain.weight_jobs import StageJob
from headway.domain.weights import Manifest, WeightFile
from headway.errors import Conflict, Refused
from headway.pods.attest import sign
from tests.component.servers import S3Server, s3_server

from .handed import Handed, handed, nothing_stored
from .rig.api import DAEMON_SET, NODE, POD, Kind, condition, wait_until
from .rig.nodes import H100, L40S, nodes
from .rig.rig import Rig
from .sites import KubernetesSite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

MAP = Kind("v1", "ConfigMap")
KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
H100_NODES = ("h100-0", "h100-1", "h100-2")
SPOT = "spot-0 does not count: taint spot=true:NoSchedule"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One store for this module; each test has an artifact of its own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def quick(kubernetes_site: KubernetesSite, rig: Rig, tmp_path: Path) -> Iterator[Handed]:
    """Stage jobs whose program only makes the directory (`tests.probes.stage`)."""
    with handed(kubernetes_site, tmp_path, package="tests.probes", patience_s=2) as made:
        yield made


@pytest.fixture
def case(kubernetes_site: KubernetesSite, rig: Rig, s3: S3Server, tmp_path: Path) -> Iterator[Handed]:
    """Stage jobs of a prepared namespace, whose programs know who signs artifacts."""
    with handed(
        kubernetes_site,
        tmp_path,
        s3={"stage": read_s3(s3.credentials("stage"))},
        s3_endpoint=s3.endpoint,
        artifact_keys=PUBLIC.decode(),
        patience_s=2,
    ) as made:
        yield made


def digest_of(name: str) -> str:
    """The digest of an artifact."""
    return hashlib.sha256(name.encode()).hexdigest()


def put_artifact(s3: S3Server, name: str, *, signed: bool = True) -> str:
    """Publish an artifact; return its digest."""
    digest = digest_of(name)
    uri, listed = f"s3://headway/artifacts/{digest}/", []
    for path, body in {"model.safetensors": os.urandom(200_000), "config.json": b"{}"}.items():
        s3.client().put(uri + path, body)
        sha256 = hashlib.sha256(body).hexdigest()
        listed.append(WeightFile(path=path, size_bytes=len(body), sha256=sha256, parts=(sha256,)))
    made = Manifest(artifact_digest=digest, files=tuple(listed))
    if signed:
        made = made.model_copy(update={"statement": sign(made, KEY)})
    s3.client().put(uri + "manifest.json", made.model_dump_json().encode())
    return digest


def make_job(
    case: Handed,
    digest: str,
    *,
    release: str = "r1",
    accelerator: str = H100.product,
    pins: tuple[str, ...] = (),
    deadline_s: int = 60,
) -> Job:
    """A job that stages an artifact, as a release makes it."""
    wanted = StageJob(
        artifact_digest=digest,
        artifact_uri=f"s3://headway/artifacts/{digest}/",
        dest_root=case.site.node_root,
        pins=pins,
    )
    return Job(
        name=f"stage-{digest[:12]}-{release}",
        program="stage",
        environment="airflow",
        payload=wanted.to_json(),
        deadline_s=deadline_s,
        accelerator=accelerator,
        model="tiny",
    )


def until(case: Handed, job: Job, holds: Callable[[JobStatus], bool], within_s: float = 40) -> JobStatus:
    """Look at a job until a condition holds."""
    ends = monotonic() + within_s
    while not holds(status := case.jobs.status(job.name)):
        assert monotonic() < ends, f"still {status}; hands: {case.hands.errors}"
        sleep(0.1)
    return status


def staged(case: Handed, job: Job) -> JobStatus:
    """Submit a job and wait for its end."""
    case.jobs.submit(job)
    return until(case, job, lambda status: status.ended)


def left(case: Handed) -> list[str]:
    """What is there of stage jobs."""
    api, namespace = case.at.api, case.site.namespace
    found = [*api.list(DAEMON_SET, namespace), *api.list(MAP, namespace, labelSelector=SET)]
    found += api.list(MAP, namespace, labelSelector="app.kubernetes.io/component=stage")
    found += api.list(POD, namespace, labelSelector=SET)
    return sorted({one["metadata"]["name"] for one in found})


def set_of(case: Handed, digest: str, accelerator: str = H100.product) -> dict[str, Any]:
    """The DaemonSet of an artifact."""
    found = case.at.api.get(DAEMON_SET, set_name(digest, accelerator), case.site.namespace)
    assert found is not None
    return found


# --- As it should go --------------------------------------------------------------------------------------------------


def test_every_node_of_the_kind_has_it(case: Handed, s3: S3Server) -> None:
    """The program's own result comes back; nodes that are kept for others do not count, and are named."""
    digest = put_artifact(s3, "all")
    status = staged(case, make_job(case, digest))
    assert (status.phase, status.reason) == ("succeeded", f"3 of 3 nodes have it; {SPOT}")
    assert status.result is not None
    assert status.result["path"] == f"{case.site.node_root}/{digest}"
    assert status.result["artifact_digest"] == digest
    assert sorted(path.name for path in Path(status.result["path"]).iterdir()) == ["config.json", "model.safetensors"]
    on = {one["spec"]["nodeName"] for one in case.at.api.list(POD, case.site.namespace, labelSelector=SET)}
    assert on == set(H100_NODES)
    assert "100.0 %" in case.jobs.log_tail(make_job(case, digest).name)


def test_a_node_that_joins_gets_it_by_itself(quick: Handed, rig: Rig) -> None:
    """Nobody submits anything for it; a node that leaves is no longer counted."""
    digest = digest_of("joins")
    job = make_job(quick, digest, accelerator=L40S.product)
    assert staged(quick, job).reason == "2 of 2 nodes have it"
    rig.add_nodes(nodes(L40S, "joins", 1))
    try:
        until(quick, job, lambda status: status.reason.startswith("3 of 3"))
    finally:
        quick.at.api.delete(NODE, "joins-0")
    assert until(quick, job, lambda status: status.phase == "succeeded").reason == "2 of 2 nodes have it"
    # Kubernetes forgets the pods of a node that is gone after 40 s.
    for pod in quick.at.api.list(POD, quick.site.namespace, fieldSelector="spec.nodeName=joins-0"):
        quick.at.client.delete(kinds.POD, pod["metadata"]["name"], quick.site.namespace, grace_s=0)


def test_the_slowest_node_is_named(quick: Handed) -> None:
    """A person sees how many have it and what the others wait for; it is done when the last one is."""
    quick.hands.frozen.add("h100-2")
    job = make_job(quick, digest_of("slow"))
    quick.jobs.submit(job)
    status = until(quick, job, lambda status: status.reason.startswith("2 of 3"))
    assert status.phase == "running"
    assert "starts on h100-2" in status.reason
    quick.hands.frozen.clear()
    assert until(quick, job, lambda status: status.ended).phase == "succeeded"


def test_a_node_that_is_not_ready_holds_nothing_up(quick: Handed, rig: Rig) -> None:
    """It is named, and gets the artifact when it is back."""
    rig.fault("h100-2", "not-ready")
    try:
        wait_until(lambda: condition(quick.at.api.get(NODE, "h100-2"), "Ready") != "True", "the node is down")
        job = make_job(quick, digest_of("down"))
        status = staged(quick, job)
    finally:
        rig.fault("h100-2", None)
    assert status.phase == "succeeded"
    assert status.reason.startswith("2 of 2 nodes have it; h100-2 does not count: not ready")
    until(quick, job, lambda status: status.reason.startswith("3 of 3"))


# --- Sharing and ending -----------------------------------------------------------------------------------------------


def test_releases_of_one_artifact_share_its_set(quick: Handed) -> None:
    """The second one finds it done, no pod is replaced; cancelling one leaves it to the other."""
    digest = digest_of("shared")
    quick.hands.frozen.add("h100-2")
    one, two = make_job(quick, digest), make_job(quick, digest, release="r2", pins=("ab" * 32,))
    quick.jobs.submit(one)
    quick.jobs.submit(two)
    made = set_of(quick, digest)
    assert made["metadata"]["generation"] == 1
    quick.jobs.cancel(one.name)
    assert quick.jobs.status(one.name).phase == "absent"
    quick.hands.frozen.clear()
    assert until(quick, two, lambda status: status.ended).phase == "succeeded"
    assert set_of(quick, digest)["metadata"]["uid"] == made["metadata"]["uid"]
    assert staged(quick, make_job(quick, digest, release="r3")).phase == "succeeded"
    assert len([one for one in quick.hands.started if one.endswith("/stage")]) == len(H100_NODES)


def test_the_last_cancel_takes_the_set_away(quick: Handed) -> None:
    """Nothing of it is left when cancel returns; cancelling twice is fine."""
    quick.hands.frozen.add("h100-2")
    job = make_job(quick, digest_of("cancelled"))
    quick.jobs.submit(job)
    until(quick, job, lambda status: status.reason.startswith("2 of 3"))
    quick.jobs.cancel(job.name)
    quick.jobs.cancel(job.name)
    assert set_name(job.payload["artifact_digest"], job.accelerator) not in left(quick)
    assert not quick.at.api.list(POD, quick.site.namespace, labelSelector=SET)
    wait_until(lambda: not left(quick), "what belonged to it is gone")


def test_a_sweep_keeps_what_is_pinned_or_under_way(quick: Handed) -> None:
    """Only a set goes that no cluster has and no release has just asked for; files stay until they make room."""
    digests = {name: digest_of(name) for name in ("pinned", "new", "old")}
    jobs = {name: make_job(quick, digest, accelerator=L40S.product) for name, digest in digests.items()}
    for job in jobs.values():
        quick.jobs.submit(job)
    for job in jobs.values():
        assert until(quick, job, lambda status: status.ended).phase == "succeeded"
    for name in ("pinned", "old"):
        quick.at.api.delete(MAP, jobs[name].name, quick.site.namespace)
    quick.jobs.stages.sweep([digests["pinned"]])
    names = {name: set_name(digest, L40S.product) for name, digest in digests.items()}
    wait_until(
        lambda: quick.at.api.get(DAEMON_SET, names["old"], quick.site.namespace) is None, "the old one is swept away"
    )
    there = {one["metadata"]["name"] for one in quick.at.api.list(DAEMON_SET, quick.site.namespace)}
    assert there == {names["pinned"], names["new"]}
    quick.jobs.stages.remove(digests["new"])
    assert names["new"] not in left(quick)
    assert (Path(quick.site.node_root) / digests["old"]).is_dir()


def test_an_artifact_that_made_room_comes_again(case: Handed, s3: S3Server) -> None:
    """Ready means that it is there now; who asks for it again gets it."""
    digest = put_artifact(s3, "evicted")
    job = make_job(case, digest, accelerator=L40S.product)
    assert staged(case, job).phase == "succeeded"
    shutil.rmtree(Path(case.site.node_root) / digest)
    both = [f"l40s-{number}" for number in range(2)]
    status = until(case, job, lambda status: all(name in status.reason for name in both) and status.ended)
    assert status.phase == "retryable"
    assert "it was there and has made room for others" in status.reason
    assert staged(case, job).phase == "succeeded"
    assert (Path(case.site.node_root) / digest / "config.json").exists()


# --- Refused ----------------------------------------------------------------------------------------------------------


def test_no_node_of_the_kind_is_said_at_once(quick: Handed) -> None:
    """It names what the cluster has, and nothing is made."""
    with pytest.raises(Refused, match="no node of the cluster has NVIDIA-B200; it has NVIDIA-H100-80GB-HBM3") as caught:
        quick.jobs.submit(make_job(quick, "ab" * 32, accelerator="NVIDIA-B200"))
    assert "NVIDIA-L40S (2 nodes)" in caught.value.message
    assert left(quick) == []


def test_an_artifact_that_is_not_signed_is_staged_on_no_node(case: Handed, s3: S3Server) -> None:
    """The program's own words come back with the node; when it is signed, another try stages it."""
    digest = put_artifact(s3, "unsigned", signed=False)
    job = make_job(case, digest, accelerator=L40S.product)
    status = staged(case, job)
    assert status.phase == "failed"
    assert status.reason.startswith("node l40s-")
    assert f"artifact {digest} is not signed" in status.reason
    assert status.result is not None
    assert status.result["kind"] == "Refused"
    assert not (Path(case.site.node_root) / digest).exists()
    put_artifact(s3, "unsigned")
    assert staged(case, job).phase == "succeeded"


def test_a_deadline_ends_the_wait(quick: Handed) -> None:
    """It says how far it came; the set goes on, and a later try may find it done."""
    quick.hands.frozen.add("h100-2")
    job = make_job(quick, digest_of("late"), deadline_s=4)
    status = staged(quick, job)
    assert status.phase == "failed"
    assert status.reason.startswith("it took longer than its deadline of 4 s: 2 of 3 nodes have it")
    quick.hands.frozen.clear()
    assert staged(quick, job).phase == "succeeded"


def test_without_rights_no_set_is_made(quick: Handed, rig: Rig) -> None:
    """The refusal names what is forbidden."""
    client = Client.connect(rig.account_kubeconfig(STAGE_ACCOUNT, quick.site.namespace))
    jobs = type(quick.jobs)(client, quick.site, nothing_stored)
    with pytest.raises(Refused, match=r"403 Forbidden.*give this account the right"):
        jobs.submit(make_job(quick, "ab" * 32))
    assert left(quick) == []
    client.close()


def test_a_set_of_somebody_else_stays_untouched(quick: Handed) -> None:
    """It has our name and not our label."""
    digest = digest_of("theirs")
    job = make_job(quick, digest)
    assert staged(quick, job).phase == "succeeded"
    change = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}}
    name = set_name(digest, H100.product)
    theirs = quick.at.api.patch(DAEMON_SET, name, change, quick.site.namespace)
    with pytest.raises(Conflict, match=f"DaemonSet {quick.site.namespace}/{name} is there and not headway's"):
        quick.jobs.submit(make_job(quick, digest, release="r2"))
    now = set_of(quick, digest)
    assert now["metadata"]["generation"] == theirs["metadata"]["generation"]
    assert not quick.at.api.list(MAP, quick.site.namespace, labelSelector=f"{ASKED_BY}=stage-{digest[:12]}-r2")


# --- Results ----------------------------------------------------------------------------------------------------------


def test_a_large_result_comes_by_the_store(
    kubernetes_site: KubernetesSite, rig: Rig, s3: S3Server, tmp_path: Path
) -> None:
    """No termination message takes it: the message names it, and the release reads it from the store."""
    assert rig is kubernetes_site.rig
    result = {"texts": ["a word " * 40] * 40}
    job = Job(name="large", program="bench", environment="airflow", payload={"result": result}, deadline_s=60)
    keys = {"bench": read_s3(s3.credentials("headway"))}
    read = s3.client().read
    with handed(kubernetes_site, tmp_path, package="tests.probes", read=read, s3=keys, s3_endpoint=s3.endpoint) as case:
        status = staged(case, job)
    assert (status.phase, status.result) == ("succeeded", result)
