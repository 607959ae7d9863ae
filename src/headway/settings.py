"""headway's settings: read once, from `HEADWAY_` variables, by `wiring` and `cli`. Nothing else reads them."""

from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

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
        )
