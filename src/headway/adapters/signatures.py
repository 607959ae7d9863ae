"""The port `Signatures` by the OpenSSF's model-signing: bundles that `model_signing sign key` or `certificate` wrote.

The library's public interface verifies a directory on a disk. headway knows the sha256 of every file already and
downloads nothing, so this takes the library's own verifiers, which return what was signed. They are not public; the
contract suite holds them against signatures that the public interface makes.

A certificate is verified as of the day from which it is valid, as the library does it: signatures outlive certificates,
and whoever is no longer trusted is taken out by their root.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.domain.profile import Signer
from headway.errors import ConfigError, ModelRejected
from headway.ports import Signed

ALGORITHM = "sha256"


class ModelSignatures:
    """Verifies with the keys and certificates of a folder.

    Args:
        folder: What paths of a signer are relative to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def verify(self, bundle: bytes, signer: Signer) -> Signed:
        """Return what was signed; see the port."""
        # Slow to import (a second), and needed only where a profile names a signer.
        from model_signing._signing import sign_sigstore_pb

        verifier = self._verifier(signer)
        signature = _parsed(bundle, sign_sigstore_pb.Signature)
        try:
            manifest = verifier.verify(signature)
        except Exception as error:
            # The library raises whatever its own libraries raise: nothing that it raises is a good signature.
            raise _rejected(f"does not verify with {_names(signer)}: {_words(error)}") from error
        _require_whole_files(manifest)
        files = {}
        for resource in manifest.resource_descriptors():
            if resource.digest.algorithm != ALGORITHM:
                raise _rejected(
                    f"lists {resource.identifier} by {resource.digest.algorithm}; sign with sha256 (the default)"
                )
            files[resource.identifier] = resource.digest.digest_hex
        return Signed(by=self._who(signer, signature), files=files)

    def _verifier(self, signer: Signer) -> Any:
        from model_signing._signing import sign_certificate, sign_ec_key

        try:
            if signer.public_key is not None:
                return sign_ec_key.Verifier(self._path(signer.public_key))
            return sign_certificate.Verifier([self._path(name) for name in signer.certificate_chain])
        except ConfigError:
            raise
        except Exception as error:
            kind = "public keys" if signer.public_key is not None else "certificates"
            raise ConfigError(
                f"weights.signer names {_names(signer)} in {self._folder}, which cannot be read as PEM {kind} of an "
                f"elliptic curve (P-256, P-384 or P-521): {_words(error)}",
                folder=str(self._folder),
            ) from error

    def _path(self, name: str) -> Path:
        path = self._folder / name
        if not path.is_file():
            raise ConfigError(
                f"weights.signer names `{name}`, and there is no file {path}; put the PEM file there, or correct the "
                "profile",
                path=str(path),
            )
        return path

    def _who(self, signer: Signer, signature: Any) -> str:
        """Name who signed, as `openssl` and model-signing name it."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        if signer.public_key is not None:
            return f"key {key_fingerprint(self._path(signer.public_key).read_bytes())}"
        chain = signature.bundle.verification_material.x509_certificate_chain
        certificate = x509.load_der_x509_certificate(chain.certificates[0].raw_bytes)
        subject = certificate.subject.rfc4514_string()
        return f"certificate {subject} {certificate.fingerprint(hashes.SHA256()).hex()}"


def key_fingerprint(pem: bytes) -> str:
    """Return the sha256 of a public key's PEM text, which is how model-signing names keys."""
    import hashlib

    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_public_key(pem)
    text = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(text).hexdigest()


def _parsed(bundle: bytes, kind: Any) -> Any:
    """Read a bundle as the library reads its file, without a file."""
    try:
        found = json.loads(bundle.decode())
        material = found["verificationMaterial"]
        material.setdefault("tlogEntries", [])
        if "publicKey" in material:
            material["publicKey"] = {"hint": material["publicKey"].get("hint")}
        from sigstore_models.bundle import v1

        parsed = kind(v1.Bundle.from_dict(found))
        signatures = len(parsed.bundle.dsse_envelope.signatures)
    except Exception as error:
        raise _rejected(
            f"is no signature bundle ({_words(error)}); sign with `model_signing sign key` or `certificate`"
        ) from error
    if signatures != 1:
        raise _rejected(f"is a bundle of {signatures} signatures, expected one")
    return parsed


def _require_whole_files(manifest: Any) -> None:
    method = manifest.serialization_type["method"]
    if method != "files":
        raise _rejected(f"is of the serialization `{method}`, expected `files`; sign without shards")
    if manifest.model_name == "compat-undefined-not-present":
        raise _rejected("is of the format before model-signing 1.0; sign again with a newer version")


def _rejected(finding: str) -> ModelRejected:
    finding = f"the signature {finding}"
    return ModelRejected(finding, report=[finding])


def _names(signer: Signer) -> str:
    names: Sequence[str] = [signer.public_key] if signer.public_key is not None else signer.certificate_chain
    return ", ".join(f"`{name}`" for name in names)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
