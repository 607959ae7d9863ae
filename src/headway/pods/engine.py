"""A vLLM engine as a child of a pod program: started on loopback, asked, and ended with all its processes."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headway.domain.cluster import CPU_ENVIRONMENT, engine_arguments
from headway.domain.engine_error import last_error
from headway.domain.profile import Engine
from headway.errors import BackendError, BackendUnavailable, DeadlineExceeded

HOST = "127.0.0.1"
POLL_S = 0.25
TERM_S = 5.0
"""Seconds from TERM to KILL. vLLM needs one or two; a job that is ended itself has ten."""
LOG_BYTES = 200_000
"""Of the engine's log, from its end, that are searched for an error."""
PR_SET_PDEATHSIG = 1
PASSING = ("memory", "address already in use", "': -9")
"""What an error says that is about this moment or this machine: no memory, a port that was taken meanwhile, a process
that the kernel ended (exit code -9)."""


class EngineFailed(BackendError):
    """The engine cannot serve the model; the message is its own last error."""


@contextmanager
def served(
    model_dir: Path, model: str, engine: Engine, *, tensor_parallel: int, cpu: bool, log: Path, start_s: float
) -> Iterator[str]:
    """Run the engine; yield its base address once it is healthy.

    Args:
        model_dir: Plain Hugging Face directory.
        model: The served name.
        engine: The profile's settings.
        tensor_parallel: Accelerators that it takes.
        cpu: Whether it runs on CPU.
        log: Where its output goes.
        start_s: Seconds within which it must be healthy.

    Raises:
        EngineFailed: It ended instead.
        BackendUnavailable: It ended for a reason that is none of the model's.
        DeadlineExceeded: It was not healthy in time.
    """
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model_dir}",
        f"--served-model-name={model}",
        f"--host={HOST}",
        f"--port={port}",
        *flags(engine_arguments(engine, tensor_parallel=tensor_parallel, cpu=cpu)),
    ]
    environment = {**(CPU_ENVIRONMENT if cpu else {}), **os.environ}
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - the program has one thread when it starts an engine
        )
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        url = f"http://{HOST}:{port}"
        _wait(child, url, log, start_s)
        yield url
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(child)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return an engine's arguments as the command line has them."""
    found = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            found.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return found


def _wait(child: "subprocess.Popen[bytes]", url: str, log: Path, start_s: float) -> None:
    until = time.monotonic() + start_s
    while not _healthy(url):
        if child.poll() is not None:
            raise _failure(child.returncode, last_error(_tail(log)))
        if time.monotonic() > until:
            last = _tail(log)[-1:] or ["nothing"]
            raise DeadlineExceeded(
                f"the engine was not healthy within {start_s:g} s; it said last: {last[0][:300]}",
                waited_s=start_s,
                last=last[0][:300],
            )
        time.sleep(POLL_S)


def _failure(code: int, said: str) -> BackendError:
    """Return what an engine's end means: a refusal of this model is remembered, so nothing else may look like one."""
    if code < 0 or any(word in said.casefold() for word in PASSING):
        return BackendUnavailable(f"the engine ended with exit code {code}, which says nothing about the model: {said}")
    return EngineFailed(said)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310 - our own loopback address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the engine's whole session: workers that outlive their parent keep its memory."""
    _signal(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(TERM_S)
    _signal(child.pid, signal.SIGKILL)
    child.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _leave(number: int, _frame: object) -> None:
    """Turn TERM into an exit that passes the `finally` blocks, so that the engine does not stay behind."""
    sys.exit(128 + number)


def _end_with_parent() -> None:
    """Have the kernel end the engine when the program is killed hard (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])
