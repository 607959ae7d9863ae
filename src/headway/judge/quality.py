"""Whether what is served answers as well as its source (design rule 13.6, first part)."""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headway.domain.bench import QUESTIONS, CanaryAnswer, Side
from headway.domain.profile import Quality
from headway.domain.release import Check, QualityFigures, SourceAnswer
from headway.domain.weights import BITS_PER_WEIGHT, Scheme
from headway.judge.bootstrap import interval

RATIO_CAP = 1e6
"""Shown in place of an infinite ratio, so that records stay plain JSON."""
REPEAT_WORDS = 12
"""An answer of at least this many words that uses no more than two different ones is a stuck model."""
FORGIVEN = 4
"""One in so many answers may differ from the source's: a near tie of two tokens falls either way under any rounding."""

RATIO, KL, TOP1 = "served perplexity against source", "served divergence from source", "served first choices of source"
ANSWERS = "answers to fixed questions"


class Limits(NamedTuple):
    """What is allowed, after the defaults."""

    max_ppl_ratio: float
    max_kl: float
    min_top1: float | None


def limits(scheme: Scheme, quality: Quality) -> Limits:
    """Return the profile's limits; where it has none, those of the scheme's bits.

    For `none` they are those of 8 bit: the weights are the source's, so whatever is measured is the engine's doing, and
    an engine that changes the answers more than 8 bit may is not fit to serve.
    """
    ratio, kl = (1.05, 0.05) if BITS_PER_WEIGHT[scheme] >= 8 else (1.10, 0.10)
    return Limits(quality.max_ppl_ratio or ratio, quality.max_kl or kl, quality.min_top1)


def served_checks(
    served: QualityFigures | None,
    reference: QualityFigures,
    quality: Quality,
    scheme: Scheme = "none",
    *,
    why_missing: str = "",
    noise: QualityFigures | None = None,
) -> list[Check]:
    """Compare what is served with its source, over the same tokens.

    The measured figure is what is held against the limit; its interval says how sure that is. A check that could not
    be measured has `measured` none; it holds the release instead of failing it.

    Args:
        served: What the candidate's log-probabilities of the fixed texts amount to; none if they could not be had.
        reference: The figures of the source.
        quality: The limits.
        scheme: How the candidate is quantized.
        why_missing: Why `served` is none, in words.
        noise: Figures of the source served as it is, for the sentences; they decide nothing.
    """
    allowed = limits(scheme, quality)
    if served is None:
        sentence = f"the served perplexity could not be measured: {why_missing or 'no answer'}"
        return [_missing(RATIO, allowed.max_ppl_ratio, sentence)]
    if served.prompt_set_digest != reference.prompt_set_digest or served.per_text_tokens != reference.per_text_tokens:
        sentence = (
            f"served figures cover {served.tokens} tokens of texts {served.prompt_set_digest[:12]}, the reference "
            f"{reference.tokens} of {reference.prompt_set_digest[:12]}; only the same tokens can be compared"
        )
        return [_missing(RATIO, allowed.max_ppl_ratio, sentence)]
    if noise is not None and noise.per_text_tokens != reference.per_text_tokens:
        noise = None
    blame = "; the weights are the source's own, so it is the engine that answers differently"
    return [
        check.model_copy(update={"sentence": check.sentence + blame})
        if scheme == "none" and not check.passed
        else check
        for check in (
            _ratio(served, reference, allowed.max_ppl_ratio, noise),
            *_divergence(served, quality, allowed, noise),
        )
    ]


def _ratio(served: QualityFigures, reference: QualityFigures, limit: float, noise: QualityFigures | None) -> Check:
    differences = [a - b for a, b in zip(served.per_text_nll, reference.per_text_nll, strict=True)]
    ratio = _capped((served.nll - reference.nll) / served.tokens) if served.tokens else RATIO_CAP
    bounds = _bounds(differences, served, ratio, _capped)
    floor = None if noise is None or not noise.tokens else _capped((noise.nll - reference.nll) / noise.tokens)
    return _check(
        RATIO,
        f"perplexity {_say(served.perplexity)} as served by {served.engine}, {_say(reference.perplexity)} of the "
        f"source: {_say(ratio)} times",
        ratio,
        limit,
        bounds=bounds,
        noise=floor,
        say=_say,
    )


