"""`headway judge`: any decision again, from its records; for local files without anything else running."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from headway.cli import inputs
from headway.domain.profile import Canary
from headway.domain.release import Basis, MetricEffect, Verdict
from headway.domain.value import canonical_json
from headway.errors import ConfigError, IntegrityError, NotFound
from headway.judge import metrics, replay
from headway.judge import records as record_rules
from headway.judge.metrics import SideFigures
from headway.judge.records import Run

COLOURS = {"PROMOTE": "green", "ROLLBACK": "red", "HOLD": "yellow"}
SUITE = "bench_records"
PIPED_COLUMNS = 160
NONE = "-"


def judge(
    records: Annotated[str, typer.Argument(help="Records file: JSON lines or Parquet, here or at `s3://...`.")],
    profile: Annotated[
        str | None, typer.Option(help="Profile (file or model) whose margins decide (default: those of the basis).")
    ] = None,
    basis: Annotated[str | None, typer.Option(help="What the decision rested on (default: basis.json beside).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as canonical JSON, nothing else.")] = False,
) -> None:
    """Make a decision again from its records. The exit code is 0 whatever the answer, 1 if there is none."""
    content, run = inputs.records(records)
    canary = inputs.named_profile(profile).profile.canary if profile else None
    found = _basis(records, basis)
    console = _console(stderr=as_json)
    if found is None:
        if canary is None:
            raise ConfigError(
                f"there is no {replay.BASIS_FILE} beside {records}, which would say by what margins to decide; give "
                "--basis FILE or --profile P"
            )
        verdict = replay.decide(run, replay.basis_of(run, canary, _faults(run)))
        console.print(
            f"[yellow]note[/] no {replay.BASIS_FILE} beside the records: the candidate's answers (quality) and the "
            "engines' own figures (guards) are not part of this decision"
        )
    else:
        verdict = replay.decide(run, found, canary, content=content)
        other = _differences(canary, found.canary) if canary else []
        if other:
            console.print(f"[yellow]note[/] the profile decides here, not the basis: {escape('; '.join(other))}")
    if as_json:
        sys.stdout.write(canonical_json(verdict).decode())
        return
    in_force = canary or (found.canary if found else None)
    console.print(*_show(verdict, run, in_force), sep="\n")


def _basis(records: str, given: str | None) -> Basis | None:
    """Return the basis that was named, or the one beside the records; none if there is none beside them."""
    where = given or inputs.beside(records, replay.BASIS_FILE)
    try:
        content = inputs.read(where)
    except NotFound:
        if given:
            raise
        return None
    try:
        return Basis.model_validate_json(content)
    except ValidationError as error:
        raise IntegrityError(
            f"{where} is no basis of a decision: {record_rules.fault(error)}; it is damaged, or another version "
            "wrote it"
        ) from error


def _differences(used: Canary, in_force: Canary) -> list[str]:
    """Return which margins and other keys are not those that were in force; evidence decides nothing."""
    here, there = used.to_json(), in_force.to_json()
    return [f"{key} {here[key]}, not {there[key]}" for key in here if here[key] != there[key] and key != "evidence"]


def _faults(run: Run) -> tuple[str, ...]:
    """Check the table as a release does; a basis has the answer already."""
    from headway.adapters.expectations import ExpectationChecks

    return tuple(ExpectationChecks().check(SUITE, record_rules.rows(run.records))) if run.records else ()


def _show(verdict: Verdict, run: Run, canary: Canary | None) -> Iterator[RenderableType]:
    colour = COLOURS[verdict.decision]
    rest = verdict.sentence.removeprefix(verdict.decision)
    yield f"[bold {colour}]{verdict.decision}[/]{escape(rest)}"
    reasons = [reason for reason in verdict.reasons if reason not in verdict.sentence]
    yield from (f"  - {escape(reason)}" for reason in reasons)
    if verdict.effects:
        table = Table(
            "metric", "stable", "candidate", "change", "interval", "margin", "", title="Effects", title_justify="left"
        )
        for effect in verdict.effects:
            table.add_row(*_row(effect))
        yield table
    if run.records:
        yield _figures(run, canary)
    yield from (
        f"{'[green]passed[/]' if check.passed else '[red]failed[/]'} {escape(check.sentence)}"
        for check in verdict.checks
    )


def _row(effect: MetricEffect) -> tuple[str, ...]:
    unit, margin = effect.unit, effect.margin
    sides = (_number(effect.stable, unit), _number(effect.candidate, unit))
    if effect.ratio is not None:
        change = f"{(effect.ratio - 1) * 100:+.1f} %"
        bounds = [f"{(v - 1) * 100:+.1f} %" for v in (effect.ratio_low, effect.ratio_high) if v is not None]
        limit = f"+{margin * 100:g} %" if margin is not None else NONE
    elif effect.difference is not None:
        change = f"{effect.difference:+.2f}"
        bounds = [f"{v:+.2f}" for v in (effect.difference_low, effect.difference_high) if v is not None]
        limit = f"{margin:+g}" if margin is not None else NONE
    else:
        change, bounds, limit = NONE, [], _number(margin, unit)
    colour = {"pass": "green", "fail": "red", "undecided": "yellow"}[effect.verdict]
    return (effect.metric, *sides, change, " to ".join(bounds) or NONE, limit, f"[{colour}]{effect.verdict}[/]")


def _figures(run: Run, canary: Canary | None) -> Table:
    both = metrics.summary(run.records, canary.goodput if canary else None)
    sides = [_figures_of(side) for side in (both.stable, both.candidate)]
    table = Table("", "stable", "candidate", title="Figures of all requests", title_justify="left")
    for name in {name: None for side in sides for name in side}:
        values = [side.get(name) for side in sides]
        if any(values):
            table.add_row(name, *(value or NONE for value in values))
    return table


def _figures_of(side: SideFigures | None) -> dict[str, str]:
    """Return what a side did, by name; what was not measured is not there."""
    if side is None:
        return {}
    found: dict[str, tuple[float | None, str]] = {
        "requests": (side.sent, ""),
        "failed": (side.failed, ""),
        "requests/s": (side.requests_per_s, ""),
        "output tokens/s": (side.output_tokens_per_s, ""),
        "goodput": (side.good_pct, "%"),
    }
    for name, latency in (("TTFT", side.ttft), ("TPOT", side.tpot), ("ITL", side.itl), ("E2E", side.e2e)):
        figures = (("p50", latency.p50_ms), ("p95", latency.p95_ms), ("p99", latency.p99_ms))
        found |= {f"{name} {figure}": (value, "ms") for figure, value in figures}
    return {name: _number(value, unit) for name, (value, unit) in found.items() if value is not None}


def _number(value: float | None, unit: str) -> str:
    return NONE if value is None else f"{value:.4g} {unit}".rstrip()


def _console(*, stderr: bool) -> Console:
    console = Console(highlight=False, soft_wrap=True, stderr=stderr)
    # Tables that are piped somewhere have no edge to be squeezed at.
    wide = Console(highlight=False, soft_wrap=True, stderr=stderr, width=PIPED_COLUMNS)
    return console if console.is_terminal else wide
