"""The report's part on the weights: quality with its limits, text by text and layer by layer; the race of schemes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from headway.domain import texts
from headway.domain.release import Check, QualityFigures, ReleasePlan, StepRecord, Verdict
from headway.domain.value import Value
from headway.domain.weight_jobs import LayerError
from headway.judge.quality import KL
from headway.pages.html import badge, check_rows, esc, figure, section, table
from headway.release import figures_quality
from headway.release.quantize import Contest
from headway.units import format_bytes

ValueKind = TypeVar("ValueKind", bound=Value)

WORST = 3
"""Texts that are listed as those where a candidate fails."""
SHOWN_CHARACTERS = 60
LAYER_CAPTIONS = {
    "output": "Error of each layer's output, with that of the layers before it, on a few calibration texts",
    "weight": "Error of the weights of each Linear",
}


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


def quality(checks: Sequence[Check], steps: Sequence[StepRecord], verdict: Verdict | None) -> str:
    """Show every check of quality, and where the candidate is furthest from its source.

    Args:
        checks: Of the release; those of another kind are left out.
        steps: Records of the steps, which know the source's figures and the layers.
        verdict: Knows the served figures.
    """
    checks = [check for check in checks if check.kind == "quality"]
    if not checks:
        return ""
    measured = _Measured.of(steps, verdict)
    limit = next((check.limit for check in checks if check.name == KL and check.limit), None)
    return section(
        "Quality",
        table(("check", "found", ""), check_rows(checks)) + _by_text(measured, limit) + _by_layer(measured.layers),
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
    drawn = figures_quality.divergences(list(zip(names, kl, floor, strict=True)), limit)
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
        parts.append(figure(caption, figures_quality.layers(shown, f"layers-{kind}")))
        broken = ", ".join(error.name for error in own if error.relative_error is None)
        parts.append(f"<p>No finite number comes out of {esc(broken)}.</p>" if broken else "")
    return "".join(parts)


def schemes(plan: ReleasePlan | None, steps: Sequence[StepRecord]) -> str:
    """Show the race, if there was one, and the schemes of the profile that would not do, each with its reason."""
    if plan is None:
        return ""
    rows = []
    for step in steps:
        for given in (step.detail, _refusal(step)):
            for contest in _contests(given.get("race")):
                mark = badge("good", "passed") if contest.passed else badge("bad", "lost")
                size = format_bytes(contest.size_bytes) if contest.size_bytes else "not made"
                rows.append((f"{esc(contest.scheme)} {mark}", esc(size), esc(contest.reason)))
    for passed_over in plan.passed_over:
        scheme, _, reason = passed_over.partition(": ")
        rows.append((f"{esc(scheme)} {badge('wait', 'passed over')}", "", esc(reason)))
    return section("Schemes", table(("scheme", "size", "because"), rows)) if rows else ""


def _contests(race: Any) -> list[Contest]:
    found = (_read(Contest, item) for item in (race if isinstance(race, list | tuple) else ()))
    return [contest for contest in found if contest is not None]


def _refusal(step: StepRecord) -> Mapping[str, Any]:
    """Return the figures that an error of a step carries."""
    facts = step.detail.get("facts")
    report = facts.get("report") if isinstance(facts, dict) else None
    return report if isinstance(report, dict) else {}


def checks_of(steps: Sequence[StepRecord], verdict: Verdict | None) -> list[Check]:
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
