"""Whether what is served answers as well as its source (design rule 13.6, first part)."""

import math
from collections.abc import Sequence

from headway.domain.bench import CanaryAnswer, Side
from headway.domain.profile import Quality
from headway.domain.release import Check, QualityFigures

RATIO_CAP = 1e6
"""Shown in place of an infinite ratio, so that records stay plain JSON."""
REPEAT_WORDS = 12
"""An answer of at least this many words that uses no more than two different ones is a stuck model."""


def served_check(
    served: QualityFigures | None, reference: QualityFigures, quality: Quality, *, why_missing: str = ""
) -> Check:
    """Compare the served perplexity with the source's, over the same tokens.

    A check that could not be measured has `measured` none; it holds the release instead of failing it.

    Args:
        served: What the candidate's log-likelihoods of the fixed texts amount to; none if they could not be had.
        reference: The same of the source.
        quality: The limits.
        why_missing: Why `served` is none, in words.
    """
    name = "served perplexity against source"
    limit = quality.max_ppl_ratio or 1.05
    if served is None:
        sentence = f"the served perplexity could not be measured: {why_missing or 'no answer'}"
        return Check(name=name, measured=None, limit=limit, passed=False, sentence=sentence)
    if served.prompt_set_digest != reference.prompt_set_digest or served.per_text_tokens != reference.per_text_tokens:
        sentence = (
            f"served figures cover {served.tokens} tokens of texts {served.prompt_set_digest[:12]}, the reference "
            f"{reference.tokens} of {reference.prompt_set_digest[:12]}; only the same tokens can be compared"
        )
        return Check(name=name, measured=None, limit=limit, passed=False, sentence=sentence)
    ratio = _capped(served.nll / served.tokens - reference.nll / reference.tokens) if served.tokens else RATIO_CAP
    passed = ratio <= limit
    sentence = (
        f"perplexity {_say(served.perplexity)} as served by {served.engine}, {_say(reference.perplexity)} of the "
        f"source: {_say(ratio)} times, {'within' if passed else 'above'} the limit of {limit:g}"
    )
    return Check(name=name, measured=ratio, limit=limit, passed=passed, sentence=sentence)


def answers_check(answers: Sequence[CanaryAnswer]) -> Check:
    """Check the greedy answers to fixed questions: there, not stuck, and ending where stable's end.

    Args:
        answers: Those of the candidate and, if there is one, of stable, to the same questions.
    """
    by_side: dict[Side, list[CanaryAnswer]] = {"stable": [], "candidate": []}
    for answer in answers:
        by_side[answer.side].append(answer)
    candidate, stable = by_side["candidate"], by_side["stable"]
    bad = [fault for fault in map(_fault, candidate) if fault]
    ends = {a.prompt for a in stable if a.finish_reason == "stop" and not a.error}
    kept = sum(a.finish_reason == "stop" for a in candidate if a.prompt in ends)
    if not candidate:
        bad.append("the candidate was asked nothing")
    elif kept * 2 < len(ends):
        bad.append(f"stable ends {len(ends)} answers by itself, the candidate only {kept} of these")
    good = sum(not _fault(a) for a in candidate)
    sentence = "; ".join(bad) if bad else f"{len(candidate)} fixed questions were answered, and ended as stable's do"
    if not bad and not stable:
        sentence = f"{len(candidate)} fixed questions were answered"
    return Check(
        name="answers to fixed questions",
        measured=float(good),
        limit=float(len(candidate)),
        passed=not bad,
        sentence=sentence,
    )


def _fault(answer: CanaryAnswer) -> str:
    asked = answer.prompt if len(answer.prompt) <= 40 else answer.prompt[:37] + "..."
    if answer.error:
        return f"{asked!r} failed: {answer.error}"
    words = answer.text.split()
    if not words:
        return f"{asked!r} got an empty answer"
    if len(words) >= REPEAT_WORDS and len(set(words)) <= 2:
        return f"{asked!r} got one word over and over: {words[0]!r}"
    return ""


def _capped(log_ratio: float) -> float:
    return min(RATIO_CAP, math.exp(min(log_ratio, 50.0))) if math.isfinite(log_ratio) else RATIO_CAP


def _say(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 10_000 else "over 10000"
