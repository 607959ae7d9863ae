"""Signs the artifacts that the quantize program makes, and verifies them on the node before a byte is fetched.

Both are by a key pair of the deployment (elliptic curve P-256). Programs find their half by a variable that holds a
path: the private key goes to the quantize program only, and neither half is part of a job, a record or a log.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import headway
from headway.domain.provenance import PAYLOAD_TYPE, payload, pre_authentication, provenance, require_about
from headway.domain.weight_jobs import QuantizeJob
from headway.domain.weights import Manifest, WeightFile
from headway.errors import ConfigError, IntegrityError, Refused

SIGNING_KEY = "HEADWAY_SIGNING_KEY"
"""Path of a PEM file with the private key. Not set: artifacts are not signed."""

ARTIFACT_KEY = "HEADWAY_ARTIFACT_KEY"
"""Path of a PEM file with the public keys, one or several (old and new). Not set: nobody looks at signatures."""

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----\s*", re.DOTALL)


def manifest_of(
    job: QuantizeJob, files: tuple[WeightFile, ...], tools: Mapping[str, str], environment: Mapping[str, str]
) -> Manifest:
    """Return the manifest of an artifact that was just made, signed if this deployment has a key.

    Raises:
        ConfigError: The key cannot be read.
    """
    made = Manifest(
        artifact_digest=job.artifact_digest,
        files=files,
        provenance=provenance(
            source_digest=job.source_digest,
            files=job.files,
            recipe=job.recipe,
            tools=tools,
            headway=headway.__version__,
        ),
    )
    path = environment.get(SIGNING_KEY)
    return made if not path else made.model_copy(update={"statement": sign(made, _private(path))})


def require_signed(manifest: Manifest, environment: Mapping[str, str]) -> str | None:
    """Verify the signature of an artifact, if this node knows whose it must be.

    Returns:
        The sha256 of the public key that verifies it, none if no key is known here.

    Raises:
        ConfigError: The public keys cannot be read.
        Refused: The artifact is not signed, or by another key.
        IntegrityError: The signature is about something else.
    """
    path = environment.get(ARTIFACT_KEY)
    if not path:
        return None
    keys = _public(path)
    name = manifest.artifact_digest
    if manifest.statement is None:
        raise Refused(
            f"artifact {name} is not signed, and {ARTIFACT_KEY} says that it must be; if it was made before there was "
            "a key, delete the artifact and let it be made again",
            artifact_digest=name,
        )
    signed, signature = _opened(manifest)
    for key in keys:
        try:
            key.verify(signature, pre_authentication(signed), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        require_about(signed, manifest)
        return fingerprint(key)
    raise Refused(
        f"the signature of artifact {name} does not verify with {_named(keys)}: somebody else signed it, or it was "
        f"changed. If the key was changed, put both public keys into {path}; else delete the artifact",
        artifact_digest=name,
    )


def sign(manifest: Manifest, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    """Return the signed statement about an artifact, as a sigstore bundle."""
    signed = payload(manifest)
    signature = key.sign(pre_authentication(signed), ec.ECDSA(hashes.SHA256()))
    return {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": fingerprint(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(signed).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the sha256 of a public key's PEM text, which is how model-signing names keys."""
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def _opened(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return what was signed, and the signature."""
    try:
        envelope = (manifest.statement or {})["dsseEnvelope"]
        [signature] = envelope["signatures"]
        signed, kind = base64.b64decode(envelope["payload"], validate=True), envelope["payloadType"]
        return signed, base64.b64decode(signature["sig"], validate=True) if kind == PAYLOAD_TYPE else b""
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"the statement in the manifest of artifact {manifest.artifact_digest} is no signature bundle "
            f"({type(error).__name__}); delete the artifact, and let it be made again",
            artifact_digest=manifest.artifact_digest,
        ) from error


def _private(path: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        # Only the kind of the error: its text may hold parts of the file.
        raise ConfigError(
            f"{SIGNING_KEY} names {path}, which cannot be read as a PEM private key without a password "
            f"({type(error).__name__}); correct it, or unset it to make unsigned artifacts",
            path=path,
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"{SIGNING_KEY} names {path}, which is no elliptic-curve key on P-256; make one", path=path)
    return key


def _public(path: str) -> list[ec.EllipticCurvePublicKey]:
    try:
        keys = [serialization.load_pem_public_key(pem.encode()) for pem in _PEM.findall(Path(path).read_text())]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ARTIFACT_KEY} names {path}, which cannot be read: {error}", path=path) from error
    found = [key for key in keys if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)]
    if not found or len(found) != len(keys):
        raise ConfigError(f"{ARTIFACT_KEY} names {path}, which must hold PEM public keys on P-256 only", path=path)
    return found


def _named(keys: list[ec.EllipticCurvePublicKey]) -> str:
    return "key " + " or ".join(fingerprint(key)[:12] for key in keys)
