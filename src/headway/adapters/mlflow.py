"""The model registry: MLflow.

MLflow's client is imported on first use: it takes seconds, and `headway rollback --direct` must not need it.
"""

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.domain.model import ModelVersion
from headway.errors import BackendUnavailable, Conflict, HeadwayError, NotFound, Refused

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion as Found

RELEASE_TAG = "headway.release"
MODEL_TAG = "headway.model"
VERSION_TAG = "headway.version"
EXPERIMENT = "headway"
"""Experiment of the releases' runs."""

REQUEST_TIMEOUT_S = 10
REQUEST_RETRIES = 1
"""MLflow's own defaults wait 120 s, seven times. A dead server shows at once, a hung one after 20 s; a step's
retry does the waiting."""

CODES: dict[str, type[HeadwayError]] = {
    "RESOURCE_DOES_NOT_EXIST": NotFound,
    "ENDPOINT_NOT_FOUND": NotFound,
    "NOT_FOUND": NotFound,
    "RESOURCE_ALREADY_EXISTS": Conflict,
    "RESOURCE_CONFLICT": Conflict,
    "ABORTED": Conflict,
    "PERMISSION_DENIED": Refused,
    "UNAUTHENTICATED": Refused,
    "CUSTOMER_UNAUTHORIZED": Refused,
    "INVALID_PARAMETER_VALUE": Refused,
    "BAD_REQUEST": Refused,
    "INVALID_STATE": Refused,
    "FEATURE_DISABLED": Refused,
    "NOT_IMPLEMENTED": Refused,
    "RESOURCE_LIMIT_EXCEEDED": Refused,
    "QUOTA_EXCEEDED": Refused,
    "INTERNAL_ERROR": BackendUnavailable,
    "TEMPORARILY_UNAVAILABLE": BackendUnavailable,
    "REQUEST_LIMIT_EXCEEDED": BackendUnavailable,
    "RESOURCE_EXHAUSTED": BackendUnavailable,
    "DEADLINE_EXCEEDED": BackendUnavailable,
    "IO_ERROR": BackendUnavailable,
}
"""Error codes of MLflow's REST API that its registry and tracking give."""

Upload = Callable[[str, bytes], None]
"""Writes a file of a run to its `s3://` address."""


@contextmanager
def translated(what: str, **facts: Any) -> Iterator[None]:
    """Turn what MLflow's client raises inside into headway's errors.

    Args:
        what: What was tried; it begins the message.
        facts: Fields for the error.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    try:
        yield
    except MlflowException as error:
        kind = kind_of(str(error.error_code), str(error))
        said = str(error).splitlines()[0][:300]
        raise kind(f"cannot {what}: {said}; {_REMEDIES[kind]}", code=str(error.error_code), **facts) from error
    except (RequestException, OSError) as error:
        message = f"cannot {what}: {error}; {_REMEDIES[BackendUnavailable]}"
        raise BackendUnavailable(message, **facts) from error


def kind_of(code: str, text: str = "") -> type[HeadwayError]:
    """Return the class for a code of MLflow's. A client that reached nobody calls that INTERNAL_ERROR too."""
    if "Max retries exceeded" in text or "Connection refused" in text:
        return BackendUnavailable
    return CODES.get(code, Refused)


_REMEDIES: dict[type[HeadwayError], str] = {
    BackendUnavailable: "check that MLflow runs and that its address is right; headway tries again",
    NotFound: "look at the models in MLflow",
    Conflict: "read again",
    Refused: "check the name, and headway's rights in MLflow",
}


def _metric_name(name: str) -> str:
    """Return the name in the characters that MLflow takes; others refuse the whole report."""
    return re.sub(r"[^\w\-. :/]", "", name, flags=re.ASCII)


