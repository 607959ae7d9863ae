"""The report of a release: one HTML page that needs nothing beside it, and the numbers of it for the registry."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from headway.domain import texts
from headway.domain.release import (
    Check,
    MetricEffect,
    QualityFigures,
    ReleasePlan,
    ReleaseRef,
    StepRecord,
    Verdict,
)
from headway.domain.value import Value
from headway.domain.weight_jobs import LayerError
from headway.errors import IntegrityError
from headway.judge.cost import token_cost
from headway.judge.quality import KL
from headway.judge.records import Run, parse
from headway.judge.verdict import Analysis, analyse, planned_blocks
from headway.judge.words import NAMES
from headway.release import figures
from headway.release.page import esc, figure, section, table, whole
from headway.release.quantize import Contest
from headway.release.record import Ending
from headway.units import format_bytes, format_seconds

ValueKind = TypeVar("ValueKind", bound=Value)

WORST = 3
"""Texts that are listed as those where a candidate fails."""
SHOWN_CHARACTERS = 60
LAYER_CAPTIONS = {
    "output": "Error of each layer's output, with that of the layers before it, on a few calibration texts",
    "weight": "Error of the weights of each Linear",
}

OUTCOMES = {
    "promoted": ("good", "serves all the traffic"),
    "rolled_back": ("bad", "was rolled back and gets no traffic"),
    "rejected": ("bad", "was refused and gets no traffic"),
    "held": ("wait", "is held: it gets no traffic until a person has decided"),
    "failed": ("wait", "was not released, for a reason that says nothing about the model"),
}


def render(
    ref: ReleaseRef,
    plan: ReleasePlan | None,
    steps: Sequence[StepRecord],
    verdict: Verdict | None,
    end: Ending,
    *,
    now: datetime,
    records: bytes | None = None,
) -> tuple[bytes, dict[str, float]]:
    """Build the page and the numbers.

    Args:
        ref: The release.
        plan: What was planned; none if the release ended before.
        steps: Records of the steps in their order, the failed one included.
        verdict: Of the canary; none if the release ended before.
        end: How the release ended.
        now: When the report was made, UTC.
        records: The benchmark's records file; none leaves out what is drawn from single requests.

    Returns:
        The HTML, and numbers by name for the registry.
    """
    run = _parsed(records)
    analysis = _analysis(plan, verdict, run)
    checks = _checks(steps, verdict)
    spent = _seconds(steps)
    body = "".join(
        (
            _head(ref, plan, end, now),
            _demo(plan, verdict),
            _why(verdict, end),
            _comparison(plan, verdict, run, analysis),
            _schemes(plan, steps),
            _quality(checks, _Measured.of(steps, verdict)),
            _steps(steps, spent),
            _memory(plan),
            _identity(ref, plan, steps, verdict),
        )
    )
    title = esc(f"{ref.model} version {ref.version}: {end.outcome.replace('_', ' ')}")
    return whole(title, body), _numbers(spent, verdict, checks) | _cost_numbers(plan, verdict)


def _parsed(records: bytes | None) -> Run | None:
    try:
        return parse(records) if records else None
    except IntegrityError:
        # The verdict says so already; a report without pictures is better than none.
        return None


def _analysis(plan: ReleasePlan | None, verdict: Verdict | None, run: Run | None) -> Analysis | None:
    if plan is None or verdict is None or run is None:
        return None
    return analyse(run.records, run.summaries, plan.profile.canary, verdict.checks, paired=verdict.paired)


def _head(ref: ReleaseRef, plan: ReleasePlan | None, end: Ending, now: datetime) -> str:
    kind, meaning = OUTCOMES[end.outcome]
    selected = f" · selected by {esc(plan.selection.selected_by)}" if plan else ""
    return (
        f'<header><p class="badge {kind}">{esc(end.outcome.replace("_", " "))}</p>'
        f"<h1>{esc(ref.model)} <span>version {ref.version}</span></h1>"
        f'<p class="lead">Version {ref.version} {esc(meaning)}.</p><p>{esc(end.reason)}</p>'
        f'<p class="meta">release {esc(ref.release)}{selected} · {now:%Y-%m-%d %H:%M} UTC</p></header>'
    )


def _demo(plan: ReleasePlan | None, verdict: Verdict | None) -> str:
    if plan is None or verdict is None or not plan.profile.canary.demo_margins:
        return ""
    return (
        '<p class="note"><strong>Demo margins.</strong> This profile lets a candidate be much slower than a profile '
        "for users would, so that a small machine comes to a verdict within minutes. The verdict shows how headway "
        "works, not that two versions are equally fast.</p>"
    )


def _why(verdict: Verdict | None, end: Ending) -> str:
    told = end.reason
    if verdict is None or (verdict.sentence == told and all(reason in told for reason in verdict.reasons)):
        return ""
    lead = f"<p>{esc(verdict.sentence)}</p>" if verdict.sentence != end.reason else ""
    items = "".join(f"<li>{esc(reason)}</li>" for reason in verdict.reasons)
    return section("Why", f"{lead}<ul>{items}</ul>")


def _comparison(plan: ReleasePlan | None, verdict: Verdict | None, run: Run | None, analysis: Analysis | None) -> str:
    if verdict is None:
        return ""
    rows = [_effect_row(effect) for effect in verdict.effects]
    head = ("metric", "stable", "candidate", "effect (interval)", "margin")
    if not verdict.paired:
        head = ("metric", "", "candidate", "", "limit")
    parts = [table(head, rows, "numbers") if rows else "<p>The benchmark ended before its first look.</p>"]
    parts.append('<div class="figures">')
    parts.append(figure("Effect on latency", figures.effects(verdict.effects)))
    if analysis is not None and run is not None and plan is not None:
        total = planned_blocks(plan.profile.canary, paired=verdict.paired)
        parts.append(
            figure(
                "The way to the decision: bounds at each look. Solid red: the margin; a bar wholly below it passes. "
                "Dotted red: half the margin; a bar wholly above it that reaches the margin fails",
                figures.path(analysis.looks, total),
            )
        )
        parts.append(figure("Block by block", figures.blocks(analysis.ratios)))
        parts.append(figure("All requests that ended well", figures.distributions(run.records)))
    parts.append("</div>")
    parts.append(_cost(plan, verdict))
    if run is not None and plan is not None:
        parts.append(_measuring(run, planned_blocks(plan.profile.canary, paired=verdict.paired)))
    title = "Candidate against stable" if verdict.paired else "First release: absolute limits"
    return section(title, "".join(parts))


def _measuring(run: Run, total: int) -> str:
    failed = {side: [r for r in run.records if r.side == side and r.error] for side in ("stable", "candidate")}
    errors = {r.error or "" for side in failed.values() for r in side}
    void = [s for s in run.summaries if s.void or s.stopped]
    count = f"{len(run.summaries)} of {total} blocks, {len(run.records)} requests"
    facts = [f"{count}; failed: {len(failed['stable'])} of stable, {len(failed['candidate'])} of the candidate"]
    if run.summaries:
        lag_ms = max(s.lag_p99_ms for s in run.summaries)
        facts.append(f"latest departure of a request against its schedule (p99 of the worst block): {lag_ms:.1f} ms")
        live = [s.live_rate_per_s for s in run.summaries]
        facts.append(
            f"live load of stable's users, added to the candidate: {min(live):.2f} to {max(live):.2f} requests/s"
        )
    facts += [f"block {s.block + 1} is not used: {s.reason or 'stopped'}" for s in void]
    facts += [f"error: {error}" for error in sorted(errors)[:5]]
    return "<ul>" + "".join(f"<li>{esc(fact)}</li>" for fact in facts) + "</ul>"


def _effect_row(effect: MetricEffect) -> tuple[str, ...]:
    unit = effect.unit
    if effect.ratio is not None:
        how = f"{_change(effect.ratio)}<br><small>{_change(effect.ratio_low)} to {_change(effect.ratio_high)}</small>"
        margin = f"+{(effect.margin or 0) * 100:g} %"
    elif effect.difference is not None:
        how = f"{effect.difference:+.2f} points<br><small>at most {effect.difference_high or 0:+.2f}</small>"
        margin = f"+{effect.margin or 0:g} points"
    else:
        how, margin = "", "" if effect.margin is None else f"{effect.margin:g} {unit}"
    mark = {"pass": "good", "fail": "bad", "undecided": "wait"}[effect.verdict]
    badge = f'<span class="badge {mark}">{effect.verdict}</span>'
    name = esc(NAMES.get(effect.metric, effect.metric))
    return f"{name} {badge}", _value(effect.stable, unit), _value(effect.candidate, unit), how, esc(margin)


class _Measured(NamedTuple):
    """What is known text by text and layer by layer."""

    reference: QualityFigures | None
    served: QualityFigures | None
    noise: QualityFigures | None
    layers: tuple[LayerError, ...]

    @classmethod
    def of(cls, steps: Sequence[StepRecord], verdict: Verdict | None) -> "_Measured":
        """Collect it from the records; what another headway wrote in another way is left out."""
        detail = next((step.detail for step in reversed(steps) if step.step == "quantize"), {})
        found = _read(QualityFigures, detail.get("reference"))
        errors = [_read(LayerError, item) for item in detail.get("layer_errors") or ()]
        served, noise = (verdict.served, verdict.noise) if verdict else (None, None)
        return cls(found, served, noise, tuple(error for error in errors if error is not None))


def _read(kind: type[ValueKind], value: Any) -> ValueKind | None:
    try:
        return kind.model_validate(value) if value is not None else None
    except ValidationError:
        return None


def _quality(checks: Sequence[Check], measured: _Measured) -> str:
    if not checks:
        return ""
    rows = []
    for check in checks:
        kind, word = (
            ("good", "pass") if check.passed else ("bad", "fail") if check.measured is not None else ("wait", "missing")
        )
        rows.append((esc(check.name), esc(check.sentence), f'<span class="badge {kind}">{word}</span>'))
    limit = next((check.limit for check in checks if check.name == KL and check.limit), None)
    return section(
        "Quality",
        table(("check", "found", ""), rows) + _by_text(measured, limit) + _by_layer(measured.layers),
    )


def _by_text(measured: _Measured, limit: float | None) -> str:
    """Show the divergence of each text, and the texts on which the candidate is furthest from its source."""
    served, noise = measured.served, measured.noise
    if served is None or not served.per_text_kl or limit is None:
        return ""
    if noise is not None and len(noise.per_text_kl) != len(served.per_text_kl):
        noise = None
    tokens = [max(count, 1) for count in served.per_text_tokens]
    kl = [value / count for value, count in zip(served.per_text_kl, tokens, strict=True)]
    floor = [v / n for v, n in zip(noise.per_text_kl, tokens, strict=True)] if noise else [None] * len(kl)
    known = served.prompt_set_digest == texts.prompt_set_digest() and len(kl) == len(texts.QUALITY_TEXTS)
    begins = (
        [" ".join(text.split())[:SHOWN_CHARACTERS] + "..." for text in texts.QUALITY_TEXTS] if known else [""] * len(kl)
    )
    names = [f"text {number + 1}" for number in range(len(kl))]
    drawn = figures.divergences(list(zip(names, kl, floor, strict=True)), limit)
    worst = sorted(range(len(kl)), key=lambda number: -kl[number])[:WORST]
    rows = [
        (
            f"{names[number]} <small>{esc(begins[number])}</small>",
            f"{kl[number]:.4f}",
            _lost(measured, number),
            f"{served.per_text_top1[number] / tokens[number] * 100:.1f} %" if served.per_text_top1 else "",
        )
        for number in worst
    ]
    head = ("where it fails", "divergence", "likelihood lost", "same first choice")
    return figure("Divergence from the source by text", drawn) + table(head, rows)


def _lost(measured: _Measured, number: int) -> str:
    """Say how much less likely the candidate finds a text than its source does, in nats a token."""
    served, reference = measured.served, measured.reference
    if served is None or reference is None or reference.per_text_tokens != served.per_text_tokens:
        return ""
    lost = served.per_text_nll[number] - reference.per_text_nll[number]
    return f"{lost / max(served.per_text_tokens[number], 1):+.4f}"


def _by_layer(errors: Sequence[LayerError]) -> str:
    parts = []
    for kind, caption in LAYER_CAPTIONS.items():
        own = [error for error in errors if error.kind == kind]
        shown = [(error.name, error.relative_error) for error in own if error.relative_error is not None]
        parts.append(figure(caption, figures.layers(shown)))
        broken = ", ".join(error.name for error in own if error.relative_error is None)
        parts.append(f"<p>No finite number comes out of {esc(broken)}.</p>" if broken else "")
    return "".join(parts)


def _schemes(plan: ReleasePlan | None, steps: Sequence[StepRecord]) -> str:
    """Show the race, if there was one, and the schemes of the profile that would not do, each with its reason."""
    if plan is None:
        return ""
    rows = []
    for step in steps:
        for given in (step.detail, _refusal(step)):
            for contest in _contests(given.get("race")):
                kind, word = ("good", "passed") if contest.passed else ("bad", "lost")
                size = format_bytes(contest.size_bytes) if contest.size_bytes else "not made"
                badge = f'<span class="badge {kind}">{word}</span>'
                rows.append((f"{esc(contest.scheme)} {badge}", esc(size), esc(contest.reason)))
    for passed_over in plan.passed_over:
        scheme, _, reason = passed_over.partition(": ")
        rows.append((f'{esc(scheme)} <span class="badge wait">passed over</span>', "", esc(reason)))
    return section("Schemes", table(("scheme", "size", "because"), rows)) if rows else ""


def _contests(race: Any) -> list[Contest]:
    found = (_read(Contest, item) for item in (race if isinstance(race, list | tuple) else ()))
    return [contest for contest in found if contest is not None]


def _refusal(step: StepRecord) -> Mapping[str, Any]:
    """Return the figures that an error of a step carries."""
    facts = step.detail.get("facts")
    report = facts.get("report") if isinstance(facts, dict) else None
    return report if isinstance(report, dict) else {}


def _cost(plan: ReleasePlan | None, verdict: Verdict) -> str:
    cost = token_cost(plan.profile, verdict.effects) if plan else None
    if cost is None:
        return ""
    sides = (("stable", cost.stable), ("the candidate", cost.candidate))
    told = [f"{value:.2f} for {side}" for side, value in sides if value is not None]
    return (
        f"<p>A million output tokens cost {esc(' and '.join(told))}, at the measured median time per token and "
        f"{plan.profile.replicas.target_ongoing if plan else 0} requests in flight on a replica.</p>"
    )


def _cost_numbers(plan: ReleasePlan | None, verdict: Verdict | None) -> dict[str, float]:
    cost = token_cost(plan.profile, verdict.effects) if plan and verdict else None
    sides = {"stable": cost.stable, "candidate": cost.candidate} if cost else {}
    return {f"{side}_cost_per_million_tokens": value for side, value in sides.items() if value is not None}


def _steps(steps: Sequence[StepRecord], spent: Mapping[str, float]) -> str:
    if not steps:
        return ""
    rows = []
    for step in steps:
        fine = step.outcome == "done"
        badge = f'<span class="badge {"good" if fine else "bad"}">{esc(step.outcome)}</span>'
        note = "" if fine else esc(str(step.detail.get("message", "")))
        rows.append((esc(step.step), esc(format_seconds(spent[step.step])), badge + (f"<br>{note}" if note else "")))
    total = sum(spent.values())
    between = spent.get("between steps", 0.0)
    summary = f"<p>{esc(format_seconds(total))} in all, {esc(format_seconds(between))} of it between the steps.</p>"
    drawn = figures.durations(list(spent.items()))
    return section("Steps", summary + table(("step", "took", "result"), rows) + figure("Where the time went", drawn))


def _memory(plan: ReleasePlan | None) -> str:
    if plan is None:
        return ""
    memory = plan.memory
    uses = (
        ("weights", memory.weights_bytes, "stable"),
        ("KV cache", memory.kv_cache_bytes, "candidate"),
        ("overhead", memory.overhead_bytes, "muted"),
    )
    scale = max(memory.available_bytes, memory.needed_bytes, 1)
    bar = "".join(f'<i style="width:{size / scale * 100:.2f}%;background:var(--{tone})"></i>' for _, size, tone in uses)
    rows = [
        (f'<i class="dot" style="background:var(--{tone})"></i>{name}', format_bytes(size)) for name, size, tone in uses
    ]
    rows += [("needed", format_bytes(memory.needed_bytes)), ("available", format_bytes(memory.available_bytes))]
    return section("Memory of one accelerator", f'<div class="bar">{bar}</div>' + table(("use", "size"), rows))


def _identity(ref: ReleaseRef, plan: ReleasePlan | None, steps: Sequence[StepRecord], verdict: Verdict | None) -> str:
    rows: list[tuple[str, str]] = [("release", ref.release), ("source digest", ref.source_digest)]
    if plan is not None:
        engine = plan.profile.engine
        rows += [
            ("artifact digest", plan.artifact_digest),
            ("cluster digest", plan.cluster_digest),
            ("plan digest", plan.plan_digest),
            ("source", plan.selection.model.source_uri),
            ("scheme", plan.recipe.scheme),
            (
                "architecture",
                f"{plan.validated.shape.architecture}, {plan.validated.shape.parameters / 1e6:.0f} M weights",
            ),
            ("hardware", f"{plan.profile.hardware.per_replica} x {plan.profile.hardware.accelerator}"),
            ("serving image", plan.serving_image),
            (
                "engine",
                f"max_model_len {engine.max_model_len}, max_num_seqs {engine.max_num_seqs}, dtype {engine.dtype}",
            ),
            ("cluster", plan.cluster.name),
        ]
    if verdict is not None and verdict.records_uri:
        rows += [("records", verdict.records_uri), ("records sha256", verdict.records_sha256)]
    served = next((f.get("engine") for s in steps for f in _figures_of(s.detail) if f.get("engine")), None)
    rows += [("figures computed by", str(served))] if served else []
    return section("Identity", table(("", ""), [(esc(k), f"<code>{esc(v)}</code>") for k, v in rows]))


def _figures_of(detail: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (value for value in detail.values() if isinstance(value, dict) and "per_text_nll" in value)


def _checks(steps: Sequence[StepRecord], verdict: Verdict | None) -> list[Check]:
    """Collect the checks of the earlier steps, also those a refusal carries, and of the verdict."""
    found: dict[str, Check] = {}
    for step in steps:
        given = step.detail.get("checks") or _refusal(step).get("checks") or ()
        for item in given if isinstance(given, list | tuple) else ():
            if not isinstance(item, dict):
                continue  # Validation lists its rules as plain sentences.
            try:
                check = Check.model_validate(item)
            except ValidationError:
                check = Check(
                    name=str(item.get("name", step.step)), measured=None, limit=None, passed=False, sentence=str(item)
                )
            found[check.name] = check
    found |= {check.name: check for check in (verdict.checks if verdict else ())}
    return list(found.values())


def _seconds(steps: Sequence[StepRecord]) -> dict[str, float]:
    spent: dict[str, float] = {}
    spans = [(s.step, datetime.fromisoformat(s.started_at), datetime.fromisoformat(s.ended_at)) for s in steps]
    for name, start, finish in spans:
        spent[name] = spent.get(name, 0.0) + max(0.0, (finish - start).total_seconds())
    if spans:
        whole = (max(e for _, _, e in spans) - min(s for _, s, _ in spans)).total_seconds()
        spent["between steps"] = max(0.0, whole - sum(spent.values()))
    return spent


def _numbers(spent: Mapping[str, float], verdict: Verdict | None, checks: Sequence[Check]) -> dict[str, float]:
    numbers = {f"{name.replace(' ', '_')}_s": round(value, 3) for name, value in spent.items()}
    numbers["total_s"] = round(sum(spent.values()), 3)
    for effect in verdict.effects if verdict else ():
        unit = {"ms": "ms", "%": "pct"}.get(effect.unit, effect.unit)
        values = {
            f"stable_{effect.metric}_{unit}": effect.stable,
            f"candidate_{effect.metric}_{unit}": effect.candidate,
            f"{effect.metric}_ratio": effect.ratio,
            f"{effect.metric}_ratio_high": effect.ratio_high,
        }
        numbers |= {name: value for name, value in values.items() if value is not None}
    if verdict:
        numbers["blocks_used"] = float(verdict.blocks_used)
    for check in checks:
        name = "check_" + re.sub(r"[^\w\-./:]+", "_", check.name)
        parts = {
            name: check.measured,
            f"{name}_low": check.low,
            f"{name}_high": check.high,
            f"{name}_noise": check.noise,
        }
        numbers |= {key: value for key, value in parts.items() if value is not None}
    return numbers


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else esc(f"{value:.2f} {unit}" if value < 100 else f"{value:.0f} {unit}")


def _change(ratio: float | None) -> str:
    return "?" if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
