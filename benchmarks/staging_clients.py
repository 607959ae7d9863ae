"""The clients of `benchmarks/staging.py` that are Python, one process for each measurement.

`python -m benchmarks.staging_clients NAME job.json` does one thing, and prints one line of JSON: seconds from the first
call to the last fsync (the start of Python, imports and the making of a botocore client do not count, for anybody), CPU
seconds of the same stretch, and the most memory that was resident.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
PART_BYTES = 64 * MIB
BUCKET = "headway"
FILES_AT_ONCE = 8
"""Files that huggingface_hub's `snapshot_download` fetches side by side."""

IMPORTS = {
    "headway": ("headway.pods.stage",),
    "boto3": ("boto3", "boto3.s3.transfer"),
    "boto3-tuned": ("boto3", "boto3.s3.transfer"),
    "hf": ("huggingface_hub.file_download",),
    "runai": ("torch", "runai_model_streamer"),
}


def main() -> None:
    """Do what the command line says."""
    name, job = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    for module in IMPORTS.get(name, ()):
        importlib.import_module(module)
    if name in SETUP:
        job["client"] = SETUP[name]()
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        more = CLIENTS[name](job) or {}
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "rss_mib": _peak_mib(), **more}))


def prepare(job: dict[str, Any]) -> dict[str, Any]:
    """Put artifacts into the store, their manifests last; return a signed address for each file."""
    import boto3

    from headway.adapters.s3.client import S3Client, S3Connection

    client = S3Client(S3Connection(endpoint=os.environ["HEADWAY_S3_ENDPOINT"]))
    if job.get("bucket"):
        client.api.create_bucket(Bucket=BUCKET)
    upload = boto3.client("s3")
    urls = {}
    for digest, names in job["artifacts"].items():
        uri = f"s3://{BUCKET}/artifacts/{digest}/"
        listed = []
        for name, path in names.items():
            sha256, parts = _hashes(Path(path))
            upload.upload_file(path, BUCKET, f"artifacts/{digest}/{name}")
            size = Path(path).stat().st_size
            listed.append({"path": name, "size_bytes": size, "sha256": sha256, "parts": parts})
            urls[f"{digest}/{name}"] = client.signed_url(uri + name, expires_s=7200)
        manifest = {"schema_version": 1, "artifact_digest": digest, "files": listed}
        client.put(uri + "manifest.json", json.dumps(manifest).encode())
    return {"urls": urls}


def headway_client() -> Any:
    """The stage program's own connection."""
    from headway.adapters.s3.client import S3Client
    from headway.pods import stage

    return S3Client(stage.connection_of(os.environ))


def boto3_client() -> Any:
    """As the documentation makes it."""
    import boto3

    return boto3.client("s3")


def boto3_tuned_client() -> Any:
    """Without a second checksum of the same bytes."""
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(response_checksum_validation="when_required"))


SETUP: dict[str, Callable[[], Any]] = {
    "headway": headway_client,
    "boto3": boto3_client,
    "boto3-tuned": boto3_tuned_client,
}


def headway(job: dict[str, Any]) -> dict[str, Any]:
    """The stage program's own function; with `hits`, how long each of so many further calls takes."""
    from headway.adapters.s3.client import S3Client
    from headway.domain.weight_jobs import StageJob
    from headway.pods import stage

    asked = StageJob(
        artifact_digest=job["digest"],
        artifact_uri=f"s3://{BUCKET}/artifacts/{job['digest']}/",
        dest_root=job["target"],
        high_pct=100,
        low_pct=100,
    )

    def connect() -> S3Client:
        client: S3Client = job["client"]
        return client

    result = stage.run(asked, connect, _quiet)
    hits = []
    for _ in range(job.get("hits", 0)):
        began = time.monotonic()
        found = stage.run(asked, connect, _quiet)
        hits.append(1000 * (time.monotonic() - began))
        assert found.outcome == "hit"
    return {"result": result.to_json(), "hits_ms": hits}


def boto3_default(job: dict[str, Any]) -> None:
    """What the documentation of boto3 says first."""
    _boto3(job, {})


def boto3_tuned(job: dict[str, Any]) -> None:
    """The fastest of its settings on one machine."""
    _boto3(job, {"multipart_chunksize": 64 * MIB, "max_concurrency": 4, "io_chunksize": 4 * MIB})


def _boto3(job: dict[str, Any], settings: dict[str, int]) -> None:
    from boto3.s3.transfer import TransferConfig

    def one(name: str) -> None:
        target = Path(job["target"]) / name
        transfer = TransferConfig(**settings)
        job["client"].download_file(BUCKET, f"artifacts/{job['digest']}/{name}", str(target), Config=transfer)
        _sync(target)

    _each(job, one)


def hf(job: dict[str, Any]) -> None:
    """huggingface_hub's own download of one address, and its number of files at once."""
    from huggingface_hub.file_download import http_get

    def one(name: str) -> None:
        with (Path(job["target"]) / name).open("wb") as file:
            http_get(job["urls"][f"{job['digest']}/{name}"], file, expected_size=job["sizes"][name])
            file.flush()
            os.fsync(file.fileno())

    _each(job, one)


def runai(job: dict[str, Any]) -> None:
    """Run:ai's streamer, which brings tensors to memory and nothing to the disk."""
    os.environ |= {"RUNAI_STREAMER_CONCURRENCY": "4", "RUNAI_STREAMER_CHUNK_BYTESIZE": str(64 * MIB)}
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([f"s3://{BUCKET}/artifacts/{job['digest']}/{name}" for name in job["sizes"]])
        for _name, tensor in streamer.get_tensors():
            assert tensor.nelement()


def sha256(job: dict[str, Any]) -> None:
    """Hash what another client brought, files side by side."""
    with ThreadPoolExecutor(2) as pool:
        for path in pool.map(_hash, sorted(Path(job["target"]).iterdir())):
            assert path


def _quiet(_percent: float, _message: str) -> None:
    """Progress that nobody watches."""


def _each(job: dict[str, Any], one: Callable[[str], None]) -> None:
    Path(job["target"]).mkdir(parents=True)
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        for _ in pool.map(one, job["sizes"]):
            pass
    _sync(Path(job["target"]))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hashes(path: Path) -> tuple[str, list[str]]:
    whole, parts = hashlib.sha256(), []
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            whole.update(part)
            parts.append(hashlib.sha256(part).hexdigest())
    return whole.hexdigest(), parts


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _peak_mib() -> float:
    """Return the most memory that was resident, of this program and not of what started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


CLIENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "prepare": prepare,
    "headway": headway,
    "boto3": boto3_default,
    "boto3-tuned": boto3_tuned,
    "hf": hf,
    "runai": runai,
    "sha256": sha256,
}

if __name__ == "__main__":
    main()
