"""What is kept on disk about a cluster: the folder `clusters/<name>`, shared by clusters, traffic and the scraper."""

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.adapters.local.layout import HOST, ClusterPorts, LocalLayout, checked_name
from headway.domain.cluster import ClusterSpec

SCHEMA = 1

HTTP, GCS, DASHBOARD, METRICS, CLIENT = 0, 1, 2, 3, 4
AGENT_HTTP, AGENT_GRPC, RUNTIME_ENV, OBJECTS, NODE = 5, 6, 7, 8, 9
NAMED_PORTS = 10
"""Ports of a slot by what Ray uses them for; worker processes have a range of their own."""


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster that was asked for, and the slot that gives it its ports."""

    spec: ClusterSpec
    slot: int
    ports: ClusterPorts
    asked_at: float
    """Seconds since the epoch."""

    @property
    def endpoint(self) -> str:
        """Base address of Serve, without `/v1`."""
        return f"http://{HOST}:{self.ports.at(HTTP)}"

    @property
    def dashboard_url(self) -> str:
        """Address of Ray's dashboard."""
        return f"http://{HOST}:{self.ports.at(DASHBOARD)}"

    @property
    def metrics_url(self) -> str:
        """Address of Ray's metrics, in Prometheus' text format."""
        return f"http://{HOST}:{self.ports.at(METRICS)}/metrics"


def api_headers(layout: LocalLayout, name: str) -> dict[str, str]:
    """Return what Ray's dashboard wants of a caller: the cluster's token."""
    try:
        token = token_file(layout, name).read_text()
    except FileNotFoundError:
        return {}  # the cluster is being deleted; whoever asks gets a refusal
    return {"Authorization": f"Bearer {token}"}


def token_file(layout: LocalLayout, name: str) -> Path:
    """Return the file with a cluster's token, mode 600."""
    return folder(layout, name) / "token"


def ensure_token(layout: LocalLayout, name: str) -> None:
    """Make a cluster's token if it has none."""
    path = token_file(layout, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return


def folder(layout: LocalLayout, name: str) -> Path:
    """Return the folder of a cluster."""
    return layout.clusters / checked_name(name)


def read(layout: LocalLayout, name: str) -> ClusterRecord | None:
    """Return a cluster's record, none if it was never asked for or is gone."""
    try:
        data = json.loads((folder(layout, name) / "spec.json").read_text())
    except FileNotFoundError:
        return None
    return ClusterRecord(
        spec=ClusterSpec.model_validate(data["spec"]),
        slot=data["slot"],
        ports=layout.cluster_ports(data["slot"]),
        asked_at=data["asked_at"],
    )


def write(layout: LocalLayout, record: ClusterRecord) -> None:
    """Keep a cluster's record."""
    data = {
        "schema_version": SCHEMA,
        "slot": record.slot,
        "asked_at": record.asked_at,
        "spec": record.spec.to_json(),
    }
    write_json(folder(layout, record.spec.name) / "spec.json", data)


def every(layout: LocalLayout) -> Iterator[ClusterRecord]:
    """Yield all records by name."""
    for path in sorted(layout.clusters.glob("*/spec.json")):
        record = read(layout, path.parent.name)
        if record is not None:
            yield record


def write_json(path: Path, data: Any) -> None:
    """Write JSON by rename, so that a reader sees the old or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(data, indent=1, sort_keys=True))
    part.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, none if the file is absent."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return data
