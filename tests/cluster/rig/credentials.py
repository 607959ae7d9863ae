"""Keys, tokens and kubeconfigs of a rig: made anew for each, good for a day, of use on 127.0.0.1 alone."""

import base64
import ipaddress
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
# The first service address, which the API server gives itself.
ADDRESSES = ("127.0.0.1", "10.96.0.1")
USERS = {
    "admin": ("admin", "system:masters"),
    "kwok": ("kwok", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "controller-manager": ("system:kube-controller-manager", ""),
}
"""Name of the kubeconfig to the user that it is and the group that the user is in."""


class Credentials:
    """All that opens the API server of one rig.

    Args:
        folder: Where the files go.
        server: The API server's address.
        now: When the certificate begins.
        addresses: IP addresses that the API server answers at.
        users: As `USERS`.
    """

    def __init__(
        self,
        folder: Path,
        server: str,
        now: datetime,
        *,
        addresses: Sequence[str] = ADDRESSES,
        users: Mapping[str, tuple[str, str]] = USERS,
    ) -> None:
        self._folder = folder
        self._server = server
        self._addresses = addresses
        self.certificate = folder / "server.crt"
        self.key = folder / "server.key"
        self.account_key = folder / "accounts.key"
        self.tokens = folder / "tokens.csv"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(self.account_key, _pem(ec.generate_private_key(ec.SECP256R1())))
        self._write_certificate(now)
        self._tokens = {name: secrets.token_hex(16) for name in users}
        lines = [
            f'{self._tokens[name]},{user},{name},"{group}"' if group else f"{self._tokens[name]},{user},{name}"
            for name, (user, group) in users.items()
        ]
        self._write(self.tokens, "\n".join(lines).encode())

    def kubeconfig(self, user: str, token: str | None = None, namespace: str = "default") -> Path:
        """Write how a user reaches the API server.

        Args:
            user: One of the rig's own users; any name for a user with a token of its own.
            token: The token of a user that is not the rig's own.
            namespace: Where its commands go that name none.

        Returns:
            The file.
        """
        certificate = base64.b64encode(self.certificate.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "rig",
            "clusters": [
                {"name": "rig", "cluster": {"server": self._server, "certificate-authority-data": certificate}}
            ],
            "users": [{"name": user, "user": {"token": token or self._tokens[user]}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": user, "namespace": namespace}}],
        }
        path = self._folder / f"{user}.kubeconfig"
        self._write(path, json.dumps(content).encode())
        return path

    def _write_certificate(self, now: datetime) -> None:
        """Write a certificate that is its own authority, so that nothing has to wait for the API server to make one."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rig")])
        names = [x509.DNSName(one) for one in NAMES]
        addresses = [x509.IPAddress(ipaddress.ip_address(one)) for one in self._addresses]
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        self._write(self.key, _pem(key))
        self._write(self.certificate, certificate.public_bytes(serialization.Encoding.PEM))

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.touch(mode=0o600)
        path.write_bytes(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
