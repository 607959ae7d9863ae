"""Where everything of the embedded stack is: folders, files, ports, and the environment of its processes."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headway.adapters.local.environments import ENVIRONMENTS, EnvironmentName, environment_pythons, lock_digest
from headway.adapters.local.ports import CLUSTER_PORTS, CLUSTER_SLOTS, HIGHEST_OFFSET, HOST, ClusterPorts, Ports
from headway.errors import ConfigError

__all__ = [
    "CLUSTER_PORTS",
    "CLUSTER_SLOTS",
    "ENVIRONMENTS",
    "HIGHEST_OFFSET",
    "HOST",
    "S3_REGION",
    "S3_ROLES",
    "ClusterPorts",
    "EnvironmentName",
    "LocalLayout",
    "S3Role",
    "checked_name",
    "environment_pythons",
    "lock_digest",
]

S3Role = Literal["admin", "mlflow", "headway", "quantize", "stage"]

S3_ROLES: tuple[S3Role, ...] = ("admin", "mlflow", "headway", "quantize", "stage")
S3_REGION = "us-east-1"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""vLLM on CPU calls `lscpu`, so a child never gets a shorter PATH than this."""

LONGEST_SOCKET_PATH = 107
"""Linux cuts the path of a unix socket here (`sun_path` has 108 bytes with the final zero)."""

