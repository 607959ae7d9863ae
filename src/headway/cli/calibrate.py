"""`headway calibrate`: how often the canary of a profile is wrong, measured or from recorded blocks."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.cli import evidence_file, inputs, trials
from headway.cli.follow import utcnow
from headway.domain.bench import SideTarget
from headway.domain.profile import Canary, Evidence, Profile, Trials
from headway.domain.value import slug
from headway.errors import ConfigError
from headway.judge import resample
from headway.judge.calibrate import (
    EVERY_REQUEST,
    FIRST_TOKEN,
    SLOW_REQUESTS,
    Recovery,
    clopper_pearson,
    flaw,
    recovered,
    rule_digest,
)
from headway.settings import Settings
from headway.units import format_seconds

WORDS = {
    "": "equal sides (A/A)",
    EVERY_REQUEST: "every request",
    SLOW_REQUESTS: "slow requests only (p95)",
    FIRST_TOKEN: "first token, delay injected",
}
PIPED_COLUMNS = 160


def calibrate(  # noqa: PLR0917 - typer makes options of them
    profile: Annotated[str, typer.Option(help="Profile whose canary is tried: a file, or a model in `profiles/`.")],
    records: Annotated[
        list[str] | None, typer.Argument(help="Recorded A/A benchmarks to draw blocks from (default: measure now).")
    ] = None,
    url_a: Annotated[str | None, typer.Option(help="Endpoint of one side (default: the stack's stable).")] = None,
    url_b: Annotated[str | None, typer.Option(help="Endpoint of the other side (default: the same).")] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Accelerator that was measured; must be the profile's. headway takes your word for it, as neither "
            "records nor endpoints say. Needed except for the stack's own stable."
        ),
    ] = None,
    decisions: Annotated[int, typer.Option(min=2, help="Decisions of each kind to measure.")] = 20,
    inject_ms: Annotated[
        float | None, typer.Option(min=0.1, help="Delay to inject (default: the median's margin).")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where records are kept (default: `calibrations` of the stack).")
    ] = None,
    replays: Annotated[int, typer.Option(min=100, max=100_000, help="Decisions of each kind to draw.")] = 10_000,
    write: Annotated[bool, typer.Option("--write", help="Put the evidence into the profile file.")] = False,
) -> None:
    """Find out how often the canary of a profile promotes a worse candidate, or takes back an equal one."""
    named = inputs.named_profile(profile)
    console = _console()
    if records and (url_a or url_b):
        raise ConfigError("give recorded benchmarks or endpoints to measure, not both")
    canary = named.profile.canary
    _check_hardware(hardware, named.profile, known=not (records or url_a or url_b))
    if records:
        evidence, block_s = _drawn(records, named.profile, replays)
    else:
        kept = folder or Settings.load().layout().home / "calibrations" / slug(named.profile.model)
        evidence, block_s = _measured(
            console, named.profile, kept, url_a=url_a, url_b=url_b, decisions=decisions, inject_ms=inject_ms
        )
    console.print(_table(evidence.trials, block_s))
    if records:
        console.print(_limits(evidence))
    spread = ", ".join(f"{name} {value * 100:.1f} %" for name, value in evidence.spread.items())
    console.print(f"{evidence.recorded_blocks} recorded blocks; spread of the ratio of equal sides: {spread or '-'}")
    wrong = flaw(canary.model_copy(update={"evidence": evidence}), named.profile.hardware.accelerator)
    if wrong:
        console.print(f"[yellow]note[/] {escape(wrong)}")
    if write:
        evidence_file.write(named.path, evidence)
        console.print(f"wrote the evidence into {named.path}")
    else:
        console.print("\nTo put below `canary:` of the profile (`--write` does it):\n")
        console.print(evidence_file.block(evidence), markup=False)


def _check_hardware(given: str | None, profile: Profile, *, known: bool) -> None:
    """Refuse evidence of unknown or other hardware; `known` is that the stack's own stable is measured."""
    expected = profile.hardware.accelerator
    if given is None and not known:
        raise ConfigError(
            f"neither records nor endpoints say what hardware was measured; the profile is for {expected}: add "
            f"--hardware {expected} if it was that"
        )
    if given not in {None, expected}:
        raise ConfigError(
            f"--hardware is {given}, the profile is for {expected}: evidence of other hardware is none; give the "
            f"profile for {given}, or records of {expected}"
        )


def _limits(evidence: Evidence) -> str:
    """Say what the table does not know."""
    return (
        f"the intervals cover the drawing only, not the luck of the {evidence.recorded_blocks} recorded blocks; "
        f"headway takes your word for the hardware ({escape(evidence.hardware)}), and that prompts and API were the "
        "profile's"
    )


