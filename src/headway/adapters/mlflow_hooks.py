"""headway's one webhook in MLflow, through MLflow's REST API.

Not through MLflow's client: that takes seconds to import, and `headway up` asks each time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import requests

from headway.domain import webhook
from headway.errors import BackendUnavailable, NotFound, Refused

TIMEOUT_S = (3.0, 20.0)
"""Connect and read."""

TEST_TIMEOUT_S = (3.0, 240.0)
"""MLflow answers a test when its own retries are over, which takes two minutes if nobody listens."""

PAGE = 100
MOST_PAGES = 100
API = "api/2.0/mlflow/webhooks"


class Hook(NamedTuple):
    """One webhook of the registry."""

    id: str
    name: str
    url: str
    events: frozenset[str]
    active: bool
    made_at_ms: int


class Synced(NamedTuple):
    """What `MlflowHooks.sync` did."""

    hook: Hook
    did: str
    """`registered`, `updated` (address, events or status were others), or `kept` (only the secret was given again)."""
    removed: int
    """How many more hooks of our name there were: each would have sent every message again."""


class CameBack(NamedTuple):
    """What came back when MLflow sent a test."""

    status: int | None
    """HTTP status; none if nobody answered."""
    said: str


class MlflowHooks:
    """The webhooks of one MLflow.

    Args:
        url: Address of MLflow.
        target: Address of the door, as MLflow reaches it.
    """

    def __init__(self, url: str, *, target: str) -> None:
        self._url = url.rstrip("/")
        self.target = target

    def sync(self, secret: str) -> Synced:
        """Make sure that MLflow has our hook once, active, with this address, these events and this secret.

        The secret is given each time, because MLflow never shows which one it has. Of two processes that do this at
        once both come to the same hook.

        Raises:
            BackendUnavailable: MLflow does not answer, or cannot read its own hooks.
            Refused: It refuses the address, or headway may not.
        """
        fields = {
            "name": webhook.HOOK,
            "url": self.target,
            "events": [_event(name) for name in webhook.EVENTS],
            "description": "Tells headway that an alias was set. Made by `headway webhook sync`.",
            "secret": secret,
            "status": "ACTIVE",
        }
        before = self.find()
        if before:
            made = self._send("PATCH", _path(before[0].id), fields)
            same = (before[0].url, before[0].events, before[0].active) == (self.target, frozenset(webhook.EVENTS), True)
            did = "kept" if same else "updated"
        else:
            made = self._send("POST", "", fields)
            did = "registered"
        # Read again: somebody may have registered one at the same moment, and the oldest stays.
        found = self.find()
        if not found:
            raise BackendUnavailable(f"MLflow at {self._url} took the webhook and does not list it; try again")
        for extra in found[1:]:
            self._send("DELETE", _path(extra.id), None, gone_is_fine=True)
        if found[0].id != made["webhook"]["webhook_id"]:
            self._send("PATCH", _path(found[0].id), fields)
        return Synced(found[0], did, len(found) - 1)

    def test(self, hook: Hook) -> CameBack:
        """Let MLflow send its test message through a hook. Raises as `sync`."""
        result = self._send("POST", f"{_path(hook.id)}/test", {}, timeout_s=TEST_TIMEOUT_S)["result"]
        status = result.get("response_status")
        said = result.get("response_body") or result.get("error_message") or ""
        return CameBack(int(status) if status else None, str(said)[:500])

    def find(self) -> Sequence[Hook]:
        """Return the hooks of our name, the oldest first. Raises as `sync`."""
        ours = [hook for hook in self._all() if hook.name == webhook.HOOK]
        return sorted(ours, key=lambda hook: (hook.made_at_ms, hook.id))

    def _all(self) -> Iterator[Hook]:
        token = ""
        for _ in range(MOST_PAGES):
            page = self._send("GET", "", {"max_results": str(PAGE), **({"page_token": token} if token else {})})
            yield from map(_hook, page.get("webhooks", ()))
            token = page.get("next_page_token", "")
            if not token:
                return

    def _send(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Any] | None,
        *,
        gone_is_fine: bool = False,
        timeout_s: tuple[float, float] = TIMEOUT_S,
    ) -> dict[str, Any]:
        session = requests.Session()
        # The environment's proxy is for the world outside, and its .netrc would send a stranger's password.
        session.trust_env = False
        sent: dict[str, Any] = {"params": fields} if method == "GET" else {"json": fields}
        try:
            with session:
                response = session.request(method, f"{self._url}/{API}{path}", timeout=timeout_s, **sent)
        except requests.RequestException as error:
            raise BackendUnavailable(
                f"MLflow at {self._url} does not answer ({type(error).__name__}); `headway status` shows what is up",
                url=self._url,
            ) from error
        if response.ok:
            return dict(response.json()) if response.content else {}
        if response.status_code == 404 and gone_is_fine:
            return {}
        raise _error(self._url, response)


def _hook(item: Mapping[str, Any]) -> Hook:
    events = (f"{event['entity']}.{event['action']}".lower() for event in item.get("events", ()))
    return Hook(
        id=str(item["webhook_id"]),
        name=str(item["name"]),
        url=str(item["url"]),
        events=frozenset(events),
        active=item.get("status") == "ACTIVE",
        made_at_ms=int(item.get("creation_timestamp") or 0),
    )


def _event(name: str) -> dict[str, str]:
    entity, action = name.upper().split(".")
    return {"entity": entity, "action": action}


def _path(hook_id: str) -> str:
    return f"/{quote(hook_id, safe='')}"


def _error(url: str, response: requests.Response) -> Exception:
    """Map MLflow's refusals; the one place for its webhooks."""
    status = response.status_code
    try:
        said = str(response.json().get("message", ""))[:300]
    except (ValueError, AttributeError):
        said = str(response.reason)
    if status == 404:
        return NotFound(
            f"MLflow at {url} has no such webhook, or no webhooks at all ({said or status}); it must be 3.3 or newer",
            status=status,
        )
    if status in (429, 502, 503, 504):
        return BackendUnavailable(f"MLflow at {url} answered {status}: {said}", status=status)
    if status >= 500:
        # What it says is often empty: the error of the cipher has no text.
        return BackendUnavailable(
            f"MLflow at {url} cannot read its webhooks ({status}{f': {said}' if said else ''}). Most often it was "
            "started with another MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY than the one they were written with: start it "
            "with that one again, or delete the rows of the table `webhooks` in its database and run "
            "`headway webhook sync`. Until then reconcile finds promotions within five minutes",
            status=status,
        )
    return Refused(f"MLflow at {url} refused the webhook ({status}): {said}", status=status)
