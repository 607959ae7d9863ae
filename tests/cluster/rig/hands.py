"""Runs the programs of pods for real on this machine, where KWOK only says that they run.

`Hands` does for chosen pods (`annotations.py` says which) what a kubelet and a container runtime would: it lays out
their volumes as folders, starts each container's command with the environment that the pod gives it, keeps the log, and
writes states, exit codes and termination messages into the pod's status. Everything above that is the rig's real
control plane: the scheduler has placed the pod, the Job or DaemonSet controller judges it.

What it is not: no image (a command of `python` runs the interpreter that the test names), no user, no limits, and the
file system is this machine's. Paths in a container's arguments and environment are rewritten from the place where a
volume is mounted to its folder; a claim's folder should be the mount path itself, because jobs name it inside of JSON.
"""

import base64
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any

from .annotations import COMPONENT, FAULT, HANDED_COMPONENTS
from .api import POD, Api, ApiError, Kind, Object
from .rig import Rig

CONFIG_MAP, SECRET = Kind("v1", "ConfigMap"), Kind("v1", "Secret")
LOOK_S = 0.15
PROBE_S = 0.5
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 1.0, 4.0
"""A kubelet's are 10 s and 5 min."""
GRACE_S = 10.0
MESSAGE_BYTES = 4096
FALLBACK_LINES, FALLBACK_BYTES = 80, 2048
"""What of a log becomes the message of a container that failed without one."""
PROGRAMS = "headway.pods.run"
SELECTOR = f"{COMPONENT} in ({','.join(HANDED_COMPONENTS)})"


class _GoneError(Exception):
    """The pod is gone, or a fault has taken it: there is nothing to tell of it."""


class _DeletedError(Exception):
    """The pod is to go: its processes end, and its status says how."""