_WORD = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class LocalLayout(Ports):
    """Every path and port of one embedded stack.

    Two stacks on one machine differ in `home` and `base_port`, and may share `cache`.
    """

    home: Path
    """State of this stack: data, logs, secrets, sockets. `make clean` removes it."""
    cache: Path
    """What clones share: uv, the environments, vLLM's cache. Nothing in it is precious."""
    base_port: int
    checkout: Path
    env_pythons: Mapping[EnvironmentName, Path] = field(default_factory=dict)
    envs_dir: Path | None = None
    """Where the environments are if not in the cache; handed on to children."""
    own_signing_key: Path | None = None
    own_artifact_key: Path | None = None
    """The deployment's own key pair for artifacts; none: the pair among the generated secrets."""
    prometheus_url: str | None = field(default=None, repr=False)
    """Where tasks read the metrics; none: the stack's own scraper. It may hold a password."""
    handed_on: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings that Airflow's programs get as they are: those of another backend."""

    @classmethod
    def make(
        cls,
        *,
        home: Path,
        cache: Path,
        base_port: int,
        checkout: Path,
        envs_dir: Path | None = None,
        signing_key: Path | None = None,
        artifact_key: Path | None = None,
        prometheus_url: str | None = None,
        handed_on: Mapping[str, str] | None = None,
    ) -> "LocalLayout":
        """Build a layout with absolute paths and the environments that the lock files name.

        Raises:
            ConfigError: A port would be outside 1024 to 65535, or `home` is too deep for a unix socket.
        """
        checkout = checkout.resolve()
        layout = cls(
            home=home.resolve(),
            cache=cache.resolve(),
            base_port=base_port,
            checkout=checkout,
            env_pythons=environment_pythons(checkout, cache.resolve(), envs_dir),
            envs_dir=envs_dir,
            own_signing_key=signing_key,
            own_artifact_key=artifact_key,
            prometheus_url=prometheus_url,
            handed_on=handed_on or {},
        )
        if (signing_key is None) != (artifact_key is None):
            raise ConfigError(
                "HEADWAY_SIGNING_KEY and HEADWAY_ARTIFACT_KEY are a pair, and only one of them is set: artifacts would "
                "be signed with one pair and verified with another; set both or none"
            )
        highest = 65535 - HIGHEST_OFFSET
        if not 1024 <= base_port <= highest:
            message = (
                f"HEADWAY_BASE_PORT is {base_port}; it must be 1024 to {highest}, "
                f"because ports up to it plus {HIGHEST_OFFSET} are used"
            )
            raise ConfigError(message, base_port=base_port)
        if len(str(layout.supervisor_socket)) > LONGEST_SOCKET_PATH:
            message = (
                f"HEADWAY_HOME {layout.home} is too deep: the socket {layout.supervisor_socket} has more than "
                f"{LONGEST_SOCKET_PATH} characters; set HEADWAY_HOME to a shorter path"
            )
            raise ConfigError(message, home=str(layout.home))
        return layout

    # Folders

    @property
    def secrets(self) -> Path:
        """Folder of generated secrets, mode 700."""
        return self.home / "secrets"

    @property
    def data(self) -> Path:
        """Folder of the services' data."""
        return self.home / "data"

    @property
    def logs(self) -> Path:
        """Folder of all logs of services and clusters."""
        return self.home / "logs"

    @property
    def run(self) -> Path:
        """Folder of the process manager's socket and program definitions."""
        return self.home / "run"

    @property
    def conf_d(self) -> Path:
        """Folder of one program definition per supervised process."""
        return self.run / "conf.d"

    @property
    def jobs(self) -> Path:
        """Folder with one folder per job."""
        return self.home / "jobs"

    @property
    def clusters(self) -> Path:
        """Folder with one folder per cluster."""
        return self.home / "clusters"

    @property
    def envoy(self) -> Path:
        """Folder of the gateway's bootstrap and of its watched route and cluster files."""
        return self.home / "envoy"

    @property
    def node(self) -> Path:
        """Folder that plays the node's NVMe: staged artifacts by digest."""
        return self.home / "node"

    @property
    def metrics(self) -> Path:
        """Folder of scraped series."""
        return self.home / "metrics"

    @property
    def s3_data(self) -> Path:
        """Folder of the S3 server."""
        return self.data / "s3"

    @property
    def mlflow_data(self) -> Path:
        """Folder of MLflow's database."""
        return self.data / "mlflow"

    @property
    def airflow_home(self) -> Path:
        """AIRFLOW_HOME."""
        return self.data / "airflow"

    @property
    def user_home(self) -> Path:
        """HOME of children, so that no `~/.aws`, `~/.netrc` or `~/.ray` of the user changes what they do."""
        return self.data / "user"

    @property
    def uv_dir(self) -> Path:
        """Folder of uv."""
        return self.cache / "uv"

    @property
    def vllm_cache(self) -> Path:
        """VLLM_CACHE_ROOT: what vLLM learned of a model class."""
        return self.cache / "vllm"

    def folders(self) -> tuple[Path, ...]:
        """Every folder that must be there before anything starts."""
        return (
            self.secrets,
            self.s3_data,
            self.mlflow_data,
            self.airflow_home,
            self.user_home,
            self.logs,
            self.conf_d,
            self.programs,
            self.jobs,
            self.clusters,
            self.envoy,
            self.node,
            self.metrics,
            self.vllm_cache,
        )

    # Files

    @property
    def supervisor_socket(self) -> Path:
        """Unix socket of supervisord."""
        return self.run / "supervisord.sock"

    @property
    def supervisor_conf(self) -> Path:
        """Configuration of supervisord."""
        return self.run / "supervisord.conf"

    @property
    def supervisor_pid(self) -> Path:
        """File with supervisord's pid."""
        return self.run / "supervisord.pid"

    @property
    def supervisor_lock(self) -> Path:
        """Held for moments while program definitions change."""
        return self.run / "supervisor.lock"

    @property
    def stack_lock(self) -> Path:
        """Held while `up` or `down` works."""
        return self.run / "stack.lock"

    @property
    def programs(self) -> Path:
        """Folder of the start scripts, one per supervised process."""
        return self.run / "programs"

    @property
    def envoy_bootstrap(self) -> Path:
        """The gateway's bootstrap."""
        return self.envoy / "bootstrap.yaml"

    @property
    def envoy_public_routes(self) -> Path:
        """Routes of the public listener, replaced by rename."""
        return self.envoy / "rds-public.yaml"

    @property
    def envoy_internal_routes(self) -> Path:
        """Routes of the internal listener, replaced by rename."""
        return self.envoy / "rds-internal.yaml"

    @property
    def envoy_clusters(self) -> Path:
        """The gateway's upstream clusters, replaced by rename."""
        return self.envoy / "cds.yaml"

    @property
    def airflow_passwords(self) -> Path:
        """JSON of user name to password for Airflow (users `admin` and `headway`)."""
        return self.secrets / "airflow-passwords.json"

    def s3_credentials(self, role: S3Role) -> Path:
        """Return the AWS shared credentials file of a role (profile `default`)."""
        return self.secrets / f"s3-{role}.ini"

    def secret(self, name: str) -> Path:
        """Return the file of a generated secret, such as `jwt_secret`."""
        return self.secrets / name

    @property
    def signing_key(self) -> Path:
        """PEM file of the private key that signs artifacts; only the quantize program is told of it."""
        return self.own_signing_key or self.secrets / "artifact-signing-key.pem"

    @property
    def artifact_key(self) -> Path:
        """PEM file of the public keys by which the node verifies artifacts."""
        return self.own_artifact_key or self.secrets / "artifact-key.pub"

    def log(self, name: str) -> Path:
        """Return the log file of a supervised process."""
        return self.logs / f"{name}.log"

    # Processes

    @property
    def stack_mark(self) -> str:
        """What every process of this stack carries as HEADWAY_STACK."""
        return hashlib.sha256(str(self.home).encode()).hexdigest()[:12]

    def python(self, environment: EnvironmentName) -> Path:
        """Return the Python of an environment."""
        return self.env_pythons[environment]

    def tool(self, environment: EnvironmentName, name: str) -> Path:
        """Return a program of an environment, such as `envoy` of `airflow`."""
        return self.python(environment).parent / name

    def child_env(
        self,
        environment: EnvironmentName,
        *,
        role: S3Role | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the whole environment of a child process; nothing else is inherited.

        Args:
            environment: Whose programs come first on PATH.
            role: The S3 identity that the child gets; without one it gets none.
            extra: More variables; they win.
        """
        env = {
            "PATH": f"{self.python(environment).parent}:{SYSTEM_PATH}",
            "HOME": str(self.user_home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{self.checkout / 'src'}:{self.checkout}",
            "PYTHONUNBUFFERED": "1",
            # Without this, setproctitle overwrites /proc/<pid>/environ, and with it the mark that strays are found by.
            "SPT_NOENV": "1",
            "NO_PROXY": f"{HOST},localhost",
            "no_proxy": f"{HOST},localhost",
            "HEADWAY_STACK": self.stack_mark,
            "HEADWAY_HOME": str(self.home),
            "HEADWAY_CACHE": str(self.cache),
            "HEADWAY_BASE_PORT": str(self.base_port),
            "HEADWAY_CHECKOUT": str(self.checkout),
        }
        if self.envs_dir is not None:
            env["HEADWAY_ENVS_DIR"] = str(self.envs_dir)
        if role is not None:
            env |= {
                "HEADWAY_S3_ENDPOINT": self.s3_url,
                "AWS_SHARED_CREDENTIALS_FILE": str(self.s3_credentials(role)),
                "AWS_REGION": S3_REGION,
                "AWS_DEFAULT_REGION": S3_REGION,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        return env | dict(extra or {})


def checked_name(name: str) -> str:
    """Return the name of a process unchanged if it may be one: lower-case letters, digits, dot, dash, underscore.

    Raises:
        ConfigError: It holds something else.
    """
    if not _WORD.fullmatch(name) or len(name) > 120:
        message = f"process name {name!r} must be 1 to 120 of a-z 0-9 . _ - and start with a letter or digit"
        raise ConfigError(message, name=name)
    return name
