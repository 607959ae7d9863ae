"""What the canary's load looks like: recorded arrivals and a prompt set, read once and checked before a job is sent.

A fault ends here, with a sentence that names it. Nothing falls back to another load: a verdict says what it was
measured under.
"""

import hashlib
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from headway.domain import prompts
from headway.domain.release import ReleasePlan
from headway.errors import ConfigError, NotFound
from headway.ports import REQUESTS, Metrics, Sample, WeightStore

HISTORY = "history"
"""The word in `canary.trace` for stable's own last hour."""
WINDOW = timedelta(hours=1)
MIN_ARRIVALS = 50
"""Fewer hold no pattern that is worth replaying."""
MAX_ARRIVALS = 50_000
"""What a job carries at most."""
MAX_TRACE_BYTES = 64 * 1024**2
FURTHEST_S = 1e12
"""No clock that counts seconds shows more; it keeps what is far off out of the arithmetic."""
DIGITS = 6
"""Arrivals are kept to the microsecond, so that a job's digest does not hang on the last bits of a float."""


class Load(NamedTuple):
    """What goes into a `BenchJob`."""

    arrivals_s: tuple[float, ...]
    """Rising from 0; empty where arrivals are drawn."""
    prompts_sha256: str
    """Empty where prompts are made."""


def resolve(plan: ReleasePlan, weights: WeightStore, metrics: Metrics, now: datetime) -> Load:
    """Read and check what the profile's canary replays and asks.

    Args:
        plan: Its profile names trace and prompts.
        weights: Where they are.
        metrics: Knows stable's own last hour.
        now: Its end.

    Raises:
        ConfigError: A file is not there or not fit, or there is too little history; says what to do.
    """
    canary = plan.profile.canary
    return Load(_arrivals(plan, weights, metrics, now), _prompts_digest(canary.prompts, weights))


def trace(content: bytes, uri: str) -> tuple[float, ...]:
    """Return the moments of a trace, JSON lines `{"at_s": ...}`; empty lines are passed over.

    Raises:
        ConfigError: A line is something else or earlier than the one before it, or there are too few; names the line.
    """
    if len(content) > MAX_TRACE_BYTES:
        raise ConfigError(
            f"the trace {uri} has {len(content)} bytes, the limit is {MAX_TRACE_BYTES}; give a shorter stretch", uri=uri
        )
    found: list[float] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        at = _moment(line, number, uri)
        if found and at < found[-1]:
            raise _unfit(uri, f"line {number} is at {at:g} s, before the line above it ({found[-1]:g} s); sort it")
        found.append(at)
    if len(found) < MIN_ARRIVALS:
        raise _unfit(uri, f"it has {len(found)} arrivals; at least {MIN_ARRIVALS} are needed")
    return tuple(found)


def arrivals_of(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Return the moments of a counter's increments, each spread evenly over the gap between its two samples.

    A gap over which the counter fell (something restarted) is cut out: how many came then is not known.

    Args:
        samples: Of one counter, in the order of time.
    """
    found: list[float] = []
    start_s = 0.0
    for before, after in pairwise(samples):
        gap_s = (after.at - before.at).total_seconds()
        count = round(after.value - before.value)
        if gap_s <= 0 or count < 0:
            continue
        found += [start_s + (number + 0.5) / count * gap_s for number in range(count)]
        start_s += gap_s
    return tuple(found)


def _arrivals(plan: ReleasePlan, weights: WeightStore, metrics: Metrics, now: datetime) -> tuple[float, ...]:
    canary = plan.profile.canary
    if canary.arrivals != "replay" or canary.trace is None:
        return ()
    if canary.trace == HISTORY:
        moments = _history(plan.model, metrics, now)
    else:
        moments = trace(_read(weights, canary.trace, "canary.trace", plan.model), canary.trace)
    # Of a long stretch the newest part: one more than gaps are needed, so that no block sees a gap twice.
    moments = moments[-min(MAX_ARRIVALS, max(MIN_ARRIVALS, canary.blocks * canary.requests_per_block + 1)) :]
    kept = tuple(round(at - moments[0], DIGITS) for at in moments)
    if kept[-1] == 0:
        raise _unfit(canary.trace, f"its last {len(kept)} arrivals are all at one moment; give a longer stretch")
    return kept


def _history(model: str, metrics: Metrics, now: datetime) -> tuple[float, ...]:
    samples = metrics.range(REQUESTS, {"model": model, "side": "stable"}, now - WINDOW, now)
    moments = arrivals_of(samples)
    if len(moments) < MIN_ARRIVALS:
        raise ConfigError(
            f"`canary.trace` of {model} is {HISTORY}, and stable had {len(moments)} requests in the last hour "
            f"({len(samples)} samples of {REQUESTS}); at least {MIN_ARRIVALS} are needed: wait for traffic, name a "
            "trace at s3://, or set `canary.arrivals` to poisson",
            requests=len(moments),
        )
    return moments


def _prompts_digest(uri: str | None, weights: WeightStore) -> str:
    if uri is None:
        return ""
    content = _read(weights, uri, "canary.prompts", "the profile")
    prompts.rows(content, uri)
    return hashlib.sha256(content).hexdigest()


def _read(weights: WeightStore, uri: str, key: str, whose: str) -> bytes:
    try:
        return weights.read(uri)
    except NotFound as error:
        raise ConfigError(
            f"`{key}` of {whose} is {uri}, and there is nothing; put the file there, or leave the key out", uri=uri
        ) from error


def _moment(line: bytes, number: int, uri: str) -> float:
    try:
        row = prompts.strict_object(line)
    except ValueError as error:
        raise _unfit(uri, f"line {number} {error}") from None
    at = row.get("at_s")
    if isinstance(at, bool) or not isinstance(at, int | float) or abs(at) > FURTHEST_S or math.isnan(at):
        raise _unfit(uri, f'line {number} has no number of seconds at "at_s": {line[:80]!r}')
    return float(at)


def _unfit(uri: str, fault: str) -> ConfigError:
    return ConfigError(
        f'the trace {uri} cannot be replayed: {fault}. Expected JSON lines {{"at_s": 12.5}} in the order of time',
        uri=uri,
    )