class MlflowRegistry:
    """MLflow's registry and tracking.

    Args:
        url: Address of the server.
        upload: Writes a run's files straight to S3, with an identity that may. None: through MLflow's client, for
            servers that serve artifacts themselves.
        public_url: Address that people use, where it differs.
    """

    def __init__(self, url: str, *, upload: Upload | None = None, public_url: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._upload = upload
        self._public_url = (public_url or url).rstrip("/")

    @cached_property
    def _client(self) -> "MlflowClient":
        # MLflow reads its patience from the environment only. What a person has set there stays.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_TIMEOUT_S))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(REQUEST_RETRIES))
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._url, registry_uri=self._url)

    def resolve(self, model: str, *, alias: str | None = None, version: int | None = None) -> ModelVersion:
        """Return the immutable version.

        Raises:
            NotFound: Says which models, aliases or versions there are.
            Conflict: The version is still being made.
            Refused: Its registration failed.
        """
        if (alias is None) == (version is None):
            raise ValueError("give either an alias or a version")
        wanted = f"alias `{alias}`" if version is None else f"version {version}"
        with translated(f"read model {model} in MLflow", model=model):
            try:
                found = self._find(model, alias, version)
                aliases = self._aliases(model)
                source = self._client.get_model_version_download_uri(model, str(found.version)) if found else ""
            except Exception as error:
                if not _says_absent(error):
                    raise
                found = None
        if found is None:
            raise self._absent(model, wanted)
        _check_ready(model, found)
        number = int(found.version)
        return ModelVersion(
            name=model,
            version=number,
            source_uri=source,
            run_id=found.run_id or None,
            aliases=tuple(sorted(name for name, target in aliases.items() if target == number)),
            tags=dict(found.tags),
        )

    def tags(self, model: str, version: int) -> Mapping[str, str]:
        """Return the version's tags."""
        with translated(f"read the tags of {model} version {version}", model=model, version=version):
            return dict(self._client.get_model_version(model, str(version)).tags)

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        """Set one tag on the version."""
        with translated(f"set tag {key} of {model} version {version}", model=model, version=version):
            self._client.set_model_version_tag(model, str(version), key, value)

    def untag(self, model: str, version: int, key: str) -> None:
        """Remove one tag from the version; absent is fine."""
        if key in self.tags(model, version):
            with translated(f"remove tag {key} of {model} version {version}", model=model, version=version):
                self._client.delete_model_version_tag(model, str(version), key)

    def log_report(
        self, model: str, version: int, release: str, metrics: Mapping[str, float], files: Mapping[str, bytes]
    ) -> str:
        """Keep numbers and files (name to content) as the one run of this release; return its web address.

        The run is found again by its tag, so a second call replaces files and numbers of the first.
        """
        with translated(f"keep the report of release {release}", model=model, release=release):
            run = self._run_of(model, version, release)
            run_id = str(run.info.run_id)
            kept = run.data.metrics
            for name, value in sorted((_metric_name(name), value) for name, value in metrics.items()):
                if kept.get(name) != value:
                    self._client.log_metric(run_id, name, value)
            self._write_files(run, files)
            self._client.set_terminated(run_id)
        return f"{self._public_url}/#/experiments/{run.info.experiment_id}/runs/{run_id}"

    def _find(self, model: str, alias: str | None, version: int | None) -> "Found":
        if alias is not None:
            return self._client.get_model_version_by_alias(model, alias)
        return self._client.get_model_version(model, str(version))

    def _aliases(self, model: str) -> dict[str, int]:
        # Only the registered model knows them: lists of versions come without.
        return {str(name): int(number) for name, number in self._client.get_registered_model(model).aliases.items()}

    def _absent(self, model: str, wanted: str) -> NotFound:
        """Say what there is instead."""
        with translated(f"list the models in MLflow for {model}", model=model):
            names = [found.name for found in self._client.search_registered_models(max_results=1000)]
            if model not in names:
                near = difflib.get_close_matches(model, names, n=3, cutoff=0.4) or sorted(names)[:5]
                quoted = " or ".join(f"`{name}`" for name in near)
                hint = f"did you mean {quoted}?" if near else "no model is registered"
                return NotFound(f"MLflow has no model `{model}`; {hint}", model=model, near=near)
            versions = sorted(int(found.version) for found in self._client.search_model_versions(f"name = '{model}'"))
            aliases = self._aliases(model)
        named = ", ".join(f"{name} (version {number})" for name, number in sorted(aliases.items())) or "none"
        numbers = ", ".join(map(str, versions[-10:])) or "none, all were deleted"
        return NotFound(
            f"model `{model}` has no {wanted} in MLflow; its versions: {numbers}; its aliases: {named}. "
            "Set the alias in MLflow, or name a version that exists",
            model=model,
            versions=versions,
            aliases=aliases,
        )

    def _run_of(self, model: str, version: int, release: str) -> "Run":
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        experiment_id = experiment.experiment_id if experiment else self._new_experiment()
        found = self._client.search_runs([experiment_id], f"tags.`{RELEASE_TAG}` = '{release}'", max_results=1)
        if found:
            return found[0]
        tags = {RELEASE_TAG: release, MODEL_TAG: model, VERSION_TAG: str(version)}
        return self._client.create_run(experiment_id, run_name=release, tags=tags)

    def _new_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.create_experiment(EXPERIMENT))
        except MlflowException as error:
            made_by_another = self._client.get_experiment_by_name(EXPERIMENT)
            if made_by_another is None or kind_of(str(error.error_code)) is not Conflict:
                raise
            return str(made_by_another.experiment_id)

    def _write_files(self, run: "Run", files: Mapping[str, bytes]) -> None:
        root = str(run.info.artifact_uri).rstrip("/")
        if self._upload is not None and root.startswith("s3://"):
            for name, content in files.items():
                self._upload(f"{root}/{name}", content)
            return
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self._client.log_artifacts(str(run.info.run_id), folder)


def _says_absent(error: Exception) -> bool:
    """Tell whether MLflow says that there is no such model, alias or version.

    For an unknown alias it answers INVALID_PARAMETER_VALUE.
    """
    code = str(getattr(error, "error_code", ""))
    return CODES.get(code) is NotFound or (code == "INVALID_PARAMETER_VALUE" and "not found" in str(error).lower())


def _check_ready(model: str, found: "Found") -> None:
    if found.status == "READY":
        return
    said = f"{model} version {found.version} is {found.status} in MLflow ({found.status_message or 'no reason given'})"
    if found.status == "PENDING_REGISTRATION":
        raise Conflict(f"{said}; wait until it is READY", model=model, version=int(found.version))
    raise Refused(f"{said}; register it again", model=model, version=int(found.version))
