"""Artifacts: sets of weight files with a manifest, and the recipes that make them."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from headway.domain.value import Value, digest
from headway.errors import ConfigError, IntegrityError
from headway.units import MIB

PART_BYTES = 64 * MIB
"""Size of the parts that are hashed and fetched apart (the last one is shorter)."""

SCHEMA = 2
"""Version of the manifest's schema. Version N reads N-1. 2: provenance of any shape, and a signed statement."""

Scheme = Literal["none", "fp8-dynamic", "fp8", "w8a8", "w4a16-gptq", "w4a16-awq", "nvfp4", "fp8-block"]

BITS_PER_WEIGHT: dict[str, float] = {
    "none": 16.0,
    "fp8-dynamic": 8.0,
    "fp8": 8.0,
    "w8a8": 8.0,
    "w4a16-gptq": 4.0,
    "w4a16-awq": 4.0,
    "nvfp4": 4.5,
    "fp8-block": 8.0,
}
"""Bits of a Linear weight, without the scales of groups that `serving.bits_per_weight` adds; nvfp4 with its own."""


UNTRIED: dict[Scheme, str] = {
    "nvfp4": "its kernels need compute capability 10.0, and it was never tried on a device that has them",
    "fp8-block": "its CPU kernel needs AMX and its GPU kernels 9.0, and it was tried on neither",
}
"""Schemes with a name that are refused, and why."""

CALIBRATED: frozenset[Scheme] = frozenset({"fp8", "w8a8", "w4a16-gptq", "w4a16-awq"})
"""Schemes that look at activations, so that their result depends on the calibration texts."""

GROUPED: frozenset[Scheme] = frozenset({"w4a16-gptq", "w4a16-awq"})
"""Schemes with a scale for each group of weights."""

BUILDABLE: frozenset[Scheme] = frozenset({"none", "fp8-dynamic", *CALIBRATED})
"""Schemes that this version builds; the plan refuses the others by name."""


class WeightFile(Value):
    """One file of an artifact."""

    path: str
    size_bytes: int
    sha256: str
    parts: tuple[str, ...]
    """sha256 of each stretch of `PART_BYTES`, in order."""


class Manifest(Value):
    """The list of an artifact's files. It is written last and only if absent: where it is, the artifact is whole."""

    schema_version: int = SCHEMA
    artifact_digest: str
    files: tuple[WeightFile, ...]
    provenance: dict[str, Any] = {}
    """What made it: the predicate of SLSA provenance v1 (`headway.domain.provenance`); in schema 1 plain texts."""
    statement: dict[str, Any] | None = None
    """Files and provenance, signed: a sigstore bundle. None where the deployment has no key."""

    @model_validator(mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        """Name a newer schema before its unknown fields are complained about."""
        version = value.get("schema_version", SCHEMA) if isinstance(value, Mapping) else SCHEMA
        if isinstance(version, int) and version > SCHEMA:
            raise ValueError(
                f"it is of schema {version}, and this headway reads up to {SCHEMA}; a newer headway wrote it, use that"
            )
        return value

    @property
    def size_bytes(self) -> int:
        """Sum of the files."""
        return sum(f.size_bytes for f in self.files)

    @property
    def content_digest(self) -> str:
        """Name the bytes: the digest of paths, sizes and sha256 of all files."""
        return digest(sorted([f.path, f.size_bytes, f.sha256] for f in self.files))


class Recipe(Value):
    """How an artifact is made from its source."""

    scheme: Scheme
    revision: int = 1
    """Raised when headway changes how it applies the scheme, so that old and new results differ in name."""
    calibration_digest: str | None = None
    """sha256 of the calibration texts' file; none for a scheme that needs none."""
    calibration_samples: int | None = None
    calibration_tokens: int | None = None
    """Rows of that file, and tokens of a row, that are used."""
    group_size: int | None = None
    """Weights that share a scale, for the schemes that have groups."""
    kv_cache_scales: bool = False
    """Whether scales of an FP8 KV cache are calibrated too."""
    ignore: tuple[str, ...] = (
        "lm_head",
        "re:.*mlp.gate$",
        "re:.*router.*",
        "re:.*shared_expert_gate$",
        "re:.*vision.*",
    )
    """Modules that stay as they are; the MoE and vision rules cost nothing where no such module exists."""

    @property
    def keeps_bytes(self) -> bool:
        """Whether the artifact is the source itself."""
        return self.scheme == "none"


def artifact_digest(source_digest: str, recipe: Recipe) -> str:
    """Name an artifact by what it is made from (design rule 13.1): source, recipe and calibration.

    Fields that came to the recipe later count only where they are used: a new headway alone changes no name.
    """
    later = {"calibration_samples", "calibration_tokens", "group_size", "kv_cache_scales"}
    told = {name: value for name, value in recipe.to_json().items() if value or name not in later}
    return digest({"source": source_digest, "recipe": told})


def read_manifest(data: Mapping[str, Any], origin: str) -> Manifest:
    """Return the manifest in a JSON object, checked as far as that needs no bytes of the files.

    Args:
        data: The JSON object.
        origin: Where it is from, for messages.

    Raises:
        ConfigError: It is of a newer headway.
        IntegrityError: It is no manifest, or contradicts itself.
    """
    version = data.get("schema_version", SCHEMA)
    if isinstance(version, int) and version > SCHEMA:
        raise ConfigError(
            f"{origin} has schema version {version}, this headway reads versions up to {SCHEMA}; it was made by a "
            "newer headway. Upgrade this one",
            origin=origin,
            schema_version=version,
        )
    try:
        manifest = Manifest.model_validate(dict(data))
    except ValidationError as error:
        raise IntegrityError(f"{origin} is no manifest that this headway can read: {error}", origin=origin) from error
    names = [file.path for file in manifest.files]
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise IntegrityError(f"{origin} lists {twice} more than once; delete the artifact", origin=origin)
    for file in manifest.files:
        if file.size_bytes < 0 or not all(re.fullmatch(r"[0-9a-f]{64}", text) for text in (file.sha256, *file.parts)):
            raise IntegrityError(
                f"{origin} gives `{file.path}` a size or a sha256 that is none; delete the artifact", origin=origin
            )
    return manifest
