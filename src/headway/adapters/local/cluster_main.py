"""The program of one cluster: a Ray head on loopback, and the Serve config that is to run on it.

It runs in the serving environment under supervisord, one process a cluster, from a folder with two files that
`headway.adapters.local.clusters` writes: `launch.json` (how to start Ray) and `serve.json` (what Serve is to run).
A changed `serve.json` is given to Serve within a second, which is how the replica range moves in place. If Ray dies,
this program ends the rest of the cluster and exits, and supervisord starts it again: a killed cluster comes back.

What it knows goes to `state.json`: its own life, and how many lives ended before the application ran. Which replicas
were asked for and came goes to `scale_ups.json`, which outlives it.
"""

import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from headway.adapters.local import scale_watch
from headway.adapters.local.strays import end_strays

POLL_S = 1.0
RAY_ANSWERS_WITHIN_S = 300.0
"""A busy machine needs half a minute from `ray start` to an answer of the dashboard; this is for a stuck one."""

CALL_TIMEOUT_S, LOOK_TIMEOUT_S = 60.0, 10.0
LOOK_S = 5.0
"""Between two looks at the replicas while none is awaited: a scale-up that Serve began by itself may seem longer by
this."""
TERM_S, KILL_S = 8.0, 12.0


class Ended(Exception):
    """TERM came."""


class Cluster:
    """One life of a cluster.

    Args:
        folder: Where `launch.json` and `serve.json` are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        launch = json.loads((folder / "launch.json").read_text())
        self.command: list[str] = launch["command"]
        self.api: str = launch["api"]
        self.token = (folder / "token").read_text()
        self.application: str = launch["application"]
        self.temp_dir = Path(launch["temp_dir"])
        self.mark: dict[str, str] = launch["mark"]
        self.deployment = ""
        self.given = ""
        """Digest of the Serve config that Serve has."""
        self.lives = self._lives() + 1
        self.ran = False
        self.watch = scale_watch.ScaleWatch()
        self.looked_s = 0.0

    def run(self) -> int:
        """Run until TERM (exit code 0) or until Ray dies (1)."""
        end_strays(self.mark, term_s=TERM_S)
        self._fresh_temp_dir()
        (self.folder / "ready.json").unlink(missing_ok=True)
        self._remember("ray")
        ray = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        try:
            self._wait_for_dashboard(ray)
            while ray.poll() is None:
                self._deploy_if_changed()
                if not self.ran or self.watch.waiting or time.monotonic() >= self.looked_s + LOOK_S:
                    self._look()
                time.sleep(POLL_S)
            say(f"ray ended with code {ray.returncode}; ending what is left of the cluster")
        except Ended:
            say("ending the cluster")
            return 0
        except (OSError, ValueError, RuntimeError) as error:
            say(f"giving this life up: {error}")
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_strays(self.mark, term_s=TERM_S, kill_s=KILL_S)
            ray.wait()
        return 1

    def _fresh_temp_dir(self) -> None:
        closed = self.temp_dir.parent
        shutil.rmtree(closed, ignore_errors=True)
        # Fails if somebody else made it meanwhile: Ray must not put sockets into a stranger's folder.
        closed.mkdir(mode=0o700)

    def _wait_for_dashboard(self, ray: "subprocess.Popen[bytes]") -> None:
        began = time.monotonic()
        while ray.poll() is None:
            try:
                call("GET", self.api, self.token)
            except OSError as error:
                waited_s = time.monotonic() - began
                if waited_s > RAY_ANSWERS_WITHIN_S:
                    message = f"Ray's dashboard does not answer after {waited_s:.0f} s ({error})"
                    raise RuntimeError(message) from error
                time.sleep(POLL_S)
            else:
                say(f"Ray answers after {time.monotonic() - began:.1f} s")
                return
        message = f"ray start ended with code {ray.returncode}"
        raise RuntimeError(message)

    def _deploy_if_changed(self) -> None:
        body = (self.folder / "serve.json").read_bytes()
        digest = hashlib.sha256(body).hexdigest()
        if digest == self.given:
            return
        if self.given:
            self._look()  # a scale-up counts from here, not from a look some seconds ago
        self.deployment = json.loads(body)["applications"][0]["deployments"][0]["name"]
        call("PUT", self.api, self.token, body)
        say("Serve has the config" if not self.given else "Serve has the changed config")
        self.given = digest
        self._remember("deploying")

    def _look(self) -> None:
        """Note that the application runs, and which replicas came."""
        self.looked_s = time.monotonic()
        try:
            found = json.loads(call("GET", self.api, self.token, timeout_s=LOOK_TIMEOUT_S))["applications"]
            application = found.get(self.application, {})
            running, target = scale_watch.replicas(application, self.deployment)
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
            return  # busy; `ray.poll()` says when it is dead
        if not self.ran and application.get("status") == "RUNNING":
            say("the application runs")
            self.ran, self.lives = True, 0
            self._remember("running")
        if self.ran and target is not None:
            self._keep(self.watch.look(self.looked_s, target=target, running=running))

    def _keep(self, came: Sequence[scale_watch.Came]) -> None:
        for one in came:
            say(f"{one.replicas} replicas run, {one.took_s:.0f} s after they were asked for")
        try:
            if came:
                scale_watch.keep(self.folder, came, time.time())
        except OSError as error:
            say(f"that could not be kept ({error})")  # a full disk must not cost the replicas their life

    def _lives(self) -> int:
        try:
            return int(json.loads((self.folder / "state.json").read_text())["lives"])
        except (OSError, ValueError, KeyError):
            return 0

    def _remember(self, phase: str) -> None:
        state: dict[str, Any] = {"pid": os.getpid(), "phase": phase, "lives": self.lives, "at": time.time()}
        part = self.folder / ".state.json.part"
        part.write_text(json.dumps(state))
        part.replace(self.folder / "state.json")


def call(method: str, url: str, token: str, body: bytes | None = None, *, timeout_s: float = CALL_TIMEOUT_S) -> bytes:
    """Call Ray's dashboard.

    Raises:
        OSError: It does not answer.
        RuntimeError: It refuses; the text is its own.
    """
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)  # noqa: S310 - http://127.0.0.1
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")[-800:]
        if method == "GET":
            raise OSError(f"HTTP {error.code}: {text}") from error
        message = f"{method} {url}: HTTP {error.code}: {text}"
        raise RuntimeError(message) from error


def say(text: str) -> None:
    """Print a line with the time."""
    print(time.strftime("%H:%M:%S"), "cluster:", text, flush=True)  # noqa: T201 - its log


def main() -> int:
    """Run the cluster of the folder that the argument names."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        return Cluster(Path(sys.argv[1])).run()
    except Ended:
        return 0


if __name__ == "__main__":
    sys.exit(main())
