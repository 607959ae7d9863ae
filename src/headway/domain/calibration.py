"""Calibration texts: JSON lines with a `text` or chat `messages` each, an input of an artifact with a digest."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headway.domain.calibration_texts import CALIBRATION_TEXTS
from headway.errors import ConfigError

KEYS = frozenset({"text", "messages", "language"})
MAX_BYTES = 256 * 1024**2
"""More is no calibration set; only the first rows would be used."""


def bundled() -> bytes:
    """Return headway's own texts as JSON lines."""
    lines = [
        json.dumps({"language": language, "text": text}, ensure_ascii=False) for language, text in CALIBRATION_TEXTS
    ]
    return ("\n".join(lines) + "\n").encode()


def bundled_digest() -> str:
    """Return their sha256."""
    return hashlib.sha256(bundled()).hexdigest()


def rows(content: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; empty lines are passed over.

    Each row has a `text`, or `messages` with a `role` and a `content` each, and may have a `language`.

    Raises:
        ConfigError: A line is something else; names it by its number.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(f"the calibration texts have {len(content)} bytes, the limit is {MAX_BYTES}; give fewer")
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the calibration texts are no UTF-8 (byte {error.start}); write them as UTF-8") from error
    found = [_row(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise ConfigError("the calibration texts have no rows; give JSON lines with a `text` each")
    return found


def said(row: Mapping[str, Any]) -> str:
    """Return everything that a row says, for its length and to find it twice."""
    if "text" in row:
        return str(row["text"])
    return "\n".join(str(message["content"]) for message in row["messages"])


def check_rows(
    found: Sequence[Mapping[str, Any]], languages: Mapping[str, float], samples: int | None = None
) -> list[dict[str, Any]]:
    """Return the table that the suite `calibration` checks, a row for each text that will be used.

    Args:
        found: What `rows` returned.
        languages: Least share of each language, by its name.
        samples: How many rows will be used, from the first on; none: all.
    """
    table = []
    for number, row in enumerate(found[:samples], start=1):
        text, language = said(row), row.get("language")
        table.append(
            {
                "row": number,
                "characters": len(text.strip()),
                "sha256": hashlib.sha256(" ".join(text.split()).encode()).hexdigest(),
                "language": language,
                **{f"is_{name}": float(language == name) for name in languages},
                **{f"least_{name}": least for name, least in languages.items()},
            }
        )
    return table


def shortfalls(
    found: Sequence[Mapping[str, Any]], languages: Mapping[str, float], samples: int | None = None
) -> list[str]:
    """Return one sentence for each language whose share of the used rows is too small."""
    used = found[:samples]
    counts = Counter(row.get("language") for row in used)
    return [
        f"{counts[name]} of {len(used)} calibration rows are in {name} ({counts[name] / len(used):.0%}), "
        f"the profile wants at least {least:.0%}"
        for name, least in languages.items()
        if counts[name] < least * len(used)
    ]


def _row(line: str, number: int) -> dict[str, Any]:
    where = f"line {number} of the calibration texts"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON ({error}); write one JSON object a line") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is no JSON object; write one JSON object a line")
    if unknown := sorted(set(row) - KEYS):
        raise ConfigError(f"{where} has the unknown key `{unknown[0]}`; known are {', '.join(sorted(KEYS))}")
    if ("text" in row) == ("messages" in row):
        raise ConfigError(f"{where} must have either a `text` or `messages`")
    if "text" in row and not isinstance(row["text"], str):
        raise ConfigError(f"{where} has a `text` that is no string")
    if "messages" in row and not _messages(row["messages"]):
        raise ConfigError(f"{where} has `messages` that are no list of objects with `role` and `content` strings")
    if not isinstance(row.get("language", ""), str):
        raise ConfigError(f"{where} has a `language` that is no string, such as `de`")
    return row


def _messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)
            for item in value
        )
    )
