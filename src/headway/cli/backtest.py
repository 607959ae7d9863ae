"""`headway backtest`: what the forecast and the plan would have been worth over a series in a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headway.errors import ConfigError
from headway.prescale.replay import LEADS_MIN

if TYPE_CHECKING:
    from headway.prescale.backtest import Backtest

PIPED_COLUMNS = 160


def backtest(  # noqa: PLR0917 - typer makes options of them
    csv: Annotated[Path, typer.Option("--csv", help="File with a line of names, a column of times and one of rates.")],
    column: Annotated[str | None, typer.Option(help="Column of requests/s. [default: the usual names]")] = None,
    timezone: Annotated[
        str, typer.Option(help="Zone of times that do not say theirs, whose clock the days follow.")
    ] = "UTC",
    lead: Annotated[
        list[int], typer.Option(min=0, help="Minutes until a replica serves; may be given several times.")
    ] = list(LEADS_MIN),  # noqa: B006 - typer reads it once
    json: Annotated[Path | None, typer.Option("--json", help="File for all that was found.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="File for the page with the pictures.")] = None,
) -> None:
    """Forecast and serve a series as if it were live, beside the baselines; a minute or two for two weeks."""
    from headway.domain import places
    from headway.prescale import backtest as testing
    from headway.prescale.history import from_csv
    from headway.prescale.page import render_backtest

    places.zone(timezone)
    history, notes = from_csv(_text(csv), column=column, timezone=timezone)
    console = _console()
    with _progress() as progress:
        task = progress.add_task("reading", total=1.0)
        found = testing.run(
            history.series(),
            name=csv.name,
            zone=timezone,
            leads_min=tuple(dict.fromkeys(lead)),
            notes=notes,
            told=lambda what, share: progress.update(task, description=what, completed=share),
        )
    console.print(*_show(found), sep="\n")
    for path, content in ((json, found.model_dump_json(indent=1).encode()), (html, render_backtest(found))):
        if path:
            _write(path, content)
            console.print(f"wrote {path.resolve()}")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); expected a CSV file in UTF-8") from error


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}); the folder must be there") from error


def _show(found: "Backtest") -> Iterator[RenderableType]:
    yield (
        f"[bold]{escape(found.name)}[/]: {found.start_at[:16]} to {found.end_at[:16]} UTC, tested from "
        f"{found.first_at[:16]} on, {found.missing_pct:.1f} % of the bins missing"
    )
    yield from (f"[yellow]note[/] {escape(note)}" for note in found.notes)
    yield _accuracy(found)
    yield _served(found)
    yield "* no other policy is cheaper and calmer at once; JSON and page have all figures (--json, --html)"


def _accuracy(found: "Backtest") -> Table:
    from headway.prescale.backtest import OURS

    names = [f"{name} {hours} h" for hours in found.aheads_h for name in ("WAPE %", "wQL90", "cover %")]
    table = Table("method", title="Forecast", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for method in dict.fromkeys(one.method for one in found.scores):
        cells = [
            cell
            for one in found.scores
            if one.method == method
            for cell in (f"{one.wape_pct:.2f}", f"{one.wql90:.3f}", f"{one.cover_pct:.1f}")
        ]
        table.add_row(escape(method), *cells, style="bold" if method == OURS else None)
    return table


def _served(found: "Backtest") -> Table:
    from headway.prescale.backtest import frontier
    from headway.prescale.replay import HEADWAY

    table = Table("policy", title="Served: cost against the oracle / minutes short a day", title_justify="left")
    columns = {}
    for lead_min in found.leads_min:
        table.add_column(f"lead {lead_min} min", justify="right")
        served = [one for one in found.served if one.lead_min == lead_min]
        best = {one.policy for one in frontier(served)}
        columns[lead_min] = {
            one.policy: f"{one.cost:.3f} / {one.bad_min_a_day:.1f} {'*' if one.policy in best else ' '}"
            for one in served
        }
    for policy in next(iter(columns.values())):
        cells = [by_policy[policy] for by_policy in columns.values()]
        table.add_row(escape(policy), *cells, style="bold" if policy == HEADWAY else None)
    return table


def _progress() -> Progress:
    # To the other stream, so that what is piped is the result alone.
    console = Console(stderr=True)
    return Progress(
        *Progress.get_default_columns()[:-1],
        TimeElapsedColumn(),
        TextColumn(""),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    # Tables that are piped somewhere have no edge to be squeezed at.
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=PIPED_COLUMNS)
