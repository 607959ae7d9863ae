"""What both backends have in common: registry, store, records, runs and profiles are the same programs for both."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.domain import webhook
from headway.domain.profile import Profile
from headway.errors import ConfigError
from headway.ports import Checks, Ledger, Objects, Registry, Signatures, WeightStore
from headway.settings import Settings
from headway.wiring.profiles import find_profile, load_profiles, read_calendar, read_profiles

if TYPE_CHECKING:
    from headway.adapters.airflow_api import AirflowApi
    from headway.adapters.local.layout import LocalLayout, S3Role
    from headway.adapters.mlflow_hooks import MlflowHooks
    from headway.adapters.s3 import S3Connection

AIRFLOW_USER = "headway"
"""headway's own user of Airflow, with the rights of an operator; people use `admin`."""


class SharedBackend:
    """The ports that do not depend on where models are served.

    Args:
        settings: Read by the caller, once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def layout(self) -> "LocalLayout":
        """Folders, ports and environments of the embedded stack."""
        return self._settings.layout()

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow."""
        return self.layout.mlflow_url

    @property
    def airflow_url(self) -> str:
        """Address of Airflow."""
        return self.layout.airflow_url

    @property
    def airflow_passwords(self) -> Path:
        """File with the password of headway's user of Airflow."""
        return self.layout.airflow_passwords

    @cached_property
    def registry(self) -> Registry:
        """MLflow."""
        from headway.adapters.mlflow import MlflowRegistry
        from headway.adapters.s3 import S3Client

        # With MLflow's own identity: headway's may only read there.
        def upload(uri: str, body: bytes) -> None:
            S3Client(self.s3("mlflow")).put(uri, body)

        return MlflowRegistry(self.mlflow_url, upload=upload)

    @cached_property
    def weights(self) -> WeightStore:
        """Files in S3."""
        from headway.adapters.s3 import S3WeightStore

        return S3WeightStore(self.s3("headway"))

    @cached_property
    def ledger(self) -> Ledger:
        """Objects in S3, put if absent."""
        from headway.adapters.s3 import S3Ledger

        return S3Ledger(self.s3("headway"))

    @cached_property
    def objects(self) -> Objects:
        """Objects in S3, replaced whole."""
        from headway.adapters.s3 import S3Objects

        return S3Objects(self.s3("headway"))

    def s3(self, role: "S3Role") -> "S3Connection":
        """Return the connection of one identity; here of the embedded stack's store.

        Raises:
            ConfigError: It has no credentials yet.
        """
        from headway.adapters.s3 import S3Connection

        credentials = self.layout.s3_credentials(role)
        if not credentials.exists():
            raise ConfigError(
                f"there are no S3 credentials at {credentials}; `headway up` makes them", path=str(credentials)
            )
        return S3Connection(endpoint=self.layout.s3_url, credentials_file=credentials)

    @cached_property
    def runs(self) -> "AirflowApi":
        """Airflow."""
        from headway.adapters.airflow_api import AirflowApi

        return AirflowApi(self.airflow_url, user=AIRFLOW_USER, passwords=self.airflow_passwords)

    @cached_property
    def checks(self) -> Checks:
        """Great Expectations."""
        from headway.adapters.expectations import ExpectationChecks

        return ExpectationChecks()

    @cached_property
    def signatures(self) -> Signatures:
        """The OpenSSF's model-signing; keys are relative to the profiles."""
        from headway.adapters.signatures import ModelSignatures

        return ModelSignatures(self._profiles)

    def profiles(self) -> Mapping[str, Profile]:
        """Read the checkout's profiles."""
        return load_profiles(self._profiles)

    def profile(self, model: str) -> Profile:
        """Return one model's profile."""
        return find_profile(load_profiles(self._profiles), model, self._profiles)

    def sound_profiles(self) -> tuple[Mapping[str, Profile], Sequence[str]]:
        """Read the checkout's profiles that are valid, and what is wrong with the others."""
        return read_profiles(self._profiles)

    def calendar(self, profile: Profile) -> str | None:
        """Read the ICS file that a profile names."""
        return read_calendar(self._profiles, profile)

    def webhook_secrets(self, now: datetime) -> Sequence[str]:
        """Read the webhook's secrets among those of the embedded stack."""
        from headway.adapters.local.secrets import webhook_secrets

        return webhook_secrets(self.layout, now)

    @cached_property
    def hooks(self) -> "MlflowHooks":
        """The registry's webhook, which leads to Airflow."""
        from headway.adapters.mlflow_hooks import MlflowHooks

        return MlflowHooks(self.mlflow_url, target=f"{self.airflow_url}{webhook.PATH}")

    def model_url(self, model: str, version: int) -> str:
        """Return the page of the version in MLflow."""
        return f"{self.mlflow_url}/#/models/{model}/versions/{version}"

    @property
    def _profiles(self) -> Path:
        return self._settings.checkout.expanduser().resolve() / "profiles"
