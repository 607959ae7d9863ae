"""headway's settings: read once, from `HEADWAY_` variables, by `wiring` and `cli`. Nothing else reads them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from headway.adapters.kubernetes.site import IN_CLUSTER
from headway.adapters.local.layout import LocalLayout
from headway.errors import ConfigError

PREFIX = "HEADWAY_"
CHECKOUT = Path(__file__).resolve().parents[2]


class Settings(BaseSettings):
    """Where headway works. Every field can be set as `HEADWAY_<NAME>`; an empty value counts as not set."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    checkout: Path = CHECKOUT
    """Folder of the project: DAGs, profiles, lock files. Default: where this code is."""

    home: Path | None = None
    """State of the embedded stack: data, logs, secrets. Default: `.headway` in the checkout."""

    cache: Path = Field(default_factory=lambda: Path.home() / ".cache" / "headway")
    """What clones share: uv, the environments, vLLM's cache. About 10 GiB."""

    base_port: int = 18000
    """First of the ports that the stack uses: this one to plus 14, plus 100 to 339 and plus 1000 to 2199."""

    envs_dir: Path | None = None
    """Folder with ready environments `airflow/`, `serve/`, `quantize/`, `tools/`. Default: those of `make setup`."""

    signing_key: Path | None = None
    """PEM file of the private key (elliptic curve P-256) that signs artifacts. Default: one that `make up` makes."""

    artifact_key: Path | None = None
    """PEM file of the public keys, old and new, that verify artifacts on nodes. Default: one that `make up` makes."""

    prometheus_url: str | None = Field(default=None, repr=False)
    """Prometheus that reads the gateway and the engines, up to and without `/api/v1`. Default: the stack's scraper."""

    debug: bool = False
    """Whether errors show their stack trace."""

    backend: Literal["embedded", "kubernetes"] = "embedded"
    """Where models are served: on this machine, or in a Kubernetes cluster. All below counts for the latter alone."""

    kubeconfig: Path | None = None
    """Access to the cluster. Default: in a pod its own account, else `KUBECONFIG` or `~/.kube/config`."""

    namespace: str = "headway"
    """Namespace of headway's objects."""

    pods_image: str | None = None
    """Image of `docker/pods`, which stages and measures. It must be set."""

    quantize_image: str | None = None
    """Image of `docker/quantize`, which quantizes and judges. It must be set."""

    node_root: str = "/var/lib/headway/node"
    """Where pods have the disk of their node; artifacts lie below it."""

    pull_secret: str | None = None
    """Name of the Secret with which images are pulled. Default: none."""

    gateway: str = "headway"
    """The Gateway, as `NAME` or `NAMESPACE/NAME`, with the listeners `public` and `internal`."""

    pod_gateway_url: str | None = None
    """Address of its internal listener as pods see it. Default: that of `k8s/base`."""

    s3_endpoint: str | None = None
    """Address of the object store, Amazon's too. Default: the store of the embedded stack."""

    s3_region: str = "us-east-1"
    """Its region."""

    s3_credentials: Path | None = None
    """Its AWS shared credentials file, profile `default`. Default: what the AWS libraries find by themselves."""

    pod_s3_endpoint: str | None = None
    """Its address as pods see it. Default: `HEADWAY_S3_ENDPOINT`."""

    mlflow_url: str | None = None
    """The model registry. Default: MLflow of the embedded stack."""

    airflow_url: str | None = None
    """Airflow, up to and without `/api/v2`. Default: Airflow of the embedded stack."""

    airflow_passwords: Path | None = None
    """JSON file of user name to password, with the user `headway`. Default: that of the embedded stack."""

    @field_validator("pod_gateway_url", "s3_endpoint", "pod_s3_endpoint", "mlflow_url", "airflow_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an address with http:// or https:// and a host")
        return value.rstrip("/")

    @field_validator("kubeconfig", "s3_credentials", "airflow_passwords")
    @classmethod
    def _is_absolute(cls, value: Path | None) -> Path | None:
        """Make a path good for processes of another folder and home."""
        return None if value is None else value.expanduser().absolute()

    @classmethod
    def load(cls) -> "Settings":
        """Read the settings.

        Raises:
            ConfigError: A variable does not hold what it must.
        """
        try:
            return cls()
        except ValidationError as error:
            wrong = [f"{PREFIX}{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()]
            message = f"{'; '.join(wrong)}; correct or unset it"
            raise ConfigError(message, variables=wrong) from error

    def layout(self) -> LocalLayout:
        """Return where everything of the embedded stack is."""
        return LocalLayout.make(
            home=(self.home or self.checkout / ".headway").expanduser(),
            cache=self.cache.expanduser(),
            base_port=self.base_port,
            checkout=self.checkout.expanduser(),
            envs_dir=self.envs_dir.expanduser() if self.envs_dir else None,
            signing_key=self.signing_key.expanduser() if self.signing_key else None,
            artifact_key=self.artifact_key.expanduser() if self.artifact_key else None,
            prometheus_url=self.prometheus_url,
            handed_on=self.handed_on(),
        )

    def handed_on(self) -> Mapping[str, str]:
        """Return the variables by which Airflow's tasks on this machine find the same cluster; none if embedded."""
        if self.backend == "embedded":
            return {}
        told = {
            f"{PREFIX}{name.upper()}": str(getattr(self, name))
            for name in CLUSTER_SETTINGS
            if getattr(self, name) != type(self).model_fields[name].default
        }
        if self.kubeconfig is None and IN_CLUSTER not in os.environ:
            # They have a home of their own, where kubectl's default is not.
            told["KUBECONFIG"] = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        return told


_NAMES = list(Settings.model_fields)
CLUSTER_SETTINGS = tuple(_NAMES[_NAMES.index("backend") :])
"""Names of the settings of the Kubernetes backend, and of the one that chooses it."""
