"""What a pod gets to run a program, and what the program leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.kubernetes import program_results as results
from headway.adapters.kubernetes import programs
from headway.adapters.kubernetes.site import Site
from headway.domain.job import Job, Program
from headway.errors import ConfigError, Conflict, IntegrityError, NotFound
from headway.pods import run
from tests.kubernetes_schema import faults

CHECKOUT = Path(__file__).resolve().parents[3]
SITE = Site(templates=CHECKOUT / "k8s" / "templates", s3_endpoint="http://s3.example:8333", pull_secret="registry")
PROGRAMS: tuple[Program, ...] = ("quantize", "quality", "stage", "bench", "tasks")
H100 = "NVIDIA-H100-80GB-HBM3"


def pod_of(program: Program, **how: Any) -> dict[str, Any]:
    """A pod that runs a program, as a whole object."""
    job = Job(name="one", program=program, environment="airflow", payload={}, deadline_s=60, accelerator=H100, **how)
    container = programs.container(SITE, program, job="one", image=job.image, accelerators=programs.devices(job))
    spec = {**programs.pod(SITE, job, "one"), "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}


# --- What it gets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("image", ["", "registry.example/ray-llm@sha256:" + "a" * 64])
def test_the_pod_of_each_program_is_valid_and_whole(program: Program, image: str) -> None:
    """Every mount has its volume, and every path that the command or the environment names is mounted."""
    pod = pod_of(program, image=image, accelerators=2)
    assert faults(pod) == []
    [container] = pod["spec"]["containers"]
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounted) == {one["name"] for one in pod["spec"]["volumes"]}
    named = [one["value"] for one in container["env"] if one.get("value", "").startswith("/")]
    named += [one.partition("=")[2] for one in container["args"] if "=/" in one]
    for path in named:
        assert path == programs.MESSAGE_PATH or any(path.startswith(place) for place in mounted.values()), path


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_no_rights_and_no_secret_but_its_own(program: Program) -> None:
    """No token, no root, nothing to gain; the secret of its role comes by reference and is in no object."""
    pod = pod_of(program)
    [container] = pod["spec"]["containers"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    named = {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
    assert named == {programs.SECRET_OF[program]}
    signs = any(one.get("secret") for one in pod["spec"]["volumes"])
    assert signs == (program == "quantize")


def test_a_processor_is_no_device() -> None:
    """On nodes without accelerators nobody asks for one, and nothing has to be tolerated."""
    job = Job(
        name="a", program="bench", environment="airflow", payload={}, deadline_s=1, accelerator="cpu", accelerators=1
    )
    assert programs.devices(job) == 0
    assert "tolerations" not in programs.place(SITE, "cpu")
    assert programs.devices(job.model_copy(update={"accelerator": H100})) == 1


def test_an_input_that_no_config_map_takes_is_refused() -> None:
    """It says how large it is, and what to do instead."""
    with pytest.raises(ConfigError, match=r"1000012 bytes.*store"):
        programs.config_map(SITE, "one", {"text": "x" * 1_000_000}, {})


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-", max_size=80))
def test_a_job_name_is_taken_as_it_is_or_not_at_all(name: str) -> None:
    """A name that Kubernetes would refuse is refused before anything is made."""
    metadata = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    valid = bool(name) and len(name) <= 63 and not faults(metadata)
    try:
        assert programs.checked_name(name) == name
    except ConfigError:
        assert not valid or "--" in name
    else:
        assert valid


def test_what_is_not_ours_is_left_alone() -> None:
    """An object of somebody else under our name is named."""
    with pytest.raises(Conflict, match="Job headway/one is there and not headway's"):
        programs.require_ours({"kind": "Job", "metadata": {"name": "one", "namespace": "headway"}})


# --- What it leaves ---------------------------------------------------------------------------------------------------


def test_the_last_word_of_a_log_is_the_progress() -> None:
    """Other lines in between are none; a log without any gives its last line."""
    assert results.progress("  3.0 % reading\n 41.5 % fetching\nwarning: slow\n") == (41.5, "fetching")
    assert results.progress("Traceback\nValueError: no\n") == (None, "ValueError: no")
    assert results.progress("") == (None, "")


LEFT = st.dictionaries(
    st.text(max_size=9), st.integers() | st.text(max_size=40) | st.lists(st.text(max_size=9)), max_size=5
)


@given(LEFT, st.integers(0, 9000))
def test_a_result_comes_back_whatever_its_size(left: dict[str, Any], padding: int) -> None:
    """A small one in the message, a large one by the store, and none is longer than Kubernetes takes."""
    said, store = {**left, "padding": "ä" * padding}, dict[str, bytes]()
    message, code = run.fitting(said, 0, "s3://headway/jobs/one", store.__setitem__)
    assert len(message) <= run.LARGEST_MESSAGE_BYTES
    assert code == 0
    assert results.said(message.decode(), store.__getitem__) == said


def test_a_result_that_was_changed_in_the_store_is_none() -> None:
    """The message names its sha256."""
    store = dict[str, bytes]()
    message, _ = run.fitting({"padding": "x" * 5000}, 0, "s3://headway/jobs/one", store.__setitem__)
    with pytest.raises(IntegrityError, match="is not what the program left"):
        results.said(message.decode(), lambda _: b"{}")


def test_a_result_that_the_store_refuses_is_tried_again() -> None:
    """It is no success without its result; of an error the begin is enough."""

    def refuse(uri: str, _: bytes) -> None:
        raise NotFound(f"no bucket for {uri}")

    message, code = run.fitting({"padding": "x" * 5000}, 0, "s3://headway/jobs/one", refuse)
    assert (code, json.loads(message)["kind"]) == (run.EXIT_RETRY, "BackendUnavailable")
    message, code = run.fitting({"error": "bad: " + "\u0007" * 5000, "kind": "ConfigError"}, 1, "s3://x", refuse)
    assert code == 1
    assert len(message) <= run.LARGEST_MESSAGE_BYTES
    assert json.loads(message)["error"].startswith("bad: ")


@pytest.mark.parametrize(
    ("content", "code", "ends", "text"),
    [
        ('{"answer": 42}', 0, 0, None),
        ('{"error": "the disk is full"}', 75, 75, "the disk is full"),
        (None, 0, 1, "left nothing"),
        (None, 3, 3, "exit code 3"),
        ("[1]", 0, 1, "left a list"),
        ("{", 0, 1, "no JSON"),
        ('{"answer": 42}', -9, 137, "SIGKILL"),
    ],
)
def test_how_a_program_ended_is_told(
    tmp_path: Path, content: str | None, code: int, ends: int, text: str | None
) -> None:
    """Whatever it left, the exit code is its own, and there is an object that says what happened."""
    result = tmp_path / "result.json"
    if content is not None:
        result.write_text(content)
    said, left = run.outcome(result, code, "stage")
    assert left == ends
    assert ("error" in said) == (text is not None)
    assert (text or "") in said.get("error", "")


def test_a_signal_reaches_the_program(tmp_path: Path) -> None:
    """A pod that is deleted ends its program, with no process left, and says how."""
    package = tmp_path / "played"
    package.mkdir()
    (package / "waits.py").write_text("import time\nopen('up', 'w').close()\ntime.sleep(60)\n")
    work, message = tmp_path / "work", tmp_path / "message"
    work.mkdir()
    command = [sys.executable, "-m", "headway.pods.run", "waits", "--package=played", "--job=job.json"]
    command += [f"--work={work}", f"--message={message}", "--results=s3://headway/jobs/one"]
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT / 'src'}:{tmp_path}"}
    with subprocess.Popen(command, env=environment) as process:
        ends = time.monotonic() + 20
        while not (work / "up").exists():
            assert time.monotonic() < ends
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    assert "SIGTERM" in json.loads(message.read_text())["error"]
