"""Where adapters are chosen and built: the one place that knows settings and adapters.

Each port is built on first use. `headway rollback --direct` must not wait for the import of MLflow, nor need it.
"""

import difflib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headway.domain.profile import Profile, parse_profile
from headway.errors import ConfigError
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
    WeightStore,
)
from headway.settings import Settings
from headway.units import MIB, format_bytes

if TYPE_CHECKING:
    from headway.adapters.airflow_api import AirflowApi
    from headway.adapters.local.layout import LocalLayout, S3Role
    from headway.adapters.s3 import S3Connection


class Backend(Protocol):
    """Every port, and what plans need to know of the backend."""

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

    def model_url(self, model: str, version: int) -> str:
        """Return the web page of a model version in the registry."""
        ...


class LocalBackend:
    """The embedded stack's adapters.

    Args:
        settings: Read by the caller, once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def layout(self) -> "LocalLayout":
        """Folders, ports and environments of the stack."""
        return self._settings.layout()

    @cached_property
    def jobs(self) -> Jobs:
        """Child processes in their environments."""
        from headway.adapters.local.jobs import LocalJobs

        return LocalJobs(self.layout)

    @cached_property
    def clusters(self) -> Clusters:
        """One Ray head a cluster."""
        from headway.adapters.local.clusters import LocalClusters

        return LocalClusters(self.layout)

    @cached_property
    def traffic(self) -> Traffic:
        """Envoy with watched files."""
        from headway.adapters.local.traffic import LocalTraffic

        return LocalTraffic(self.layout)

    @cached_property
    def metrics(self) -> Metrics:
        """Scraped series in files, or Prometheus where one is named."""
        if self.layout.prometheus_url:
            from headway.adapters.prometheus import PrometheusMetrics

            return PrometheusMetrics(self.layout.prometheus_url)
        from headway.adapters.local.metrics import LocalMetrics

        return LocalMetrics(self.layout)

    @cached_property
    def registry(self) -> Registry:
        """MLflow."""
        from headway.adapters.mlflow import MlflowRegistry
        from headway.adapters.s3 import S3Client

        # With MLflow's own identity: headway's may only read there.
        def upload(uri: str, body: bytes) -> None:
            S3Client(self._s3("mlflow")).put(uri, body)

        return MlflowRegistry(self.layout.mlflow_url, upload=upload)

    @cached_property
    def weights(self) -> WeightStore:
        """SeaweedFS."""
        from headway.adapters.s3 import S3WeightStore

        return S3WeightStore(self._s3("headway"))

    @cached_property
    def lease(self) -> Lease:
        """Numbered objects in SeaweedFS."""
        from headway.adapters.s3 import S3Lease

        return S3Lease(self._s3("headway"))

    @cached_property
    def ledger(self) -> Ledger:
        """Objects in SeaweedFS, put if absent."""
        from headway.adapters.s3 import S3Ledger

        return S3Ledger(self._s3("headway"))

    @cached_property
    def objects(self) -> Objects:
        """Objects in SeaweedFS, replaced whole."""
        from headway.adapters.s3 import S3Objects

        return S3Objects(self._s3("headway"))

    def _s3(self, role: "S3Role") -> "S3Connection":
        """Return the connection of one identity."""
        from headway.adapters.s3 import S3Connection

        credentials = self.layout.s3_credentials(role)
        if not credentials.exists():
            raise ConfigError(
                f"there are no S3 credentials at {credentials}; `headway up` makes them", path=str(credentials)
            )
        return S3Connection(endpoint=self.layout.s3_url, credentials_file=credentials)

    @cached_property
    def runs(self) -> "AirflowApi":
        """Airflow of the stack."""
        from headway.adapters.airflow_api import AirflowApi

        return AirflowApi(self.layout.airflow_url, user=AIRFLOW_USER, passwords=self.layout.airflow_passwords)

    @cached_property
    def checks(self) -> Checks:
        """Great Expectations."""
        from headway.adapters.expectations import ExpectationChecks

        return ExpectationChecks()

    @cached_property
    def signatures(self) -> Signatures:
        """The OpenSSF's model-signing; keys are relative to the profiles."""
        from headway.adapters.signatures import ModelSignatures

        return ModelSignatures(self.layout.checkout / "profiles")

    @property
    def gateway_url(self) -> str:
        """Envoy's internal listener."""
        return self.layout.internal_gateway_url

    @property
    def stats_url(self) -> str | None:
        """Envoy's statistics."""
        return f"{self.layout.envoy_admin_url}/stats"

    @property
    def model_root(self) -> str:
        """The folder that plays the node's NVMe."""
        return str(self.layout.node)

    def serving_image(self, profile: Profile) -> str:
        """Return the serving environment's lock, which takes the image's place here, whatever the profile names."""
        from headway.adapters.local.layout import lock_digest

        return f"lock:{lock_digest(self.layout.checkout, 'serve')}"

    def profiles(self) -> Mapping[str, Profile]:
        """Read the checkout's profiles."""
        return load_profiles(self.layout.checkout / "profiles")

    def profile(self, model: str) -> Profile:
        """Return one model's profile."""
        return find_profile(load_profiles(self.layout.checkout / "profiles"), model, self.layout.checkout / "profiles")

    def sound_profiles(self) -> tuple[Mapping[str, Profile], Sequence[str]]:
        """Read the checkout's profiles that are valid, and what is wrong with the others."""
        return read_profiles(self.layout.checkout / "profiles")

    def calendar(self, profile: Profile) -> str | None:
        """Read the ICS file that a profile names."""
        return read_calendar(self.layout.checkout / "profiles", profile)

    def model_url(self, model: str, version: int) -> str:
        """Return the page of the version in MLflow."""
        return f"{self.layout.mlflow_url}/#/models/{model}/versions/{version}"


