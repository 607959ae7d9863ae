"""`headway webhook`: MLflow tells Airflow that an alias was set, and this keeps the two acquainted."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from headway.cli.follow import utcnow
from headway.domain.webhook import GRACE_S, HOOK, PATH
from headway.errors import BackendError, ConfigError
from headway.settings import Settings

if TYPE_CHECKING:
    from headway.adapters.local.layout import LocalLayout
    from headway.adapters.mlflow_hooks import MlflowHooks, Synced


class Action(StrEnum):
    """What to do with the webhook."""

    SYNC = "sync"
    ROTATE = "rotate"


def webhook(
    action: Annotated[
        Action,
        typer.Argument(help="sync: register MLflow's webhook, or correct it. rotate: replace its secret, then sync."),
    ],
    test: Annotated[
        bool, typer.Option("--test", help="Let MLflow send its test afterwards. Exit code 1 if it was lost.")
    ] = False,
) -> None:
    """Register MLflow's webhook, give it its secret, test it. Safe to repeat: afterwards there is one hook."""
    from headway.adapters.local import secrets
    from headway.wiring import connect

    settings = Settings.load()
    backend = connect(settings)
    console = Console(highlight=False, soft_wrap=True)
    if action is Action.ROTATE:
        # Before anything changes: with an MLflow that does not answer, only the door would have the new secret.
        backend.hooks.find()
        until = secrets.rotate_webhook(settings.layout(), utcnow(), GRACE_S)
        console.print(f"the webhook has a new secret; the one before it is good until {until:%H:%M:%S} UTC")
    synced = sync(backend.hooks, backend.webhook_secrets(utcnow()))
    console.print(escape(told(backend.hooks, synced)))
    if test:
        console.print(escape(tested(backend.hooks, synced)))


def sync(hooks: "MlflowHooks", secrets: Sequence[str]) -> "Synced":
    """Register the hook with the secret that is in force. Raises ConfigError if there is none."""
    if not secrets:
        raise ConfigError("the webhook has no secret yet; `headway up` makes it")
    return hooks.sync(secrets[0])


def sync_stack(layout: "LocalLayout") -> str:
    """Do the same for the embedded stack, whatever other MLflow the settings name; return the line for a person."""
    from headway.adapters.local.secrets import webhook_secrets
    from headway.adapters.mlflow_hooks import MlflowHooks

    hooks = MlflowHooks(layout.mlflow_url, target=f"{layout.airflow_url}{PATH}")
    return told(hooks, sync(hooks, webhook_secrets(layout, utcnow())))


def told(hooks: "MlflowHooks", synced: "Synced") -> str:
    """Say in one line what was done."""
    removed = f"; {synced.removed} more of that name removed" if synced.removed else ""
    return f"webhook  {HOOK} {synced.did}: MLflow tells {hooks.target}{removed}"


def tested(hooks: "MlflowHooks", synced: "Synced") -> str:
    """Let MLflow send its test, and say what came back.

    Raises:
        BackendError: It did not come through.
    """
    result = hooks.test(synced.hook)
    if result.status != 202:
        raise BackendError(
            f"MLflow's test of the webhook came back with {result.status or 'no answer'}: {result.said}; docs/doors.md "
            "says what each code means",
            status=result.status,
        )
    return f"test     {result.status}: {result.said}"
