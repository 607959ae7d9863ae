"""Why an engine did not start, in its own words.

vLLM's last error says "see root cause above": the cause itself is a line that one of its processes logged before.
"""

import re
from collections.abc import Iterable

CAUSE = re.compile(
    r"^\((?:Worker|EngineCore)[^)]*\) ERROR \S+ \S+ \[[^\]]*\] (?P<cause>(?:\w+\.)*\w*(?:Error|Exception): .+)$"
)
RAISED = re.compile(r"^(?:\(\w+ pid=\d+\)\s+)?(?P<cause>(?:\w+\.)*\w*(?:Error|Exception): .+)$")
"""What a process prints that has no logger yet, or no more: the last line of a traceback."""
PREFIX = re.compile(r"^\(\w+ pid=\d+\)\s*")
VALIDATION = re.compile(r"\d+ validation errors? for ")
"""Pydantic says on the lines below what was wrong."""
BELOW = 2
"""Lines of them that are kept."""
CONSEQUENCES = ("initialization failed", "cancelled")
"""What the other processes say when one of them has failed."""

LONGEST = 400


def root_cause(lines: Iterable[str]) -> str:
    """Return the first error that a process of the engine logged, without the module's name; empty if there is none."""
    for line in lines:
        found = CAUSE.match(line)
        if found and not any(word in line for word in CONSEQUENCES):
            return _said(found["cause"])
    return ""


def last_error(lines: Iterable[str]) -> str:
    """Return the root cause, or else the last error that was printed, or else the last line."""
    kept = [line.strip() for line in lines if line.strip()]
    cause = root_cause(kept)
    if cause:
        return cause
    raised = [(place, found["cause"]) for place, line in enumerate(kept) if (found := RAISED.match(line))]
    if not raised:
        return kept[-1][:LONGEST] if kept else "it said nothing"
    place, last = raised[-1]
    below = kept[place + 1 : place + 1 + BELOW] if VALIDATION.search(last) else []
    return _said(" ".join([last, *(PREFIX.sub("", line).partition(" [type=")[0] for line in below)]))


def _said(cause: str) -> str:
    module, _, text = cause.partition(": ")
    return f"{module.rpartition('.')[2]}: {text}"[:LONGEST]
