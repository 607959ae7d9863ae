"""After the demo: the gateway, the registry and the ledger say what the story said. Then somebody pulls cables.

The tests run in the order of the file: each leaves the stack as the next one expects it.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import psutil
import pytest
import requests
from mlflow import MlflowClient
from rich.console import Console

from headway.adapters.local.processes import strays
from headway.cli.demo import MODEL, QUESTION
from headway.cli.follow import Follower
from headway.cli.steady import SteadyClient
from headway.domain.prescaling import Tick
from headway.domain.release import record_key
from headway.domain.value import slug
from headway.release import record
from tests.e2e.conftest import CHECKOUT, Stack

CLIENT_PERIOD_S = 0.5
PRESCALE_S = 20 * 60
"""Ends a demonstration that hangs; it takes five minutes on two quiet cores."""
WARM_S = 50
"""Less than any start of a cluster takes: a rollback that needs this long was no change of the split."""


def wait_until(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Look every second until the condition holds."""
    end = monotonic() + within_s
    while not condition():
        assert monotonic() < end, f"waited {within_s} s for {what}"
        sleep(1)


def last_state(stack: Stack, version: int) -> record.VersionState:
    """Return what a version remembers of its last release."""
    states = record.read_state(stack.backend.registry.tags(MODEL, version))
    return max(states.values(), key=lambda state: state.at)


def test_the_gateway_gives_a_real_answer_of_version_2(stack: Stack) -> None:
    """The address that the demo prints works, and the answer names the release."""
    answer = requests.post(
        f"{stack.layout.gateway_url}/{MODEL}/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32, "temperature": 0},
        timeout=120,
    )

    assert answer.status_code == 200
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-headway-release"] == last_state(stack, 2).release


def test_an_unknown_model_is_told_so(stack: Stack) -> None:
    """Nobody has to guess why the gateway says 503."""
    answer = requests.get(f"{stack.layout.gateway_url}/nobody/v1/models", timeout=10)

    assert answer.status_code == 503
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(("version", "outcome"), [(1, "promoted"), (2, "promoted"), (3, "rejected")])
def test_registry_and_ledger_agree_on_how_each_release_ended(stack: Stack, version: int, outcome: str) -> None:
    """A person finds the same story in MLflow and in S3."""
    state = last_state(stack, version)
    written = stack.backend.ledger.read(record_key(slug(MODEL), state.release, "release"))

    assert written is not None
    assert (state.outcome, written["outcome"], written["version"]) == (outcome, outcome, version)
    assert written["reason"] == state.reason


def test_the_damaged_version_was_refused_before_any_cluster_started(stack: Stack) -> None:
    """The quality gate saves a rollout: there is no record of one, and the reason is one that a person understands."""
    state = last_state(stack, 3)

    assert "perplexity" in state.reason
    assert stack.backend.ledger.read(record_key(slug(MODEL), state.release, "rollout")) is None


def test_the_second_release_was_decided_by_a_paired_benchmark(stack: Stack) -> None:
    """The verdict names effects of candidate against stable, with intervals, from request records that were kept."""
    kept = stack.backend.ledger.read(record_key(slug(MODEL), last_state(stack, 2).release, "canary"))

    assert kept is not None
    verdict = kept["detail"].get("verdict", kept["detail"])
    assert verdict["decision"] == "PROMOTE"
    assert {"ttft_p50", "tpot_p50"} <= {effect["metric"] for effect in verdict["effects"]}
    assert all(effect["stable"] is not None for effect in verdict["effects"] if effect["metric"].endswith("p50"))


def test_the_report_is_one_self_contained_page(stack: Stack, tmp_path: Path) -> None:
    """`headway report` gives a file that opens anywhere and shows both sides of the benchmark."""
    page = tmp_path / "report.html"

    ended = stack.headway("report", MODEL, "--release", last_state(stack, 2).release, "--output", str(page))

    assert ended.returncode == 0, ended.stderr
    text = page.read_text()
    assert "PROMOTE" in text
    assert "demo margins" in text.lower()
    assert not re.search(r"""(src|href)=["']https?://(?!127\.0\.0\.1)""", text), "it needs something from outside"


def test_rollback_takes_seconds_and_costs_no_request(stack: Stack) -> None:
    """The warm previous cluster answers at once, without Airflow in the way, and then the other way round."""
    before = stack.backend.traffic.route(MODEL)
    assert before.stable is not None
    assert before.previous is not None, "the demo should leave version 1 warm"

    with SteadyClient(f"{stack.layout.gateway_url}/{MODEL}", MODEL, period_s=2 * CLIENT_PERIOD_S) as client:
        took_s = [_roll_back(stack, to_version=version) for version in (1, 2)]

    assert max(took_s) < WARM_S, took_s
    assert client.tally.failures == []
    assert client.tally.answered > 0


def test_an_alias_that_is_set_reaches_airflow_by_itself(stack: Stack) -> None:
    """MLflow tells Airflow's API server, and the run finds that this version has all the traffic."""
    said = stack.headway("webhook", "sync", "--test")
    assert (said.returncode, "test     202" in said.stdout) == (0, True), said.stdout + said.stderr
    client = MlflowClient(tracking_uri=stack.layout.mlflow_url, registry_uri=stack.layout.mlflow_url)

    found: list[str] = []

    def told() -> bool:
        # Again and again: MLflow sees a new hook only when its memory of the old ones is over.
        client.set_registered_model_alias(MODEL, "champion", "2")
        found[:] = [run.run_id for run in stack.backend.runs.recent("release") if run.run_id.startswith("mlflow__")]
        return bool(found)

    wait_until(told, within_s=60, what="a run that the webhook started")

    assert Follower(stack.backend, Console()).wait_for("release", found[0], within_s=300) == "success"


