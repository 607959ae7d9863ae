"""The candidate must answer as well as its source."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.bench import QUESTIONS, CanaryAnswer, Side
from headway.domain.profile import Quality
from headway.domain.release import Check, QualityFigures, SourceAnswer
from headway.domain.weights import Scheme
from headway.judge.quality import KL, RATIO, RATIO_CAP, TOP1, answers_check, limits, served_checks


def _figures(
    nll: float, tokens: int = 100, digest: str = "p", *, texts: int = 1, kl: float | None = None, top1: float = 0.9
) -> QualityFigures:
    """Figures with these sums, spread unevenly over some texts."""
    shares = [2 * (k + 1) / (texts * (texts + 1)) for k in range(texts)]
    counts = [tokens // texts] * texts
    return QualityFigures(
        prompt_set_digest=digest,
        engine="e",
        tokens=sum(counts),
        nll=nll,
        per_text_nll=tuple(nll * share for share in shares),
        per_text_tokens=tuple(counts),
        per_text_kl=() if kl is None else tuple(kl * sum(counts) * share for share in shares),
        per_text_top1=() if kl is None else tuple(round(top1 * count) for count in counts),
    )


def _check(checks: list[Check], name: str = RATIO) -> Check:
    [found] = [check for check in checks if check.name == name]
    return found


@pytest.mark.parametrize(("nll", "passed"), [(300, True), (304.8, True), (305, False), (900, False)])
def test_perplexity_may_be_five_percent_higher(nll: float, passed: bool) -> None:
    """log(1.05) is 0.0488 nats a token."""
    check = _check(served_checks(_figures(nll), _figures(300), Quality(max_ppl_ratio=1.05)))

    assert check.passed is passed
    assert check.measured is not None


def test_a_model_that_gives_no_probability_at_all_fails_with_a_finite_number() -> None:
    check = _check(served_checks(_figures(9999.0 * 100), _figures(300), Quality()))

    assert (check.passed, check.measured) == (False, RATIO_CAP)


@pytest.mark.parametrize("served", [None, _figures(300, tokens=99), _figures(300, digest="q")])
def test_what_cannot_be_compared_is_missing_and_does_not_pass(served: QualityFigures | None) -> None:
    [check] = served_checks(served, _figures(300), Quality(), why_missing="HTTP 400")

    assert (check.passed, check.measured) == (False, None)


@pytest.mark.parametrize(
    ("scheme", "ratio", "kl"),
    [("none", 1.05, 0.05), ("fp8-dynamic", 1.05, 0.05), ("w8a8", 1.05, 0.05), ("w4a16-gptq", 1.10, 0.10)],
)
def test_the_limits_follow_the_bits(scheme: Scheme, ratio: float, kl: float) -> None:
    assert limits(scheme, Quality()) == (ratio, kl, None)
    assert limits(scheme, Quality(max_ppl_ratio=1.2, max_kl=0.3, min_top1=0.8)) == (1.2, 0.3, 0.8)


def test_a_divergence_above_the_limit_fails_although_the_perplexity_is_fine() -> None:
    """The likelihood of one text says little about all that the model might have said instead."""
    checks = served_checks(_figures(300, kl=0.2), _figures(300), Quality(), "fp8-dynamic")

    assert [(check.name, check.passed) for check in checks] == [(RATIO, True), (KL, False), (TOP1, True)]
    assert "above the limit of 0.0500" in _check(checks, KL).sentence


def test_first_choices_are_shown_and_judged_only_on_demand() -> None:
    served = _figures(300, kl=0.01, top1=0.7)

    assert _check(served_checks(served, _figures(300), Quality()), TOP1).passed
    strict = _check(served_checks(served, _figures(300), Quality(min_top1=0.8)), TOP1)
    assert not strict.passed
    assert strict.measured == pytest.approx(0.7)
    assert "below the limit of 80.0 %" in strict.sentence


def test_the_interval_is_shown_and_the_figure_decides() -> None:
    """Ten texts, some much worse than others: the mean passes, and the sentence says how near it was."""
    checks = served_checks(_figures(300, texts=10, kl=0.045), _figures(300, texts=10), Quality())
    check = _check(checks, KL)

    assert check.passed
    assert check.low is not None
    assert check.high is not None
    assert check.measured == pytest.approx(0.045)
    assert check.low < 0.045
    assert check.high > 0.05
    assert "95 % interval" in check.sentence
    assert "other texts might decide otherwise" in check.sentence


def test_the_noise_floor_is_told_and_decides_nothing() -> None:
    noise = _figures(300.3, kl=0.0003)
    quiet = served_checks(_figures(300, kl=0.2), _figures(300), Quality())
    told = served_checks(_figures(300, kl=0.2), _figures(300), Quality(), noise=noise)

    assert [check.passed for check in quiet] == [check.passed for check in told]
    assert "the source itself has 0.0003 when served" in _check(told, KL).sentence
    assert _check(told, KL).noise == pytest.approx(0.0003)


def test_an_engine_that_changes_the_answers_of_the_source_itself_is_blamed() -> None:
    check = _check(served_checks(_figures(300, kl=0.2), _figures(300), Quality(), "none"), KL)

    assert "it is the engine that answers differently" in check.sentence


def test_a_reference_without_log_probabilities_is_enough_unless_a_limit_is_set() -> None:
    """An older headway made it."""
    assert [c.name for c in served_checks(_figures(300), _figures(300), Quality())] == [RATIO]
    missing = _check(served_checks(_figures(300), _figures(300), Quality(max_kl=0.1)), KL)
    assert (missing.passed, missing.measured) == (False, None)


@given(st.permutations(range(6)), st.lists(st.floats(0, 0.3), min_size=6, max_size=6))
def test_the_order_of_the_texts_does_not_matter(order: list[int], kl: list[float]) -> None:
    counts = [40, 90, 120, 80, 200, 60]

    def figures(turned: list[int]) -> QualityFigures:
        return QualityFigures(
            prompt_set_digest="p",
            engine="e",
            tokens=sum(counts),
            nll=1000.0,
            per_text_nll=tuple(1.7 * counts[k] for k in turned),
            per_text_tokens=tuple(counts[k] for k in turned),
            per_text_kl=tuple(kl[k] * counts[k] for k in turned),
            per_text_top1=tuple(counts[k] // 2 for k in turned),
        )

    plain, turned = ([*range(6)], list(order))
    found = [served_checks(figures(o), figures(o), Quality()) for o in (plain, turned)]

    for one, other in zip(*found, strict=True):
        assert one.measured == pytest.approx(other.measured)
        assert (one.low, one.high) == (pytest.approx(other.low), pytest.approx(other.high))


def _answer(
    side: Side, prompt: str, text: str = "It is Paris.", finish: str = "stop", error: str | None = None
) -> CanaryAnswer:
    return CanaryAnswer(side=side, prompt=prompt, text=text, finish_reason=finish, error=error)


def _both(candidate: list[CanaryAnswer]) -> list[CanaryAnswer]:
    return [*(_answer("stable", p) for p in "abc"), *candidate]


def test_good_answers_pass() -> None:
    assert answers_check(_both([_answer("candidate", p) for p in "abc"])).passed
    assert answers_check([_answer("candidate", p) for p in "abc"]).passed


@pytest.mark.parametrize(
    ("candidate", "word"),
    [
        ([_answer("candidate", p, text=" ") for p in "abc"], "empty"),
        ([_answer("candidate", p, text="the the " * 20) for p in "abc"], "over and over"),
        ([_answer("candidate", p, finish="length") for p in "abc"], "ends 3 answers by itself"),
        ([_answer("candidate", p, error="HTTP 500") for p in "abc"], "HTTP 500"),
        ([], "nothing"),
    ],
)
def test_bad_answers_fail_and_say_why(candidate: list[CanaryAnswer], word: str) -> None:
    check = answers_check(_both(candidate))

    assert not check.passed
    assert check.measured is not None
    assert word in check.sentence


def test_a_base_model_that_never_stops_is_compared_with_its_like() -> None:
    """Stable does not stop by itself either, so the candidate need not."""
    answers = [_answer(side, p, finish="length") for side in ("stable", "candidate") for p in "abc"]

    assert answers_check(answers).passed


SOURCE = tuple(
    SourceAnswer(prompt=q.prompt, text=f"It is {q.facts[0]}.", finish_reason="stop", prompt_tokens=20)
    for q in QUESTIONS
)


def _served(wrong: int = 0, **changes: object) -> list[CanaryAnswer]:
    """The candidate's answers, the first few of them wrong."""
    return [
        CanaryAnswer(
            side="candidate",
            prompt=q.prompt,
            text="A green idea sleeps furiously." if number < wrong else f"Of course it's {q.facts[-1].title()}!",
            finish_reason="stop",
            prompt_tokens=20,
        ).model_copy(update=changes)
        for number, q in enumerate(QUESTIONS)
    ]


