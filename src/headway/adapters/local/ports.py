"""The ports of one embedded stack, all counted from one base, and the addresses behind them."""

from dataclasses import dataclass

from headway.errors import ConfigError

HOST = "127.0.0.1"

CLUSTER_SLOTS = 6
CLUSTER_PORTS_FROM, CLUSTER_PORTS = 100, 40
WORKER_PORTS_FROM, WORKER_PORTS = 1000, 200
HIGHEST_OFFSET = WORKER_PORTS_FROM + CLUSTER_SLOTS * WORKER_PORTS - 1

FIXED_PORTS = {
    0: "public gateway (Envoy)",
    1: "internal gateway (Envoy)",
    2: "Envoy admin",
    3: "Airflow",
    4: "MLflow",
    5: "S3 (SeaweedFS)",
    6: "SeaweedFS master",
    7: "SeaweedFS volume",
    8: "SeaweedFS filer",
    11: "SeaweedFS master gRPC",
    12: "SeaweedFS volume gRPC",
    13: "SeaweedFS filer gRPC",
    14: "SeaweedFS S3 gRPC",
}
"""Offsets from the base port. 9 and 10 are Airflow's log servers, which stay off: they would listen on every interface,
and on one machine the API server reads the log files itself."""


@dataclass(frozen=True)
class ClusterPorts:
    """The ports of the cluster in one slot. `at(n)` is the n-th of the 40 named ones."""

    first: int
    worker_first: int
    worker_last: int

    def at(self, index: int) -> int:
        """Return the `index`-th named port (0 to 39)."""
        if not 0 <= index < CLUSTER_PORTS:
            message = f"a cluster has {CLUSTER_PORTS} named ports, asked for number {index}"
            raise ConfigError(message, index=index)
        return self.first + index


class Ports:
    """What follows from the base port. Loopback only."""

    base_port: int

    @property
    def public_port(self) -> int:
        """The gateway that clients use."""
        return self.base_port

    @property
    def internal_port(self) -> int:
        """The gateway of the benchmark; honours `x-headway-cluster`."""
        return self.base_port + 1

    @property
    def envoy_admin_port(self) -> int:
        """Envoy's admin interface."""
        return self.base_port + 2

    @property
    def airflow_port(self) -> int:
        """Airflow's API and UI."""
        return self.base_port + 3

    @property
    def mlflow_port(self) -> int:
        """MLflow."""
        return self.base_port + 4

    @property
    def s3_port(self) -> int:
        """SeaweedFS's S3 gateway."""
        return self.base_port + 5

    def named_ports(self) -> dict[int, str]:
        """Return every fixed port of the stack with the name of its service."""
        return {self.base_port + offset: name for offset, name in FIXED_PORTS.items()}

    def port(self, name: str) -> int:
        """Return a fixed port by the name that `named_ports` gives it.

        Raises:
            ConfigError: No port has this name.
        """
        for port, candidate in self.named_ports().items():
            if candidate == name:
                return port
        message = f"no port is named {name!r}; there are {', '.join(self.named_ports().values())}"
        raise ConfigError(message, name=name)

    def cluster_ports(self, slot: int) -> ClusterPorts:
        """Return the ports of a cluster slot.

        Args:
            slot: 0 to 5; two clusters of one stack never share a slot.

        Raises:
            ConfigError: There is no such slot.
        """
        if not 0 <= slot < CLUSTER_SLOTS:
            message = f"cluster slot {slot} does not exist; there are {CLUSTER_SLOTS}, from 0"
            raise ConfigError(message, slot=slot)
        worker_first = self.base_port + WORKER_PORTS_FROM + WORKER_PORTS * slot
        return ClusterPorts(
            first=self.base_port + CLUSTER_PORTS_FROM + CLUSTER_PORTS * slot,
            worker_first=worker_first,
            worker_last=worker_first + WORKER_PORTS - 1,
        )

    @property
    def gateway_url(self) -> str:
        """Base address for clients; a model is at `/<model>/v1`."""
        return f"http://{HOST}:{self.public_port}"

    @property
    def internal_gateway_url(self) -> str:
        """Base address for the benchmark."""
        return f"http://{HOST}:{self.internal_port}"

    @property
    def envoy_admin_url(self) -> str:
        """Address of Envoy's admin interface."""
        return f"http://{HOST}:{self.envoy_admin_port}"

    @property
    def airflow_url(self) -> str:
        """Address of Airflow's API and UI."""
        return f"http://{HOST}:{self.airflow_port}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow."""
        return f"http://{HOST}:{self.mlflow_port}"

    @property
    def s3_url(self) -> str:
        """Endpoint of the S3 server."""
        return f"http://{HOST}:{self.s3_port}"
