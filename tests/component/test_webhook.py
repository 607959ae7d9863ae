"""A real MLflow tells the real door: what comes in, what is lost, and that nothing starts a run but a promotion."""

import http.client
import json
import os
import random
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import requests
import uvicorn
from cryptography.fernet import Fernet
from fastapi import FastAPI

from headway.adapters.airflow_api import DagRun
from headway.adapters.mlflow import MlflowRegistry
from headway.adapters.mlflow_hooks import MlflowHooks
from headway.domain import webhook
from headway.errors import BackendUnavailable, Refused
from operators import door
from tests.component.servers import S3Server, free_ports, mlflow_server
from tests.factories import make_profile
from tests.unit.airflow.fake_backend import FakeBackend, FakeRuns
from tests.unit.airflow.model_files import CONFIG, safetensors
from tests.unit.test_webhook import alias_set, signed

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]

SECRET = "component-secret"
CACHE_S = 1.0
"""How long MLflow remembers its hooks here."""
LATE_S = 30.0


def eventually(condition: Callable[[], bool], what: str, within_s: float = LATE_S) -> None:
    """Return when the condition holds."""
    end = monotonic() + within_s
    while not condition():
        assert monotonic() < end, f"waited {within_s} s for {what}"
        sleep(0.02)


@dataclass
class Runs(FakeRuns):
    """Airflow's runs, which threads start, and which can be away."""

    away: bool = False
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, note: str = "") -> DagRun:
        """Start a run, once for each id."""
        with self.lock:
            self.calls += 1
            if self.away:
                raise BackendUnavailable("Airflow does not answer")
            return super().trigger(dag_id, run_id, conf, note=note)

    def versions(self) -> list[int]:
        """Return the versions of the runs, in the order in which they were started."""
        with self.lock:
            return [conf["version"] for _, _, conf in self.triggered]


