"""The report's part on the comparison: effects, the way to the decision, engines, how sure it is, and the replay."""

import hashlib
import itertools
import math
import shlex
from collections import Counter
from typing import NamedTuple

from headway.domain.profile import Canary
from headway.domain.release import MetricEffect, ReleasePlan, Verdict
from headway.domain.value import canonical_json
from headway.errors import IntegrityError
from headway.judge.cost import TokenCost, occupied_cost, token_cost
from headway.judge.metrics import Distribution, SideFigures, summary
from headway.judge.quantiles import LATENCIES
from headway.judge.records import Run, parse
from headway.judge.verdict import GUARDS, Analysis, analyse, planned_blocks
from headway.judge.words import NAMES
from headway.pages.html import badge, bullets, check_rows, command, esc, figure, section, table
from headway.release import figures_canary

MARKS = {"pass": "good", "fail": "bad", "undecided": "wait"}
SHOWN_ERRORS = 5
SHOWN_CHARACTERS = 200


class Compared(NamedTuple):
    """A verdict, and the way to it where the records are at hand."""

    verdict: Verdict
    canary: Canary
    run: Run | None
    analysis: Analysis | None

    @classmethod
    def of(cls, plan: ReleasePlan | None, verdict: Verdict | None, records: bytes | None) -> "Compared | None":
        """Read the records and go the way of the decision again; none if the release has no verdict."""
        if plan is None or verdict is None:
            return None
        canary = plan.profile.canary
        try:
            run = parse(records) if records else None
        except IntegrityError:
            # The verdict says so already; a report without pictures is better than none.
            run = None
        # Without the checks: what was measured is worth seeing also where one of them decided alone.
        found = analyse(run.records, run.summaries, canary, paired=verdict.paired) if run else None
        return cls(verdict, canary, run, found)

    @property
    def effects(self) -> tuple[MetricEffect, ...]:
        """Those of the verdict; where a check decided before them, those that the records have all the same."""
        if self.verdict.effects or self.analysis is None or all(check.passed for check in self.verdict.checks):
            return self.verdict.effects
        return self.analysis.verdict.effects

    @property
    def planned(self) -> int:
        """Blocks of the whole plan."""
        return planned_blocks(self.canary, paired=self.verdict.paired)


def comparison(compared: Compared) -> str:
    """Show every effect with its interval and margin, how it was decided, and the latencies of both sides."""
    verdict, run, analysis = compared.verdict, compared.run, compared.analysis
    head = ("metric", "stable", "candidate", "effect (interval)", "margin")
    if not verdict.paired:
        head = ("metric", "", "candidate", "", "limit")
    effects = compared.effects
    parts = [table(head, [_effect_row(effect) for effect in effects], "numbers")]
    if effects != verdict.effects:
        parts.insert(0, "<p>A check decided, whatever the latencies. They are shown all the same:</p>")
    if not effects:
        parts = ["<p>No metric was compared; the sentence at the top says why.</p>"]
    drawn = [
        figure(
            "Every effect on one scale. PROMOTE needs every bar wholly left of the red line (hollow marks are guards, "
            "which only take back); ROLLBACK needs one bar wholly right of the dotted line that reaches the red one",
            figures_canary.effects(effects, GUARDS),
        )
    ]
    if run is not None and analysis is not None:
        margins = {
            name: compared.canary.p50_margin if percent == 50 else compared.canary.p95_margin
            for name, _, percent in LATENCIES
            if name not in GUARDS
        }
        drawn += [
            figure(
                "The way to the decision: the bounds at each look, on the same scale",
                figures_canary.path(analysis.looks if effects else (), compared.planned, GUARDS),
            ),
            figure(
                _blocks_caption(run),
                figures_canary.blocks(analysis.ratios, run.summaries, margins if verdict.paired else {}),
            ),
            figure(
                "All requests that ended well, by percentile: the further right a curve, the slower; dots at p50, p95 "
                f"and p99{'; dashed red: limits of goodput' if compared.canary.goodput else ''}",
                figures_canary.distributions(run.records, compared.canary.goodput),
            ),
        ]
    parts.append(f'<div class="figures">{"".join(drawn)}</div>')
    if run is not None:
        parts += [_figures(compared, run), _measuring(compared, run)]
    return section("Candidate against stable" if verdict.paired else "First release: absolute limits", "".join(parts))