@dataclass
class Hands:
    """Runs pods of a namespace until it is closed.

    Attributes:
        rig: The rig.
        namespace: Whose pods.
        folder: Where their volumes are.
        claims: Folder of each claim, by its name.
        python: The interpreter for an image; `""` for any other.
        environment: What every container gets beside its own variables, such as PYTHONPATH.
        extra_arguments: What commands that begin with `python` get at the end.
    """

    rig: Rig
    namespace: str
    folder: Path
    python: Mapping[str, Path]
    claims: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    extra_arguments: Sequence[str] = ()
    started: list[str] = field(default_factory=list)
    """Pod and container of every process that was started, as `POD/CONTAINER`."""
    frozen: set[str] = field(default_factory=set)
    """Nodes that are cut off: nothing is started on them, and what runs there is not told to end."""
    errors: list[str] = field(default_factory=list)
    """What went wrong in the hands themselves."""

    def __post_init__(self) -> None:
        self._api = Api(self.rig.kubeconfig)
        self._stop = threading.Event()
        self._lives: dict[str, threading.Thread] = {}
        self.seen: dict[str, Object] = {}
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End every process, and look after pods no longer."""
        self._stop.set()
        self._watcher.join()
        for life in self._lives.values():
            life.join()
        self._api.close()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                pods = self._api.list(POD, self.namespace, labelSelector=SELECTOR)
            except (ApiError, ConnectionError):
                continue  # the API server is down, perhaps on purpose: processes run on, as they do on a node
            self.seen = {pod["metadata"]["uid"]: pod for pod in pods}
            for pod in pods:
                is_new = pod["metadata"]["uid"] not in self._lives and _is_due(pod)
                if is_new and pod["spec"]["nodeName"] not in self.frozen:
                    life = threading.Thread(target=self._live, args=(pod,), daemon=True)
                    self._lives[pod["metadata"]["uid"]] = life
                    life.start()

    def _live(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        try:
            _Life(self, self._api, pod, self._stop).run()
        except (_GoneError, _DeletedError):
            return
        except Exception as error:  # noqa: BLE001 - a thread's error would only be printed; a test asks for it
            self.errors.append(f"{name}: {type(error).__name__}: {error}")


class _Life:
    """One pod, from its placing to its end."""

    def __init__(self, hands: Hands, api: Api, pod: Object, stop: threading.Event) -> None:
        self._hands = hands
        self._api = api
        self._pod = pod
        self._stop = stop
        self._name, self._uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._folder = hands.folder / self._uid
        self._places: dict[str, Path] = {}
        self._since = _now()
        spec = pod["spec"]
        self._states: dict[str, Object] = {
            one["name"]: {
                "name": one["name"],
                "image": one["image"],
                "imageID": one["image"],
                "ready": False,
                "restartCount": 0,
                "started": False,
                "state": {"waiting": {"reason": "PodInitializing"}},
            }
            for one in [*(spec.get("initContainers") or ()), *spec["containers"]]
        }
        self._restarts = pod["spec"].get("restartPolicy", "Always") == "Always"

    def run(self) -> None:
        """Run init containers one after the other, then the first of the others, as often as the pod wants."""
        try:
            self._volumes()
            for container in self._pod["spec"].get("initContainers") or ():
                if not self._until_done(container):
                    return
            [container] = self._pod["spec"]["containers"]
            while True:
                code = self._once(container, ready=self._probe(container))
                if not self._restarts:
                    self._show("Succeeded" if code == 0 else "Failed", ready=False)
                    return
                self._back_off(container, 1)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _until_done(self, container: Object) -> bool:
        """Run an init container until it ends well; return False if the pod has failed by it."""
        failures = 0
        while code := self._once(container):
            if not self._restarts:
                self._show("Failed", ready=False)
                return False
            failures += 1
            self._back_off(container, failures)
        return code == 0

    def _once(self, container: Object, ready: Callable[[], bool] | None = None) -> int:
        """Run a container once; return its exit code.

        Args:
            container: As the pod has it.
            ready: Asked while it runs, of a main container.
        """
        name = container["name"]
        message, log = self._folder / f"message-{name}", self._folder / f"log-{name}"
        message.unlink(missing_ok=True)
        variables = self._environment(container)
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(container, message),
                cwd=self._rewritten(container.get("workingDir") or str(self._folder), container),
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._hands.started.append(f"{self._name}/{name}")
        since = _now()
        self._set(name, {"running": {"startedAt": since}})
        is_deleted = False
        try:
            self._accompany(process, log, ready)
        except _DeletedError:
            is_deleted = True
        finally:
            _end(process)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        said = message.read_bytes()[:MESSAGE_BYTES].decode(errors="replace") if message.exists() else ""
        if code and not said:
            said = "\n".join(log.read_text(errors="replace").splitlines()[-FALLBACK_LINES:])[-FALLBACK_BYTES:]
        how = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": since, "finishedAt": _now()}
        self._set(name, {"terminated": {**how, **({"message": said} if said else {})}})
        if is_deleted:
            self._show("Failed" if code else "Succeeded", ready=False)
            raise _GoneError
        return code

    def _accompany(self, process: "subprocess.Popen[bytes]", log: Path, ready: Callable[[], bool] | None) -> None:
        """Look after a process until it has ended; end it when its pod is to go."""
        phase, logged, shown, probed = "Running" if ready else "Pending", 0, bool(ready and ready()), monotonic()
        self._show(phase, ready=shown)
        while True:
            has_ended = process.poll() is not None
            logged = self._say(log, logged)
            if has_ended:
                return
            self._require_wanted()
            if ready and monotonic() - probed > PROBE_S:
                probed = monotonic()
                if (answer := ready()) != shown:
                    shown = answer
                    self._show(phase, ready=shown)
            self._stop.wait(LOOK_S)

    def _require_wanted(self) -> None:
        """Raise if the pod is gone, or is to go, or a fault has taken it."""
        # As it was seen last: a node runs on when it cannot ask.
        found = self._hands.seen.get(self._uid)
        if self._stop.is_set() or found is None:
            raise _GoneError
        if self._pod["spec"]["nodeName"] in self._hands.frozen:
            return
        if found["metadata"].get("deletionTimestamp"):
            raise _DeletedError
        if not _is_due(found):
            raise _GoneError

    def _wait(self, seconds: float) -> None:
        ends = monotonic() + seconds
        while monotonic() < ends:
            self._require_wanted()
            self._stop.wait(LOOK_S)

    def _back_off(self, container: Object, failures: int) -> None:
        """Wait before a container is started again, as its status says."""
        status = self._states[container["name"]]
        status["lastState"] = status["state"]
        status["restartCount"] += 1
        self._set(container["name"], {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting"}})
        self._show("Pending", ready=False)
        self._wait(min(FIRST_BACK_OFF_S * 2.0 ** (failures - 1), LONGEST_BACK_OFF_S))

    # --- What a container gets ----------------------------------------------------------------------------------------

    def _volumes(self) -> None:
        self._folder.mkdir(parents=True)
        for volume in self._pod["spec"].get("volumes") or ():
            name = volume["name"]
            target = self._folder / "volumes" / name
            if "persistentVolumeClaim" in volume:
                self._places[name] = self._hands.claims[volume["persistentVolumeClaim"]["claimName"]]
                continue
            target.mkdir(parents=True)
            self._places[name] = target
            if "configMap" in volume:
                content = self._needed(CONFIG_MAP, volume["configMap"]["name"])
                for key, text in (content.get("data") or {}).items():
                    (target / key).write_text(text)
            elif "secret" in volume:
                content = self._needed(SECRET, volume["secret"]["secretName"])
                for key, text in (content.get("data") or {}).items():
                    (target / key).write_bytes(base64.b64decode(text))

    def _needed(self, kind: Kind, name: str, container: str = "") -> Object:
        """Return what a pod needs; wait for it as a kubelet does."""
        while True:
            try:
                found = self._api.get(kind, name, self._hands.namespace)
            except (ApiError, ConnectionError):
                found = None
            if found is not None:
                return found
            if container:
                text = f'{kind.name.lower()} "{name}" not found'
                self._set(container, {"waiting": {"reason": "CreateContainerConfigError", "message": text}})
                self._show("Pending", ready=False)
            self._wait(PROBE_S)

    def _command(self, container: Object, message: Path) -> list[str]:
        line = [*(container.get("command") or ()), *(container.get("args") or ())]
        if line[0] == "python":
            line[0] = str(self._hands.python.get(container["image"]) or self._hands.python[""])
            line += self._hands.extra_arguments if PROGRAMS in line else ()
        path = container.get("terminationMessagePath") or ""
        return [self._rewritten(one, container, {path: message} if path else {}) for one in line]

    def _environment(self, container: Object) -> dict[str, str]:
        found = {"PATH": os.environ["PATH"], **self._hands.environment}
        for one in container.get("env") or ():
            if "value" in one:
                value = self._rewritten(one["value"], container)
            else:
                wanted = one["valueFrom"]["secretKeyRef"]
                secret = self._needed(SECRET, wanted["name"], container["name"])
                value = base64.b64decode(secret["data"][wanted["key"]]).decode()
            kept = found.get(one["name"], "")
            found[one["name"]] = f"{value}:{kept}" if one["name"] == "PYTHONPATH" and kept else value
        return found

    def _probe(self, container: Object) -> Callable[[], bool]:
        command = ((container.get("readinessProbe") or {}).get("exec") or {}).get("command")
        if not command:
            return lambda: True
        line = [self._rewritten(one, container) for one in command]
        return lambda: subprocess.run(line, check=False, capture_output=True).returncode == 0

    def _rewritten(self, text: str, container: Object, more: Mapping[str, Path] | None = None) -> str:
        """Return a text with the paths of mounts replaced by folders, in one go: a folder may lie below a mount."""
        places = {one["mountPath"]: self._places[one["name"]] for one in container.get("volumeMounts") or ()}
        places |= more or {}
        if not places:
            return text
        paths = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
        return re.sub(rf"(?<![\w/.-])({paths})(?=/|$)", lambda match: str(places[match[1]]), text)

    # --- What it shows ------------------------------------------------------------------------------------------------

    def _set(self, name: str, state: Object) -> None:
        self._states[name]["state"] = state
        self._states[name]["started"] = "running" in state

    def _show(self, phase: str, *, ready: bool) -> None:
        """Write the pod's status."""
        spec, now = self._pod["spec"], _now()
        main = spec["containers"][0]["name"]
        self._states[main]["ready"] = ready
        initialized = all(
            "terminated" in self._states[one["name"]]["state"] for one in spec.get("initContainers") or ()
        )
        holds = {"Initialized": initialized, "Ready": ready, "ContainersReady": ready}
        status = {
            "phase": phase,
            "startTime": self._since,
            "conditions": [{"type": key, "status": str(on), "lastTransitionTime": now} for key, on in holds.items()],
            "initContainerStatuses": [self._states[one["name"]] for one in spec.get("initContainers") or ()],
            "containerStatuses": [self._states[main]],
        }
        path = f"/api/v1/namespaces/{self._hands.namespace}/pods/{self._name}/status"
        # A node reports when it can again: the states are the truth, and are sent whole.
        while True:
            try:
                self._api.request("PATCH", path, {"status": status}, "application/strategic-merge-patch+json")
            except ConnectionError:
                self._stop.wait(LOOK_S)
                if self._stop.is_set():
                    raise _GoneError from None
            except ApiError as error:
                if error.status == 404:
                    raise _GoneError from None
                if error.status < 500:
                    raise
                self._stop.wait(LOOK_S)
            else:
                return

    def _say(self, log: Path, logged: int) -> int:
        """Hand on what a process has printed in whole lines; return how far it was."""
        with log.open("rb") as file:
            file.seek(logged)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        if not whole:
            return logged
        try:
            self._hands.rig.say(self._name, self._hands.namespace, *whole.decode(errors="replace").splitlines())
        except (ApiError, ConnectionError):
            return logged
        return logged + len(whole)


def _is_due(pod: Object) -> bool:
    """Tell whether a pod has a node, is to run, and is left to the hands."""
    metadata = pod["metadata"]
    placed = bool(pod["spec"].get("nodeName")) and not metadata.get("deletionTimestamp")
    over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return placed and not over and FAULT not in (metadata.get("annotations") or {})


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it has started."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _now() -> str:
    return datetime.fromtimestamp(time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def hands(rig: Rig, namespace: str, folder: Path, **how: Any) -> Iterator[Hands]:
    """Run pods of a namespace; see `Hands`. What went wrong in the hands themselves fails the test."""
    running = Hands(rig, namespace, folder, **how)
    try:
        yield running
    finally:
        running.close()
    assert not running.errors, running.errors