def _drawn(records: Sequence[str], profile: Profile, replays: int) -> tuple[Evidence, float]:
    runs = [inputs.records(where).run for where in records]
    other = resample.unlike(runs, profile.canary, profile.model)
    if other:
        raise ConfigError(
            "the recorded benchmarks are not of what the profile describes, so they say nothing about its margins:\n"
            + "\n".join(f"  - {line}" for line in other)
        )
    found = resample.resample(runs, profile.canary, replays=replays)
    evidence = resample.evidence_of(found, profile.canary, hardware=profile.hardware.accelerator, measured_at=_now())
    return evidence, found.block_s


def _measured(
    console: Console,
    profile: Profile,
    folder: Path,
    *,
    url_a: str | None,
    url_b: str | None,
    decisions: int,
    inject_ms: float | None,
) -> tuple[Evidence, float]:
    """Measure equal sides, then the same with a known delay; without finding that again nothing is published."""
    canary, model = profile.canary, profile.model
    first = url_a or url_b
    targets = (
        (trials.endpoint("stable", first, model), trials.endpoint("candidate", url_b or first, model))
        if first
        else trials.both_stable(model)
    )

    def measured(kind: str, delay_ms: float) -> list[trials.Trial]:
        made = []
        for number in range(decisions):
            name = f"{kind}-{number + 1:03d}"
            # Sides change places, so that an endpoint that is a little faster is a little faster for both.
            pair = _swapped(targets) if number % 2 else targets
            made.append(trials.run(canary, pair, folder / name, inject_ms=delay_ms, seed=number))
            console.print(f"{name}: {made[-1].decision} after {made[-1].blocks} blocks")
        return made

    equal = measured("aa", 0.0)
    ttft_ms = trials.median_ttft_ms(equal)
    delay_ms = float(f"{inject_ms or canary.p50_margin * ttft_ms:.4g}")
    slower = measured(f"delay-{delay_ms:g}ms", delay_ms)
    seen = recovered([trial.run for trial in slower], delay_ms)
    if math.isnan(seen.measured_ms):
        raise ConfigError(
            "the injected delay cannot be looked for: fewer than two blocks have pairs that both sides answered "
            f"({trials.failures(slower)})"
        )
    console.print(_say(seen))
    if not seen.found:
        raise ConfigError(
            f"a delay of {delay_ms:g} ms that was put before every request was measured as {seen.measured_ms:.1f} ms "
            f"({seen.low_ms:.1f} to {seen.high_ms:.1f}): what cannot find a known effect cannot be calibrated; give "
            "the machine more room, more requests a block, or a larger --inject-ms"
        )
    both = [*equal, *slower]
    blocks = sum(trial.blocks for trial in both)
    evidence = Evidence(
        hardware=profile.hardware.accelerator,
        measured_at=_now(),
        method="trials",
        rule=rule_digest(canary),
        recorded_blocks=sum(trial.blocks for trial in equal),
        spread=_spread(equal, canary),
        trials=(
            trials.counted(equal),
            trials.counted(slower, metric=FIRST_TOKEN, slower_pct=delay_ms / ttft_ms * 100),
        ),
    )
    return evidence, sum(trial.seconds for trial in both) / max(blocks, 1)


def _swapped(targets: tuple[SideTarget, SideTarget]) -> tuple[SideTarget, SideTarget]:
    stable, candidate = targets
    return (
        candidate.model_copy(update={"side": "stable"}),
        stable.model_copy(update={"side": "candidate"}),
    )


def _table(found: Sequence[Trials], block_s: float) -> Table:
    table = Table(
        "slower on the candidate's side", "by", "decisions", "promoted", "rolled back", "held", "blocks", "time",
        title="Decisions (95 % intervals of Clopper and Pearson)", title_justify="left",
    )  # fmt: skip
    for trial in found:
        of = trial.decisions
        table.add_row(
            WORDS.get(trial.metric, trial.metric),
            f"{trial.slower_pct:g} %" if trial.metric else "-",
            str(of),
            *(_share(count, of) for count in (trial.promoted, trial.rolled_back, trial.held)),
            f"{trial.mean_blocks:.1f}",
            format_seconds(trial.mean_blocks * block_s),
        )
    return table


def _share(count: int, of: int) -> str:
    low, high = clopper_pearson(count, of)
    return f"{count / max(of, 1) * 100:.2f} % ({low * 100:.2f} to {high * 100:.2f})"


def _say(seen: Recovery) -> str:
    word = "[green]found again[/]" if seen.found else "[red]not found again[/]"
    return (
        f"injected delay {seen.injected_ms:g} ms: {word}, measured {seen.measured_ms:.2f} ms "
        f"({seen.low_ms:.2f} to {seen.high_ms:.2f})"
    )


def _spread(equal: Sequence[trials.Trial], canary: Canary) -> dict[str, float]:
    try:
        return resample.spread([trial.run for trial in equal], canary)
    except ConfigError:
        return {}


def _now() -> str:
    return utcnow().isoformat(timespec="seconds")


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=PIPED_COLUMNS)
