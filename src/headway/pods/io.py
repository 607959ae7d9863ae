"""What every pod program shares: its job, its progress, its result and its exit code."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from headway.domain.job import EXIT_DONE, EXIT_FAILED, EXIT_RETRY
from headway.domain.value import Value
from headway.errors import ConfigError, HeadwayError

JobKind = TypeVar("JobKind", bound=Value)
Progress = Callable[[float, str], None]
"""Told how far the program is, in percent, and what it does."""


def run_program(arguments: list[str], kind: type[JobKind], work: Callable[[JobKind, Progress], Value]) -> int:
    """Run a program in the current folder; return its exit code.

    Args:
        arguments: Of the command line: the path of the job, `job.json` by default.
        kind: What the job must be.
        work: Does it, and returns the result.
    """
    folder = Path.cwd()
    try:
        job = read_job(Path(arguments[0] if arguments else "job.json"), kind)
        result = work(job, _progress_into(folder / "progress.json"))
        write_json(folder / "result.json", result.to_json())
    except HeadwayError as error:
        print(f"error: {error.message}", file=sys.stderr, flush=True)  # noqa: T201 - the job's log
        failure = {"error": error.message, "kind": type(error).__name__, "facts": error.facts}
        write_json(folder / "result.json", failure)
        return EXIT_RETRY if error.retryable else EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the last line of defence: whoever waits must learn why
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}; the program's log has the details"
        write_json(folder / "result.json", {"error": text, "kind": type(error).__name__})
        return EXIT_FAILED
    return EXIT_DONE


def read_job(path: Path, kind: type[JobKind]) -> JobKind:
    """Return the job in a file.

    Raises:
        ConfigError: There is none, or it is of another kind.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the job {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path} is no {kind.__name__}: {error}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file whole: a reader sees the old or the new content, also after a crash."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, allow_nan=False, default=str)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note in a table how long a `with` block took, in seconds, also if it failed."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = round(time.monotonic() - started, 2)


def part_of(progress: Progress, start_pct: float, end_pct: float) -> Progress:
    """Return a progress that covers a stretch of another one."""

    def scaled(percent: float, message: str) -> None:
        progress(start_pct + (end_pct - start_pct) * percent / 100, message)

    return scaled


def _progress_into(path: Path) -> Progress:
    last = ""

    def progress(percent: float, message: str) -> None:
        nonlocal last
        if message != last:
            print(f"{percent:5.1f} % {message}", flush=True)  # noqa: T201 - the job's log
            last = message
        write_json(path, {"progress_pct": round(percent, 1), "message": message})

    return progress
