"""The programs of the embedded stack: what is started, with which arguments and which environment."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from headway.adapters.local import secrets
from headway.adapters.local.layout import HOST, LocalLayout

S3, MLFLOW, GATEWAY, METRICS = "s3", "mlflow", "gateway", "metrics"
AIRFLOW_API, AIRFLOW_SCHEDULER = "airflow-api", "airflow-scheduler"
AIRFLOW_TRIGGERER, AIRFLOW_DAGS = "airflow-triggerer", "airflow-dag-processor"

AIRFLOW_PROGRAMS = (AIRFLOW_API, AIRFLOW_SCHEDULER, AIRFLOW_TRIGGERER, AIRFLOW_DAGS)
PROGRAMS = (S3, MLFLOW, GATEWAY, METRICS, *AIRFLOW_PROGRAMS)

VOLUME_SIZE_LIMIT_MB = 1024
"""SeaweedFS fills volumes up to this; its own 30 GB would not fit a small disk."""

MOST_VOLUMES = 200
"""Upper limit of volumes; each bucket grows by a few at a time. Disk space is the real limit."""

LEAST_FREE_SPACE = "1GiB"
"""Below this SeaweedFS refuses writes instead of filling the disk."""


@dataclass(frozen=True)
class Service:
    """One program of the stack."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    stop_wait_s: int = 15
    start_s: int = 2
    """Seconds that it must live to count as running."""


def services(layout: LocalLayout) -> dict[str, Service]:
    """Return the stack's programs by name, in the order in which they are started. Secrets must be there."""
    airflow = airflow_env(layout)
    found = (
        Service(S3, _weed(layout), layout.child_env("airflow"), layout.s3_data, stop_wait_s=20),
        Service(GATEWAY, _envoy(layout), layout.child_env("airflow"), layout.envoy, stop_wait_s=5),
        Service(
            METRICS,
            (
                str(layout.python("airflow")),
                "-m",
                "headway.adapters.local.scrape",
                str(layout.home),
                str(layout.cache),
                str(layout.base_port),
                str(layout.checkout),
            ),
            layout.child_env("airflow", extra={"HEADWAY_CODE": code_digest(layout.checkout)}),
            layout.metrics,
            stop_wait_s=5,
            start_s=5,
        ),
        Service(MLFLOW, _mlflow(layout), mlflow_env(layout), layout.mlflow_data),
        Service(AIRFLOW_API, _airflow(layout, "api-server"), airflow, layout.airflow_home),
        Service(
            AIRFLOW_SCHEDULER, _airflow(layout, "scheduler", "--skip-serve-logs"), airflow, layout.airflow_home, 20
        ),
        Service(
            AIRFLOW_TRIGGERER, _airflow(layout, "triggerer", "--skip-serve-logs"), airflow, layout.airflow_home, 20
        ),
        Service(AIRFLOW_DAGS, _airflow(layout, "dag-processor"), airflow, layout.airflow_home),
    )
    return {service.name: service for service in found}


def airflow_env(layout: LocalLayout) -> dict[str, str]:
    """Return the environment of Airflow's programs, tasks included.

    It holds a digest of the code, because Airflow never reloads plugins and triggers: other code is another definition,
    so the next `up` restarts them.
    """
    values = _filled(
        layout,
        "airflow/airflow.env",
        host=HOST,
        airflow_home=str(layout.airflow_home),
        checkout=str(layout.checkout),
        airflow_url=layout.airflow_url,
        airflow_port=str(layout.airflow_port),
        passwords=str(layout.airflow_passwords),
        secrets=str(layout.secrets),
        logs=str(layout.logs),
        worker_log_port=str(layout.base_port + 9),
        trigger_log_port=str(layout.base_port + 10),
    )
    keys = {"HEADWAY_SIGNING_KEY": layout.own_signing_key, "HEADWAY_ARTIFACT_KEY": layout.own_artifact_key}
    values |= {name: str(path) for name, path in keys.items() if path is not None}
    if layout.prometheus_url:
        values["HEADWAY_PROMETHEUS_URL"] = layout.prometheus_url
    values |= layout.handed_on
    return layout.child_env("airflow", extra={**values, "HEADWAY_CODE": code_digest(layout.checkout)})


