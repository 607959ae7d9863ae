"""Frozen values, their canonical JSON and the digests that name things."""

import hashlib
import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value that refuses unknown fields and goes to JSON and back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain JSON types."""
        return self.model_dump(mode="json")


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, no spaces, UTF-8."""
    plain = value.to_json() if isinstance(value, Value) else value
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(value: Any) -> str:
    """Return the sha256 of the canonical JSON as 64 hex digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def short(full_digest: str) -> str:
    """Return the 12 hex digits of a digest that go into names (48 bits: no clash among a fleet's plans)."""
    return full_digest[:12]


def slug(text: str, limit: int = 40) -> str:
    """Return `text` as a DNS label of at most `limit` characters (RFC 1123), unique by a digest when cut or changed.

    Kubernetes names, S3 keys and Envoy clusters all accept the result.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= limit:
        return plain
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{plain[: limit - 7].strip('-') or 'x'}-{mark}"
