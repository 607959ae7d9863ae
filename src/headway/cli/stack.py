"""`headway doctor`, `headway up`, `headway down`: the embedded stack."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.domain.finding import Finding
from headway.errors import ConfigError, HeadwayError
from headway.settings import Settings

COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}


def doctor(
    kubernetes: Annotated[bool, typer.Option(help="Look at the cluster of the settings instead.")] = False,
) -> None:
    """Say what this machine, or a cluster, lacks for headway, and what to do. Exit code 1 if something is missing."""
    from headway.adapters.local.doctor import examine

    settings = Settings.load()
    findings = _of_the_cluster(settings) if kubernetes else examine(settings.layout())
    table = Table("", "state", "found", "what to do")
    for finding in findings:
        colour = COLOURS[finding.level]
        table.add_row(finding.what, f"[{colour}]{finding.level}[/]", escape(finding.found), escape(finding.remedy))
    console = Console()
    console.print(table)
    missing = sum(finding.level == "missing" for finding in findings)
    if missing:
        again = f"headway doctor{' --kubernetes' if kubernetes else ''}"
        console.print(f"[red]{missing} missing[/]: do what the last column says, then run `{again}` again")
        raise typer.Exit(1)


def _of_the_cluster(settings: Settings) -> list[Finding]:
    """Return what a cluster lacks; settings that cannot be used are lines of their own."""
    from headway.adapters.kubernetes.doctor import Needs, examine
    from headway.cli.follow import utcnow
    from headway.wiring import KubernetesBackend

    backend = KubernetesBackend(settings)
    findings = []
    try:
        _ = backend.site_of_programs
    except ConfigError as error:
        findings.append(Finding("settings", "missing", error.message))
    metrics = None
    try:
        metrics = backend.metrics if settings.prometheus_url else None
    except ConfigError as error:
        findings.append(Finding("settings", "missing", error.message))
    profiles, faults = backend.sound_profiles()
    findings += [Finding("profile", "missing", fault) for fault in faults]
    wanted: dict[str, int] = {}
    for profile in profiles.values():
        name = profile.hardware.accelerator
        wanted[name] = max(wanted.get(name, 0), profile.hardware.per_replica)
    try:
        client = backend.client
    except ConfigError as error:
        return [*findings, Finding("kubeconfig", "missing", error.message)]
    return [*findings, *examine(client, backend.site, Needs(wanted, metrics, utcnow()))]


def up() -> None:
    """Start the embedded stack and wait until every service answers. Quick when it runs already."""
    from headway.adapters.local import stack
    from headway.cli.webhook import sync_stack

    layout = Settings.load().layout()
    console = Console(highlight=False, soft_wrap=True)
    stack.up(layout, lambda line: console.print(escape(line)))
    try:
        console.print(escape(sync_stack(layout)))
    except HeadwayError as error:
        # The stack is up all the same: what the webhook would have said, reconcile finds.
        console.print(f"[yellow]webhook[/]  not registered: {escape(error.message)}")
    console.print(
        f"Airflow  {layout.airflow_url}  (user admin, password in {layout.airflow_passwords})\n"
        f"MLflow   {layout.mlflow_url}\n"
        f"gateway  {layout.gateway_url}\n"
        f"logs     {layout.logs}"
    )


def down() -> None:
    """End everything of the embedded stack and prove that nothing is left."""
    from headway.adapters.local import stack

    console = Console(highlight=False, soft_wrap=True)
    stack.down(Settings.load().layout(), lambda line: console.print(escape(line)))
