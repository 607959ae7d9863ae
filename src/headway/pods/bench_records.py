"""The records file: whole blocks only, each on the disk before the next one starts."""

import os
from collections.abc import Sequence
from pathlib import Path

from headway.domain.bench import BlockSummary, RequestRecord
from headway.judge.records import Run, block_line, header_line, parse, request_line


def reopen(path: Path, job_digest: str) -> Run:
    """Open the records of this job: go on after the last whole block, or start anew.

    A block that was cut is removed from the file. A file of another job is replaced.

    Raises:
        IntegrityError: If the file is damaged before its last whole block.
    """
    content = path.read_bytes() if path.exists() else b""
    header = (header_line(job_digest) + "\n").encode()
    if not content.startswith(header):
        _replace(path, header)
        return Run(job_digest, (), (), len(header))
    run = parse(content)
    if run.whole_bytes < len(content):
        _replace(path, content[: run.whole_bytes])
    return run


def append(path: Path, records: Sequence[RequestRecord], summary: BlockSummary) -> None:
    """Append a whole block; returns when it is on the disk."""
    lines = [*(request_line(r) for r in records), block_line(summary)]
    with path.open("ab") as file:
        file.write(("\n".join(lines) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
