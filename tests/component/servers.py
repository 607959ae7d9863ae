"""Real servers for component tests: SeaweedFS and MLflow on free ports of 127.0.0.1."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from headway.adapters.s3 import S3Client, S3Connection

BIN = Path(sys.executable).parent
ROLES: dict[str, tuple[str, ...]] = {
    "admin": ("Admin", "Read", "Write", "List", "Tagging"),
    "mlflow": ("Read:mlflow", "Write:mlflow", "List:mlflow", "Tagging:mlflow"),
    "headway": ("Read:headway", "Write:headway", "List:headway", "Tagging:headway", "Read:mlflow", "List:mlflow"),
    "quantize": ("Read:headway", "Write:headway", "List:headway", "Read:mlflow", "List:mlflow"),
    "stage": ("Read:headway", "List:headway"),
}
"""The rights that the embedded stack gives each role."""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Return when the condition is true; fail the test if it never is."""
    ends = monotonic() + timeout_s
    while not condition():
        assert monotonic() < ends, f"{what} did not come up in {timeout_s} s"
        sleep(0.1)


@contextmanager
def process(command: list[str], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server; end it at the end."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}, start_new_session=True
        )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@dataclass
class S3Server:
    """SeaweedFS with the stack's buckets and identities."""

    folder: Path
    endpoint: str

    def credentials(self, role: str) -> Path:
        """Return the credentials file of a role."""
        return self.folder / f"s3-{role}.ini"

    def connection(self, role: str = "headway") -> S3Connection:
        """Return how a role connects."""
        return S3Connection(endpoint=self.endpoint, credentials_file=self.credentials(role))

    def client(self, role: str = "admin") -> S3Client:
        """Return a client of a role."""
        return S3Client(self.connection(role))

    def environment(self, role: str) -> dict[str, str]:
        """Return the variables that a pod program of this role gets."""
        return {
            "HEADWAY_S3_ENDPOINT": self.endpoint,
            "MLFLOW_S3_ENDPOINT_URL": self.endpoint,
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials(role)),
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run SeaweedFS with data below `folder`, on one address of this machine."""
    data = folder / "data"
    data.mkdir(parents=True)
    identities = []
    for role, actions in ROLES.items():
        access, secret = f"{role}AK", f"{role}-secret"
        (folder / f"s3-{role}.ini").write_text(
            f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
        )
        keys = [{"accessKey": access, "secretKey": secret}]
        identities.append({"name": role, "credentials": keys, "actions": list(actions)})
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = free_ports(8)
    command = [
        str(BIN / "weed"),
        "server",
        f"-dir={data}",
        f"-ip={host}",
        f"-ip.bind={host}",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=64",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        f"-s3.localSocket={folder / 's3.sock'}",
        f"-s3.config={folder / 's3.json'}",
    ]
    with process(command, folder / "weed.log"):
        server = S3Server(folder, f"http://{host}:{s3}")
        wait_for(lambda: _has_buckets(server), "SeaweedFS")
        yield server


def _has_buckets(server: S3Server) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client("admin")
    try:
        known = {bucket["Name"] for bucket in client.api.list_buckets()["Buckets"]}
        for bucket in {"mlflow", "headway"} - known:
            client.api.create_bucket(Bucket=bucket)
        client.put("s3://headway/ready", b"1")
    except (BotoCoreError, ClientError):
        return False
    return True


@contextmanager
def mlflow_server(folder: Path, s3: S3Server) -> Iterator[str]:
    """Run MLflow with its database below `folder` and artifacts in S3; yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    [port] = free_ports(1)
    command = [
        str(BIN / "mlflow"),
        "server",
        "--host=127.0.0.1",
        f"--port={port}",
        "--workers=1",
        f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}",
        "--no-serve-artifacts",
        "--default-artifact-root=s3://mlflow/",
    ]
    variables = {**s3.environment("mlflow"), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with process(command, folder / "mlflow.log", **variables):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(f"{url}/health"), "MLflow", timeout_s=120)
        yield url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own loopback address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
