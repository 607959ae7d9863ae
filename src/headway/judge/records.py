"""The lines of a records file, and what must hold before anything is computed from them.

A file has one header line, then for each block its requests and a trailer (the block's summary). Where the trailer is,
the block is whole; lines after the last trailer belong to a block that was cut and are left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from headway.domain.bench import BlockSummary, RequestRecord, Side
from headway.domain.profile import Canary
from headway.errors import IntegrityError

SCHEMA = 2
"""Version that is written."""
READABLE = (1, 2)
"""Version 1 had neither gaps between chunks nor injected delays, and less about each block; what it lacks reads as the
fields' defaults."""
GZIP = b"\x1f\x8b"
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


def write(run: Run) -> bytes:
    """Return the records file of a run: what the bench program writes comes back from `parse` and this byte for byte.

    Requests of a block without a trailer, which only a damaged file has, come first and so are not lost.
    """
    by_block: dict[int, list[RequestRecord]] = {summary.block: [] for summary in run.summaries}
    strays: list[RequestRecord] = []
    for record in run.records:
        by_block.get(record.block, strays).append(record)
    lines = [header_line(run.job_digest), *map(request_line, strays)]
    for summary in run.summaries:
        # A second trailer of the same block must not double its requests.
        lines += [*map(request_line, by_block[summary.block]), block_line(summary)]
        by_block[summary.block] = []
    return ("\n".join(lines) + "\n").encode()


def parse(content: bytes) -> Run:
    """Read a records file.

    Args:
        content: The file's bytes. A last line without its end, or requests after the last trailer, are left out.

    Raises:
        IntegrityError: If the header is missing or of a foreign schema, a line before the last trailer is no record, or
            requests do not stand before the trailer of their own block. Nothing else, whatever the bytes are.
    """
    lines = content.split(b"\n")
    whole = lines[:-1]
    last_trailer = max((i for i, line in enumerate(whole) if line.startswith(b'{"block"')), default=-1)
    job_digest = digest_of(_header(whole[0] if whole else content))
    records: list[RequestRecord] = []
    summaries: list[BlockSummary] = []
    section = 0
    for number, line in enumerate(whole[1 : last_trailer + 1], start=2):
        item = _read(line, number)
        try:
            if "request" in item:
                records.append(RequestRecord.model_validate(item["request"]))
            elif "block" in item:
                summary = BlockSummary.model_validate(item["block"])
                if (summaries and summary.block <= summaries[-1].block) or not _all_of(records[section:], summary):
                    raise IntegrityError(
                        f"line {number} of the records ends block {summary.block}, and what stands before it is not "
                        "that block; lines were lost, reordered, or put together from several files"
                    )
                summaries.append(summary)
                section = len(records)
            else:
                raise IntegrityError(f"line {number} of the records is neither a request nor a block")
        except ValidationError as error:
            raise IntegrityError(
                f"line {number} of the records does not hold a valid record: {fault(error)}"
            ) from error
    size = sum(len(line) + 1 for line in whole[: max(last_trailer, 0) + 1])
    return Run(job_digest, tuple(records), tuple(summaries), size)


def digest_of(header: object) -> str:
    """Return the job's digest that a header names.

    Args:
        header: What stands under `run`.

    Raises:
        IntegrityError: It is no header, or of another schema.
    """
    named = header.get("job_digest") if isinstance(header, dict) else None
    version = header.get("schema_version") if isinstance(header, dict) else None
    if not isinstance(named, str) or not isinstance(version, int) or isinstance(version, bool):
        raise IntegrityError(
            'this is not a records file: its header is not {"run": {"schema_version": ..., "job_digest": ...}}'
        )
    if version not in READABLE:
        raise IntegrityError(
            f"the records are of schema {str(version)[:20]}; expected {' or '.join(map(str, READABLE))}: another "
            "version wrote them"
        )
    return named


