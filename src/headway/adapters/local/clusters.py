"""vLLM clusters on this machine: one Ray head each, on loopback, under supervisord.

`clusters/<name>/` holds what was asked for (`spec.json`), what the cluster's program reads (`launch.json`,
`serve.json`) and what it knows (`state.json`). The program is `headway.adapters.local.cluster_main`.

Ray's own `ray stop` is never used: it ends every Ray of the machine, and leaves vLLM's processes behind.
"""

import fcntl
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import requests

from headway.adapters.local import cluster_files as files
from headway.adapters.local import scale_watch
from headway.adapters.local.cluster_files import ClusterRecord
from headway.adapters.local.engine_log import last_line, root_cause
from headway.adapters.local.layout import CLUSTER_SLOTS, HOST, LocalLayout
from headway.adapters.local.processes import ProcessState, Supervisor, end_strays, strays
from headway.adapters.local.ray_head import ray_arguments, ray_environment
from headway.domain.cluster import (
    APPLICATION,
    ClusterSpec,
    ClusterStatus,
    Room,
    ScaleUp,
    checked_range,
    deployment_name,
    serve_config,
)
from headway.domain.profile import Replicas
from headway.errors import Conflict, NotFound, Refused
from headway.units import format_bytes, format_seconds

STOP_WAIT_S = 30
MOST_LIVES = 3
"""A cluster that died this often before its application ever ran has failed."""

SERVE_API = "/api/serve/applications/"
API_TIMEOUT_S, PROBE_TIMEOUT_S = 10.0, 30.0

HOOK = "headway.adapters.local.serve_hooks.LeanStart"


