"""The report of a release: one HTML page that needs nothing beside it, and the numbers of it for the registry."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from headway.domain.release import Check, ReleasePlan, ReleaseRef, StepRecord, Verdict
from headway.pages.html import badge, bullets, esc, figure, note, section, table, whole
from headway.release import figures_quality, report_canary, report_evidence, report_next, report_quality
from headway.release.record import Ending
from headway.release.report_canary import Compared
from headway.units import format_bytes, format_seconds

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
    checks = report_quality.checks_of(steps, verdict)
    compared = Compared.of(plan, verdict, records)
    spent = _seconds(steps)
    body = "".join(
        (
            _head(ref, plan, verdict, end, now),
            report_next.section_of(ref, plan, verdict, end),
            _notes(plan, verdict),
            _compared(plan, compared),
            report_quality.quality(checks, steps, verdict),
            report_evidence.section_of(plan) if plan and verdict and verdict.paired else "",
            report_canary.replay(verdict) if verdict else "",
            report_quality.schemes(plan, steps),
            _steps(steps, spent),
            _memory(plan),
            _identity(ref, plan, steps),
        )
    )
    title = esc(f"{ref.model} version {ref.version}: {end.outcome.replace('_', ' ')}")
    return whole(title, body), _numbers(spent, verdict, checks) | _cost_numbers(plan, compared)


def _head(ref: ReleaseRef, plan: ReleasePlan | None, verdict: Verdict | None, end: Ending, now: datetime) -> str:
    kind, meaning = OUTCOMES[end.outcome]
    selected = f" · selected by {esc(plan.selection.selected_by)}" if plan else ""
    sentence, reasons = _reason(verdict, end)
    return (
        f"<header>{badge(kind, end.outcome.replace('_', ' '))}"
        f"<h1>{esc(ref.model)} <span>version {ref.version}</span></h1>"
        f'<p class="lead">Version {ref.version} {esc(meaning)}.</p><p>{esc(sentence)}</p>{bullets(reasons)}'
        f'<p class="meta">release {esc(ref.release)}{selected} · {now:%Y-%m-%d %H:%M} UTC</p></header>'
    )


def _reason(verdict: Verdict | None, end: Ending) -> tuple[str, Sequence[str]]:
    """Return why it ended so in one sentence, and what else belongs to it, nothing twice."""
    if verdict is None:
        return end.reason, ()
    reasons = verdict.reasons
    listed = "; ".join(reasons)
    if verdict.decision == "PROMOTE" and listed and end.reason.endswith(f": {listed}"):
        # All metrics passed, and the table has them; the sentence is enough.
        return f"{end.reason.removesuffix(f': {listed}')}.", ()
    more = [reason for reason in reasons if reason not in end.reason]
    if verdict.sentence not in end.reason:
        more.insert(0, f"the canary before: {verdict.sentence}")
    return end.reason, more


def _notes(plan: ReleasePlan | None, verdict: Verdict | None) -> str:
    if plan is None or verdict is None:
        return ""
    demo = note(
        "Demo margins.",
        "This profile lets a candidate be much slower than a profile for users would, so that a small machine comes to "
        "a verdict within minutes. The verdict shows how headway works, not that two versions are equally fast.",
    )
    return (demo if plan.profile.canary.demo_margins else "") + (report_evidence.flag(plan) if verdict.paired else "")


def _compared(plan: ReleasePlan | None, compared: Compared | None) -> str:
    if plan is None or compared is None:
        return ""
    parts = report_canary.comparison(compared), report_canary.engine(compared.verdict)
    return "".join(parts) + report_canary.cost_section(plan, compared)


def _cost_numbers(plan: ReleasePlan | None, compared: Compared | None) -> dict[str, float]:
    cost = report_canary.cost(plan, compared) if plan and compared else None
    sides = {"stable": cost.stable, "candidate": cost.candidate} if cost else {}
    return {f"{side}_cost_per_million_tokens": value for side, value in sides.items() if value is not None}


def _steps(steps: Sequence[StepRecord], spent: Mapping[str, float]) -> str:
    if not steps:
        return ""
    rows = []
    for step in steps:
        fine = step.outcome == "done"
        mark = badge("good" if fine else "bad", step.outcome)
        told = "" if fine else esc(str(step.detail.get("message", "")))
        rows.append((esc(step.step), esc(format_seconds(spent[step.step])), mark + (f"<br>{told}" if told else "")))
    total = sum(spent.values())
    between = spent.get("between steps", 0.0)
    summary = f"<p>{esc(format_seconds(total))} in all, {esc(format_seconds(between))} of it between the steps.</p>"
    drawn = figures_quality.durations(list(spent.items()))
    parts = table(("step", "took", "result"), rows) + figure("Where the time went", drawn)
    return section("Steps", f'{summary}<div class="figures">{parts}</div>')


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


def _identity(ref: ReleaseRef, plan: ReleasePlan | None, steps: Sequence[StepRecord]) -> str:
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
    served = next((f.get("engine") for s in steps for f in _figures_of(s.detail) if f.get("engine")), None)
    rows += [("figures computed by", str(served))] if served else []
    return section("Identity", table(("", ""), [(esc(k), f"<code>{esc(v)}</code>") for k, v in rows]))


def _figures_of(detail: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (value for value in detail.values() if isinstance(value, dict) and "per_text_nll" in value)


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
