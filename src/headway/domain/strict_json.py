"""JSON that every reader reads alike.

Python takes more than JSON is: byte order marks, UTF-16, `NaN`, a key that is there twice, half a surrogate pair. What
is checked here is loaded elsewhere by other readers, so it must mean the same to all of them.
"""

import json
import math
from collections import Counter
from typing import Any, NoReturn


def parse(body: bytes) -> Any:
    """Return the value. Raises ValueError that says what is wrong."""
    if body[:3] == b"\xef\xbb\xbf":
        raise ValueError("it begins with a byte order mark; save it as plain UTF-8")
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_none, parse_float=_finite)
        # Half a surrogate pair is JSON, but no text that could be stored or shown.
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeError as error:
        raise ValueError("it is not UTF-8, or holds half a surrogate pair") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!a} is there twice")
    return found


def _none(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value
