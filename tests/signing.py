"""Keys, certificates and signatures as people make them: with `cryptography`, and model-signing's public interface."""

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from model_signing import hashing, signing

DAY = timedelta(days=1)


def key_pair(folder: Path, name: str, curve: ec.EllipticCurve | None = None) -> Path:
    """Write `<name>.pem` and `<name>.pub`, and return the private one's path."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private


def authority(folder: Path, name: str, *, days: int = 30) -> tuple[Path, Path, Path]:
    """Write a root certificate and one that it issued for signing.

    Args:
        folder: Where to.
        name: Of the files, and of who signs.
        days: How long the issued certificate is valid from yesterday; negative: it is over.

    Returns:
        The paths of the root, of the issued certificate and of its private key.
    """
    now = datetime.now(UTC)  # noqa: TID251 - certificates are checked against the real clock
    root_key = _load(key_pair(folder, f"{name}-root"))
    root = _certificate("Root", root_key, "Root", root_key, now - 60 * DAY, now + 60 * DAY, authority=True)
    private = key_pair(folder, name)
    issued = _certificate(name, _load(private), "Root", root_key, now - 50 * DAY, now + days * DAY, authority=False)
    paths = folder / f"{name}-root.crt", folder / f"{name}.crt"
    for path, certificate in zip(paths, (root, issued), strict=True):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return *paths, private


def sign_with_key(
    files: Mapping[str, bytes], private: Path, folder: Path, *, algorithm: str = "sha256", shard_bytes: int = 0
) -> bytes:
    """Sign a directory with these files; return the signature."""
    config = signing.Config().use_elliptic_key_signer(private_key=private)
    return _sign(config, files, folder, algorithm, shard_bytes)


def sign_with_certificate(
    files: Mapping[str, bytes], private: Path, certificate: Path, chain: Sequence[Path], folder: Path
) -> bytes:
    """Sign a directory with these files by a certificate; return the signature."""
    config = signing.Config().use_certificate_signer(
        private_key=private, signing_certificate=certificate, certificate_chain=list(chain)
    )
    return _sign(config, files, folder, "sha256", 0)


def _sign(config: signing.Config, files: Mapping[str, bytes], folder: Path, algorithm: str, shard_bytes: int) -> bytes:
    shutil.rmtree(folder, ignore_errors=True)
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    hashed = hashing.Config()
    if shard_bytes:
        hashed.use_shard_serialization(hashing_algorithm=algorithm, shard_size=shard_bytes)
    else:
        hashed.use_file_serialization(hashing_algorithm=algorithm)
    signature = folder.with_suffix(".sig")
    config.set_hashing_config(hashed).sign(folder, signature)
    return signature.read_bytes()


def _load(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _certificate(  # noqa: PLR0917 - the fields of a certificate
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
    *,
    authority: bool,
) -> x509.Certificate:
    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
