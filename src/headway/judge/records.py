"""The lines of a records file, and what must hold before anything is computed from them.

A file has one header line, then for each block its requests and a trailer (the block's summary). Where the trailer is,
the block is whole; lines after the last trailer belong to a block that was cut and are left out.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary
from headway.errors import IntegrityError

SCHEMA = 1
CLOCK_SLACK_S = 0.001
"""Timers of the event loop have a resolution of about a millisecond: a request may leave that much early."""


class Run(NamedTuple):
    """The whole blocks of a records file."""

    job_digest: str
    records: tuple[RequestRecord, ...]
    summaries: tuple[BlockSummary, ...]
    whole_bytes: int = 0
    """Length of the file up to and with the last trailer."""


def header_line(job_digest: str) -> str:
    """Return the first line of a records file."""
    return _line("run", {"schema_version": SCHEMA, "job_digest": job_digest})


def request_line(record: RequestRecord) -> str:
    """Return the line of one request."""
    return _line("request", record.to_json())


def block_line(summary: BlockSummary) -> str:
    """Return the trailer of a block."""
    return _line("block", summary.to_json())


def parse(content: bytes) -> Run:
    """Read a records file.

    Args:
        content: The file's bytes. A last line without its end, or requests after the last trailer, are left out.

    Raises:
        IntegrityError: If the header is missing or of a foreign schema, or a line before the last trailer is no record.
    """
    lines = content.split(b"\n")
    whole = lines[:-1]
    last_trailer = max((i for i, line in enumerate(whole) if line.startswith(b'{"block"')), default=-1)
    header = _read(whole[0], 1) if whole else {}
    if "run" not in header or header["run"].get("schema_version") != SCHEMA:
        raise IntegrityError(
            f"the records start with {(whole[0] if whole else content)[:80]!r}; expected a header of schema {SCHEMA}; "
            "the file is cut or was written by another version: run the canary again"
        )
    records: list[RequestRecord] = []
    summaries: list[BlockSummary] = []
    for number, line in enumerate(whole[1 : last_trailer + 1], start=2):
        item = _read(line, number)
        try:
            if "request" in item:
                records.append(RequestRecord.model_validate(item["request"]))
            elif "block" in item:
                summaries.append(BlockSummary.model_validate(item["block"]))
            else:
                raise IntegrityError(f"line {number} of the records is neither a request nor a block: {line[:80]!r}")
        except ValidationError as error:
            raise IntegrityError(f"line {number} of the records does not hold a valid record: {error}") from error
    size = sum(len(line) + 1 for line in whole[: max(last_trailer, 0) + 1])
    return Run(header["run"]["job_digest"], tuple(records), tuple(summaries), size)


def rows(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """Return the records as plain rows, for the checks of the suite `bench_records`."""
    return [record.to_json() for record in records]


def faults(
    records: Sequence[RequestRecord], summaries: Sequence[BlockSummary], canary: Canary, *, paired: bool
) -> list[str]:
    """Return what makes the records unfit to decide from, one sentence each; empty when they are fit.

    Failed requests are data, not faults; only requests that claim success must be consistent.
    """
    found: list[str] = []
    sides: set[Side] = {"stable", "candidate"} if paired else {"candidate"}
    numbers = [s.block for s in summaries]
    if numbers != list(range(len(numbers))):
        found.append(
            f"blocks are numbered {numbers}; expected 0, 1, 2, ...: a block is missing, doubled or out of order"
        )
    if len(numbers) > canary.blocks:
        found.append(f"there are {len(numbers)} blocks; the profile has {canary.blocks}")
    doubled = [key for key, n in Counter((r.block, r.side, r.index) for r in records).items() if n > 1]
    if doubled:
        found.append(
            f"{len(doubled)} requests are there twice (first: block {doubled[0][0]}, {doubled[0][1]}, {doubled[0][2]})"
        )
    stray = [r for r in records if r.block not in set(numbers) or r.side not in sides]
    if stray:
        found.append(f"{len(stray)} requests belong to a block or side that was not run")
    found += _clock_faults(records)
    found += _identity_faults(records)
    found += _pair_faults(records, summaries) if paired else []
    return found


def _clock_faults(records: Sequence[RequestRecord]) -> list[str]:
    backwards = [
        r
        for r in records
        if r.sent_s < r.scheduled_s - CLOCK_SLACK_S
        or (r.first_token_s is not None and r.first_token_s < r.sent_s)
        or (r.ended_s is not None and r.ended_s < (r.first_token_s if r.first_token_s is not None else r.sent_s))
    ]
    if not backwards:
        return []
    first = backwards[0]
    where = f"block {first.block}, {first.side}, {first.index}"
    text = f"{len(backwards)} requests run backwards in time (first: {where}); the clock stepped, or they were edited"
    return [text]


def _identity_faults(records: Sequence[RequestRecord]) -> list[str]:
    found = []
    good = [r for r in records if r.error is None]
    models = sorted({r.served_model for r in good if r.served_model is not None})
    if len(models) > 1:
        found.append(f"answers came from several models: {', '.join(models)}")
    for side in ("stable", "candidate"):
        asked = sorted({r.release for r in records if r.side == side})
        if len(asked) > 1:
            found.append(f"{side} was asked as several releases: {', '.join(asked)}")
        served = sorted(
            {r.served_release for r in good if r.side == side and r.served_release not in (None, r.release)}
        )
        if served:
            found.append(f"requests for {side} were answered by another release: {', '.join(str(s) for s in served)}")
    return found


def _pair_faults(records: Sequence[RequestRecord], summaries: Sequence[BlockSummary]) -> list[str]:
    prompts: dict[tuple[int, int], set[tuple[str, float]]] = {}
    for r in records:
        prompts.setdefault((r.block, r.index), set()).add((r.prompt_sha256, r.scheduled_s))
    unequal = sum(len(seen) > 1 for seen in prompts.values())
    found = [f"{unequal} pairs differ in prompt or scheduled arrival; both sides must get the same"] if unequal else []
    whole = {s.block for s in summaries if not s.stopped and not s.void}
    sent = Counter(r.side for r in records if r.block in whole)
    if sent["stable"] != sent["candidate"]:
        # Both sides get every request by design, so any difference is a loss that may depend on the side.
        found.append(
            f"sample ratio mismatch: {sent['stable']} requests of stable, {sent['candidate']} of the candidate"
        )
    return found


def _line(kind: str, value: dict[str, Any]) -> str:
    return json.dumps({kind: value}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _read(line: bytes, number: int) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise IntegrityError(f"line {number} of the records is not JSON: {line[:80]!r}; the file is damaged") from error
    if not isinstance(item, dict):
        raise IntegrityError(f"line {number} of the records is not an object: {line[:80]!r}")
    return item