class LocalClusters:
    """The port `Clusters` on one machine.

    Args:
        layout: Where everything is.
        ray: The command that takes `ray start`'s arguments; by default the serving environment's `ray start`.
    """

    def __init__(self, layout: LocalLayout, *, ray: Sequence[str] = ()) -> None:
        self._layout = layout
        self._ray = ray or (str(layout.tool("serve", "ray")), "start")
        self._supervisor = Supervisor(layout)

    def apply(self, spec: ClusterSpec) -> ClusterStatus:
        """Bring the cluster up, or adopt the running one of this name. Does not wait.

        Raises:
            Conflict: A cluster of this name runs something else.
            Refused: All slots are taken, or their ports are in use.
        """
        with self._lock():
            record = files.read(self._layout, spec.name)
            if record is not None and record.spec.cluster_digest != spec.cluster_digest:
                raise Conflict(
                    f"cluster {spec.name} is there with digest {record.spec.cluster_digest[:12]}, asked for was "
                    f"{spec.cluster_digest[:12]}; delete it first",
                    cluster=spec.name,
                )
            slot = self._free_slot() if record is None else record.slot
            asked_at = time.time() if record is None else record.asked_at
            record = ClusterRecord(spec, slot, self._layout.cluster_ports(slot), asked_at)
            self._write(record)
        self._start(record)
        return self.status(spec.name)

    def status(self, name: str) -> ClusterStatus:
        """Tell where the cluster stands: by supervisord, by Serve, and by an answer of the endpoint."""
        record = files.read(self._layout, name)
        if record is None:
            return ClusterStatus(name=name, phase="absent")
        process = self._supervisor.state(_program(name))
        state = files.read_json(files.folder(self._layout, name) / "state.json") or {}
        failure = self._failure(record, process, state)
        if failure:
            return _status(record, "failed", failure)
        if state.get("pid") != process.pid:
            # It ended, and supervisord starts it again; or it is ending what a former life left, which still answers.
            return _status(record, "starting", f"its program is starting, {_since(process)}")
        try:
            headers = files.api_headers(self._layout, name)
            reply = requests.get(f"{record.dashboard_url}{SERVE_API}", headers=headers, timeout=API_TIMEOUT_S)
            found = reply.json()["applications"].get(APPLICATION) if reply.ok else None
        except (requests.RequestException, ValueError, KeyError):
            found = None
        if not found:
            return _status(record, "starting", f"Ray is starting, {_since(process)}")
        return self._by_application(record, process, found)

    def list(self, model: str | None = None) -> Sequence[ClusterStatus]:
        """Return every cluster of headway, or those of one model."""
        return [self.status(r.spec.name) for r in files.every(self._layout) if model in (None, r.spec.model)]

    def delete(self, name: str) -> None:
        """End the cluster and all its processes; returns when nothing of it is left. Absent is fine."""
        folder = files.folder(self._layout, name)
        record = files.read(self._layout, name)
        self._supervisor.remove(_program(name))
        end_strays(self._mark(name))
        if record is not None:
            shutil.rmtree(self._temp_dir(record.slot).parent, ignore_errors=True)
        with self._lock():
            shutil.rmtree(folder, ignore_errors=True)

    def floor(self, name: str, replicas: Replicas) -> None:
        """Change the replica range in place; the cluster's program gives it to Serve within a second.

        Raises:
            ConfigError: The range contradicts itself.
            NotFound: There is no such cluster.
        """
        with self._lock():
            record = files.read(self._layout, name)
            if record is None:
                known = ", ".join(r.spec.name for r in files.every(self._layout)) or "none"
                raise NotFound(f"no cluster {name}; there are: {known}", cluster=name)
            spec = record.spec.model_copy(update={"replicas": checked_range(replicas)})
            self._write(ClusterRecord(spec, record.slot, record.ports, record.asked_at))

    def scale_ups(self, name: str, since: datetime) -> Sequence[ScaleUp]:
        """Return the scale-ups of a cluster that ended since then, as its program saw them, oldest first.

        A replica counts as come when Serve sends it requests: its engine has loaded the model by then. The first start
        of a cluster is none, since that takes Ray's start too.
        """
        return [
            ScaleUp(asked_at=_utc(one["asked_at"]), ready_at=_utc(one["ready_at"]), replicas=int(one["replicas"]))
            for one in scale_watch.kept(files.folder(self._layout, name))
            if _utc(one["ready_at"]) > since
        ]

    def room(self, spec: ClusterSpec) -> Room:
        """Tell whether one replica more has room: in what is available, less what starting clusters will take."""
        memory = psutil.virtual_memory()
        promised, waiting = 0, 0
        for record in files.every(self._layout):
            starting = self._starting(record)
            if not starting:
                continue
            missing = starting * record.spec.memory_bytes - _used_bytes(strays(self._mark(record.spec.name)))
            if missing > 0:
                promised, waiting = promised + missing, waiting + 1
        free = max(0, int(memory.available) - promised)
        why = f"{format_bytes(memory.available)} available"
        if waiting:
            why += f", {format_bytes(promised)} promised to {waiting} that start"
        if not self._free_slots():
            free, why = 0, f"all {CLUSTER_SLOTS} slots are taken"
        return Room(
            fits=free >= spec.memory_bytes,
            possible=memory.total >= spec.memory_bytes,
            replicas=free // spec.memory_bytes,
            detail=f"a replica needs {format_bytes(spec.memory_bytes)}, and {format_bytes(free)} of "
            f"{format_bytes(memory.total)} are free ({why})",
        )

    def _starting(self, record: ClusterRecord) -> int:
        """Return how many replicas a cluster will have once those have come that it waits for; zero if it has them."""
        if not self._ready_file(record).exists():
            return 1
        if record.spec.replicas.max == 1:
            return 0
        status = self.status(record.spec.name)
        return status.replicas_target if status.replicas_target > status.replicas_ready else 0

    def _start(self, record: ClusterRecord) -> None:
        folder = files.folder(self._layout, record.spec.name)
        self._supervisor.start(
            _program(record.spec.name),
            [str(self._layout.python("serve")), "-m", "headway.adapters.local.cluster_main", str(folder)],
            env=self._layout.child_env("serve", extra=ray_environment(self._layout, record)),
            directory=folder,
            autorestart=True,
            stop_wait_s=STOP_WAIT_S,
        )

    def _write(self, record: ClusterRecord) -> None:
        folder = files.folder(self._layout, record.spec.name)
        files.ensure_token(self._layout, record.spec.name)
        files.write_json(folder / "serve.json", _serve_config(record))
        files.write_json(
            folder / "launch.json",
            {
                "command": [*self._ray, *ray_arguments(record, self._temp_dir(record.slot))],
                "api": f"{record.dashboard_url}{SERVE_API}",
                "application": APPLICATION,
                "temp_dir": str(self._temp_dir(record.slot)),
                "mark": self._mark(record.spec.name),
            },
        )
        files.write(self._layout, record)

    def _mark(self, name: str) -> dict[str, str]:
        return {"HEADWAY_STACK": self._layout.stack_mark, "HEADWAY_CLUSTER": name}

    def _temp_dir(self, slot: int) -> Path:
        """Return Ray's folder: short, because Ray adds 66 characters and a socket path has 107.

        Ray makes it writable for everybody, so its parent, which the cluster's program makes, is closed to them.
        """
        return Path(f"/tmp/headway-{self._layout.stack_mark}-{slot}/ray")  # noqa: S108

    def _failure(self, record: ClusterRecord, process: ProcessState, state: Mapping[str, Any]) -> str:
        log = self._layout.log(_program(record.spec.name))
        if process.phase == "absent":
            return "it does not run; `headway up` or the next release starts it"
        if process.phase == "fatal":
            return f"its program cannot be started ({process.detail}); see {log}"
        if state.get("lives", 0) > MOST_LIVES:
            return f"it died {MOST_LIVES} times before its application ran; see {log}"
        return ""

    def _by_application(self, record: ClusterRecord, process: ProcessState, found: Mapping[str, Any]) -> ClusterStatus:
        ready, target = _replicas(record, found)
        status, message = str(found.get("status")), last_line(_message(record, found))
        if status == "DEPLOY_FAILED":
            logs = self._temp_dir(record.slot) / "session_latest" / "logs"
            return _status(record, "failed", f"Serve: {root_cause(logs) or message or status}; more is in {logs}")
        # While replicas are added Serve calls the application deploying; those that are there serve all the same.
        grows = status == "DEPLOYING" and ready > 0 and self._has_answered(record, process)
        if status != "RUNNING" and not grows:
            return _status(record, "starting", f"Serve: {message or status.lower()}, {_since(process)}", ready, target)
        missing = self._unanswered(record, process)
        reason = missing or (f"Serve: {message or status.lower()}" if grows else "")
        return _status(record, "starting" if missing else "ready", reason, ready, target)

    def _has_answered(self, record: ClusterRecord, process: ProcessState) -> bool:
        """Tell whether the endpoint has answered a completion in this life."""
        return files.read_json(self._ready_file(record)) == _life(process)

    def _ready_file(self, record: ClusterRecord) -> Path:
        return files.folder(self._layout, record.spec.name) / "ready.json"

    def _unanswered(self, record: ClusterRecord, process: ProcessState) -> str:
        """Return what the endpoint does not do yet; empty if it lists the model and has answered in this life.

        The completion is sampled, because a greedy one does not reach the code that fails without a compiler.
        """
        model = record.spec.model
        try:
            listed = requests.get(f"{record.endpoint}/v1/models", timeout=API_TIMEOUT_S)
            if not listed.ok or model not in {item["id"] for item in listed.json()["data"]}:
                return f"/v1/models does not list {model} (HTTP {listed.status_code})"
            if self._has_answered(record, process):
                return ""
            body = {"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0.8}
            answer = requests.post(f"{record.endpoint}/v1/completions", json=body, timeout=PROBE_TIMEOUT_S)
            if not answer.ok or not answer.json()["choices"]:
                return f"a completion got HTTP {answer.status_code}: {answer.text[:200]}"
        except (requests.RequestException, ValueError, KeyError) as error:
            return f"the endpoint does not answer yet ({type(error).__name__})"
        files.write_json(self._ready_file(record), _life(process))
        return ""

    def _free_slots(self) -> Sequence[int]:
        taken = {record.slot for record in files.every(self._layout)}
        return [slot for slot in range(CLUSTER_SLOTS) if slot not in taken]

    def _free_slot(self) -> int:
        busy = {}
        for slot in self._free_slots():
            first = self._layout.cluster_ports(slot).first
            used = [port for port in range(first, first + files.NAMED_PORTS) if _in_use(port)]
            if not used:
                return slot
            busy[slot] = used
        ports = ", ".join(str(port) for used in busy.values() for port in used)
        raise Refused(
            f"no room for another cluster: {CLUSTER_SLOTS - len(busy)} of {CLUSTER_SLOTS} slots are taken"
            + (f", and of the others ports {ports} are in use by other programs" if busy else "")
            + "; delete a cluster, or set HEADWAY_BASE_PORT to a free range",
            busy_ports=[port for used in busy.values() for port in used],
        )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._layout.clusters.mkdir(parents=True, exist_ok=True)
        with (self._layout.clusters / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _serve_config(record: ClusterRecord) -> dict[str, Any]:
    config = serve_config(record.spec, cpu=True, http_port=record.ports.at(files.HTTP), host=HOST)
    for application in config["applications"]:
        for llm in application["args"]["llm_configs"]:
            llm["callback_config"] = {"callback_class": HOOK}
    return config


def _program(name: str) -> str:
    return f"cluster-{name}"


def _status(
    record: ClusterRecord, phase: str, reason: str = "", ready: int = 0, target: int | None = None
) -> ClusterStatus:
    return ClusterStatus.model_validate(
        {
            "name": record.spec.name,
            "phase": phase,
            "reason": reason,
            "endpoint": record.endpoint if phase == "ready" else None,
            "replicas_ready": ready,
            "replicas_target": record.spec.replicas.min if target is None else target,
            "spec": record.spec,
        }
    )


def _replicas(record: ClusterRecord, found: Mapping[str, Any]) -> tuple[int, int]:
    running, target = scale_watch.replicas(found, deployment_name(record.spec.model))
    return running, record.spec.replicas.min if target is None else target


def _life(process: ProcessState) -> dict[str, Any]:
    """Return what tells one life of a cluster's program from another."""
    return {"pid": process.pid, "started_at": process.started_at}


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _since(process: ProcessState) -> str:
    if not process.started_at:
        return "not yet up"
    return f"{format_seconds(max(0.0, time.time() - process.started_at))} so far"


def _message(record: ClusterRecord, found: Mapping[str, Any]) -> str:
    """Return what Serve says about the replicas, or else about the application."""
    deployment = found.get("deployments", {}).get(deployment_name(record.spec.model), {})
    return str(deployment.get("message") or found.get("message") or "")


def _in_use(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def _used_bytes(pids: Sequence[int]) -> int:
    """Return what processes hold, shared pages once (PSS); some may end meanwhile."""
    total = 0
    for pid in pids:
        try:
            total += int(psutil.Process(pid).memory_full_info().pss)
        except psutil.Error:
            continue
    return total
