"""What an artifact was made from, and the statement about it that is signed.

The statement is the one of the OpenSSF's model-signing (in-toto Statement v1, predicate
`https://model_signing/signature/v1.0`), so that `model_signing verify key` accepts it for the artifact's directory. Its
predicate lists every file with its sha256, and carries besides that, under `provenance`, the predicate of SLSA
provenance v1 (https://slsa.dev/spec/v1.0/provenance): the specification of model-signing says that verifiers ignore
fields that they do not know.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from headway.domain.model import SourceFile
from headway.domain.weights import Manifest, Recipe
from headway.errors import IntegrityError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
BUILD_TYPE = "urn:headway:quantize:1"
"""Raised when the meaning of `externalParameters` changes."""

BUILDER = "urn:headway:pods:quantize"


def provenance(
    *, source_digest: str, files: Iterable[SourceFile], recipe: Recipe, tools: Mapping[str, str], headway: str
) -> dict[str, Any]:
    """Return where an artifact comes from, as the predicate of SLSA provenance v1.

    It holds no time and no host: the same input gives the same text.

    Args:
        source_digest: Of the source as a whole.
        files: Of the source.
        recipe: What was done; names the calibration texts by their digest.
        tools: Versions of what did it.
        headway: Version of headway.
    """
    dependencies: list[dict[str, Any]] = [{"name": "source", "digest": {"sha256": source_digest}}]
    dependencies += [
        {"name": file.path, "uri": file.uri, "digest": {"sha256": file.sha256}}
        for file in sorted(files, key=lambda file: file.path)
    ]
    if recipe.calibration_digest is not None:
        dependencies.append({"name": "calibration", "digest": {"sha256": recipe.calibration_digest}})
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"recipe": recipe.to_json()},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": BUILDER, "version": {"headway": headway, **tools}}},
    }


def payload(manifest: Manifest) -> bytes:
    """Return the statement about an artifact as the text that is signed."""
    files = sorted(manifest.files, key=lambda file: file.path)
    root = hashlib.sha256(b"".join(bytes.fromhex(file.sha256) for file in files))
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": manifest.artifact_digest, "digest": {"sha256": root.hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
            "resources": [{"name": f.path, "algorithm": "sha256", "digest": f.sha256} for f in files],
            "provenance": manifest.provenance,
        },
    }
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def require_about(signed: bytes, manifest: Manifest) -> None:
    """Compare what was signed with the manifest that carries the signature.

    Raises:
        IntegrityError: The signature is about other files, another artifact or another provenance.
    """
    if _told(signed) == _told(payload(manifest)):
        return
    raise IntegrityError(
        f"the signature in the manifest of artifact {manifest.artifact_digest} is good, but not for what the manifest "
        "says: its name, a file, a digest or the provenance differ; delete the artifact, and let it be made again",
        artifact_digest=manifest.artifact_digest,
    )


def _told(signed: bytes) -> Any:
    """Return the fields that count, so that one that a later headway adds breaks no signature."""
    try:
        statement = json.loads(signed)
        predicate = statement["predicate"]
        return [
            *(statement[name] for name in ("_type", "subject", "predicateType")),
            *(predicate[name] for name in ("resources", "provenance")),
        ]
    except (ValueError, KeyError, TypeError):
        return None


def pre_authentication(signed: bytes) -> bytes:
    """Return the bytes that a DSSE signature is over (https://github.com/secure-systems-lab/dsse, protocol.md)."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(signed), signed)
