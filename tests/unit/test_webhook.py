"""Messages of the registry: what is believed, what is understood, and which run they start."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain import webhook
from headway.domain.webhook import Claim, Other, Promotion
from headway.errors import ConfigError, HeadwayError, Refused

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
ROOT = Path(__file__).parents[2]

secrets = st.text(min_size=1, max_size=40)
deliveries = st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def signed(body: bytes, secret: str, delivery: str = "d-1", seconds: int = SECONDS) -> dict[str, str]:
    """The headers that MLflow sends."""
    return {
        webhook.DELIVERY_HEADER: delivery,
        webhook.TIMESTAMP_HEADER: str(seconds),
        webhook.SIGNATURE_HEADER: webhook.sign(secret, delivery, str(seconds), body),
    }


def believe(headers: Mapping[str, str], body: bytes, *known: str) -> str:
    """Check a message as the door does; return the id of its delivery."""
    claimed = webhook.claim(headers, NOW)
    webhook.verify(claimed, body, known)
    return claimed.delivery


def alias_set(model: Any = "tiny", alias: Any = "champion", version: Any = "2") -> bytes:
    """The message that MLflow sends when an alias was set."""
    data = {"name": model, "alias": alias, "version": version}
    return json.dumps(
        {"entity": "model_version_alias", "action": "created", "timestamp": "2026-12-01T12:00:00+00:00", "data": data}
    ).encode()


def test_the_signature_is_mlflows() -> None:
    """A message as MLflow 3.17.2 sends it, with the signature that its code gives."""
    body = (
        b'{"entity": "model_version_alias", "action": "created", "timestamp": "2026-11-30T04:14:59.237173+00:00", '
        b'"data": {"name": "llama-8b", "alias": "champion", "version": "1"}}'
    )
    assert (
        webhook.sign("s3cret-ü", "e3381a77-48e1", "1796012099", body)
        == "v1,ak3G95g2mzh3Yskqcmax9nIFrwD4ybkTlkZ6IfocSVQ="
    )


@given(st.binary(max_size=200), secrets, secrets, deliveries)
def test_what_was_signed_with_either_secret_is_believed(body: bytes, one: str, two: str, delivery: str) -> None:
    """During a rotation both are good, in any order."""
    assert believe(signed(body, two, delivery), body, one, two) == delivery
    assert believe(signed(body, one, delivery), body, one, two) == delivery


@given(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.sampled_from([webhook.DELIVERY_HEADER, webhook.TIMESTAMP_HEADER, webhook.SIGNATURE_HEADER, "body", "secret"]),
    st.text(max_size=70),
)
def test_a_message_of_which_anything_was_changed_is_refused(body: bytes, other: bytes, part: str, text: str) -> None:
    """Whatever it is, and whatever stands there instead: an answer, never a crash."""
    headers = signed(body, "right")
    known = "right"
    if part == "body" and other != body:
        body = other
    elif part == "secret" and text not in ("", "right"):
        known = text
    elif headers.get(part, text) != text:
        headers[part] = text
    else:
        return
    with pytest.raises(Refused):
        believe(headers, body, known)


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=60))
def test_strange_headers_are_refused(delivery: str, timestamp: str, signature: str) -> None:
    """Digits of other scripts, line breaks, nothing at all."""
    headers = {
        webhook.DELIVERY_HEADER: delivery,
        webhook.TIMESTAMP_HEADER: timestamp,
        webhook.SIGNATURE_HEADER: signature,
    }
    with pytest.raises(Refused):
        believe(headers, b"{}", "secret")


@given(st.text(alphabet="0123456789.-a", min_size=1, max_size=20), st.integers(0, 20))
def test_a_signature_is_good_for_one_cut_only(text: str, cut: int) -> None:
    """Id, timestamp and body are signed as one text; moving a border must not give another message."""
    body = text.encode()
    headers = signed(body, "right")
    whole = f"d-1.{SECONDS}.{text}"
    left, _, rest = whole.partition(".")
    moved = rest[cut:].encode()
    headers[webhook.TIMESTAMP_HEADER] = rest[:cut].rstrip(".")
    headers[webhook.DELIVERY_HEADER] = left
    if (headers[webhook.TIMESTAMP_HEADER], moved) == (str(SECONDS), body):
        return
    with pytest.raises(Refused):
        believe(headers, moved, "right")


@pytest.mark.parametrize("header", [webhook.DELIVERY_HEADER, webhook.TIMESTAMP_HEADER, webhook.SIGNATURE_HEADER])
def test_a_message_without_one_of_the_headers_is_refused(header: str) -> None:
    """A hook without a secret sends no signature, and nobody is believed without."""
    headers = signed(b"{}", "secret")
    del headers[header]
    with pytest.raises(Refused):
        believe(headers, b"{}", "secret")


@pytest.mark.parametrize("known", [(), ("",), ("", "")])
def test_without_a_secret_nothing_is_believed(known: tuple[str, ...]) -> None:
    """An empty file must not make everybody's signature right; and it is our fault, so the sender tries again."""
    with pytest.raises(ConfigError, match="no secret"):
        believe(signed(b"{}", "x"), b"{}", *known)


