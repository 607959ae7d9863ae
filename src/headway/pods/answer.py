"""What an S3 server answered to one read: believed only where it is what was asked for.

Between a program and its store stand gateways, caches and load balancers. Each of them may ignore a range, repeat an
old object or end early; the digests would find that in the end, but not say what happened.
"""

import http.client
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from headway.adapters.s3.errors import REMEDIES, kind_of
from headway.errors import BackendError, BackendUnavailable, Conflict, HeadwayError, Refused
from headway.units import GIB, format_bytes, format_seconds

SKEW_LIMIT = timedelta(minutes=5)
"""S3 refuses signatures of clocks that differ by 15 minutes; from here on a refusal is put down to the clock."""

LONGEST_WAIT_S = 60.0
"""What a `Retry-After` may ask for at most."""

SKIPPED_BYTES = 1 * GIB
"""A server that ignores ranges is read from the start of the object up to here, and refused beyond."""


class Busy(BackendUnavailable):
    """The store asked for a pause.

    Args:
        wait_s: How long, in seconds; zero: it did not say.
    """

    def __init__(self, message: str, *, wait_s: float, uri: str) -> None:
        super().__init__(message, uri=uri, wait_s=wait_s)
        self.wait_s = wait_s


def skip_bytes(
    answer: http.client.HTTPResponse, uri: str, *, start: int, end: int, size_bytes: int, etag: str, now: datetime
) -> int:
    """Return how many bytes of the answer come before the stretch that was asked for.

    Args:
        answer: With its body unread.
        uri: What was read.
        start: First byte that was asked for.
        end: The byte behind the last one.
        size_bytes: Of the whole object.
        etag: On which the read insisted.
        now: UTC, to compare with the server's clock.

    Raises:
        Conflict: The object changed.
        Refused: No right to read it, a clock that differs too much, or ranges are ignored far inside a large object.
        BackendUnavailable: The server is busy or failed, or it answered with something else than was asked for.
    """
    if answer.status not in (200, 206):
        raise refusal(answer, uri, now)
    found = answer.headers.get("ETag", "").strip('"')
    if found and etag and found != etag:
        raise Conflict(f"{uri} was replaced while it was read: its ETag is {found}, it was {etag}; try again", uri=uri)
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        given = answer.headers.get("Content-Range", "")
        if given != f"bytes {start}-{end - 1}/{size_bytes}":
            raise _odd(uri, f"the range `{given}`", f"bytes {start}-{end - 1}/{size_bytes}")
        if length is not None and length != str(end - start):
            raise _odd(uri, f"{length} bytes", str(end - start))
        return 0
    if length is not None and length != str(size_bytes):
        raise _odd(uri, f"{length} bytes", str(size_bytes))
    if start > SKIPPED_BYTES:
        raise Refused(
            f"the store ignores ranges: it sent all of {uri} where {format_bytes(end - start)} from "
            f"{format_bytes(start)} on were asked for; let what stands before the store pass the header `Range`",
            uri=uri,
        )
    return start


def refusal(answer: http.client.HTTPResponse, uri: str, now: datetime) -> HeadwayError:
    """Return what an answer other than success means."""
    said = answer.read(4096).decode("utf-8", "replace")
    found = re.search(r"<Code>([A-Za-z]+)</Code>", said)
    code = found.group(1) if found else ""
    kind = kind_of(code, answer.status)
    what = f"cannot read {uri}: HTTP {answer.status}{f' {code}' if code else ''}"
    ahead = _clock_ahead(answer, now)
    if code == "RequestTimeTooSkewed" or (answer.status == 403 and ahead is not None and abs(ahead) > SKEW_LIMIT):
        gap = "differs" if ahead is None else f"is {format_seconds(abs(ahead.total_seconds()))} {_side(ahead)}"
        return Refused(
            f"{what}; this machine's clock {gap} the store's, and S3 takes no signature of another time. "
            "Set both clocks (chrony or another NTP client), then start it again",
            uri=uri,
            code=code or "403",
        )
    if kind is BackendUnavailable:
        return Busy(f"{what}; {REMEDIES[kind]}", wait_s=_wait_s(answer, now), uri=uri)
    return kind(f"{what}; {REMEDIES[kind]}", uri=uri, status=answer.status)


def _side(ahead: timedelta) -> str:
    return "ahead of" if ahead > timedelta() else "behind"


def _clock_ahead(answer: http.client.HTTPResponse, now: datetime) -> timedelta | None:
    there = _moment(answer.headers.get("Date", ""))
    return now - there if there else None


def _wait_s(answer: http.client.HTTPResponse, now: datetime) -> float:
    """Return what `Retry-After` asks for, in seconds or as a moment; zero where it is absent or odd."""
    text = answer.headers.get("Retry-After", "").strip()
    until = None if text.isdigit() else _moment(text)
    wait_s = float(text) if text.isdigit() else (until - now).total_seconds() if until else 0.0
    return min(max(wait_s, 0.0), LONGEST_WAIT_S)


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _odd(uri: str, found: str, expected: str) -> BackendError:
    return BackendUnavailable(
        f"the store answered with {found} of {uri}, expected {expected}; the object was replaced, or what stands "
        "before the store changes answers. Try again",
        uri=uri,
    )
