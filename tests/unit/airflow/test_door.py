"""The webhook's door: what each message is answered, and what it starts."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.testclient import TestClient

from headway.adapters.airflow_api import DagRun
from headway.domain import webhook
from headway.errors import BackendUnavailable, ConfigError, NotFound, Refused
from operators import door
from tests.unit.airflow.fake_backend import FakeBackend, FakeRuns
from tests.unit.test_webhook import alias_set, signed

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
PATH = "/webhooks/mlflow"
SECRET = "webhook-secret"


@pytest.fixture
def client(backend: FakeBackend) -> Iterator[TestClient]:
    """The application, which sends its errors as answers."""
    with TestClient(door.make(lambda: backend, lambda: NOW), raise_server_exceptions=False) as client:
        yield client


def headers(body: bytes, *, secret: str = SECRET, delivery: str = "", age_s: float = 0.0) -> dict[str, str]:
    """What MLflow sends with a body."""
    seconds = int((NOW - timedelta(seconds=age_s)).timestamp())
    return signed(body, secret, delivery or str(uuid4()), seconds)


def send(client: TestClient, body: bytes, **how: Any) -> tuple[int, str, str]:
    """Send a message; return status, word and reason."""
    answer = client.post(PATH, content=body, headers=headers(body, **how))
    return answer.status_code, answer.json()["result"], answer.json()["reason"]


def started(backend: FakeBackend) -> list[Mapping[str, Any]]:
    """Return the parameters of the runs that were started."""
    return [conf for dag, _, conf in backend.runs.triggered if dag == "release"]


def test_the_alias_of_a_profile_starts_a_release(client: TestClient, backend: FakeBackend) -> None:
    """Of this version, as long as the alias names it."""
    assert send(client, alias_set(), delivery="d-7") == (202, "accepted", "run mlflow__tiny__champion__v2__d-7")
    assert started(backend) == [{"model": "tiny", "version": 2, "while_alias": "champion"}]


def test_the_same_message_again_starts_nothing(client: TestClient, backend: FakeBackend) -> None:
    """A retry of MLflow's, or somebody who recorded it."""
    send(client, alias_set(), delivery="d-7")

    assert send(client, alias_set(), delivery="d-7") == (202, "duplicate", "run mlflow__tiny__champion__v2__d-7")
    assert len(started(backend)) == 1


def test_the_way_back_is_no_duplicate(client: TestClient, backend: FakeBackend) -> None:
    """Version 1, version 2, version 1: three promotions."""
    for version in ("1", "2", "1"):
        assert send(client, alias_set(version=version))[1] == "accepted"
    assert [conf["version"] for conf in started(backend)] == [1, 2, 1]


@pytest.mark.parametrize(
    "body",
    [
        alias_set(alias="challenger"),
        alias_set(model="unknown"),
        alias_set(model="ü" * 250),
        alias_set(model="a/b'\"\n"),
        b'{"entity": "model_version_alias", "action": "deleted", "data": {"name": "tiny", "alias": "champion"}}',
        b'{"entity": "model_version", "action": "created", "data": {"name": "tiny", "version": "3"}}',
        b'{"entity": "model_version_tag", "action": "set"}',
    ],
)
def test_what_nobody_serves_is_ignored_with_the_reason(client: TestClient, backend: FakeBackend, body: bytes) -> None:
    """202, because trying again would change nothing."""
    status, result, reason = send(client, body)

    assert (status, result) == (202, "ignored")
    assert reason.isprintable()
    assert started(backend) == []


def test_nobody_is_believed_without_a_good_signature(client: TestClient, backend: FakeBackend) -> None:
    """Unsigned, forged, changed, expired: 401, and MLflow does not try again."""
    body = alias_set()
    assert client.post(PATH, content=body).status_code == 401
    assert send(client, body, secret="guess")[:2] == (401, "refused")
    assert send(client, body, age_s=webhook.WINDOW_S + 1)[:2] == (401, "refused")
    assert client.post(PATH, content=alias_set(version="3"), headers=headers(body)).status_code == 401
    assert client.post(PATH, content=body, headers={**headers(body), webhook.DELIVERY_HEADER: "x"}).status_code == 401
    assert started(backend) == []


