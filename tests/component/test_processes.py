"""Processes under a real supervisord: started, found, restarted, ended, and nothing left."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest
from supervisor.states import ProcessStates
from supervisor.xmlrpc import Faults

from headway.adapters.local import processes, supervisord
from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.processes import Supervisor, end_strays, strays
from headway.errors import BackendUnavailable

pytestmark = pytest.mark.component

WITHIN_S = 30.0
FOREVER = "import time; time.sleep(600)"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={new_session})
with open("pids", "a") as file:
    file.write(f"{{child.pid}}\\n")
child.wait()
"""


def until(condition: Callable[[], bool], what: str) -> None:
    end = monotonic() + WITHIN_S
    while not condition():
        assert monotonic() < end, f"not within {WITHIN_S} s: {what}"
        sleep(0.05)


def start(
    layout: LocalLayout, name: str, code: str, *, autorestart: bool = False, extra: dict[str, str] | None = None
) -> None:
    Supervisor(layout).start(
        name,
        [sys.executable, "-c", code],
        env=layout.child_env("airflow", extra=extra),
        directory=layout.jobs / name,
        autorestart=autorestart,
        stop_wait_s=2,
    )


def ended(layout: LocalLayout, name: str) -> processes.ProcessState:
    until(lambda: Supervisor(layout).state(name).phase in ("exited", "fatal"), f"{name} ends")
    return Supervisor(layout).state(name)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_fault_and_state_of_supervisord_has_a_word_of_ours() -> None:
    """A new one must not pass as something else."""
    faults = {value for name, value in vars(Faults).items() if name.isupper()}
    states = {name for name in vars(ProcessStates) if name.isupper()}

    assert set(processes.FAULTS) == faults
    assert set(processes.STATES) == states


def test_without_supervisord_the_error_says_how_to_start_it(layout: LocalLayout) -> None:
    with pytest.raises(BackendUnavailable, match="headway up"):
        Supervisor(layout).state("job-1")

    assert Supervisor(layout).pid() is None


@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_exit_code_is_told(supervised: LocalLayout, code: int) -> None:
    start(supervised, "job-1", f"raise SystemExit({code})")

    assert ended(supervised, "job-1").exit_code == code


def test_a_process_ended_by_a_signal_has_no_exit_code(supervised: LocalLayout) -> None:
    """Killed is not failed: nothing is known of its work."""
    start(supervised, "job-1", "import os; os.kill(os.getpid(), 9)")

    assert ended(supervised, "job-1").exit_code is None


def test_starting_twice_runs_it_once(supervised: LocalLayout) -> None:
    start(supervised, "job-1", FOREVER)
    first = Supervisor(supervised).state("job-1").pid
    start(supervised, "job-1", FOREVER)

    assert Supervisor(supervised).state("job-1").pid == first is not None


def test_a_changed_definition_replaces_the_process(supervised: LocalLayout) -> None:
    start(supervised, "job-1", FOREVER)
    first = Supervisor(supervised).state("job-1").pid
    start(supervised, "job-1", FOREVER + "  # changed")

    assert Supervisor(supervised).state("job-1").pid not in (None, first)


def test_one_that_has_ended_is_started_again(supervised: LocalLayout) -> None:
    """A job that said "try again" is submitted again under its name."""
    code = "open('runs', 'a').write('x')"
    start(supervised, "job-1", code)
    ended(supervised, "job-1")
    start(supervised, "job-1", code)

    until(lambda: (supervised.jobs / "job-1" / "runs").read_text() == "xx", "second run")


def test_environment_and_arguments_arrive_as_they_were_given(supervised: LocalLayout) -> None:
    """Quotes of both kinds, percent signs and newlines are in real configurations."""
    value = """{"a": 'b "c" %(x)s $HOME \\ `d` ; #', "e": 1}"""
    code = (
        "import os, sys; open('seen', 'w').write(os.environ['V'] + '|' + sys.argv[1] + '|' + str('USER' in os.environ))"
    )
    Supervisor(supervised).start(
        "job-1",
        [sys.executable, "-c", code, value],
        env=supervised.child_env("airflow", extra={"V": value + "\n2"}),
        directory=supervised.jobs / "job-1",
    )
    ended(supervised, "job-1")

    assert (supervised.jobs / "job-1" / "seen").read_text() == f"{value}\n2|{value}|False"


