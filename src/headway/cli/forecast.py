"""`headway forecast`: what is expected of a model, what is planned for it, and what others would have come to."""

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from headway.errors import ConfigError, HeadwayError, IntegrityError, NotFound

if TYPE_CHECKING:
    from headway.domain.prescaling import Standing, Tick
    from headway.prescale.history import History
    from headway.wiring import Backend

AHEAD_H = (0, 1, 3, 6, 12, 24, 36, 47)
LEVELS = (0.5, 0.8, 0.95)
PIPED_COLUMNS = 160
COLOURS = {"good": "green", "wait": "yellow", "bad": "red"}


def forecast(
    model: Annotated[str, typer.Argument(help="Name of the registered model.")],
    html: Annotated[Path | None, typer.Option("--html", help="File for the page with the pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the last tick as JSON, nothing else.")] = False,
) -> None:
    """Show the load that is expected of a model, the floor that is planned for it, and what that is worth."""
    from headway import wiring
    from headway.cli.follow import utcnow
    from headway.domain.prescaling import plan_key, read_tick
    from headway.prescale import schedule
    from headway.prescale.page import render

    backend = wiring.connect()
    tick = read_tick(backend.objects.read(plan_key(model)), model)
    if tick is None:
        raise NotFound(_none(backend, model), model=model)
    if as_json:
        sys.stdout.write(tick.model_dump_json())
        return
    console = _console()
    history, fault = _history(backend, model)
    late = (schedule.overdue(tick, utcnow()) or "") if _planned(backend, tick) else ""
    told = fault if history is None else _measured(history)
    console.print(*_show(tick, late, told), sep="\n")
    if html:
        try:
            html.write_bytes(render(tick, history, late=late))
        except OSError as error:
            raise ConfigError(f"{html} cannot be written ({error}); the folder must be there") from error
        console.print(f"wrote {html.resolve()}")


def _planned(backend: "Backend", tick: "Tick") -> bool:
    """Return whether ticks are to be expected; what is not planned any more has none."""
    if tick.mode != "off":
        return True
    try:
        return backend.profile(tick.model).prescale.enabled
    except HeadwayError:
        return False


def _none(backend: "Backend", model: str) -> str:
    """Say why there is no plan yet, and what to do; a model that nobody knows is an error of its own."""
    wishes = backend.profile(model).prescale
    if not wishes.enabled:
        return (
            f"nothing is planned for {model}: set `prescale: {{enabled: true}}` in its profile (with `shadow: true` "
            "all is planned and priced, and nothing is changed); the next run of the DAG `prescale` makes a plan"
        )
    return (
        f"no tick has planned {model} yet: the DAG `prescale` runs every ten minutes once it is unpaused; look at its "
        "last runs in Airflow"
    )


def _history(backend: "Backend", model: str) -> "tuple[History | None, str]":
    from headway.domain.prescaling import history_key
    from headway.prescale.history import from_parquet

    content = backend.objects.read(history_key(model))
    if content is None:
        return None, "no history is kept yet"
    try:
        return from_parquet(content), ""
    except IntegrityError as error:
        return None, error.message


def _measured(history: "History") -> str:
    """Say how much of the traffic is known."""
    from headway.units import format_seconds

    rates = history.series()
    lasts = format_seconds(len(rates) * rates.step_s)
    return (
        f"{lasts} of traffic are kept, since {rates.start_at:%Y-%m-%d %H:%M} UTC; {rates.missing_share:.1%} is missing"
    )


def _show(tick: "Tick", late: str, history: str) -> Iterator[RenderableType]:
    from headway.prescale.page import MODES

    kind, meaning = MODES[tick.mode]
    many = "replica" if tick.floor == 1 else "replicas"
    yield f"[bold]{escape(tick.model)}[/] [{COLOURS[kind]}]{tick.mode}[/]: {meaning} (tick of {tick.at[:16]} UTC)"
    yield f"[bold]{tick.floor} {many} must be up[/]; {tick.running} serve, {tick.pending} are starting"
    yield from (f"  - {escape(reason)}" for reason in tick.reasons)
    if late:
        yield f"[red]late[/] {escape(late)}"
    if tick.demoted:
        yield f"[yellow]stepped back[/] {escape(tick.demoted)}"
    yield from (f"[red]input[/] {escape(problem)}" for problem in tick.problems)
    if tick.headroom:
        yield escape(tick.headroom)
    if tick.fan is not None:
        yield _fan(tick)
    if tick.ladder:
        yield _ladder(tick)
    if tick.standings:
        yield _standings(tick.standings)
    yield from (f"[yellow]note[/] {escape(note)}" for note in tick.notes if note != tick.demoted)
    yield f"history: {escape(history)}"


def _fan(tick: "Tick") -> RenderableType:
    if tick.fan is None:
        return ""
    said = tick.fan.forecast()
    table = Table("UTC", title="Expected load, in busy replicas", title_justify="left")
    for level in LEVELS:
        table.add_column(f"{level:.0%}", justify="right")
    for hours in AHEAD_H:
        at = tick.made_at + timedelta(hours=hours)
        values = (f"{said.value_at(at, level):.2f}" for level in LEVELS)
        table.add_row(f"{at:%a %H:%M} (+{hours} h)", *values)
    return table


def _ladder(tick: "Tick") -> Table:
    table = Table("", "for", "why", title="What has to be ready", title_justify="left")
    for rung in tick.ladder:
        table.add_row(escape(rung.name), str(rung.count), escape(rung.reason))
    return table


def _standings(standings: "Sequence[Standing]") -> Table:
    from headway.prescale.shadow import ASKED_BY

    by_day: dict[str, dict[str, str]] = {}
    for one in standings:
        cost = "-" if one.cost is None else f"{one.cost:.2f}"
        by_day.setdefault(one.day, {})[one.policy] = f"{cost} / {one.bad_min:.0f}"
    table = Table("day", title="Cost against the oracle / minutes short", title_justify="left")
    for policy in ASKED_BY:
        table.add_column(policy, justify="right")
    for day, cells in by_day.items():
        table.add_row(day, *(cells.get(policy, "-") for policy in ASKED_BY))
    return table


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    # Tables that are piped somewhere have no edge to be squeezed at.
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=PIPED_COLUMNS)