def test_during_a_rotation_both_secrets_are_good(client: TestClient, backend: FakeBackend) -> None:
    """And no restart is needed for that."""
    backend.secrets = ("new", SECRET)
    assert send(client, alias_set())[0] == 202
    assert send(client, alias_set(), secret="new")[0] == 202
    backend.secrets = ("new",)
    assert send(client, alias_set())[0] == 401


def test_a_door_without_a_secret_is_out_of_order(client: TestClient, backend: FakeBackend) -> None:
    """It lets nobody in, and the sender tries again."""
    backend.secrets = ()
    assert send(client, alias_set(), secret="")[:2] == (503, "unavailable")
    assert started(backend) == []


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable("Airflow does not answer"),
        Refused("Airflow refused (403)"),
        NotFound("no such DAG"),
        ConfigError("Airflow refused the parameters"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_mlflow_tries_again_if_airflow_does_not_take_it(
    client: TestClient, backend: FakeBackend, error: Exception
) -> None:
    """MLflow tries again only after 429 and 5xx; the same message then counts."""

    class Away(FakeRuns):
        def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, note: str = "") -> DagRun:
            raise error

    backend.runs = Away()
    status, result, reason = send(client, alias_set(), delivery="d-7")
    assert (status, result, reason) == (503, "unavailable", str(error))

    backend.runs = FakeRuns()
    assert send(client, alias_set(), delivery="d-7")[1] == "accepted"


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 10_000, alias_set(version="two"), b"\xff"])
def test_a_signed_message_that_is_no_message_is_told_so(client: TestClient, body: bytes) -> None:
    """400: it will not get better."""
    assert send(client, body)[:2] == (400, "unreadable")


def test_a_body_that_is_too_large_is_not_kept() -> None:
    """With or without a declared length, no more than the limit is taken from the sender."""
    taken = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 16 * 1024
            yield b" " * 16 * 1024

    async def scenario() -> tuple[int, int]:
        app = door.make(FakeBackend, lambda: NOW)
        transport = httpx.ASGITransport(app=_Streamed(app, stream))
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            streamed = await client.post(PATH, headers=headers(b""))
            declared = await client.post(PATH, content=b"x" * (webhook.LARGEST_BYTES + 1), headers=headers(b""))
        return streamed.status_code, declared.status_code

    assert asyncio.run(scenario()) == (413, 413)
    assert taken <= webhook.LARGEST_BYTES + 16 * 1024


def test_the_largest_body_is_taken(client: TestClient) -> None:
    """The limit is the last good size."""
    body = alias_set()
    whole = body + b" " * (webhook.LARGEST_BYTES - len(body))
    assert send(client, whole)[0] == 202
    assert send(client, whole + b" ")[:2] == (413, "too-large")


class _Streamed:
    """Gives an application a body chunk by chunk, as a network does, where none was declared."""

    def __init__(self, app: Any, stream: Any) -> None:
        self.app, self.stream = app, stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if any(name == b"content-length" and value != b"0" for name, value in scope["headers"]):
            await self.app(scope, receive, send)
            return
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        chunks = self.stream()

        async def take() -> dict[str, Any]:
            chunk = await anext(chunks, b"")
            return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

        await self.app(scope, take, send)


