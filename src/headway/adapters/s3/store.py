"""Model files and artifacts in S3."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from headway.adapters.s3.client import OwnBucket, join
from headway.domain.value import canonical_json, digest
from headway.domain.weights import Manifest, read_manifest
from headway.errors import IntegrityError, NotFound
from headway.ports import StoredObject


class S3WeightStore(OwnBucket):
    """The object store as steps see it."""

    def list(self, uri: str) -> Sequence[StoredObject]:
        """Return the objects below an address, sorted; markers of folders are left out."""
        below = uri if uri.endswith("/") else uri + "/"
        return sorted(item for item in self.client.list(below) if not item.uri.endswith("/"))

    def read(self, uri: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return a stretch of an object. Raises NotFound."""
        return self.client.read(uri, start=start, length=length)

    def sha256(self, item: StoredObject) -> str:
        """Return an object's sha256. Remembered by address, ETag and size, so that each object is read once.

        The ETag is no content digest, but S3 changes it with every write; the read insists on it too.
        """
        key = join(self._bucket, f"sources/{digest([item.uri, item.etag, item.size_bytes])}.json")
        known = self.client.read_json(key)
        if known is not None:
            return str(known["sha256"])
        running = hashlib.sha256()
        for piece in self.client.stream(item.uri, etag=item.etag):
            running.update(piece)
        value = running.hexdigest()
        note = {"uri": item.uri, "etag": item.etag, "size_bytes": item.size_bytes, "sha256": value}
        self.client.keep(key, canonical_json(note))
        return value

    def manifest(self, artifact_digest: str) -> Manifest | None:
        """Return the manifest of a whole artifact, none if it is not there (or not yet whole)."""
        uri = self.artifact_uri(artifact_digest) + "manifest.json"
        found = self.client.read_json(uri)
        if found is None:
            return None
        manifest = read_manifest(found, uri)
        if manifest.artifact_digest != artifact_digest:
            raise IntegrityError(f"{uri} is the manifest of {manifest.artifact_digest}; delete the artifact", uri=uri)
        return manifest

    def artifact_uri(self, artifact_digest: str) -> str:
        """Return where the artifact's files are."""
        return join(self._bucket, f"artifacts/{artifact_digest}/")

    def json(self, key: str) -> Mapping[str, Any] | None:
        """Return a JSON object of headway's bucket, none if absent."""
        return self.client.read_json(join(self._bucket, key))

    def put(self, uri: str, content: bytes) -> None:
        """Store an object; one that is there is replaced."""
        self.client.put(uri, content)

    def get_url(self, uri: str, *, expires_s: int = 3600) -> str:
        """Return an address with a signature in it. Raises NotFound when there is no such object."""
        self.client.head(uri)
        return self.client.signed_url(uri, expires_s=expires_s)

    def delete(self, artifact_digest: str) -> None:
        """Delete an artifact: the manifest first, so that nobody takes the rest for whole; absent is fine."""
        prefix = self.artifact_uri(artifact_digest)
        self.client.delete(prefix + "manifest.json")
        for item in self.client.list(prefix):
            try:
                self.client.delete(item.uri)
            except NotFound:
                continue