def _divergence(served: QualityFigures, quality: Quality, allowed: Limits, noise: QualityFigures | None) -> list[Check]:
    kl, top1 = served.kl, served.top1
    if kl is None or top1 is None:
        if quality.max_kl is None and quality.min_top1 is None:
            return []
        sentence = (
            "the divergence from the source was not measured: its reference has no log-probabilities; an older headway "
            "made it. Delete it, and release again"
        )
        return [_missing(KL, allowed.max_kl, sentence)]
    first = _check(
        KL,
        f"the served distribution diverges from the source's by {_fine(kl)} nats a token",
        kl,
        allowed.max_kl,
        bounds=_bounds(served.per_text_kl, served, kl, float),
        noise=noise.kl if noise else None,
        say=_fine,
    )
    second = _check(
        TOP1,
        f"on {_percent(top1)} of {served.tokens} tokens its first choice is the source's",
        top1,
        allowed.min_top1,
        bounds=_bounds(served.per_text_top1, served, top1, float),
        noise=noise.top1 if noise else None,
        say=_percent,
        least=True,
    )
    return [first, second]


def _check(
    name: str,
    fact: str,
    measured: float,
    limit: float | None,
    *,
    bounds: tuple[float, float] | None,
    noise: float | None,
    say: Callable[[float], str],
    least: bool = False,
) -> Check:
    """Hold a figure against its limit, and say all there is to say about it."""
    passed = limit is None or (measured >= limit if least else measured <= limit)
    words = [fact]
    if bounds is not None:
        words[0] += f" (95 % interval {say(bounds[0])} to {say(bounds[1])} over the texts)"
    if limit is not None:
        words.append(f"{'within' if passed else 'below' if least else 'above'} the limit of {say(limit)}")
        if bounds is not None and bounds[0] <= limit <= bounds[1]:
            words.append("which lies inside the interval, so other texts might decide otherwise")
    if noise is not None:
        words.append(f"the source itself has {say(noise)} when served")
    low, high = bounds or (None, None)
    return Check(
        name=name,
        measured=measured,
        limit=limit,
        passed=passed,
        sentence=", ".join(words),
        low=low,
        high=high,
        noise=noise,
    )


def _missing(name: str, limit: float, sentence: str) -> Check:
    return Check(name=name, measured=None, limit=limit, passed=False, sentence=sentence)


def _bounds(
    values: Sequence[float], served: QualityFigures, point: float, shown: Callable[[float], float]
) -> tuple[float, float] | None:
    found = interval(values, served.per_text_tokens)
    return None if found is None else (min(shown(found[0]), point), max(shown(found[1]), point))


