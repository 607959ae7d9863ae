"""Starts supervisord, the process manager of the embedded stack."""

import subprocess
import time

from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.processes import Supervisor
from headway.errors import BackendError, DeadlineExceeded

ANSWERS_WITHIN_S = 20.0


def launch(layout: LocalLayout) -> None:
    """Start supervisord with no program running, and wait until it answers. Already running is fine.

    Definitions of services and jobs from an earlier life are dropped: whoever needs them defines them again. Those of
    clusters are put aside as `.later` files, for `Supervisor.adopt`.

    Raises:
        BackendError: supervisord refused to start.
        DeadlineExceeded: It does not answer.
    """
    supervisor = Supervisor(layout)
    if supervisor.pid() is not None:
        return
    for folder in (layout.conf_d, layout.programs, layout.logs, layout.user_home):
        folder.mkdir(parents=True, exist_ok=True)
    layout.run.chmod(0o700)
    for conf in layout.conf_d.glob("*.conf"):
        if conf.name.startswith("cluster-"):
            conf.rename(conf.with_suffix(".later"))
        else:
            conf.unlink()
    layout.supervisor_socket.unlink(missing_ok=True)
    layout.supervisor_conf.write_text(_conf(layout))
    done = subprocess.run(
        [layout.tool("airflow", "python"), "-m", "supervisor.supervisord", "-c", layout.supervisor_conf],
        env=layout.child_env("airflow"),
        cwd=layout.run,
        capture_output=True,
        text=True,
        timeout=ANSWERS_WITHIN_S,
        check=False,
    )
    if done.returncode:
        message = f"supervisord did not start: {(done.stderr or done.stdout).strip()[-500:]}"
        raise BackendError(message, exit_code=done.returncode)
    began = time.monotonic()
    while supervisor.pid() is None:
        waited_s = time.monotonic() - began
        if waited_s > ANSWERS_WITHIN_S:
            message = f"supervisord does not answer after {waited_s:.0f} s; look into {layout.log('supervisord')}"
            raise DeadlineExceeded(message, waited_s=waited_s, last="no answer")
        time.sleep(0.05)


def _conf(layout: LocalLayout) -> str:
    return f"""\
[unix_http_server]
file={layout.supervisor_socket}
chmod=0700

[supervisord]
logfile={layout.log("supervisord")}
logfile_maxbytes=10MB
logfile_backups=1
pidfile={layout.supervisor_pid}
identifier=headway-{layout.stack_mark}
umask=077
silent=true

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[include]
files={layout.conf_d}/*.conf
"""