@pytest.mark.parametrize(
    ("age_s", "good"),
    [(0, True), (webhook.WINDOW_S, True), (webhook.WINDOW_S + 1, False), (-webhook.AHEAD_S, True), (-301, False)],
)
def test_an_old_message_is_refused(age_s: float, good: bool) -> None:
    """A message that somebody recorded is good for a quarter of an hour, and in it a duplicate."""
    headers = signed(b"{}", "secret", seconds=int((NOW - timedelta(seconds=age_s)).timestamp()))
    if good:
        assert believe(headers, b"{}", "secret") == "d-1"
    else:
        with pytest.raises(Refused, match="clocks"):
            believe(headers, b"{}", "secret")


def test_the_window_is_longer_than_mlflow_tries() -> None:
    """Its last retry carries the first timestamp; were it refused, the retries would be for nothing."""
    settings = (ROOT / "local" / "mlflow" / "mlflow.env").read_text()
    [retries] = re.findall(r"^MLFLOW_WEBHOOK_REQUEST_MAX_RETRIES=(\d+)$", settings, re.MULTILINE)

    assert int(retries) >= 6
    assert webhook.retry_span_s(int(retries), 30) < webhook.WINDOW_S
    assert webhook.retry_span_s(3, 0) == 2 + 4 + 2


def test_an_alias_that_was_set_is_understood() -> None:
    """The number comes as text."""
    assert webhook.read(alias_set()) == Promotion("tiny", "champion", 2)
    assert webhook.read(alias_set(version=2)) == Promotion("tiny", "champion", 2)


@given(st.text(min_size=1), st.text(min_size=1), st.integers(1, 2**31))
def test_every_name_is_taken_as_it_is(model: str, alias: str, version: int) -> None:
    """Slashes, quotes, other scripts, 250 characters; and the run's id takes what Airflow takes."""
    event = webhook.read(alias_set(model, alias, str(version)))

    assert event == Promotion(model, alias, version)
    assert isinstance(event, Promotion)
    delivery = "0" * 64
    run_id = webhook.run_id(event, delivery)
    assert re.fullmatch(r"[A-Za-z0-9_.~:+-]{1,250}", run_id)
    assert run_id.endswith(f"__v{version}__{delivery}")


