"""A thin S3 client on botocore: the few calls that headway needs, in headway's errors.

Pod programs use it too, in environments that have botocore and nothing of boto3.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.session import Session

from headway.adapters.s3.errors import translated
from headway.domain.value import Value
from headway.errors import ConfigError, Conflict, IntegrityError, NotFound
from headway.ports import StoredObject
from headway.units import MIB

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 60
ATTEMPTS = 3
"""Tries of one request inside botocore. A dead server costs some 10 s at most, then a step's own retry takes over."""

STREAM_BYTES = 1 * MIB


BUCKET = "headway"


class S3Connection(Value):
    """Where the object store is, and as whom. Credentials stay in their file; no secret is a field."""

    endpoint: str | None = None
    """Base address; none for Amazon."""
    region: str = "us-east-1"
    credentials_file: Path | None = None
    """AWS shared credentials file (profile `default`); none: botocore's own chain (environment, pod identity)."""


def split(uri: str) -> tuple[str, str]:
    """Return bucket and key of an `s3://bucket/key` address.

    Raises:
        ConfigError: It is no such address.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ConfigError(f"`{uri}` is not an address in S3; expected s3://bucket/key", uri=uri)
    return bucket, key


def join(bucket: str, key: str) -> str:
    """Return the address of a key."""
    return f"s3://{bucket}/{key}"


class S3Client:
    """One identity's view of the object store.

    Args:
        connection: Where, and as whom.
    """

    def __init__(self, connection: S3Connection) -> None:
        session = Session()
        if connection.credentials_file is not None:
            session.set_config_variable("credentials_file", str(connection.credentials_file))
            session.set_config_variable("profile", "default")
        self.api: Any = session.create_client(
            "s3",
            region_name=connection.region,
            endpoint_url=connection.endpoint,
            config=Config(
                signature_version="s3v4",
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                s3={"addressing_style": "path" if connection.endpoint else "auto"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                max_pool_connections=16,
            ),
        )

    def list(self, uri: str) -> Iterator[StoredObject]:
        """Yield the objects whose address starts with `uri`, sorted by key."""
        bucket, prefix = split(uri)
        token: dict[str, str] = {}
        while True:
            with translated(f"list {uri}", uri=uri):
                page = self.api.list_objects_v2(Bucket=bucket, Prefix=prefix, **token)
            for item in page.get("Contents", ()):
                yield StoredObject(join(bucket, item["Key"]), int(item["Size"]), item["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def head(self, uri: str) -> StoredObject:
        """Return an object's size and ETag. Raises NotFound."""
        bucket, key = split(uri)
        with translated(f"look at {uri}", uri=uri):
            answer = self.api.head_object(Bucket=bucket, Key=key)
        return StoredObject(uri, int(answer["ContentLength"]), answer["ETag"].strip('"'))

    def read(self, uri: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return a stretch of an object; with `etag`, only if it is unchanged."""
        if length is not None and length <= 0:
            return b""
        return b"".join(self.stream(uri, start=start, length=length, etag=etag))

    def stream(
        self, uri: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> Iterator[bytes]:
        """Yield a stretch of an object in pieces. Raises IntegrityError when the connection ends too early."""
        bucket, key = split(uri)
        extra: dict[str, str] = {"IfMatch": f'"{etag}"'} if etag else {}
        if start or length is not None:
            extra["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        with translated(f"read {uri}", uri=uri):
            answer = self.api.get_object(Bucket=bucket, Key=key, **extra)
            expected, seen = int(answer["ContentLength"]), 0
            while piece := answer["Body"].read(STREAM_BYTES):
                seen += len(piece)
                yield piece
        if seen != expected:
            raise IntegrityError(f"{uri} ended after {seen} of {expected} bytes; try again", uri=uri)

    def put(self, uri: str, body: bytes, *, if_absent: bool = False, sha256: str | None = None) -> None:
        """Write a small object.

        Args:
            uri: Where.
            body: Content.
            if_absent: Raise Conflict instead of replacing.
            sha256: Digest that the server checks.
        """
        bucket, key = split(uri)
        extra: dict[str, str] = {"IfNoneMatch": "*"} if if_absent else {}
        if sha256 is not None:
            extra["ChecksumSHA256"] = base64_of(sha256)
        with translated(f"write {uri}", uri=uri):
            self.api.put_object(Bucket=bucket, Key=key, Body=body, **extra)

    def keep(self, uri: str, body: bytes) -> bytes:
        """Write an object if it is absent, and return what is kept: the first one wins."""
        try:
            self.put(uri, body, if_absent=True)
        except Conflict:
            return self.read(uri)
        return body

    def read_json(self, uri: str) -> Mapping[str, Any] | None:
        """Return a JSON object, none if absent. Raises IntegrityError when it is not JSON."""
        try:
            body = self.read(uri)
        except NotFound:
            return None
        return parse_json(body, uri)

    def delete(self, uri: str) -> None:
        """Delete an object; absent is fine."""
        bucket, key = split(uri)
        with translated(f"delete {uri}", uri=uri):
            self.api.delete_object(Bucket=bucket, Key=key)

    def signed_url(self, uri: str, *, expires_s: int) -> str:
        """Return an address that reads the object without credentials. Made here; the server is not asked."""
        bucket, key = split(uri)
        with translated(f"sign {uri}", uri=uri):
            wanted = {"Bucket": bucket, "Key": key}
            return str(self.api.generate_presigned_url("get_object", Params=wanted, ExpiresIn=expires_s))


def base64_of(hex_digest: str) -> str:
    """Return a digest in the spelling of S3's checksum headers."""
    return base64.b64encode(bytes.fromhex(hex_digest)).decode()


def parse_json(body: bytes, uri: str) -> Mapping[str, Any]:
    """Return the JSON object in `body`. Raises IntegrityError that names the address."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise IntegrityError(f"{uri} is not JSON ({error}); it was not written by headway", uri=uri) from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{uri} holds a {type(value).__name__} where a JSON object belongs", uri=uri)
    return value


class OwnBucket:
    """What the store, the lease and the ledger share: headway's own bucket and a client of it, made on first use.

    Args:
        connection: Where, and as whom.
        bucket: Name of the bucket.
    """

    def __init__(self, connection: S3Connection, bucket: str = BUCKET) -> None:
        self._connection = connection
        self._bucket = bucket

    @cached_property
    def client(self) -> S3Client:
        """The S3 client."""
        return S3Client(self._connection)