def mlflow_env(layout: LocalLayout) -> dict[str, str]:
    """Return the environment of MLflow's server."""
    key = secrets.read(layout, secrets.MLFLOW_WEBHOOK_KEY)
    values = _filled(layout, "mlflow/mlflow.env", s3_url=layout.s3_url, webhook_key=key)
    return layout.child_env("airflow", role="mlflow", extra=values)


def code_digest(checkout: Path) -> str:
    """Return a short digest of the Python code that long-lived processes have loaded."""
    digest = hashlib.sha256()
    for path in sorted(_code(checkout)):
        digest.update(f"{path.relative_to(checkout)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _code(checkout: Path) -> Iterator[Path]:
    for folder in ("src/headway", "operators", "plugins"):
        yield from (checkout / folder).rglob("*.py")


def _filled(layout: LocalLayout, name: str, **values: str) -> dict[str, str]:
    """Read `local/<name>`: lines `KEY=VALUE` with `$name` filled in."""
    text = Template((layout.checkout / "local" / name).read_text()).substitute(values)
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def _weed(layout: LocalLayout) -> tuple[str, ...]:
    return (
        str(layout.tool("airflow", "weed")),
        "server",
        f"-dir={layout.s3_data}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        f"-master.port={layout.port('SeaweedFS master')}",
        f"-master.port.grpc={layout.port('SeaweedFS master gRPC')}",
        f"-master.volumeSizeLimitMB={VOLUME_SIZE_LIMIT_MB}",
        "-master.telemetry=false",
        # There is one master; the default makes it wait ten seconds for others to elect.
        "-master.electionTimeout=1s",
        f"-volume.port={layout.port('SeaweedFS volume')}",
        f"-volume.port.grpc={layout.port('SeaweedFS volume gRPC')}",
        f"-volume.max={MOST_VOLUMES}",
        f"-volume.minFreeSpace={LEAST_FREE_SPACE}",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={layout.port('SeaweedFS filer')}",
        f"-filer.port.grpc={layout.port('SeaweedFS filer gRPC')}",
        f"-filer.localSocket={layout.run / 'weed-filer.sock'}",
        "-s3",
        f"-s3.port={layout.s3_port}",
        f"-s3.port.grpc={layout.port('SeaweedFS S3 gRPC')}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        f"-s3.localSocket={layout.run / 'weed-s3.sock'}",
        f"-s3.config={layout.secret(secrets.S3_IDENTITIES)}",
    )


def _envoy(layout: LocalLayout) -> tuple[str, ...]:
    return (
        str(layout.tool("airflow", "envoy")),
        "--config-path",
        str(layout.envoy_bootstrap),
        "--concurrency",
        "2",
        "--log-level",
        "warning",
        # Two stacks on one machine would otherwise fight for one shared memory region.
        "--disable-hot-restart",
    )


def _mlflow(layout: LocalLayout) -> tuple[str, ...]:
    database = f"sqlite:///{layout.mlflow_data / 'mlflow.db'}"
    return (
        str(layout.python("airflow")),
        "-m",
        "mlflow",
        "server",
        "--host",
        HOST,
        "--port",
        str(layout.mlflow_port),
        "--workers",
        "1",
        "--backend-store-uri",
        database,
        "--registry-store-uri",
        database,
        "--default-artifact-root",
        "s3://mlflow/artifacts",
        "--no-serve-artifacts",
    )


def _airflow(layout: LocalLayout, *arguments: str) -> tuple[str, ...]:
    return (str(layout.python("airflow")), "-m", "airflow", *arguments)
