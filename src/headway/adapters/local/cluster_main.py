"""The program of one cluster: a Ray head on loopback, and the Serve config that is to run on it.

It runs in the serving environment under supervisord, one process a cluster, from a folder with two files that
`headway.adapters.local.clusters` writes: `launch.json` (how to start Ray) and `serve.json` (what Serve is to run).
A changed `serve.json` is given to Serve within a second, which is how the replica range moves in place. If Ray dies,
this program ends the rest of the cluster and exits, and supervisord starts it again: a killed cluster comes back.

What it knows goes to `state.json`: its own life, and how many lives ended before the application ran.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

from headway.adapters.local.strays import end_strays

POLL_S = 1.0
RAY_ANSWERS_WITHIN_S = 300.0
"""A busy machine needs half a minute from `ray start` to an answer of the dashboard; this is for a stuck one."""

CALL_TIMEOUT_S = 60.0
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
        self.given = ""
        """Digest of the Serve config that Serve has."""
        self.lives = self._lives() + 1
        self.ran = False

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
                self._note_if_running()
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
        call("PUT", self.api, self.token, body)
        say("Serve has the config" if not self.given else "Serve has the changed config")
        self.given = digest
        self._remember("deploying")

    def _note_if_running(self) -> None:
        if self.ran:
            return
        try:
            found = json.loads(call("GET", self.api, self.token))["applications"].get(self.application, {})
        except OSError:
            return  # busy; `ray.poll()` says when it is dead
        if found.get("status") == "RUNNING":
            say("the application runs")
            self.ran, self.lives = True, 0
            self._remember("running")

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


def call(method: str, url: str, token: str, body: bytes | None = None) -> bytes:
    """Call Ray's dashboard.

    Raises:
        OSError: It does not answer.
        RuntimeError: It refuses; the text is its own.
    """
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)  # noqa: S310 - http://127.0.0.1
    try:
        with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as response:  # noqa: S310
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