def engine(verdict: Verdict) -> str:
    """Show what the engines report of themselves, and whether they report at all."""
    checks = [check for check in verdict.checks if check.kind in ("guard", "contract")]
    if not checks:
        return ""
    return section("Engine during the benchmark", table(("check", "found", ""), check_rows(checks)), "engine")


def cost(plan: ReleasePlan, compared: Compared) -> TokenCost | None:
    """Return what a million output tokens cost; from the records where they are at hand, else from the verdict."""
    if compared.run is not None:
        return occupied_cost(plan.profile, summary(compared.run.records))
    return token_cost(plan.profile, compared.verdict.effects)


def cost_section(plan: ReleasePlan, compared: Compared) -> str:
    """Say what a million output tokens cost; empty without a price."""
    found = cost(plan, compared)
    if found is None:
        return ""
    sides = (("stable", found.stable), ("the candidate", found.candidate))
    told = [f"{value:.2f} for {side}" for side, value in sides if value is not None]
    counted = "the whole time that a request holds its place" if compared.run is not None else "the time per token"
    text = (
        f"A million output tokens cost {' and '.join(told)}, at {plan.profile.gpu_hour_price:g} for an hour of an "
        f"accelerator, {plan.profile.replicas.target_ongoing} requests in flight on a replica, and {counted}."
    )
    return section("Cost", f"<p>{esc(text)}</p>")


def replay(verdict: Verdict) -> str:
    """Show the command that makes the decision again from its records, and what it must print."""
    if not verdict.records_uri:
        return ""
    line = f"headway judge {shlex.quote(verdict.records_uri)}"
    rows = [
        ("records", f"<code>{esc(verdict.records_uri)}</code>"),
        ("sha256 of the records", f"<code>{esc(verdict.records_sha256)}</code>"),
        ("sha256 of the verdict", f"<code>{replayed_sha256(verdict)}</code>"),
    ]
    return section(
        "Decide again",
        "<p>The same records give the same verdict, byte for byte. <code>basis.json</code> beside them has the margins "
        "and checks that were in force. The last digest is that of the second command's output.</p>"
        f"{command(line)}{command(f'{line} --json | sha256sum')}{table(('', ''), rows)}"
        "<p>With other margins: add <code>--profile</code> and a profile.</p>",
        "replay",
    )


def replayed_sha256(verdict: Verdict) -> str:
    """Return the digest of what `headway judge --json` prints: the verdict without what it does not rest on."""
    bare = verdict.model_copy(update={"records_uri": "", "served": None, "noise": None})
    return hashlib.sha256(canonical_json(bare)).hexdigest()


def open_questions(verdict: Verdict) -> list[str]:
    """Say what was undecided, and about how many blocks would decide it if the effect stays as it is."""
    found = []
    for effect in verdict.effects:
        if effect.verdict != "undecided" or effect.metric in GUARDS:
            continue
        name, place = NAMES.get(effect.metric, effect.metric), figures_canary.scaled(effect)
        if place is None:
            found.append(f"{name} was not measured")
        elif place.mean < 1:
            # The interval shrinks with the root of the number of blocks.
            blocks = math.ceil(verdict.blocks_used * ((place.high - place.mean) / (1 - place.mean)) ** 2)
            found.append(f"{name}: about {blocks} blocks would tell, if it stays at {figures_canary.change(effect)[0]}")
        else:
            found.append(f"{name}: measured beyond its margin, but not surely; more blocks will hardly promote it")
    return found


def _effect_row(effect: MetricEffect) -> tuple[str, ...]:
    unit = effect.unit
    mean, between = figures_canary.change(effect)
    how = f"{esc(mean)}<br><small>{esc(between)}</small>" if mean else ""
    if effect.margin is None:
        margin = ""
    elif effect.ratio is not None:
        margin = f"{effect.margin * 100:+g} %"
    else:
        margin = f"{effect.margin:+g} points" if effect.difference is not None else f"{effect.margin:g} {unit}"
    name = esc(NAMES.get(effect.metric, effect.metric)) + (
        " <small>(guard: it only takes back)</small>" if effect.metric in GUARDS else ""
    )
    mark = badge(MARKS[effect.verdict], effect.verdict)
    return f"{name} {mark}", _value(effect.stable, unit), _value(effect.candidate, unit), how, esc(margin)