def fault(error: ValidationError) -> str:
    """Return the first thing that is wrong with a value, without the value: that may be long, and no text at all."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    said = "is missing" if first["type"] == "missing" else first["msg"]
    return f"`{where}` {said}" if where else said


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
    found += _block_faults(records, summaries)
    found += _token_faults(records)
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


def _block_faults(records: Sequence[RequestRecord], summaries: Sequence[BlockSummary]) -> list[str]:
    """Find blocks out of their time: a clock that stepped between two, or blocks of several runs in one file."""
    timed = [s for s in summaries if (s.started_s, s.ended_s) != (0.0, 0.0)]
    backwards = [s.block for s in timed if s.ended_s < s.started_s]
    backwards += [after.block for before, after in pairwise(timed) if after.started_s < before.ended_s - CLOCK_SLACK_S]
    found = []
    if backwards:
        found.append(
            f"block {backwards[0]} ends before it starts, or starts before the one before it has ended; the clock "
            "stepped, or the file holds blocks of several runs"
        )
    spans = {s.block: (s.started_s - CLOCK_SLACK_S, s.ended_s + CLOCK_SLACK_S) for s in timed}
    outside = [r for r in records if r.block in spans and not spans[r.block][0] <= r.scheduled_s <= spans[r.block][1]]
    if outside:
        where = f"block {outside[0].block}, {outside[0].side}, {outside[0].index}"
        found.append(f"{len(outside)} requests were due outside the time of their block (first: {where})")
    return found


def _token_faults(records: Sequence[RequestRecord]) -> list[str]:
    """Find answers that claim success without what a good answer has, or whose figures contradict each other."""
    good = [r for r in records if r.error is None]
    checks: tuple[tuple[str, Callable[[RequestRecord], bool]], ...] = (
        ("claim success and have no first token or no end", lambda r: r.first_token_s is None or r.ended_s is None),
        (
            "claim success with less than one output token",
            lambda r: r.output_tokens is not None and r.output_tokens < 1,
        ),
        ("have a negative gap between chunks", lambda r: any(gap < 0 for gap in r.itl_ms)),
        ("have gaps between chunks that add up to more than the time from first token to end", _gaps_too_long),
        ("have more chunks of text than output tokens", _too_many_chunks),
    )
    found = []
    for what, broken in checks:
        bad = [r for r in good if broken(r)]
        if bad:
            found.append(f"{len(bad)} requests {what} (first: block {bad[0].block}, {bad[0].side}, {bad[0].index})")
    delayed = [r for r in records if r.injected_ms and r.side != "candidate"]
    if delayed:
        found.append(f"{len(delayed)} requests of stable carry an injected delay, which only the candidate may have")
    return found


def _gaps_too_long(record: RequestRecord) -> bool:
    if record.first_token_s is None or record.ended_s is None:
        return False
    return sum(record.itl_ms) / 1e3 > record.ended_s - record.first_token_s + CLOCK_SLACK_S


def _too_many_chunks(record: RequestRecord) -> bool:
    # One more is allowed: text that a server held back may come with the end, after its last token.
    return record.output_tokens is not None and len(record.itl_ms) > record.output_tokens


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
    found += _length_faults(records)
    whole = {s.block for s in summaries if not s.stopped and not s.void}
    sent = Counter(r.side for r in records if r.block in whole)
    if sent["stable"] != sent["candidate"]:
        # Both sides get every request by design, so any difference is a loss that may depend on the side.
        found.append(
            f"sample ratio mismatch: {sent['stable']} requests of stable, {sent['candidate']} of the candidate"
        )
    return found


def _length_faults(records: Sequence[RequestRecord]) -> list[str]:
    """Find pairs whose sides did unequal work: a shorter answer is a faster one, whatever the release is like."""
    pairs: dict[tuple[int, int], dict[Side, int]] = {}
    for r in records:
        if r.error is None and r.output_tokens is not None:
            pairs.setdefault((r.block, r.index), {})[r.side] = r.output_tokens
    unequal = [(key, tokens) for key, tokens in pairs.items() if len(set(tokens.values())) > 1]
    if not unequal:
        return []
    (block, index), tokens = unequal[0]
    text = (
        f"{len(unequal)} pairs were answered at different lengths (first: block {block}, index {index}: stable "
        f"{tokens['stable']}, candidate {tokens['candidate']} tokens); both sides are asked for exactly the same number"
    )
    return [text]


def _line(kind: str, value: dict[str, Any]) -> str:
    return json.dumps({kind: value}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _all_of(records: Sequence[RequestRecord], summary: BlockSummary) -> bool:
    return all(record.block == summary.block for record in records)


def _header(line: bytes) -> object:
    """Return what the first line holds under `run`. It may be anything, so no error shows it."""
    if not line:
        raise IntegrityError("this is not a records file: it is empty, or its first line is")
    if line.startswith(GZIP):
        raise IntegrityError("this is not a records file: it is compressed by gzip; unpack it first")
    try:
        found = from_json(line, allow_inf_nan=False)
    except ValueError:
        raise IntegrityError(
            "this is not a records file: its first line is not JSON; expected JSON lines with a header, or Parquet"
        ) from None
    return found.get("run") if isinstance(found, dict) else None


def _read(line: bytes, number: int) -> dict[str, Any]:
    try:
        # Stricter than Python's reader: no NaN, no lone surrogates, bounded depth; and no other errors than this one.
        item = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise IntegrityError(f"line {number} of the records is not JSON ({error}); the file is damaged") from error
    if not isinstance(item, dict):
        raise IntegrityError(f"line {number} of the records is not an object; the file is damaged")
    return item
