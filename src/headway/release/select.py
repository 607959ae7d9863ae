"""Step 1: an alias becomes an immutable version, and its files become a frozen list with digests."""

from collections.abc import Sequence
from typing import Any

import yaml

from headway.domain.model import Layout, ModelVersion, Selection, SourceFile
from headway.errors import ConfigError, ModelRejected
from headway.ports import Registry, StoredObject, WeightStore

MLMODEL = "MLmodel"
SIGNATURE = "model.sig"
"""Name of a detached signature, by the convention of model-signing. It lies beside the files, or beside MLmodel."""

TOKENIZER_FILES = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"})
"""Any of these means that a folder carries its tokenizer."""


def run(
    model: str,
    registry: Registry,
    weights: WeightStore,
    *,
    alias: str | None = None,
    version: int | None = None,
) -> Selection:
    """Resolve a version once, and freeze what it consists of.

    Args:
        model: Name in the registry.
        registry: Where the version is looked up.
        weights: Where its files are.
        alias: Take the version that carries this alias; or
        version: take this one.

    Raises:
        ConfigError: Both or neither of alias and version are given.
        NotFound: There is no such model, alias or version; says what there is.
        ModelRejected: The files are not a transformers model that lies in S3.
    """
    if (alias is None) == (version is None):
        raise ConfigError(f"model {model} is selected by an alias or by a version; give one of them")
    resolved = registry.resolve(model, alias=alias, version=version)
    if not resolved.source_uri.startswith("s3://"):
        raise _rejected(
            resolved,
            f"its files are at `{resolved.source_uri}`; headway reads models from s3:// only. Log the model to an "
            "experiment whose artifact location is in S3, and register that",
        )
    root = resolved.source_uri.rstrip("/") + "/"
    objects = {item.uri.removeprefix(root): item for item in weights.list(root)}
    if not objects:
        raise _rejected(resolved, f"there is no file below {root}; the upload failed, or the run was deleted")
    layout, chosen = _recognise(resolved, objects, weights)
    signatures = [item for item in (objects.get(SIGNATURE), chosen.pop(SIGNATURE, None)) if item is not None]
    return Selection(
        model=resolved,
        layout=layout,
        files=tuple(_file(path, item, weights) for path, item in sorted(chosen.items())),
        selected_by=f"alias {alias}" if version is None else f"version {version}",
        signature=_signature(resolved, [_file(SIGNATURE, item, weights) for item in signatures]),
    )


def _file(path: str, item: StoredObject, weights: WeightStore) -> SourceFile:
    return SourceFile(path=path, uri=item.uri, size_bytes=item.size_bytes, sha256=weights.sha256(item))


def _signature(version: ModelVersion, found: Sequence[SourceFile]) -> SourceFile | None:
    """Return the signature, none if there is none. The same one may lie in two places."""
    if len({file.sha256 for file in found}) > 1:
        places = " and ".join(file.uri for file in found)
        raise _rejected(version, f"it has two different signatures, {places}; keep the one that counts")
    return found[0] if found else None


def _recognise(
    version: ModelVersion, objects: dict[str, StoredObject], weights: WeightStore
) -> tuple[Layout, dict[str, StoredObject]]:
    """Tell how MLflow stored the model, and which of its objects the serving engine needs."""
    if MLMODEL not in objects:
        if "config.json" in objects:
            return "plain", dict(objects)
        raise _rejected(version, _neither(sorted(objects)))
    flavor = _flavor(version, weights.read(objects[MLMODEL].uri))
    folder = flavor.get("model_binary")
    if not folder:
        origin = flavor.get("source_model_name") or "a hub"
        raise _rejected(
            version,
            f"it is only a reference to `{origin}` and carries no weights; log it with save_pretrained=True, "
            "or run mlflow.transformers.persist_pretrained_model on it",
        )
    model = _below(objects, f"{folder}/")
    if not model:
        raise _rejected(version, f"MLmodel says that the weights are in `{folder}/`, and there is nothing")
    if TOKENIZER_FILES & set(model):
        return "transformers-path", model
    tokenizer = _below(objects, "components/tokenizer/")
    return "transformers", {**tokenizer, **model}


def _flavor(version: ModelVersion, text: bytes) -> dict[str, Any]:
    try:
        described = yaml.safe_load(text)
        flavors = dict(described["flavors"])
    except (yaml.YAMLError, TypeError, KeyError, ValueError) as error:
        raise _rejected(version, f"its MLmodel file cannot be read ({type(error).__name__})") from error
    flavor = flavors.get("transformers")
    if not isinstance(flavor, dict):
        known = ", ".join(sorted(map(str, flavors))) or "none"
        raise _rejected(version, f"MLflow stored it with the flavours {known}; headway serves transformers models only")
    return flavor


def _below(objects: dict[str, StoredObject], folder: str) -> dict[str, StoredObject]:
    return {path.removeprefix(folder): item for path, item in objects.items() if path.startswith(folder)}


def _neither(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    return (
        f"it has neither an MLmodel file nor a config.json at its top, so it is no transformers model (it has: "
        f"{shown}). "
        "Register the folder that holds config.json itself"
    )


def _rejected(version: ModelVersion, finding: str) -> ModelRejected:
    return ModelRejected(f"{version.name} version {version.version}: {finding}", report=[finding])
