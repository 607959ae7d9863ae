"""`headway webhook`: what a person reads, and what changes when something is wrong."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.local import secrets
from headway.adapters.local.layout import LocalLayout
from headway.adapters.mlflow_hooks import CameBack, Hook, MlflowHooks, Synced
from headway.cli import main, webhook
from headway.errors import BackendError, ConfigError
from headway.settings import Settings

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
HOOK = Hook("1", "headway", "http://airflow", frozenset(), active=True, made_at_ms=0)


class PlayedHooks(MlflowHooks):
    """An MLflow that has the hook, and whose test comes back as the test says."""

    def __init__(self, tested: CameBack) -> None:
        super().__init__("http://mlflow", target="http://airflow")
        self.tested = tested
        self.given: list[str] = []

    def sync(self, secret: str) -> Synced:
        self.given.append(secret)
        return Synced(HOOK, "kept", 2)

    def test(self, hook: Hook) -> CameBack:
        return self.tested


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalLayout:
    """A stack that has its secrets and does not run; nobody listens on port 1 and the next ones."""
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("HEADWAY_BASE_PORT", "1024")
    made = Settings.load().layout()
    secrets.ensure(made)
    return made


@pytest.mark.parametrize("action", ["sync", "rotate"])
def test_an_mlflow_that_is_away_changes_nothing(layout: LocalLayout, action: str, capsys: Any) -> None:
    """A secret that only the door knows would lose every message."""
    before = secrets.webhook_secrets(layout, NOW)

    assert main(["webhook", action]) == 1

    assert "MLflow at http://127.0.0.1:1028 does not answer" in capsys.readouterr().err
    assert secrets.webhook_secrets(layout, NOW) == before


def test_the_secret_in_force_is_given() -> None:
    """The one before it is only for messages that are on their way."""
    hooks = PlayedHooks(CameBack(202, ""))

    synced = webhook.sync(hooks, ("new", "old"))

    assert hooks.given == ["new"]
    assert webhook.told(hooks, synced) == (
        "webhook  headway kept: MLflow tells http://airflow; 2 more of that name removed"
    )
    with pytest.raises(ConfigError, match="headway up"):
        webhook.sync(hooks, ())


@pytest.mark.parametrize(
    ("came_back", "said"),
    [
        (CameBack(401, "the signature is wrong"), "came back with 401: the signature is wrong"),
        (CameBack(None, "connection refused"), "came back with no answer: connection refused"),
        (CameBack(200, "<html>somebody else"), "came back with 200"),
    ],
)
def test_a_test_that_did_not_come_through_is_an_error(came_back: CameBack, said: str) -> None:
    """Also where something else answers that there is a page."""
    hooks = PlayedHooks(came_back)
    with pytest.raises(BackendError, match=r"docs/doors\.md") as error:
        webhook.tested(hooks, hooks.sync("x"))
    assert said in error.value.message
