"""The client of Airflow's REST API against a server that answers as Airflow 3.3.2 does."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.airflow_api import AirflowApi
from headway.errors import BackendUnavailable, ConfigError, HeadwayError, NotFound, Refused

RUN = {"dag_run_id": "r1", "state": "running", "conf": {"model": "tiny"}, "run_after": "2026-11-30T12:00:00Z"}


@dataclass
class Airflow:
    """What the server answers, and what it was asked."""

    url: str = ""
    tokens: int = 0
    revoked: int = 0
    """Tokens up to this one are no longer good."""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    """A server on a free port of loopback."""
    state = Airflow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body: Any) -> None:
            path = self.path.split("?")[0]
            if path == "/auth/token":
                good = body == {"username": "headway", "password": "secret"}
                state.tokens += good
                self.send(201 if good else 401, {"access_token": str(state.tokens)} if good else {"detail": "wrong"})
                return
            state.asked.append((self.command, self.path, body))
            token = int(self.headers.get("Authorization", "Bearer 0").removeprefix("Bearer "))
            if token <= state.revoked:
                self.send(401, {"detail": "Invalid JWT"})
                return
            self.send(*state.answers.get(f"{self.command} {path}", (404, {"detail": "not here"})))

        def send(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(airflow: Airflow, tmp_path: Path) -> AirflowApi:
    """A client with the right password."""
    passwords = tmp_path / "passwords.json"
    passwords.write_text(json.dumps({"headway": "secret"}))
    return AirflowApi(airflow.url, user="headway", passwords=passwords)


def test_a_run_is_started_without_a_logical_date(airflow: Airflow, api: AirflowApi) -> None:
    """Two runs with one logical date collide, and look like a duplicate."""
    airflow.answers["POST /api/v2/dags/release/dagRuns"] = (200, RUN)

    run = api.trigger("release", "r1", {"model": "tiny"}, note="why")

    assert (run.run_id, run.state, run.fresh, run.conf) == ("r1", "running", True, {"model": "tiny"})
    _, _, body = airflow.asked[0]
    assert body == {"dag_run_id": "r1", "logical_date": None, "conf": {"model": "tiny"}, "note": "why"}


def test_starting_twice_finds_the_first(airflow: Airflow, api: AirflowApi) -> None:
    """A duplicate is an answer, no error."""
    airflow.answers["POST /api/v2/dags/release/dagRuns"] = (409, {"detail": "exists"})
    airflow.answers["GET /api/v2/dags/release/dagRuns/r1"] = (200, RUN)

    assert api.trigger("release", "r1", {}).fresh is False


def test_an_expired_token_is_renewed_once(airflow: Airflow, api: AirflowApi) -> None:
    """A follower that watches for hours outlives its token."""
    airflow.answers["GET /api/v2/dags/release/dagRuns/r1"] = (200, RUN)
    api.run("release", "r1")
    airflow.revoked = airflow.tokens

    assert api.run("release", "r1").state == "running"
    airflow.revoked = 1000
    with pytest.raises(Refused, match="Invalid JWT"):
        api.run("release", "r1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ConfigError),
        (403, Refused),
        (404, NotFound),
        (418, Refused),
        (422, ConfigError),
        (429, BackendUnavailable),
        (500, BackendUnavailable),
        (503, BackendUnavailable),
    ],
)
def test_every_refusal_has_its_class(airflow: Airflow, api: AirflowApi, status: int, kind: type[HeadwayError]) -> None:
    """What may pass is tried again, what may not is said."""
    airflow.answers["GET /api/v2/dags/release/dagRuns/r1"] = (status, {"detail": "because"})

    with pytest.raises(kind, match="because"):
        api.run("release", "r1")


def test_only_the_first_paragraph_of_a_refused_form_is_shown(airflow: Airflow, api: AirflowApi) -> None:
    """Below it the validator prints its whole schema."""
    detail = "Invalid input for param version: 'x' is not of type 'integer'\n\nFailed validating 'type' in schema:\n {}"
    airflow.answers["POST /api/v2/dags/release/dagRuns"] = (400, {"detail": detail})

    with pytest.raises(ConfigError) as caught:
        api.trigger("release", "r1", {"version": "x"})

    assert caught.value.message.endswith("is not of type 'integer'")


def test_nobody_there_is_an_answer_too(api: AirflowApi, tmp_path: Path) -> None:
    """Which address, and what to do."""
    (tmp_path / "passwords.json").write_text(json.dumps({"headway": "secret"}))
    lonely = AirflowApi("http://127.0.0.1:9", user="headway", passwords=tmp_path / "passwords.json")

    with pytest.raises(BackendUnavailable, match=r"Airflow at http://127\.0\.0\.1:9 does not answer"):
        lonely.health()


def test_a_missing_password_is_no_stack_trace(airflow: Airflow, tmp_path: Path) -> None:
    """Before `headway up` there is none."""
    with pytest.raises(ConfigError, match="`headway up` makes the file"):
        AirflowApi(airflow.url, user="headway", passwords=tmp_path / "none.json").health()


def test_the_password_is_in_no_error(airflow: Airflow, tmp_path: Path) -> None:
    """Errors reach logs and records."""
    (tmp_path / "passwords.json").write_text(json.dumps({"headway": "a-wrong-secret"}))

    with pytest.raises(Refused) as caught:
        AirflowApi(airflow.url, user="headway", passwords=tmp_path / "passwords.json").health()

    assert "a-wrong-secret" not in str(caught.value) + str(caught.value.facts)


def test_tasks_come_in_the_order_of_their_start(airflow: Airflow, api: AirflowApi) -> None:
    """Those that wait come last."""
    item = {"state": "success", "start_date": None, "end_date": None, "try_number": 1}
    airflow.answers["GET /api/v2/dags/release/dagRuns/r1/taskInstances"] = (
        200,
        {
            "task_instances": [
                {**item, "task_id": "waits"},
                {**item, "task_id": "second", "start_date": "2026-11-30T12:00:02Z"},
                {**item, "task_id": "first", "start_date": "2026-11-30T12:00:01Z"},
            ]
        },
    )

    assert [task.task_id for task in api.tasks("release", "r1")] == ["first", "second", "waits"]
