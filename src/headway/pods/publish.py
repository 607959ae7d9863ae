"""Uploads an artifact: the files with checksums that the store verifies, then the manifest, only if absent."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.adapters.s3.client import S3Client, base64_of, split
from headway.adapters.s3.errors import translated
from headway.domain.model import SourceFile
from headway.domain.value import canonical_json
from headway.domain.weights import PART_BYTES, Manifest, WeightFile
from headway.errors import Conflict, IntegrityError
from headway.pods.fetch import hash_parts, require_plain
from headway.pods.io import Progress
from headway.units import GIB, format_bytes

MAX_COPY_BYTES = 5 * GIB
"""S3's limit of a copy in one request; larger objects are copied in parts of a GiB."""
COPY_PART_BYTES = 1 * GIB


def list_files(folder: Path) -> tuple[WeightFile, ...]:
    """Return the files of a directory with their digests, sorted."""
    files = []
    for path in sorted(folder.iterdir()):
        require_plain(path.name)
        sha256, parts = hash_parts(path)
        files.append(WeightFile(path=path.name, size_bytes=path.stat().st_size, sha256=sha256, parts=parts))
    return tuple(files)


def upload(client: S3Client, folder: Path, files: Sequence[WeightFile], uri: str, progress: Progress) -> None:
    """Write the files of an artifact.

    Raises:
        IntegrityError: The store got other bytes than were hashed.
    """
    total, done = sum(file.size_bytes for file in files), 0
    for file in files:
        progress(100 * done / max(total, 1), f"uploading {format_bytes(total)}")
        if len(file.parts) <= 1:
            client.put(uri + file.path, (folder / file.path).read_bytes(), sha256=file.sha256)
        else:
            _upload_parts(client, folder / file.path, file, uri + file.path)
        _require_size(client, uri + file.path, file.size_bytes)
        done += file.size_bytes


def copy(
    client: S3Client, sources: Sequence[SourceFile], etags: Mapping[str, str], uri: str, progress: Progress
) -> None:
    """Copy a source's files inside the store.

    Args:
        client: The store.
        sources: The files.
        etags: By address: the ETag of the bytes that were verified; a copy of anything else is refused.
        uri: Where the artifact goes.
        progress: Told how far it is.
    """
    total, done = sum(file.size_bytes for file in sources), 0
    for file in sources:
        progress(100 * done / max(total, 1), f"copying {format_bytes(total)}")
        _copy_one(client, file, etags[file.uri], uri + file.path)
        _require_size(client, uri + file.path, file.size_bytes)
        done += file.size_bytes


def publish(client: S3Client, manifest: Manifest, uri: str) -> Manifest:
    """Write the manifest, and with it make the artifact; return the one that is kept.

    Raises:
        IntegrityError: Another run published other bytes under this name.
    """
    kept = Manifest.model_validate_json(client.keep(uri + "manifest.json", canonical_json(manifest)))
    if kept.content_digest != manifest.content_digest:
        raise IntegrityError(
            f"two runs made different bytes for artifact {manifest.artifact_digest} ({kept.content_digest[:12]} and "
            f"{manifest.content_digest[:12]}); delete the artifact and quantize again",
            artifact_digest=manifest.artifact_digest,
        )
    return kept


def _upload_parts(client: S3Client, path: Path, file: WeightFile, uri: str) -> None:
    bucket, key = split(uri)
    with translated(f"write {uri}", uri=uri):
        started = client.api.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="SHA256")
        target = {"Bucket": bucket, "Key": key, "UploadId": started["UploadId"]}
        try:
            sent: list[dict[str, Any]] = []
            with path.open("rb") as opened:
                for number, digest in enumerate(file.parts, start=1):
                    body = opened.read(PART_BYTES)
                    answer = client.api.upload_part(
                        **target, PartNumber=number, Body=body, ChecksumSHA256=base64_of(digest)
                    )
                    _require_etag(answer["ETag"], body, uri)
                    sent.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": base64_of(digest)})
            client.api.complete_multipart_upload(**target, MultipartUpload={"Parts": sent})
        except BaseException:
            client.api.abort_multipart_upload(**target)
            raise


def _require_etag(etag: str, body: bytes, uri: str) -> None:
    """Compare a part's ETag with its MD5 where it is one; not every server checks the sha256 of parts."""
    plain = etag.strip('"')
    if len(plain) == 32 and plain != hashlib.md5(body, usedforsecurity=False).hexdigest():
        raise IntegrityError(f"the store got other bytes for {uri} than were sent; try again", uri=uri)


def _copy_one(client: S3Client, file: SourceFile, etag: str, uri: str) -> None:
    bucket, key = split(uri)
    from_bucket, from_key = split(file.uri)
    source = {"CopySource": {"Bucket": from_bucket, "Key": from_key}, "CopySourceIfMatch": f'"{etag}"'}
    with translated(f"copy {file.uri} to {uri}", uri=uri):
        if file.size_bytes < MAX_COPY_BYTES:
            client.api.copy_object(Bucket=bucket, Key=key, **source)
            return
        started = client.api.create_multipart_upload(Bucket=bucket, Key=key)
        target = {"Bucket": bucket, "Key": key, "UploadId": started["UploadId"]}
        sent = []
        for number, start in enumerate(range(0, file.size_bytes, COPY_PART_BYTES), start=1):
            stretch = f"bytes={start}-{min(start + COPY_PART_BYTES, file.size_bytes) - 1}"
            answer = client.api.upload_part_copy(**target, PartNumber=number, CopySourceRange=stretch, **source)
            sent.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        client.api.complete_multipart_upload(**target, MultipartUpload={"Parts": sent})


def _require_size(client: S3Client, uri: str, size_bytes: int) -> None:
    found = client.head(uri).size_bytes
    if found != size_bytes:
        raise Conflict(f"{uri} has {found} bytes after writing {size_bytes}; somebody else writes it too", uri=uri)
