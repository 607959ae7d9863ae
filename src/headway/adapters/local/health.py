"""How a service of the stack is, asked from outside: by what it answers, not by whether its process exists."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from headway.adapters.local import services
from headway.adapters.local.layout import S3_REGION, LocalLayout
from headway.adapters.local.processes import Supervisor
from headway.adapters.local.secrets import read_s3
from headway.errors import BackendUnavailable

BUCKETS = ("mlflow", "headway")
PROBE = "probe/ready"
TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Health:
    """Whether a service does its work."""

    ok: bool
    detail: str
    """What it answered, or why it did not."""


def check(layout: LocalLayout, name: str, *, started_at: float = 0.0) -> Health:
    """Ask one service now.

    Args:
        layout: Where.
        name: Of the service.
        started_at: When its process started, in seconds since the epoch; an older heartbeat is its predecessor's.
    """
    airflow = partial(_airflow, started_at=started_at)
    checks: dict[str, Callable[[LocalLayout], str]] = {
        services.S3: _s3,
        services.MLFLOW: _mlflow,
        services.GATEWAY: _gateway,
        services.METRICS: _metrics,
        services.AIRFLOW_API: partial(airflow, part="metadatabase"),
        services.AIRFLOW_SCHEDULER: partial(airflow, part="scheduler"),
        services.AIRFLOW_TRIGGERER: partial(airflow, part="triggerer"),
        services.AIRFLOW_DAGS: partial(airflow, part="dag_processor"),
    }
    try:
        problem = checks[name](layout)
    except requests.RequestException as error:
        problem = f"does not answer ({type(error).__name__})"
    return Health(ok=not problem, detail=problem or "ready")


def _get(url: str) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=TIMEOUT_S)


def _s3_client(layout: LocalLayout) -> Any:
    access, secret = read_s3(layout.s3_credentials("admin"))
    return boto3.client(
        "s3",
        endpoint_url=layout.s3_url,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        region_name=S3_REGION,
        config=Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"max_attempts": 0}),
    )


def prepare_s3(layout: LocalLayout) -> str:
    """Make the buckets that are missing and see that a write works; return what keeps it from that, empty if nothing.

    The S3 server lists buckets before its volumes can take a byte, so only a write says that it is ready.
    """
    try:
        client = _s3_client(layout)
        there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        for bucket in BUCKETS:
            if bucket not in there:
                client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=BUCKETS[-1], Key=PROBE, Body=b"ready")
    except (BotoCoreError, ClientError) as error:
        return f"does not answer ({error})"
    return ""


def _s3(layout: LocalLayout) -> str:
    try:
        there = {bucket["Name"] for bucket in _s3_client(layout).list_buckets()["Buckets"]}
    except (BotoCoreError, ClientError) as error:
        return f"does not answer ({error})"
    missing = set(BUCKETS) - there
    return f"has no bucket {', '.join(sorted(missing))}" if missing else ""


def _mlflow(layout: LocalLayout) -> str:
    response = _get(f"{layout.mlflow_url}/health")
    return "" if response.ok else f"answers {response.status_code}"


def _gateway(layout: LocalLayout) -> str:
    response = _get(f"{layout.envoy_admin_url}/ready")
    return "" if response.ok else f"answers {response.status_code} {response.text.strip()}"


def _metrics(layout: LocalLayout) -> str:
    """The scraper has no port; running is what it can show."""
    try:
        phase = Supervisor(layout).state(services.METRICS).phase
    except BackendUnavailable as error:
        return error.message
    return "" if phase == "running" else phase


def _airflow(layout: LocalLayout, part: str, started_at: float) -> str:
    response = _get(f"{layout.airflow_url}/api/v2/monitor/health")
    if not response.ok:
        return f"the API answers {response.status_code}"
    found = response.json().get(part) or {}
    if found.get("status") != "healthy":
        return f"no heartbeat ({found.get('status')})"
    heartbeat = found.get(f"latest_{part}_heartbeat")
    if heartbeat and datetime.fromisoformat(heartbeat).timestamp() < started_at:
        return "no heartbeat since its start"
    return ""