def answers_check(answers: Sequence[CanaryAnswer], source: Sequence[SourceAnswer] = ()) -> Check:
    """Check the greedy answers to fixed questions: there, not stuck, and as good as the source's.

    The figures are measured on token ids, so they cannot see a wrong tokenizer, chat template or stop token; these
    questions can, because they go the way of a user's. What is asked of the candidate is what the source does by
    itself: the facts that the source knows, the answers that the source ends, and the number of tokens that the
    source's tokenizer makes of the question. A source that knows nothing asks nothing.

    Args:
        answers: Those of the candidate and, if there is one, of stable, to the same questions.
        source: Those of the source; without them stable's endings are what is expected.
    """
    by_side: dict[Side, list[CanaryAnswer]] = {"stable": [], "candidate": []}
    for answer in answers:
        by_side[answer.side].append(answer)
    candidate, stable = by_side["candidate"], by_side["stable"]
    expected = {answer.prompt: answer for answer in source}
    wrong = [fault for answer in candidate if (fault := _fault(answer))]
    whole = [answer for answer in candidate if not _fault(answer)]
    bad, told = list(wrong), f"{len(candidate)} fixed questions were answered"
    if not candidate:
        bad.append("the candidate was asked nothing")
    elif expected:
        bad += [*_lost_facts(whole, expected), *_lost_ends(whole, expected), *_other_tokens(whole, expected)]
        told += ", as the source answers them"
    elif stable:
        ends = {a.prompt for a in stable if a.finish_reason == "stop" and not a.error}
        kept = sum(a.finish_reason == "stop" for a in candidate if a.prompt in ends)
        if kept * 2 < len(ends):
            bad.append(f"stable ends {len(ends)} answers by itself, the candidate only {kept} of these")
        told += ", and ended as stable's do"
    return Check(
        name=ANSWERS,
        measured=float(len(candidate) - len(wrong)),
        limit=float(len(candidate)),
        passed=not bad,
        sentence="; ".join(bad) or told,
    )


def _lost_facts(answers: Sequence[CanaryAnswer], expected: dict[str, SourceAnswer]) -> list[str]:
    """Return what the source knows and the candidate does not, if that is more than chance."""
    facts = {question.prompt: question.facts for question in QUESTIONS}
    known = [a for a in answers if a.prompt in expected and _holds(expected[a.prompt].text, facts.get(a.prompt, ()))]
    lost = [a for a in known if not _holds(a.text, facts[a.prompt])]
    if len(lost) <= len(known) // FORGIVEN:
        return []
    shown = lost[0]
    sentence = (
        f"of {len(known)} facts that the source knows the candidate lost {len(lost)}: to {_short(shown.prompt)!r} the "
        f"source answers {_short(expected[shown.prompt].text)!r}, the candidate {_short(shown.text)!r}"
    )
    return [sentence]


def _lost_ends(answers: Sequence[CanaryAnswer], expected: dict[str, SourceAnswer]) -> list[str]:
    ends = [a for a in answers if a.prompt in expected and expected[a.prompt].finish_reason == "stop"]
    open_ended = [a for a in ends if a.finish_reason != "stop"]
    if len(open_ended) <= len(ends) // FORGIVEN:
        return []
    sentence = (
        f"the source ends {len(ends)} answers by itself, the candidate only {len(ends) - len(open_ended)} of these; "
        f"look at the stop tokens in generation_config.json and the tokenizer"
    )
    return [sentence]


def _other_tokens(answers: Sequence[CanaryAnswer], expected: dict[str, SourceAnswer]) -> list[str]:
    """Return that the questions were split in another way: all of them, because one may hold a date."""
    counted = [(a, expected[a.prompt]) for a in answers if a.prompt in expected and a.prompt_tokens is not None]
    if not counted or any(a.prompt_tokens == own.prompt_tokens for a, own in counted):
        return []
    answer, own = counted[0]
    sentence = (
        f"its tokenizer or chat template is not the source's: {_short(answer.prompt)!r} is {answer.prompt_tokens} "
        f"tokens as served, {own.prompt_tokens} at the source"
    )
    return [sentence]


def _holds(text: str, facts: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(fact)}\b", text.casefold()) for fact in facts)


def _fault(answer: CanaryAnswer) -> str:
    asked = _short(answer.prompt)
    if answer.error:
        return f"{asked!r} failed: {answer.error}"
    words = answer.text.split()
    if not words:
        return f"{asked!r} got an empty answer"
    if len(words) >= REPEAT_WORDS and len(set(words)) <= 2:
        return f"{asked!r} got one word over and over: {words[0]!r}"
    return ""


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 40 else plain[:37] + "..."


def _capped(log_ratio: float) -> float:
    return min(RATIO_CAP, math.exp(min(log_ratio, 50.0))) if math.isfinite(log_ratio) else RATIO_CAP


def _say(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 10_000 else "over 10000"


def _fine(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
