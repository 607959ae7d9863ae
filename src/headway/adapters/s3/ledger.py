"""Records in S3: put if absent, never edited."""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.adapters.s3.client import OwnBucket, join, parse_json
from headway.domain.value import canonical_json
from headway.errors import ConfigError


class S3Ledger(OwnBucket):
    """Records by key."""

    def append(self, key: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep the record if the key is free; return the record that is kept (the first one wins)."""
        uri = self._uri(key)
        return parse_json(self.client.keep(uri, canonical_json(dict(record))), uri)

    def read(self, key: str) -> Mapping[str, Any] | None:
        """Return the record, none if absent."""
        return self.client.read_json(self._uri(key))

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix, sorted."""
        root = join(self._bucket, "")
        yield from sorted(item.uri.removeprefix(root) for item in self.client.list(root + prefix))

    def _uri(self, key: str) -> str:
        parts = key.split("/")
        if not key or "" in parts or ".." in parts or "." in parts:
            raise ConfigError(f"`{key}` is no key of a record; expected plain names joined by single slashes", key=key)
        return join(self._bucket, key)
