"""What a program in a pod leaves behind: its progress in the log, its result in the termination message."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from headway.adapters.kubernetes.client import Client, Object
from headway.errors import BackendError, ConfigError, IntegrityError, NotFound

Read = Callable[[str], bytes]
"""Reads an `s3://` address."""

PROGRESS = re.compile(r"^\s*(\d{1,3}(?:\.\d+)?) % (.+)$")
"""As `headway.pods.io` prints it."""
PROGRESS_LINES = 50
"""Of the log's end; whatever else a program prints comes between."""


class Ended(NamedTuple):
    """How a container ended."""

    code: int
    reason: str
    """Kubernetes' word, such as `Completed`, `Error` or `OOMKilled`."""
    message: str
    finished_at: str


class Progress(NamedTuple):
    """What a running program said last."""

    pct: float | None
    words: str


def container_status(pod: Object, name: str) -> Object:
    """Return the status of a container or init container of a pod, empty if it has none yet."""
    status = pod.get("status") or {}
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((one for one in found if one["name"] == name), {})


def ended(status: Object, *, before: bool = False) -> Ended | None:
    """Return how a container ended, none if it has not.

    Args:
        status: Of the container.
        before: Whether a container that was started again since counts with its end before.
    """
    found = (status.get("state") or {}).get("terminated")
    if found is None and before:
        found = (status.get("lastState") or {}).get("terminated")
    if found is None:
        return None
    return Ended(
        int(found["exitCode"]),
        str(found.get("reason") or ""),
        str(found.get("message") or ""),
        str(found.get("finishedAt") or ""),
    )


def said(message: str, read: Read) -> dict[str, Any] | None:
    """Return the JSON object that a program left, none if its message is none of ours.

    Args:
        message: The termination message.
        read: Reads the store, where a large result lies.

    Raises:
        IntegrityError: What lies in the store is not what the program left.
        BackendError: The store does not give it.
    """
    found = _parsed(message)
    if found is None or found.keys() != {"result_uri", "result_sha256"}:
        return found
    uri = str(found["result_uri"])
    content = read(uri)
    if hashlib.sha256(content).hexdigest() != found["result_sha256"]:
        raise IntegrityError(f"{uri} is not what the program left there; run the step again", uri=uri)
    return _parsed(content)


def log_of(client: Client, pod: Object, container: str, lines: int) -> str:
    """Return the last lines of a container's log; empty if it has not started or its pod has just gone."""
    metadata = pod["metadata"]
    try:
        return client.logs(metadata["name"], metadata["namespace"], container=container, lines=lines).rstrip("\n")
    except (NotFound, ConfigError):  # a container that waits is a bad request
        return ""


def progress(log: str) -> Progress:
    """Return what a program said last of its progress; of a log without any the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        if match := PROGRESS.match(line):
            return Progress(min(float(match[1]), 100.0), match[2])
    return Progress(None, lines[-1] if lines else "")


def progress_of(client: Client, pod: Object, container: str) -> Progress:
    """Return what a running container says; nothing where its log cannot be had, as of a node that does not answer."""
    try:
        return progress(log_of(client, pod, container, PROGRESS_LINES))
    except BackendError:
        return Progress(None, "")


def newest(pods: Iterable[Object]) -> Object | None:
    """Return the pod that was made last, none of none."""
    found: Sequence[Object] = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    return found[-1] if found else None


def _parsed(text: str | bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
