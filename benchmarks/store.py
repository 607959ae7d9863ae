"""A SeaweedFS of one's own on loopback, for the time of a benchmark."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "benchAK", "bench-secret"
UP_WITHIN_S = 60
DOWN_WITHIN_S = 10


@contextmanager
def store(folder: Path) -> Iterator[str]:
    """Run the server with its data below `folder`; yield its address, and put the credentials into the environment."""
    data = folder / "data"
    data.mkdir(parents=True)
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identity = {"name": "bench", "credentials": keys, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = _free_ports(8)
    names = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc"]
    names += ["volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    command = [
        str(Path(sys.executable).parent / "weed"),
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        "-volume.max=20",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-s3",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        f"-s3.localSocket={folder / 's3.sock'}",
        f"-s3.config={folder / 's3.json'}",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
    ]
    endpoint = f"http://127.0.0.1:{ports[0]}"
    os.environ |= {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "HEADWAY_S3_ENDPOINT": endpoint,
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        ends = time.monotonic() + UP_WITHIN_S
        while not _answers(endpoint):
            if server.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"SeaweedFS did not come up:\n{(folder / 'weed.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        try:
            server.wait(DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=2):  # noqa: S310 - our own loopback address
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
