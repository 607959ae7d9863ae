"""A message of the registry: who sent it, what it says, and the run that it starts.

MLflow 3.17 signs `<delivery id>.<timestamp>.<body>` with HMAC-SHA256 and sends the three in the headers below. A retry
carries the same id, timestamp and signature. A message may come late, twice, out of order or never, so it only says
that something changed. What is released is what the registry says when the release begins, and reconcile finds what
was lost.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from headway.domain import strict_json
from headway.domain.value import slug
from headway.errors import ConfigError, Refused
from headway.units import KIB

HOOK = "headway"
"""Name of the one hook in the registry."""

PATH = "/headway/webhooks/mlflow"
"""Where Airflow's API server takes the messages."""

EVENTS = ("model_version_alias.created", "model_version_alias.deleted")
"""What the hook asks for. An alias that is moved is `created` again; there is no other event for that."""

DELIVERY_HEADER = "x-mlflow-delivery-id"
TIMESTAMP_HEADER = "x-mlflow-timestamp"
SIGNATURE_HEADER = "x-mlflow-signature"

LARGEST_BYTES = 64 * KIB
"""A message about an alias has some 250 bytes; with names of 256 characters, all escaped, some 8 KiB."""

WINDOW_S = 900.0
"""How old a message may be. Longer than MLflow goes on trying one (`retry_span_s`); a replay within it is a duplicate,
one after it is refused."""

AHEAD_S = 300.0
"""How far the registry's clock may be ahead."""

GRACE_S = 1800.0
"""How long a replaced secret is still good: messages that were signed with it, and the registry's cache of hooks."""

LONGEST_SHOWN = 80
LONGEST_IN_RUN_ID = 40