def test_the_way_back_is_a_run_of_its_own() -> None:
    """From 1 to 2 and back to 1: the second time version 1 is asked for must not be taken for the first."""
    one = Promotion("tiny", "champion", 1)

    assert webhook.run_id(one, "a") == "mlflow__tiny__champion__v1__a"
    assert webhook.run_id(one, "a") != webhook.run_id(one, "c")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Never another error."""
    with suppress(ConfigError):
        assert isinstance(webhook.read(body), Other)


@given(json_values, json_values, json_values)
def test_wrong_types_are_refused(model: Any, alias: Any, version: Any) -> None:
    """What is taken has the right types, whatever came."""
    try:
        event = webhook.read(alias_set(model, alias, version))
    except ConfigError:
        return
    assert isinstance(event, Promotion)
    assert (event.model, event.alias, str(event.version)) == (model, alias, str(int(version)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b"[" * 10_000,
        b'{"a":' * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"entity": "model_version_alias", "action": "created", "data": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"entity": "model_version_alias", "action": "created"}',
        b'{"entity": "model_version_alias", "action": "created", "data": []}',
        b'{"entity": 1, "action": "created"}',
        b'{"entity": "model_version_alias", "action": ["created"]}',
        b'{"entity": "x", "entity": "y", "action": "z"}',
        b'{"version": ' + b"9" * 5000 + b"}",
        alias_set(version="0"),
        alias_set(version="-1"),
        alias_set(version="2.0"),
        alias_set(version="\u0662"),
        alias_set(version=True),
        alias_set(version="9" * 11),
        alias_set(version=None),
        alias_set(model=""),
        alias_set(model={"name": "tiny"}),
        alias_set(alias=None),
        alias_set()[:-1],
        alias_set().replace(b"tiny", b"ti\\ud800ny"),
    ],
)
def test_what_is_no_message_of_mlflow_is_refused_in_one_sentence(body: bytes) -> None:
    """Nested 10,000 levels deep, cut off, of the wrong type: each has an answer."""
    with pytest.raises(ConfigError) as refused:
        webhook.read(body)

    assert refused.value.message.isascii()
    assert len(refused.value.message) < 400


ALIASES = {"tiny": "champion", "a/b 'ü'": "prod"}


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Promotion("tiny", "champion", 1), None),
        (Promotion("a/b 'ü'", "prod", 1), None),
        (Promotion("tiny", "challenger", 1), "the profile of 'tiny' serves alias 'champion', and 'challenger' was set"),
        (Promotion("Tiny", "champion", 1), "no profile is for model 'Tiny'"),
        (Other("model_version_alias.deleted"), "what serves goes on serving"),
        (Other("model_version_tag.set"), "'model_version_tag.set' starts nothing"),
    ],
)
def test_only_the_alias_that_a_profile_serves_starts_anything(event: Promotion | Other, why: str | None) -> None:
    """Everything else is told why not."""
    found = webhook.ignored(event, ALIASES)

    assert found == why if why is None else why in str(found)


def test_a_profile_that_cannot_be_read_is_mentioned() -> None:
    """The model's own may be the one."""
    assert "1 profile(s) have faults" in str(webhook.ignored(Promotion("new", "champion", 1), ALIASES, 1))


@given(st.text())
def test_foreign_text_is_shown_without_harm(text: str) -> None:
    """A name cannot end a line of the log, nor fill it."""
    assert webhook.shown(text).isprintable()
    assert webhook.shown(text).isascii()
    assert len(webhook.shown(text)) < 10 * (webhook.LONGEST_SHOWN + 4)


def test_a_refusal_never_names_a_secret() -> None:
    """Its text goes into logs and answers."""
    for headers, body in ((signed(b"{}", "other"), b"{}"), (signed(b"{}", "hush"), b"changed")):
        with pytest.raises(HeadwayError) as refused:
            believe(headers, body, "hush", "also-hush")
        assert "hush" not in refused.value.message
        assert headers[webhook.SIGNATURE_HEADER] not in refused.value.message


def test_a_claim_is_only_a_claim() -> None:
    """Reading the headers believes nobody."""
    headers = {**signed(b"{}", "secret"), webhook.SIGNATURE_HEADER: "v1,AAAA"}

    assert webhook.claim(headers, NOW) == Claim("d-1", str(SECONDS), "v1,AAAA")
