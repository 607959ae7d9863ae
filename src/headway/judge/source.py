"""Whether a source is worth serving, before anything is made of it (design rule 13.6, second and third part)."""

import math

from headway.domain.profile import Quality
from headway.domain.release import Check, QualityFigures

DAMAGED = (
    "The weights are damaged, or belong to another model or tokenizer; look at how this version was made and uploaded"
)


def source_checks(source: QualityFigures, stable: QualityFigures | None, quality: Quality) -> list[Check]:
    """Compare a source with the absolute limit and with stable's source.

    Models that split the texts differently are compared by the likelihood of the whole texts, so both sums are divided
    by stable's number of tokens; with one tokenizer that is the plain ratio of perplexities.

    Args:
        source: Figures of the source.
        stable: Figures of stable's source on the same texts; none if there is no stable side, or it was never measured.
        quality: The limits.
    """
    checks = [_absolute(source, quality)]
    if stable is not None and stable.prompt_set_digest == source.prompt_set_digest and stable.tokens:
        checks.append(_relative(source, stable, quality))
    return checks


def refusal(checks: list[Check]) -> str | None:
    """Return why the checks refuse the source, for a person; none if they do not."""
    broken = [check.sentence for check in checks if not check.passed]
    if not broken:
        return None
    first, *others = broken
    known = first.partition(", ")[0] + ", "
    return f"{'; '.join([first, *(other.removeprefix(known) for other in others)])}. {DAMAGED}"


def _absolute(source: QualityFigures, quality: Quality) -> Check:
    passed = source.perplexity <= quality.max_ppl
    return Check(
        name="perplexity of the source",
        measured=_finite(source.perplexity),
        limit=quality.max_ppl,
        passed=passed,
        sentence=(
            f"perplexity {say(source.perplexity)} on the fixed texts, {'within' if passed else 'above'} the absolute "
            f"limit of {quality.max_ppl:g}"
        ),
    )


def _relative(source: QualityFigures, stable: QualityFigures, quality: Quality) -> Check:
    limit = quality.max_stable_ppl_ratio
    log_ratio = (source.nll - stable.nll) / stable.tokens
    ratio = math.exp(log_ratio) if log_ratio < 700 else math.inf
    passed = ratio <= limit
    return Check(
        name="perplexity of the source against stable's",
        measured=_finite(ratio),
        limit=limit,
        passed=passed,
        sentence=(
            f"perplexity {say(source.perplexity)} on the fixed texts, stable's source has {say(stable.perplexity)}; "
            f"that is {say(ratio)} times as much, and the limit is {limit:.2f} times"
        ),
    )


def say(value: float) -> str:
    """Say a perplexity or a ratio as a person would: few digits, and no infinity in figures."""
    if not math.isfinite(value) or value >= 1e9:
        return "beyond measure"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _finite(value: float) -> float:
    """Return a number that JSON can carry."""
    return value if math.isfinite(value) else 1e300