def test_a_candidate_that_dies_in_the_canary_is_rolled_back_and_no_client_notices(stack: Stack) -> None:
    """Killing the candidate's Ray head costs stable's users nothing, and the release ends right by itself."""
    before = last_state(stack, 1)
    with SteadyClient(f"{stack.layout.gateway_url}/{MODEL}", MODEL, period_s=CLIENT_PERIOD_S) as client:
        release = subprocess.Popen(
            [str(CHECKOUT / "bin" / "headway"), "release", MODEL, "--version", "1", "--wait"],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        candidate = _candidate_under_test(stack, release)
        killed = _kill_ray_head(stack, candidate)
        output, _ = release.communicate(timeout=900)

    assert killed > 0
    assert release.returncode != 0, output
    state = last_state(stack, 1)
    assert (state.outcome, state.release != before.release) == ("rolled_back", True), output
    route = stack.backend.traffic.route(MODEL)
    assert route.candidate is None
    assert route.stable is not None
    assert route.stable.version == 2
    assert client.tally.failures == []
    assert client.tally.answered > 0
    assert stack.backend.clusters.status(candidate).phase == "absent"
    assert strays({"HEADWAY_STACK": stack.layout.stack_mark, "HEADWAY_CLUSTER": candidate}) == []


def test_the_dag_plans_a_model_that_asks_for_it_and_gives_its_range_back_when_it_does_not(stack: Stack) -> None:
    """Two lines in the profile, and ten minutes later there is a plan to look at; without them all is as before."""
    follower = Follower(stack.backend, Console())
    profile = CHECKOUT / "profiles" / "local-tiny.yaml"
    written = profile.read_text()

    def tick() -> None:
        run = stack.backend.runs.trigger("prescale", f"e2e-{uuid4()}", {})
        assert follower.wait_for("prescale", run.run_id, within_s=300) == "success"

    def planned() -> Tick:
        said = stack.headway("forecast", MODEL, "--json")
        assert said.returncode == 0, said.stderr
        return Tick.model_validate_json(said.stdout)

    profile.write_text(f"{written}prescale: {{enabled: true, requests_per_s: 2.0}}\n")
    try:
        tick()
        made = planned()
        assert (made.floor, made.running, made.requests_per_s) == (1, 1, 2.0)
        assert made.load is not None
        assert MODEL in stack.headway("forecast", MODEL).stdout
    finally:
        profile.write_text(written)
    tick()
    assert planned().mode == "off"


def test_a_second_replica_is_up_before_a_replayed_peak(stack: Stack) -> None:
    """Real engines and users that notice nothing: the plan asks early enough, and gives the replica back."""
    stable = stack.backend.traffic.route(MODEL).stable
    assert stable is not None
    before = stack.backend.clusters.status(stable.cluster)

    ended = stack.headway("demo-prescale", timeout_s=PRESCALE_S)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    after = stack.backend.clusters.status(stable.cluster)
    assert (after.phase, after.replicas_ready, after.spec) == ("ready", before.replicas_ready, before.spec)
    assert (stack.layout.home / "demo-prescale.html").exists()
    assert "0 failed" in ended.stdout


def test_down_leaves_no_process(stack: Stack) -> None:
    """Not one of ours survives, vLLM's engines included, and nobody else's is touched."""
    bystander = subprocess.Popen(["/bin/sleep", "300"])
    try:
        ended = stack.headway("down", timeout_s=300)

        assert ended.returncode == 0, ended.stderr
        assert strays({"HEADWAY_STACK": stack.layout.stack_mark}) == []
        assert bystander.poll() is None
    finally:
        bystander.terminate()
        bystander.wait()


def _roll_back(stack: Stack, *, to_version: int) -> float:
    """Roll back on the command line; return the seconds until the gateway had the other version as stable."""
    started = monotonic()
    command = subprocess.Popen(
        [str(CHECKOUT / "bin" / "headway"), "rollback", MODEL, "--direct"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def moved() -> bool:
        stable = stack.backend.traffic.route(MODEL).stable
        return stable is not None and stable.version == to_version

    wait_until(moved, within_s=300, what=f"version {to_version} to be stable")
    took_s = monotonic() - started
    output, _ = command.communicate(timeout=300)
    assert command.returncode == 0, output
    return took_s


def _candidate_under_test(stack: Stack, release: "subprocess.Popen[str]") -> str:
    """Wait until requests of the paired benchmark reach the candidate, and return its cluster."""

    def benchmarked() -> bool:
        assert release.poll() is None, "the release ended before its canary began: " + (release.communicate()[0] or "")
        return any(stack.layout.jobs.glob("*/records.jsonl")) and _side_has_records(stack)

    known = {path: path.stat().st_size for path in stack.layout.jobs.glob("*/records.jsonl")}

    def _side_has_records(stack: Stack) -> bool:
        return any(path.stat().st_size > known.get(path, 0) for path in stack.layout.jobs.glob("*/records.jsonl"))

    wait_until(benchmarked, within_s=600, what="the canary's first block")
    route = stack.backend.traffic.route(MODEL)
    assert route.candidate is not None
    return route.candidate.cluster


def _kill_ray_head(stack: Stack, cluster: str) -> int:
    """Kill -9 the Ray head of a cluster: GCS, raylet and what started them; return how many processes that were."""
    killed = 0
    for pid in strays({"HEADWAY_STACK": stack.layout.stack_mark, "HEADWAY_CLUSTER": cluster}):
        try:
            line = " ".join(psutil.Process(pid).cmdline())
        except psutil.NoSuchProcess:
            continue
        if "gcs_server" in line or "raylet" in line or "ray start" in line:
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed
