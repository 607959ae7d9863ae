"""Airflow through its public REST API: start a run, see how it goes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import requests

from headway.errors import BackendUnavailable, ConfigError, NotFound, Refused

TIMEOUT_S = (3.0, 20.0)
"""Connect and read. The API server of the embedded stack answers in 0.1 s, under load in a few seconds."""

ENDED_STATES = frozenset({"success", "failed"})
PAGE = 100


class DagRun(NamedTuple):
    """One run of a DAG."""

    run_id: str
    state: str
    """`queued`, `running`, `success` or `failed`."""
    conf: Mapping[str, Any]
    run_after: str = ""
    """When it was due, ISO 8601."""
    fresh: bool = True
    """False if a run of this id was there already, so that nothing was started."""

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in ENDED_STATES


class TaskRun(NamedTuple):
    """One task of a run."""

    task_id: str
    state: str | None
    """Airflow's word; none before it is scheduled."""
    started_at: str | None
    ended_at: str | None
    try_number: int


class AirflowApi:
    """A client of one Airflow.

    Args:
        base_url: Address up to and without `/api/v2`.
        user: Name of headway's Airflow user.
        passwords: JSON file of user name to password. Read at first use, so that a client costs nothing to make.
    """

    def __init__(self, base_url: str, *, user: str, passwords: Path) -> None:
        self._base_url = base_url.rstrip("/")
        self._user = user
        self._passwords = passwords
        self._token: str | None = None

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any], *, note: str = "") -> DagRun:
        """Start a run, or find the one of this id.

        Raises:
            ConfigError: Airflow refused the parameters; the text is its own.
            NotFound: There is no such DAG.
        """
        # An explicit null: a shared logical date collides too, and would look like a duplicate.
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note or None}
        response = self._send("POST", f"dags/{quote(dag_id, safe='')}/dagRuns", json_body=body, accept=(409,))
        if response.status_code == 409:
            return self.run(dag_id, run_id)._replace(fresh=False)
        return _run(response.json())

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return one run. Raises NotFound."""
        return _run(self._send("GET", f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}").json())

    def recent(self, dag_id: str) -> Sequence[DagRun]:
        """Return the newest runs, newest first; at most 100."""
        path = f"dags/{quote(dag_id, safe='')}/dagRuns"
        params = {"limit": PAGE, "order_by": "-run_after"}
        return [_run(item) for item in self._send("GET", path, params=params).json()["dag_runs"]]

    def active(self, dag_id: str) -> Sequence[DagRun]:
        """Return the runs that wait or run."""
        path = f"dags/{quote(dag_id, safe='')}/dagRuns"
        params = {"state": ["queued", "running"], "limit": PAGE, "order_by": "-run_after"}
        return [_run(item) for item in self._send("GET", path, params=params).json()["dag_runs"]]

    def fail(self, dag_id: str, run_id: str) -> DagRun:
        """End a run: its running task is ended, the others never start, its teardown still runs. Raises NotFound."""
        path = f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
        return _run(self._send("PATCH", path, json_body={"state": "failed"}).json())

    def tasks(self, dag_id: str, run_id: str) -> Sequence[TaskRun]:
        """Return the tasks of a run, in the order of their start."""
        path = f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        items = self._send("GET", path, params={"limit": PAGE}).json()["task_instances"]
        tasks = [
            TaskRun(i["task_id"], i["state"], i["start_date"], i["end_date"], int(i.get("try_number") or 0))
            for i in items
        ]
        return sorted(tasks, key=lambda task: task.started_at or "~")

    def run_url(self, dag_id: str, run_id: str) -> str:
        """Return the web page of a run."""
        return f"{self._base_url}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"

    def health(self) -> Mapping[str, str]:
        """Return the state of each component, such as `{"scheduler": "healthy"}`."""
        parts = self._send("GET", "monitor/health").json()
        return {name: str(part.get("status")) for name, part in parts.items() if isinstance(part, dict)}

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json_body: Any = None,
        accept: Sequence[int] = (),
    ) -> requests.Response:
        for attempt in ("first", "with a new token"):
            token = self._bearer()
            response = self._exchange(
                method,
                f"{self._base_url}/api/v2/{path}",
                params=params,
                json_body=json_body,
                headers={"Authorization": f"Bearer {token}"},
            )
            if response.status_code == 401 and attempt == "first":
                # Threads share a client: what another one has got meanwhile is good.
                if self._token == token:
                    self._token = None
                continue
            break
        if response.ok or response.status_code in accept:
            return response
        raise _error(response, f"{method} {path}")

    def _bearer(self) -> str:
        token = self._token
        if token is None:
            try:
                password = json.loads(self._passwords.read_text())[self._user]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"no password of Airflow's user {self._user} in {self._passwords}; `headway up` makes the file",
                    path=str(self._passwords),
                ) from error
            response = self._exchange(
                "POST", f"{self._base_url}/auth/token", json_body={"username": self._user, "password": password}
            )
            if not response.ok:
                raise _error(response, "log-in")
            token = self._token = str(response.json()["access_token"])
        return token

    def _exchange(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        json_body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        session = requests.Session()
        # The environment's proxy is for the world outside, and its .netrc would replace our token.
        session.trust_env = False
        try:
            with session:
                return session.request(method, url, params=params, json=json_body, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise BackendUnavailable(
                f"Airflow at {self._base_url} does not answer ({type(error).__name__}); "
                "`headway status` shows what is up",
                url=self._base_url,
            ) from error


def _run(item: Mapping[str, Any]) -> DagRun:
    return DagRun(
        run_id=str(item["dag_run_id"]),
        state=str(item["state"]),
        conf=item.get("conf") or {},
        run_after=str(item.get("run_after") or ""),
    )


def _error(response: requests.Response, what: str) -> Exception:
    """Map Airflow's refusals; the one place where they get headway's names."""
    text = _detail(response)
    status = response.status_code
    if status in (401, 403):
        return Refused(f"Airflow refused {what} ({status}): {text}", status=status)
    if status == 404:
        return NotFound(f"Airflow does not have it: {text}", status=status)
    if status in (400, 422):
        return ConfigError(f"Airflow refused the parameters: {text}", status=status)
    if status in (408, 425, 429) or status >= 500:
        return BackendUnavailable(f"Airflow answered {status} to {what}: {text}", status=status)
    return Refused(f"Airflow answered {status} to {what}: {text}", status=status)


def _detail(response: requests.Response) -> str:
    """Return what the answer says, short: a page of HTML or a trace helps nobody in an error."""
    try:
        detail = response.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = response.reason
    text = detail if isinstance(detail, str) else json.dumps(detail)
    # Below the first paragraph the validator of the form prints its whole schema.
    return text.split("\n\n", 1)[0][:500]
