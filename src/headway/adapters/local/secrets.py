"""Secrets of the embedded stack: generated once, mode 600, never printed."""

import base64
import json
import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from headway.adapters.local.layout import S3_ROLES, LocalLayout, S3Role
from headway.errors import ConfigError, Conflict

JWT_SECRET = "jwt_secret"  # noqa: S105 - the name of the file
AIRFLOW_FERNET_KEY = "airflow_fernet_key"
AIRFLOW_SECRET_KEY = "airflow_secret_key"  # noqa: S105 - the name of the file
MLFLOW_WEBHOOK_KEY = "mlflow_webhook_encryption_key"
WEBHOOK_SECRET = "webhook_secret"  # noqa: S105 - the name of the file
WEBHOOK_SECRET_BEFORE = "webhook_secret_before"  # noqa: S105 - the name of the file
"""The secret that was replaced last, and on a second line until when it is good (UTC, ISO 8601)."""

AIRFLOW_USERS = ("admin", "headway")

S3_IDENTITIES = "s3-identities.json"

S3_ACTIONS: dict[S3Role, tuple[str, ...]] = {
    "admin": ("Admin", "Read", "Write", "List", "Tagging"),
    "mlflow": ("Read:mlflow", "Write:mlflow", "List:mlflow", "Tagging:mlflow"),
    "headway": ("Read:headway", "Write:headway", "List:headway", "Tagging:headway", "Read:mlflow", "List:mlflow"),
    "quantize": ("Read:headway", "Write:headway", "List:headway", "Read:mlflow", "List:mlflow"),
    "stage": ("Read:headway", "List:headway"),
}
"""What each role may do, in SeaweedFS's words: `<action>:<bucket>`."""


def ensure(layout: LocalLayout) -> list[str]:
    """Make the secrets that are not there yet; return the names of the new files.

    Existing ones are kept: the MLflow and Airflow databases hold values encrypted with them.
    """
    layout.secrets.mkdir(parents=True, exist_ok=True)
    layout.secrets.chmod(0o700)
    made = [
        name
        for name, value in (
            (JWT_SECRET, secrets.token_urlsafe(48)),
            (AIRFLOW_SECRET_KEY, secrets.token_urlsafe(32)),
            (AIRFLOW_FERNET_KEY, _fernet_key()),
            (MLFLOW_WEBHOOK_KEY, _fernet_key()),
            (WEBHOOK_SECRET, secrets.token_urlsafe(32)),
        )
        if _create(layout.secret(name), value)
    ]
    passwords = {user: secrets.token_urlsafe(18) for user in AIRFLOW_USERS}
    if _create(layout.airflow_passwords, json.dumps(passwords)):
        made.append(layout.airflow_passwords.name)
    made += _ensure_s3(layout)
    made += _ensure_pair(layout)
    return made


def _ensure_pair(layout: LocalLayout) -> list[str]:
    """Make the pair that signs artifacts, unless the deployment has its own; the public half always from the private.

    Existing ones are kept: artifacts in the store are verified with them.
    """
    if layout.own_signing_key is not None:
        return []
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made = []
    private = layout.signing_key
    if not private.exists():
        pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _create(private, pem.decode())
        made.append(private.name)
    key = serialization.load_pem_private_key(private.read_bytes(), password=None)
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public = layout.artifact_key
    if not public.exists() or public.read_bytes() != pem:
        public.unlink(missing_ok=True)
        _create(public, pem.decode())
        made.append(public.name)
    return made


def _ensure_s3(layout: LocalLayout) -> list[str]:
    """Make the credentials of each role, and always the identities file from them, so that the two cannot disagree."""
    made = []
    identities: list[dict[str, Any]] = []
    for role in S3_ROLES:
        path = layout.s3_credentials(role)
        access, secret = f"hw{role}{secrets.token_hex(6)}", secrets.token_urlsafe(30)
        text = f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
        if _create(path, text):
            made.append(path.name)
        access, secret = read_s3(path)
        identities.append(
            {
                "name": role,
                "credentials": [{"accessKey": access, "secretKey": secret}],
                "actions": list(S3_ACTIONS[role]),
            }
        )
    path = layout.secret(S3_IDENTITIES)
    text = json.dumps({"identities": identities}, indent=1)
    if not path.exists() or path.read_text() != text:
        path.unlink(missing_ok=True)
        _create(path, text)
    return made