@pytest.mark.parametrize(("wrong", "passed"), [(0, True), (1, True), (2, False), (6, False)])
def test_a_candidate_must_know_what_its_source_knows(wrong: int, passed: bool) -> None:
    """One slip is a near tie that fell the other way; two are damage."""
    check = answers_check(_served(wrong), SOURCE)

    assert check.passed is passed
    if not passed:
        assert f"lost {wrong}" in check.sentence
        assert "green idea" in check.sentence


def test_what_the_source_does_not_know_is_not_asked_for() -> None:
    """A small or a base model: nothing is expected of the candidate that the source cannot do."""
    ignorant = [answer.model_copy(update={"text": "I like trains.", "finish_reason": "length"}) for answer in SOURCE]

    assert answers_check(_served(6, finish_reason="length"), ignorant).passed


def test_a_candidate_that_does_not_stop_where_its_source_does_is_refused() -> None:
    """The end token of generation_config.json got lost."""
    check = answers_check(_served(finish_reason="length"), SOURCE)

    assert not check.passed
    assert "only 0 of these" in check.sentence
    assert "generation_config" in check.sentence


def test_another_tokenizer_shows_in_the_number_of_tokens() -> None:
    """Perplexity is measured on token ids and cannot see it."""
    check = answers_check(_served(prompt_tokens=31), SOURCE)

    assert not check.passed
    assert "is 31 tokens as served, 20 at the source" in check.sentence


def test_a_template_with_a_date_in_it_is_no_other_tokenizer() -> None:
    answers = [a.model_copy(update={"prompt_tokens": 21 if k else 20}) for k, a in enumerate(_served())]

    assert answers_check(answers, SOURCE).passed


def test_a_number_inside_another_is_not_the_fact() -> None:
    """Two plus two is not 42, and a week has not 17 days."""
    answers = _served()
    answers[1] = answers[1].model_copy(update={"text": "42"})
    answers[3] = answers[3].model_copy(update={"text": "17 days"})

    assert not answers_check(answers, SOURCE).passed


def test_infinite_figures_make_plain_json() -> None:
    """Records are JSON without NaN."""
    checks = served_checks(_figures(9999.0 * 100, texts=4, kl=300.0), _figures(300, texts=4), Quality())

    for check in checks:
        for value in (check.measured, check.low, check.high):
            assert value is None or math.isfinite(value)
