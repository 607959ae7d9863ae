"""What commands and operators get: every port, whatever stands behind it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from headway.domain.profile import Profile
from headway.ports import (
    Checks,
    Clusters,
    Jobs,
    Lease,
    Ledger,
    Metrics,
    Objects,
    Registry,
    Signatures,
    Traffic,
    Warm,
    WeightStore,
)

if TYPE_CHECKING:
    from headway.adapters.airflow_api import AirflowApi
    from headway.adapters.mlflow_hooks import MlflowHooks


class Backend(Protocol):
    """Every port, and what plans need to know of the backend. Each port is built on first use."""

    @property
    def jobs(self) -> Jobs:
        """Pod programs."""
        ...

    @property
    def clusters(self) -> Clusters:
        """VLLM clusters."""
        ...

    @property
    def traffic(self) -> Traffic:
        """The gateway."""
        ...

    @property
    def registry(self) -> Registry:
        """The model registry."""
        ...

    @property
    def weights(self) -> WeightStore:
        """Model files and artifacts."""
        ...

    @property
    def lease(self) -> Lease:
        """One release a model."""
        ...

    @property
    def warm(self) -> Warm | None:
        """Room that is held for replicas; none where the backend cannot hold any."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Time series of the gateway and the engines."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Records."""
        ...

    @property
    def objects(self) -> Objects:
        """Documents that are replaced whole."""
        ...

    @property
    def runs(self) -> "AirflowApi":
        """Airflow's runs."""
        ...

    @property
    def hooks(self) -> "MlflowHooks":
        """The registry's webhook."""
        ...

    @property
    def checks(self) -> Checks:
        """Checks of tables."""
        ...

    @property
    def signatures(self) -> Signatures:
        """Signatures of models."""
        ...

    @property
    def model_root(self) -> str:
        """Directory on the node below which artifacts are staged."""
        ...

    @property
    def gateway_url(self) -> str:
        """Base address of the gateway's internal listener, for the benchmark."""
        ...

    @property
    def stats_url(self) -> str | None:
        """Where the gateway's live load is read, none if it cannot be."""
        ...

    def serving_image(self, profile: Profile) -> str:
        """Name what serves: the image by digest, or the digest of the serving environment's lock."""
        ...

    def profiles(self) -> Mapping[str, Profile]:
        """Read every profile, by model. Read anew each time: an edited profile counts from the next release on."""
        ...

    def profile(self, model: str) -> Profile:
        """Return one model's profile. Raises ConfigError that names the nearest model."""
        ...

    def sound_profiles(self) -> tuple[Mapping[str, Profile], Sequence[str]]:
        """Read every profile that is valid, by model, and one text for each fault of the others."""
        ...

    def calendar(self, profile: Profile) -> str | None:
        """Return the ICS text of a profile's known events, none if it names no calendar. Raises ConfigError."""
        ...

    def webhook_secrets(self, now: datetime) -> Sequence[str]:
        """Return what the registry's messages may be signed with now. Raises ConfigError."""
        ...

    def model_url(self, model: str, version: int) -> str:
        """Return the web page of a model version in the registry."""
        ...
