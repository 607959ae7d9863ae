"""Small documents in S3 that are replaced whole."""

from headway.adapters.s3.client import OwnBucket, join
from headway.errors import ConfigError, NotFound


class S3Objects(OwnBucket):
    """Documents by key."""

    def read(self, key: str) -> bytes | None:
        """Return the content, none if absent."""
        try:
            return self.client.read(self._uri(key))
        except NotFound:
            return None

    def write(self, key: str, content: bytes) -> None:
        """Store the content, whole or not at all; what was there is replaced."""
        self.client.put(self._uri(key), content)

    def _uri(self, key: str) -> str:
        parts = key.split("/")
        if not key or "" in parts or ".." in parts or "." in parts:
            raise ConfigError(
                f"`{key}` is no key of a document; expected plain names joined by single slashes", key=key
            )
        return join(self._bucket, key)