@contextmanager
def receiver(backend: FakeBackend, port: int) -> Iterator[None]:
    """Serve the door as Airflow's API server does: mounted, by uvicorn."""
    app = FastAPI()
    app.mount("/headway", door.make(lambda: backend))
    app.add_api_route("/health", lambda: {"status": "good"})
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started, "the receiver")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@dataclass
class Registry:
    """A real MLflow with models that have no files."""

    url: str
    folder: Path

    @property
    def client(self) -> Any:
        """MLflow's own client."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.url, registry_uri=self.url)

    def model(self, name: str, versions: int) -> None:
        """Register a model with some versions."""
        self.client.create_registered_model(name)
        for number in range(1, versions + 1):
            self.client.create_model_version(name, source=f"s3://mlflow/{name}/{number}")

    def promote(self, name: str, version: int, alias: str = "champion") -> None:
        """Set the alias, as a person does."""
        self.client.set_registered_model_alias(name, alias, str(version))

    def hooks(self, port: int) -> MlflowHooks:
        """The adapter, for a door on this port."""
        return MlflowHooks(self.url, target=f"http://127.0.0.1:{port}{webhook.PATH}")


@contextmanager
def mlflow(folder: Path, key: str) -> Iterator[Registry]:
    """Run MLflow on the database in this folder, with this key for the secrets of hooks."""
    settings = {
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": key,
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_REQUEST_MAX_RETRIES": "3",
        "MLFLOW_WEBHOOK_CACHE_TTL": str(int(CACHE_S)),
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with mlflow_server(folder, S3Server(folder, "http://127.0.0.1:9")) as url:
            yield Registry(url, folder)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@pytest.fixture(scope="module")
def key() -> str:
    """What MLflow encrypts the secrets of its hooks with."""
    return Fernet.generate_key().decode()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, key: str) -> Iterator[Registry]:
    """One MLflow for this module."""
    with mlflow(tmp_path_factory.mktemp("mlflow"), key) as server:
        yield server


@dataclass
class Doors:
    """A door on a port of its own."""

    backend: FakeBackend
    runs: Runs
    port: int

    @property
    def url(self) -> str:
        """Where messages go."""
        return f"http://127.0.0.1:{self.port}{webhook.PATH}"


@pytest.fixture
def closed() -> Doors:
    """A door that nobody serves yet."""
    runs = Runs()
    backend = FakeBackend(runs=runs, secrets=(SECRET,))
    return Doors(backend, runs, free_ports(1)[0])


@pytest.fixture
def opened(closed: Doors) -> Iterator[Doors]:
    """A door that is served."""
    with receiver(closed.backend, closed.port):
        yield closed


@pytest.fixture
def hooked(registry: Registry, opened: Doors) -> Iterator[Doors]:
    """A door of which MLflow knows."""
    synced = registry.hooks(opened.port).sync(SECRET)
    sleep(2 * CACHE_S)  # MLflow looks for new hooks when its memory of the old ones is over, and shows nothing of it
    yield opened
    registry.client.delete_webhook(synced.hook.id)
    sleep(2 * CACHE_S)


def test_a_promotion_is_a_run_within_seconds_and_every_way_back_another(registry: Registry, hooked: Doors) -> None:
    """1, 2, 1: three runs in this order, each with its version; other models and aliases start nothing."""
    registry.model("tiny", 2)
    registry.model("nobody's", 1)
    registry.promote("nobody's", 1)
    registry.promote("tiny", 1, "challenger")
    for done, version in enumerate((1, 2, 1), start=1):
        registry.promote("tiny", version)
        eventually(lambda done=done: len(hooked.runs.versions()) == done, "a run")  # type: ignore[misc]

    assert hooked.runs.versions() == [1, 2, 1]
    assert len({run_id for _, run_id, _ in hooked.runs.triggered}) == 3
    assert registry.hooks(hooked.port).test(registry.hooks(hooked.port).find()[0]).status == 202
    assert hooked.runs.calls == 3


def test_names_of_any_kind_come_through(registry: Registry, hooked: Doors) -> None:
    """Quotes, other scripts, 250 characters."""
    names = ['a\'b "c"', "模型-ü", "n" * 250]
    hooked.backend.kept_profiles = {name: make_profile(model=name) for name in names}
    for name in names:
        registry.model(name, 1)
        registry.promote(name, 1)
    eventually(lambda: len(hooked.runs.versions()) == len(names), "a run for each")

    assert {conf["model"] for _, _, conf in hooked.runs.triggered} == set(names)


def test_mlflow_tries_again_while_airflow_is_away(registry: Registry, hooked: Doors) -> None:
    """503 until Airflow is back; then one run of this delivery."""
    registry.model("again", 1)
    hooked.backend.kept_profiles = {"again": make_profile(model="again")}
    hooked.runs.away = True
    registry.promote("again", 1)
    eventually(lambda: hooked.runs.calls >= 2, "a second try")
    hooked.runs.away = False

    eventually(lambda: hooked.runs.versions() == [1], "the run")


def test_one_hook_whatever_was_there(registry: Registry, closed: Doors) -> None:
    """Registered once, corrected when it differs, and more of our name are removed: each would send every message."""
    hooks = registry.hooks(closed.port)
    client = registry.client
    stranger = client.create_webhook("stranger", "https://example.org/", ["model_version.created"])
    assert hooks.sync(SECRET).did == "registered"
    assert hooks.sync(SECRET)[1:] == ("kept", 0)
    elsewhere = registry.hooks(1)
    assert elsewhere.sync(SECRET)[1:] == ("updated", 0)
    client.update_webhook(hooks.find()[0].id, status="DISABLED", events=["model_version.created"])
    for _ in range(3):
        client.create_webhook(webhook.HOOK, "http://127.0.0.1:1/", ["model_version_alias.created"], secret="x")

    synced = hooks.sync(SECRET)

    assert (synced.did, synced.removed) == ("updated", 3)
    assert [hook.id for hook in hooks.find()] == [synced.hook.id]
    assert (synced.hook.url, synced.hook.active) == (hooks.target, True)
    assert synced.hook.events == set(webhook.EVENTS)
    assert stranger.webhook_id in {hook.webhook_id for hook in client.list_webhooks()}
    for hook in client.list_webhooks():
        client.delete_webhook(hook.webhook_id)


def test_the_test_says_what_came_back(registry: Registry, closed: Doors) -> None:
    """A wrong secret shows as 401 with the reason, the right one as 202."""
    hooks = registry.hooks(closed.port)
    with receiver(closed.backend, closed.port):
        wrong = hooks.test(hooks.sync("another").hook)
        right = hooks.test(hooks.sync(SECRET).hook)
    assert (wrong.status, "signature is wrong" in wrong.said) == (401, True)
    assert (right.status, json.loads(right.said)["result"]) == (202, "ignored")
    assert closed.runs.calls == 0
    registry.client.delete_webhook(hooks.find()[0].id)


def test_a_rotation_loses_nothing(registry: Registry, hooked: Doors) -> None:
    """First the door knows both secrets, then MLflow gets the new one; its memory of the old one lasts a little."""
    registry.model("rotated", 40)
    hooked.backend.kept_profiles = {"rotated": make_profile(model="rotated")}
    for version in range(1, 41):
        if version == 10:
            hooked.backend.secrets = ("new", SECRET)
        if version == 20:
            registry.hooks(hooked.port).sync("new")
        registry.promote("rotated", version)
        sleep(0.05)
    eventually(lambda: sorted(hooked.runs.versions()) == list(range(1, 41)), "every run")


def test_a_hook_that_mlflow_would_not_call_is_refused(registry: Registry) -> None:
    """MLflow says why, and nothing is registered."""
    with pytest.raises(Refused, match="scheme"):
        MlflowHooks(registry.url, target="ftp://127.0.0.1/").sync(SECRET)
    assert registry.hooks(1).find() == []


def test_an_mlflow_that_is_away_is_one_clear_error(closed: Doors) -> None:
    """Not a stack trace."""
    with pytest.raises(BackendUnavailable, match="does not answer"):
        MlflowHooks("http://127.0.0.1:1", target=closed.url).sync(SECRET)


def test_another_encryption_key_is_one_clear_error(registry: Registry, tmp_path: Path, closed: Doors) -> None:
    """MLflow cannot read the secrets that it wrote, and its own error has no text."""
    hooks = registry.hooks(closed.port)
    hook = hooks.sync(SECRET).hook
    with sqlite3.connect(registry.folder / "mlflow.db") as source, sqlite3.connect(tmp_path / "mlflow.db") as copy:
        source.backup(copy)
    registry.client.delete_webhook(hook.id)

    with (
        mlflow(tmp_path, Fernet.generate_key().decode()) as server,
        pytest.raises(BackendUnavailable, match="MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY") as error,
    ):
        server.hooks(closed.port).sync(SECRET)

    assert SECRET not in error.value.message
    assert "\n" not in error.value.message


def test_reconcile_finds_what_was_lost(
    registry: Registry, closed: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver is down for longer than MLflow tries; the next look starts the release all the same, once."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from operators.hook import HeadwayHook
    from operators.reconcile import ReconcileOperator
    from tests.unit.airflow.walk import context

    hooks = registry.hooks(closed.port)
    hook = hooks.sync(SECRET).hook
    sleep(2 * CACHE_S)
    backend = closed.backend
    backend.registry = MlflowRegistry(registry.url)  # type: ignore[assignment]
    backend.kept_profiles = {"lost": make_profile(model="lost")}
    registry.model("lost", 1)
    for name, body in (
        ("config.json", json.dumps(CONFIG).encode()),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", safetensors(1)),
    ):
        backend.weights.objects[f"s3://mlflow/lost/1/{name}"] = body
    monkeypatch.setattr(HeadwayHook, "connect", staticmethod(lambda: backend))
    registry.promote("lost", 1)
    log = registry.folder / "mlflow.log"
    eventually(lambda: f"Failed to send webhook to {closed.url}" in log.read_text(), "MLflow to give up", 60)
    with receiver(backend, closed.port):
        registry.client.delete_webhook(hook.id)
        for _ in range(2):
            ReconcileOperator(task_id="reconcile").execute(context("scheduled"))

    [(_, run_id, conf)] = closed.runs.triggered
    assert run_id.startswith("reconcile__lost__v1__")
    assert conf == {"model": "lost", "version": 1}


def test_of_500_deliveries_only_the_valid_ones_start_a_run(opened: Doors) -> None:
    """Valid, replayed, reordered, forged, expired, truncated, oversized and nested ones, eight senders at once.

    No wrong run, no valid one lost, and everybody else is answered meanwhile.
    """
    picked = random.Random(8)  # noqa: S311 - which messages are sent, not a secret
    opened.backend.kept_profiles = {name: make_profile(model=name) for name in MODELS}
    made = [Sent.make(picked, number, SECRET) for number in range(500)]
    sends = [one for one in made for _ in range(3 if one.kind == "replayed" else 1)]
    picked.shuffle(sends)

    with watched(f"http://127.0.0.1:{opened.port}/health") as latencies, ThreadPoolExecutor(8) as senders:
        answers = list(senders.map(lambda one: one.deliver(opened.port), sends))

    found = {(one.kind, answer) for one, answer in zip(sends, answers, strict=True)}
    assert [(kind, answer) for kind, answer in found if answer not in KINDS[kind]] == []
    assert {kind for kind, _ in found} == set(KINDS)
    runs = {run_id.rpartition("__")[2]: (conf["model"], conf["version"]) for _, run_id, conf in opened.runs.triggered}
    assert runs == {one.delivery: one.asks for one in made if one.kind in ("valid", "replayed")}
    assert len(opened.runs.triggered) == len(runs)
    assert sorted(latencies)[int(len(latencies) * 0.99)] < 1.0


MODELS = [f"model-{number}" for number in range(10)]
KINDS: dict[str, set[int]] = {
    "valid": {202},
    "replayed": {202},
    "other": {202},
    "forged": {401},
    "changed": {401},
    "unsigned": {401},
    "expired": {401},
    "truncated": {0, 400},
    "oversized": {413},
    "nested": {400},
}
"""What may be answered; 0 if the connection was ended without an answer."""


@dataclass
class Sent:
    """One message of a stranger or of MLflow."""

    kind: str
    delivery: str
    asks: tuple[str, int]
    body: bytes
    headers: dict[str, str]

    @classmethod
    def make(cls, picked: random.Random, number: int, secret: str) -> "Sent":
        """Make a message of some kind; half of them are valid."""
        kind = picked.choice([*KINDS, *["valid"] * len(KINDS)])
        model, version = picked.choice(MODELS), picked.randint(1, 50)
        seconds = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the door's clock
        body = alias_set(model, version=str(version))
        if kind == "other":
            body = picked.choice([alias_set(model, "challenger"), alias_set("nobody"), b'{"entity":"x","action":"y"}'])
        elif kind == "oversized":
            body += b" " * picked.randint(webhook.LARGEST_BYTES, 4 * webhook.LARGEST_BYTES)
        elif kind == "nested":
            body = (picked.choice([b"[", b'{"a":', b'{"data":[']) * 10_000)[: webhook.LARGEST_BYTES]
        if kind == "expired":
            seconds -= int(webhook.WINDOW_S) + 60
        headers = signed(body, "guess" if kind == "forged" else secret, f"{kind}-{number}", seconds)
        if kind == "changed":
            body = alias_set(model, version=str(version + 100))
        elif kind == "unsigned":
            del headers[webhook.SIGNATURE_HEADER]
        return cls(kind, f"{kind}-{number}", (model, version), body, headers)

    def deliver(self, port: int) -> int:
        """Send it; return the status, 0 if the connection was ended without one."""
        if self.kind == "truncated":
            return self._cut_off(port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            with suppress(ConnectionError):
                connection.request("POST", webhook.PATH, self.body, self.headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def _cut_off(self, port: int) -> int:
        fields = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = f"POST {webhook.PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(self.body)}\r\n{fields}\r\n"
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            connection.sendall(head.encode() + self.body[: len(self.body) // 2])
            connection.shutdown(socket.SHUT_WR)
            line = connection.recv(64).decode(errors="replace")
        return int(line.split(" ")[1]) if line.startswith("HTTP/1.1 ") else 0


@contextmanager
def watched(url: str) -> Iterator[list[float]]:
    """Ask an address all the time; yield the seconds that each answer took."""
    latencies: list[float] = []
    faults: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            began = monotonic()
            answer = requests.get(url, timeout=30)
            latencies.append(monotonic() - began)
            if not answer.ok:
                faults.append(f"{answer.status_code}: {answer.text}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield latencies
    finally:
        stop.set()
        watcher.join()
    assert latencies
    assert faults == []