def _figures(compared: Compared, run: Run) -> str:
    both = summary(run.records, compared.canary.goodput)
    sides = [side for side in (both.stable, both.candidate) if side is not None]
    head = ("all requests", *(["stable"] if both.stable else []), *(["candidate"] if both.candidate else []))
    rows = [
        ("sent / failed", *(f"{side.sent} / {side.failed}" for side in sides)),
        *(
            (f"{name.upper()} p50 / p95 / p99", *(_three(getattr(side, name)) for side in sides))
            for name in ("ttft", "tpot", "itl", "e2e")
        ),
        ("output tokens/s", *(_value(side.output_tokens_per_s, "") for side in sides)),
        ("goodput", *(_good(side) for side in sides)),
    ]
    return table(head, [row for row in rows if any(row[1:])])


def _three(latency: Distribution) -> str:
    values = (latency.p50_ms, latency.p95_ms, latency.p99_ms)
    if not latency.count:
        return ""
    return esc(" / ".join(f"{v:.0f}" if v >= 100 else f"{v:.1f}" for v in values if v is not None) + " ms")


def _good(side: SideFigures) -> str:
    if side.good_pct is None:
        return ""
    rate = f"<br><small>{side.good_per_s:.2f} requests/s</small>" if side.good_per_s is not None else ""
    return f"{side.good_pct:.1f} %{rate}"


def _blocks_caption(run: Run) -> str:
    unused = " Grey: not used." if any(s.void or s.stopped for s in run.summaries) else ""
    swapped = " Blue: hardware the other way round." if any(s.placement % 2 for s in run.summaries) else ""
    return f"Block by block. Red: the margin, which the mean must keep.{unused}{swapped}"


def _measuring(compared: Compared, run: Run) -> str:
    """Say how the benchmark itself went: its load, its punctuality, and what of it is not used."""
    canary, blocks = compared.canary, run.summaries
    asked = f"{canary.arrivals} arrivals at {canary.rate_per_s:g} requests/s on each side, {canary.api}"
    facts = [f"{len(blocks)} of {compared.planned} blocks, {len(run.records)} requests; {asked}"]
    if blocks:
        lag_ms, cpu_pct = max(s.lag_p99_ms for s in blocks), max(s.cpu_pct for s in blocks)
        live = [s.live_rate_per_s for s in blocks]
        swaps = sum(a.placement != b.placement for a, b in itertools.pairwise(blocks))
        facts += [
            f"latest departure of a request against its schedule (p99 of the worst block): {lag_ms:.1f} ms",
            f"requests that never left: {sum(s.dropped for s in blocks)}; CPU of the generator: up to {cpu_pct:.0f} %",
            f"live load of stable's users, added to the candidate: {min(live):.2f} to {max(live):.2f} requests/s",
            f"hardware swapped between the sides: {swaps} times",
        ]
    injected_ms = max((r.injected_ms for r in run.records), default=0.0)
    if injected_ms:
        facts.append(f"the generator itself delayed requests by up to {injected_ms:g} ms: this was a trial")
    facts += [f"block {s.block + 1} is not used: {s.reason or 'stopped'}" for s in blocks if s.void or s.stopped]
    errors = Counter((r.side, r.error) for r in run.records if r.error)
    facts += [
        f"{count} x {side}: {error[:SHOWN_CHARACTERS]}" for (side, error), count in errors.most_common(SHOWN_ERRORS)
    ]
    if len(errors) > SHOWN_ERRORS:
        facts.append(f"{len(errors) - SHOWN_ERRORS} more kinds of errors are in the records")
    return bullets(facts)


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else esc(f"{value:.2f} {unit}" if value < 100 else f"{value:.0f} {unit}").strip()
