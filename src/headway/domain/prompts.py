"""A prompt set: JSON lines `{"prompt": ..., "max_tokens": ...}` that the benchmark draws from, named by its digest."""

import json
from typing import Any, NamedTuple

from headway.errors import ConfigError

MIN_PROMPTS = 20
"""Fewer are no picture of what users ask, and each would be sent again and again."""
MAX_PROMPTS = 100_000
MAX_CHARACTERS = 500_000
"""Of one prompt; about a context of 128k tokens."""
MAX_TOKENS = 65_536
"""Of one answer."""
MAX_BYTES = 64 * 1024**2
FAULTS_NAMED = 10


class Prompt(NamedTuple):
    """One line of a set."""

    text: str
    max_tokens: int | None = None
    """None: `canary.max_tokens`."""


def rows(content: bytes, uri: str) -> tuple[Prompt, ...]:
    """Return the prompts of a file of JSON lines; empty lines are passed over.

    Args:
        content: Of the file.
        uri: Its address, for the error.

    Raises:
        ConfigError: Lines are something else, or there are too few or too many; every fault is named by its line.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(f"the prompts {uri} have {len(content)} bytes, the limit is {MAX_BYTES}; give fewer", uri=uri)
    found: list[Prompt] = []
    faults: list[str] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(_row(line))
        except _FaultError as fault:
            faults.append(f"line {number} {fault}")
    if not faults and not MIN_PROMPTS <= len(found) <= MAX_PROMPTS:
        faults.append(f"it has {len(found)} prompts; expected {MIN_PROMPTS} to {MAX_PROMPTS}")
    if faults:
        shown = faults[:FAULTS_NAMED]
        more = [f"and {len(faults) - FAULTS_NAMED} more"] if len(faults) > FAULTS_NAMED else []
        listing = "\n".join(f"  - {fault}" for fault in [*shown, *more])
        raise ConfigError(
            f"the prompts {uri} cannot be used; give JSON lines "
            f'{{"prompt": "...", "max_tokens": 64}}, the second key as you like:\n{listing}',
            uri=uri,
            faults=faults,
        )
    return tuple(found)


class _FaultError(Exception):
    """What is wrong with a line."""


def strict_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        ValueError: It is none, or not strict JSON (NaN, Infinity, a key that is there twice); says which.
    """
    try:
        row = json.loads(line.decode(), parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg} at character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"is {type(row).__name__}, expected an object")  # noqa: TRY004 - the content's fault
    return row


def _row(line: bytes) -> Prompt:
    try:
        row = strict_object(line)
    except ValueError as error:
        raise _FaultError(str(error)) from None
    unknown = sorted(row.keys() - {"prompt", "max_tokens"})
    if unknown:
        raise _FaultError(f"has the unknown keys {', '.join(unknown)[:80]}; known are prompt and max_tokens")
    text, tokens = row.get("prompt"), row.get("max_tokens")
    if not isinstance(text, str) or not text.strip():
        raise _FaultError('has no text at "prompt"')
    if len(text) > MAX_CHARACTERS:
        raise _FaultError(f"has a prompt of {len(text)} characters; the limit is {MAX_CHARACTERS}")
    if not _is_utf8(text):
        raise _FaultError("has a prompt with half of a surrogate pair, which is no text")
    if tokens is not None and (type(tokens) is not int or not 2 <= tokens <= MAX_TOKENS):
        raise _FaultError(f"has max_tokens {tokens!r}; expected a whole number from 2 to {MAX_TOKENS}")
    return Prompt(text, tokens)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"holds {name}, which JSON has not")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("has a key twice")
    return found