# Neither has a dot, so `id.timestamp.body` can be cut in one way only, and a signature is good for one message only.
_DELIVERY = re.compile(r"[A-Za-z0-9-]{1,64}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_VERSION = re.compile(r"[0-9]{1,10}")


class Claim(NamedTuple):
    """What the headers of a message claim; true if `verify` says so."""

    delivery: str
    timestamp: str
    signature: str


class Promotion(NamedTuple):
    """An alias was set."""

    model: str
    alias: str
    version: int


class Other(NamedTuple):
    """Something else happened."""

    event: str
    """Such as `model_version_tag.set`."""


def retry_span_s(retries: int, timeout_s: float) -> float:
    """Return for how many seconds after its timestamp MLflow may still begin to send a message.

    Before the second and later retries it waits 2, 4, 8 ... seconds, 60 at most, and up to one more. Each try may take
    its time-out twice: to connect and to be answered.
    """
    waits_s = sum(min(60.0, 2.0**n) + 1.0 for n in range(1, retries))
    return waits_s + retries * 2 * timeout_s


def sign(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a message."""
    mac = hmac.new(secret.encode(), f"{delivery}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(mac.digest()).decode()}"


def claim(headers: Mapping[str, str], now: datetime) -> Claim:
    """Read what the headers claim; enough to refuse most strangers before their body is read.

    Args:
        headers: By lower-case name.
        now: UTC.

    Raises:
        Refused: One is missing or malformed, or the message is too old or from the future.
    """
    delivery = headers.get(DELIVERY_HEADER, "")
    timestamp = headers.get(TIMESTAMP_HEADER, "")
    signature = headers.get(SIGNATURE_HEADER, "")
    if not signature:
        raise Refused("the message is not signed; give the registry's hook its secret: `headway webhook sync`")
    if not _DELIVERY.fullmatch(delivery) or not _TIMESTAMP.fullmatch(timestamp):
        raise Refused(f"`{DELIVERY_HEADER}` or `{TIMESTAMP_HEADER}` is missing or is not what MLflow sends")
    age_s = now.timestamp() - int(timestamp)
    if not -AHEAD_S <= age_s <= WINDOW_S:
        raise Refused(
            f"the message is {age_s:.0f} s old by this machine's clock; {-AHEAD_S:.0f} to {WINDOW_S:.0f} s are taken. "
            "If it is new, the clocks of MLflow and Airflow differ"
        )
    return Claim(delivery, timestamp, signature)


def verify(claimed: Claim, body: bytes, secrets: Sequence[str]) -> None:
    """Make sure that the message was signed with one of the secrets.

    Raises:
        ConfigError: There is no secret, so nothing can be verified.
        Refused: It was not.
    """
    known = [secret for secret in secrets if secret]
    if not known:
        raise ConfigError("this door has no secret to verify messages with; `headway up` makes one")
    given = claimed.signature.encode(errors="replace")
    # All are compared, and each in constant time: how long it takes says nothing about a secret.
    good = [
        hmac.compare_digest(sign(secret, claimed.delivery, claimed.timestamp, body).encode(), given) for secret in known
    ]
    if not any(good):
        raise Refused(
            "the signature is wrong: another secret, or the message was changed on its way; `headway webhook sync` "
            "gives the registry the secret"
        )


def read(body: bytes) -> Promotion | Other:
    """Read a message that was verified.

    Raises:
        ConfigError: It is not what MLflow sends; says what is wrong.
    """
    try:
        message = strict_json.parse(body)
    except ValueError as error:
        raise ConfigError(f"the message is no JSON that can be read: {shown(str(error))}") from error
    if not isinstance(message, dict):
        raise ConfigError(f"the message is {_kind(message)}; an object was expected")
    event = f"{_text(message, 'entity')}.{_text(message, 'action')}"
    if event != EVENTS[0]:
        return Other(event)
    data = message.get("data")
    if not isinstance(data, dict):
        raise ConfigError(f"`data` of the message is {_kind(data)}; an object was expected")
    return Promotion(_text(data, "name"), _text(data, "alias"), _version(data.get("version")))


def ignored(event: Promotion | Other, aliases: Mapping[str, str], faulty: int = 0) -> str | None:
    """Say why a message starts nothing; none if it starts a release.

    Args:
        event: What happened.
        aliases: For each model that has a profile, the alias that is served.
        faulty: How many profiles could not be read.
    """
    if isinstance(event, Other):
        if event.event == EVENTS[1]:
            return "an alias was deleted; what serves goes on serving until another version is promoted"
        return f"{shown(event.event)} starts nothing; only an alias that is set does"
    alias = aliases.get(event.model)
    if alias is None:
        also = f", and {faulty} profile(s) have faults: `headway plan` shows them" if faulty else ""
        return f"no profile is for model {shown(event.model)}{also}"
    if alias != event.alias:
        return f"the profile of {shown(event.model)} serves alias {shown(alias)}, and {shown(event.alias)} was set"
    return None


def run_id(event: Promotion, delivery: str) -> str:
    """Name the run of a message.

    The same delivery gets the same name, so a duplicate starts nothing; setting an alias back is another delivery and
    starts a run of its own. Airflow takes 250 of these characters.
    """
    alias = re.sub(r"[^A-Za-z0-9_-]", "-", event.alias)[:LONGEST_IN_RUN_ID]
    return f"mlflow__{slug(event.model)}__{alias}__v{event.version}__{delivery}"


def run_conf(event: Promotion) -> dict[str, Any]:
    """Return the parameters of the run: this version, as long as the alias names it."""
    return {"model": event.model, "version": event.version, "while_alias": event.alias}


def shown(text: str) -> str:
    """Return foreign text for a log or an answer: short, and without characters that change what is around it."""
    return ascii(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"`{key}` of the message is {_kind(value)}; a text was expected")
    return value


def _version(value: Any) -> int:
    """MLflow sends the number as text."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _VERSION.fullmatch(text) or int(text) < 1:
        found = shown(text) if isinstance(text, str) else _kind(value)
        raise ConfigError(f"`version` of the message is {found}; a number such as 3 was expected")
    return int(text)


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    if value == "":
        return "empty"
    return f"a {type(value).__name__}"