def test_definitions_can_be_read_by_the_owner_only(supervised: LocalLayout) -> None:
    """They hold the environment, and that may hold a token."""
    start(supervised, "job-1", FOREVER)

    assert stat.S_IMODE((supervised.programs / "job-1.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE((supervised.conf_d / "job-1.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE(supervised.run.stat().st_mode) == 0o700


def test_what_is_removed_is_absent_and_ended_with_its_group(supervised: LocalLayout) -> None:
    code = PARENT.format(new_session=False)
    start(supervised, "job-1", code)
    pid_file = supervised.jobs / "job-1" / "pids"
    until(lambda: pid_file.exists() and pid_file.read_text() != "", "child started")
    Supervisor(supervised).remove("job-1")

    assert Supervisor(supervised).state("job-1").phase == "absent"
    assert Supervisor(supervised).names() == []
    until(lambda: not alive(int(pid_file.read_text())), "child ended")
    Supervisor(supervised).remove("job-1")


def test_a_service_that_dies_comes_back_and_its_orphans_go(supervised: LocalLayout) -> None:
    """A child that outlives its killed parent would hold the parent's port for ever."""
    code = PARENT.format(new_session=True)
    start(supervised, "service-1", code, autorestart=True)
    pids = supervised.jobs / "service-1" / "pids"
    until(lambda: pids.exists() and pids.read_text().count("\n") == 1, "first life")
    first = Supervisor(supervised).state("service-1").pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: pids.read_text().count("\n") == 2, "second life")
    old, new = map(int, pids.read_text().split())

    assert not alive(old)
    assert alive(new)


def test_strays_are_found_by_their_mark_and_others_are_left_alone(layout: LocalLayout) -> None:
    """Even one that ignores TERM and lives in a session of its own."""
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    mark = {"HEADWAY_STACK": layout.stack_mark, "HEADWAY_CLUSTER": "c1"}
    other = {**mark, "HEADWAY_CLUSTER": "c2"}
    with (
        subprocess.Popen(
            [sys.executable, "-c", stubborn], env={**os.environ, **mark}, stdout=subprocess.PIPE, start_new_session=True
        ) as ours,
        subprocess.Popen([sys.executable, "-c", FOREVER], env={**os.environ, **other}) as others,
    ):
        try:
            assert ours.stdout is not None
            ours.stdout.readline()
            until(lambda: strays(other) == [others.pid], "other process marked")
            assert strays(mark) == [ours.pid]
            assert end_strays(mark, term_s=0.3) == 1
            assert strays(mark) == []
            assert others.poll() is None
        finally:
            ours.kill()
            others.kill()


def test_a_process_with_another_title_is_found(layout: LocalLayout) -> None:
    """A long title overwrites /proc/<pid>/environ unless it is told not to."""
    code = "import setproctitle, time; setproctitle.setproctitle('x' * 4000); print('up', flush=True); time.sleep(600)"
    env = layout.child_env("airflow")
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert strays({"HEADWAY_STACK": layout.stack_mark}) == [child.pid]
        finally:
            child.kill()


def test_a_cluster_comes_back_with_supervisord_and_a_job_does_not(supervised: LocalLayout) -> None:
    """After `down` and `up` the stable side serves again; a finished job is not run again."""
    start(supervised, "cluster-1", FOREVER, autorestart=True)
    start(supervised, "job-1", FOREVER)
    supervisor = Supervisor(supervised)
    pid = supervisor.pid()
    assert pid is not None
    supervisor.shutdown()
    until(lambda: not alive(pid), "supervisord ends")
    supervisord.launch(supervised)
    assert supervisor.names() == []
    supervisor.adopt("cluster-1")

    until(lambda: supervisor.state("cluster-1").phase == "running", "cluster runs")
    assert supervisor.state("job-1").phase == "absent"


def test_a_program_that_is_not_there_is_told(supervised: LocalLayout) -> None:
    Supervisor(supervised).start(
        "job-1", ["/nowhere/program"], env=supervised.child_env("airflow"), directory=supervised.jobs / "job-1"
    )

    assert ended(supervised, "job-1").exit_code == 127
    assert "/nowhere/program" in supervised.log("job-1").read_text()


def test_a_mark_must_name_something() -> None:
    with pytest.raises(Exception, match="empty mark"):
        strays({})
