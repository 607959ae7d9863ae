"""Runs one pod program as a container's only process: `python -m headway.pods.run PROGRAM --job=... --work=...`.

It passes signals on, ends with the program's exit code, and leaves what the program left (its result, or why there is
none) as the container's termination message. Kubernetes takes 4 KiB; what is larger goes to the store, and the message
says where. Of an error that cannot go there the text is cut.

Standard library alone until something has to go to the store: this process takes memory as long as the program runs.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LARGEST_MESSAGE_BYTES = 4096
"""Kubernetes cuts what is longer."""
EXIT_FAILED, EXIT_RETRY, SIGNALLED = 1, 75, 128
"""The first two as in `headway.domain.job`; a program that a signal ended counts as a shell counts it."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str], *, store: Callable[[str, bytes], None] | None = None) -> int:
    """Run a program; return the exit code of the container.

    Args:
        arguments: Of the command line.
        store: Puts an object to an `s3://` address; by default with the identity of this process.
    """
    asked = _parser().parse_args(arguments)
    work = Path(asked.work)
    result = work / "result.json"
    result.unlink(missing_ok=True)  # of an earlier run of a container that was started again
    code = _run([sys.executable, "-m", f"{asked.package}.{asked.program}", asked.job], work)
    said, code = outcome(result, code, asked.program)
    message, code = fitting(said, code, asked.results, store or _put)
    Path(asked.message).write_bytes(message)
    return code


def outcome(result: Path, code: int, program: str) -> tuple[dict[str, Any], int]:
    """Return what the program left, and the exit code to end with.

    Args:
        result: Where it leaves its result.
        code: How its process ended; negative for a signal.
        program: Its name, for the text.
    """
    try:
        said = json.loads(result.read_bytes())
    except FileNotFoundError:
        said = None
    except ValueError as error:
        return {"error": f"the result of {program} is no JSON: {error}"}, code or EXIT_FAILED
    if code < 0:
        name = signal.Signals(-code).name
        return {"error": f"{program} was ended by {name}", "kind": "Signal"}, SIGNALLED - code
    if not isinstance(said, dict):
        left = "nothing" if said is None else f"a {type(said).__name__}"
        return {"error": f"{program} ended with exit code {code} and left {left} as its result"}, code or EXIT_FAILED
    return said, code


def fitting(said: dict[str, Any], code: int, results: str, store: Callable[[str, bytes], None]) -> tuple[bytes, int]:
    """Return the termination message for what a program left, and the exit code to end with.

    Args:
        said: What it left.
        code: The exit code.
        results: Address below which large results go.
        store: Puts them there.
    """
    content = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    if len(content) <= LARGEST_MESSAGE_BYTES:
        return content, code
    sha256 = hashlib.sha256(content).hexdigest()
    uri = f"{results.rstrip('/')}/{sha256}.json"
    try:
        store(uri, content)
    except Exception as error:  # noqa: BLE001 - the last line of defence: whoever waits must learn why
        print(f"cannot keep the result at {uri}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the job's log
        return _cut(said, code, f"{type(error).__name__}: {error}")
    return json.dumps({"result_uri": uri, "result_sha256": sha256}).encode(), code


def _cut(said: dict[str, Any], code: int, why: str) -> tuple[bytes, int]:
    """Return the message for what could not be stored: the begin of an error, or the error that a result was lost."""
    if code:
        return _begin_of(str(said.get("error", "")), str(said.get("kind", ""))), code
    lost = f"the result is larger than a termination message and the store did not take it: {why}"
    return _begin_of(lost, "BackendUnavailable"), EXIT_RETRY


def _begin_of(text: str, kind: str) -> bytes:
    """Return an error as a message, with as much of its text as there is room for."""
    kept = text
    while True:
        told = kept if kept == text else f"{kept} ... (the log has the rest)"
        message = json.dumps({"error": told, "kind": kind}).encode()
        if len(message) <= LARGEST_MESSAGE_BYTES:
            return message
        kept = kept[: len(kept) * 3 // 4]


def _run(command: Sequence[str], work: Path) -> int:
    """Run a command in a folder, with signals passed on; return its code as `subprocess` counts."""
    asked_to_end: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        asked_to_end.append(number)
        if child is not None:
            child.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, forward)
    child = subprocess.Popen(command, cwd=work)
    if asked_to_end:  # between the handler and the start
        child.send_signal(asked_to_end[-1])
    return child.wait()


def _put(uri: str, content: bytes) -> None:
    from headway.adapters.s3.client import S3Client
    from headway.pods.stage import connection_of

    S3Client(connection_of(os.environ)).put(uri, content)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one pod program.")
    parser.add_argument("program", help="of headway.pods, such as `stage`")
    parser.add_argument("--job", required=True, help="path of its JSON input")
    parser.add_argument("--work", required=True, help="folder that it runs in")
    parser.add_argument("--message", required=True, help="path of the termination message")
    parser.add_argument("--results", required=True, help="s3:// address below which large results go")
    parser.add_argument("--package", default="headway.pods", help="where the program is")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
