"""`headway doctor`, `headway up`, `headway down`: the embedded stack."""

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.settings import Settings

COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}


def doctor() -> None:
    """Say what this machine lacks for headway, and what to do. Exit code 1 if something is missing."""
    from headway.adapters.local.doctor import examine

    findings = examine(Settings.load().layout())
    table = Table("", "state", "found", "what to do")
    for finding in findings:
        colour = COLOURS[finding.level]
        table.add_row(finding.what, f"[{colour}]{finding.level}[/]", escape(finding.found), escape(finding.remedy))
    console = Console()
    console.print(table)
    missing = sum(finding.level == "missing" for finding in findings)
    if missing:
        console.print(f"[red]{missing} missing[/]: do what the last column says, then run `headway doctor` again")
        raise typer.Exit(1)


def up() -> None:
    """Start the embedded stack and wait until every service answers. Quick when it runs already."""
    from headway.adapters.local import stack

    layout = Settings.load().layout()
    console = Console(highlight=False, soft_wrap=True)
    stack.up(layout, lambda line: console.print(escape(line)))
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