AIRFLOW_USER = "headway"
"""headway's own user of Airflow, with the rights of an operator; people use `admin`."""


def connect(settings: Settings | None = None) -> LocalBackend:
    """Return the backend that the settings name.

    Args:
        settings: None to read them from the environment.

    Raises:
        ConfigError: A setting is wrong.
    """
    return LocalBackend(settings or Settings.load())


def load_profiles(folder: Path) -> dict[str, Profile]:
    """Read every `*.yaml` of a folder, by model.

    Raises:
        ConfigError: A file is no valid profile, or two name one model; every fault of every file is in the text.
    """
    profiles, faults = read_profiles(folder)
    if faults:
        raise ConfigError("\n".join(faults), folder=str(folder), faults=faults)
    return profiles


def read_profiles(folder: Path) -> tuple[dict[str, Profile], list[str]]:
    """Read every `*.yaml` of a folder: the valid profiles by model, and one text for each fault.

    Of two files for one model neither counts, because nobody can tell which was meant.
    """
    profiles: dict[str, Profile] = {}
    origins: dict[str, str] = {}
    faults: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            profile = read_profile(path)
        except ConfigError as error:
            faults.append(error.message)
            continue
        if profile.model in origins:
            faults.append(f"{path.name} and {origins[profile.model]} are both for model {profile.model}; keep one")
            profiles.pop(profile.model, None)
            continue
        profiles[profile.model] = profile
        origins[profile.model] = path.name
    return profiles, faults


LARGEST_CALENDAR_BYTES = 4 * MIB


def read_calendar(folder: Path, profile: Profile) -> str | None:
    """Read the ICS file that a profile names, none if it names none.

    Args:
        folder: Of the profiles; the file's name is relative to it.
        profile: Whose events.

    Raises:
        ConfigError: The file is not there, not text, or too large.
    """
    name = profile.prescale.calendar
    if name is None:
        return None
    path = folder / name
    try:
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_CALENDAR_BYTES:
            raise ConfigError(
                f"prescale.calendar of {profile.model}: {path} has {format_bytes(size_bytes)}; "
                f"{format_bytes(LARGEST_CALENDAR_BYTES)} are read at most: keep the events of the next weeks",
                path=str(path),
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"prescale.calendar of {profile.model}: {path} cannot be read ({error}); correct the name or the file",
            path=str(path),
        ) from error


def read_profile(path: Path) -> Profile:
    """Read one profile file.

    Raises:
        ConfigError: It is no valid profile.
    """
    return parse_profile(_mapping(path), origin=path.name)


def _mapping(path: Path) -> dict[str, Any]:
    """Read one YAML file that holds keys and values."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path.name} is not YAML: {' '.join(str(error).split())}", path=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path.name} is not a mapping of keys to values; see docs/profiles.md", path=str(path))
    return data


def find_profile(profiles: Mapping[str, Profile], model: str, folder: Path) -> Profile:
    """Return the profile of a model.

    Raises:
        ConfigError: There is none; names the nearest model and where profiles are.
    """
    if model in profiles:
        return profiles[model]
    near = difflib.get_close_matches(model, list(profiles), n=1, cutoff=0.5)
    known = f"did you mean `{near[0]}`?" if near else f"there are profiles for {', '.join(profiles) or 'no model'}."
    raise ConfigError(f"no profile for model `{model}`; {known} Profiles are in {folder}", model=model)