def read_s3(path: Path) -> tuple[str, str]:
    """Return access key and secret key of a shared credentials file that `ensure` wrote."""
    values = dict(line.split(" = ", 1) for line in path.read_text().splitlines() if " = " in line)
    return values["aws_access_key_id"], values["aws_secret_access_key"]


def read(layout: LocalLayout, name: str) -> str:
    """Return a secret."""
    return layout.secret(name).read_text().strip()


def webhook_secrets(layout: LocalLayout, now: datetime) -> tuple[str, ...]:
    """Return what the registry's messages may be signed with: the secret, and for a while the one before it.

    Read anew at each call, so that a rotation needs no restart. Empty if none was made yet.

    Raises:
        ConfigError: A file cannot be read.
    """
    try:
        current = layout.secret(WEBHOOK_SECRET)
        if not current.exists():
            return ()
        found = [current.read_text().strip()]
        before = _webhook_before(layout)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the webhook's secret in {layout.secrets} cannot be read ({type(error).__name__}); see who owns the file",
            folder=str(layout.secrets),
        ) from error
    if before is not None and now < before[1]:
        found.append(before[0])
    return tuple(secret for secret in found if secret)


def rotate_webhook(layout: LocalLayout, now: datetime, grace_s: float) -> datetime:
    """Replace the webhook's secret; return until when the one before it is good as well.

    Args:
        layout: Where.
        now: UTC.
        grace_s: For how long the old one is good.

    Raises:
        ConfigError: There is no secret to replace.
        Conflict: The last rotation is not over: a third secret would make the first invalid, and nobody knows whether
            the registry still signs with it.
    """
    old = webhook_secrets(layout, now)
    if not old:
        raise ConfigError(f"there is no {layout.secret(WEBHOOK_SECRET)} to replace; `headway up` makes it")
    if len(old) > 1:
        before = _webhook_before(layout)
        until = before[1] if before else now
        raise Conflict(
            f"the secret before this one is good until {until:%H:%M:%S} UTC; rotate again after that. "
            "`headway webhook sync` gives the registry the present one",
            until=until.isoformat(),
        )
    until = now + timedelta(seconds=grace_s)
    # In this order a process that is killed in between leaves the old secret good.
    _write(layout.secret(WEBHOOK_SECRET_BEFORE), f"{old[0]}\n{until.isoformat()}\n")
    _write(layout.secret(WEBHOOK_SECRET), secrets.token_urlsafe(32))
    return until


def _webhook_before(layout: LocalLayout) -> tuple[str, datetime] | None:
    """Return the secret before this one and until when it is good. Raises OSError or ValueError."""
    path = layout.secret(WEBHOOK_SECRET_BEFORE)
    if not path.exists():
        return None
    secret, text = path.read_text().split()
    until = datetime.fromisoformat(text)
    if until.tzinfo is None:
        raise ValueError(f"{until} has no time zone")
    return secret, until


def airflow_password(layout: LocalLayout, user: str) -> str:
    """Return the password of an Airflow user."""
    return str(json.loads(layout.airflow_passwords.read_text())[user])


def _fernet_key() -> str:
    """Make a key as `cryptography.fernet` wants it: 32 random bytes, URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _create(path: Path, content: str) -> bool:
    """Write a new file of mode 600; false if it is there."""
    if path.exists():
        return False
    _write(path, content)
    return True


def _write(path: Path, content: str) -> None:
    """Write a file of mode 600 by rename, so that a killed process leaves no half secret."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
    part.replace(path)