def test_a_sender_that_leaves_or_dawdles_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither starts anything, and neither keeps the connection."""
    monkeypatch.setattr(door, "BODY_WITHIN_S", 0.05)
    backend = FakeBackend()
    app = door.make(lambda: backend, lambda: NOW)
    body = alias_set()

    async def answer(then: str) -> int:
        first = [{"type": "http.request", "body": body[:20], "more_body": True}]
        statuses: list[int] = []

        async def receive() -> MutableMapping[str, Any]:
            if first:
                return first.pop()
            if then == "leaves":
                return {"type": "http.disconnect"}
            await asyncio.sleep(60)
            raise AssertionError("it was waited for")

        async def send(message: MutableMapping[str, Any]) -> None:
            statuses.append(message.get("status", 0))

        fields = [(name.encode(), value.encode()) for name, value in headers(body).items()]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": fields, "query_string": b""}
        await app(scope, receive, send)
        return statuses[0]

    assert asyncio.run(answer("leaves")) == 400
    assert asyncio.run(answer("dawdles")) == 408
    assert started(backend) == []


def test_nothing_is_redirected_and_no_cookie_is_set(client: TestClient) -> None:
    """A redirect would turn a message into a GET without a body."""
    for path in (f"{PATH}/", "/webhooks", "/", "/docs", "/openapi.json"):
        answer = client.post(path, content=alias_set(), headers=headers(alias_set()), follow_redirects=False)
        assert answer.status_code in (404, 405), path
    assert client.get(PATH).status_code == 405
    answer = client.post(PATH, content=alias_set(), headers=headers(alias_set()))
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-type"] == "application/json"


def test_the_server_goes_on_while_airflow_is_slow(backend: FakeBackend) -> None:
    """The question to Airflow comes back to the same server: were its loop held up, the two would wait for each other.

    Here Airflow answers only after the server has answered somebody else. And it is asked for one run at a time: with
    sqlite two at once hold up Airflow itself.
    """
    gate = threading.Event()

    at_work = threading.Lock()

    class Slow(FakeRuns):
        def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, note: str = "") -> DagRun:
            assert at_work.acquire(blocking=False), "two at once"
            assert gate.wait(10)
            at_work.release()
            return super().trigger(dag_id, run_id, conf, note=note)

    backend.runs = Slow()
    app = door.make(lambda: backend, lambda: NOW)

    async def scenario() -> tuple[list[int], float]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://airflow") as client:
            bodies = [alias_set(version=str(n)) for n in range(1, 31)]
            waiting = [asyncio.create_task(client.post(PATH, content=b, headers=headers(b))) for b in bodies]
            await asyncio.sleep(0.05)
            begun = monotonic()
            forged = {**headers(bodies[0]), webhook.SIGNATURE_HEADER: "v1,x"}
            assert (await client.post(PATH, content=bodies[0], headers=forged)).status_code == 401
            took_s = monotonic() - begun
            gate.set()
            return [(await task).status_code for task in waiting], took_s

    statuses, took_s = asyncio.run(scenario())

    assert set(statuses) == {202}
    assert len(started(backend)) == 30
    assert took_s < 5


def test_many_messages_read_the_profiles_once(client: TestClient, backend: FakeBackend) -> None:
    """A hundred promotions must not read a hundred files a hundred times."""
    reads = 0
    sound = backend.sound_profiles

    def counted() -> Any:
        nonlocal reads
        reads += 1
        return sound()

    backend.sound_profiles = counted  # type: ignore[method-assign]
    for _ in range(20):
        send(client, alias_set(alias="challenger"))

    assert reads <= 2


def test_the_log_says_what_happened_and_no_secret(
    client: TestClient, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks for a lost promotion finds the delivery and the answer; a name cannot forge a line."""
    caplog.set_level(logging.INFO, "headway.door")
    send(client, alias_set(model="evil\nwebhook 'x': 202 accepted"), delivery="d-1")
    send(client, alias_set(), delivery="d-2", secret="guess")

    first, second = (record for record in caplog.records if record.name == "headway.door")
    assert "\n" not in first.getMessage()
    assert "'d-1': 202 ignored" in first.getMessage()
    assert (second.levelname, "'d-2': 401 refused" in second.getMessage()) == ("WARNING", True)
    assert SECRET not in caplog.text
    assert "v1," not in caplog.text


def test_airflow_mounts_the_door_where_the_hook_leads(backend: FakeBackend) -> None:
    """As Airflow's own plugin manager finds it; the application is made at the first request."""
    from airflow import plugins_manager
    from fastapi import FastAPI

    [found] = [app for app in plugins_manager.get_fastapi_plugins()[0] if app["name"] == "headway"]
    server = FastAPI()
    server.mount(found["url_prefix"], found["app"])
    assert found["app"].app is None

    answer = TestClient(server).post(webhook.PATH, content=b"{}")

    assert (answer.status_code, json.loads(answer.content)["result"]) == (401, "refused")
    assert found["app"].app is not None
