"""The candidate must answer as well as its source."""

import pytest

from headway.domain.bench import CanaryAnswer, Side
from headway.domain.profile import Quality
from headway.domain.release import QualityFigures
from headway.judge.quality import RATIO_CAP, answers_check, served_check


def _figures(nll: float, tokens: int = 100, digest: str = "p") -> QualityFigures:
    return QualityFigures(
        prompt_set_digest=digest, engine="e", tokens=tokens, nll=nll, per_text_nll=(nll,), per_text_tokens=(tokens,)
    )


@pytest.mark.parametrize(("nll", "passed"), [(300, True), (304.8, True), (305, False), (900, False)])
def test_perplexity_may_be_five_percent_higher(nll: float, passed: bool) -> None:
    """log(1.05) is 0.0488 nats a token."""
    check = served_check(_figures(nll), _figures(300), Quality(max_ppl_ratio=1.05))

    assert check.passed is passed
    assert check.measured is not None


def test_a_model_that_gives_no_probability_at_all_fails_with_a_finite_number() -> None:
    check = served_check(_figures(9999.0 * 100), _figures(300), Quality())

    assert (check.passed, check.measured) == (False, RATIO_CAP)


@pytest.mark.parametrize("served", [None, _figures(300, tokens=99), _figures(300, digest="q")])
def test_what_cannot_be_compared_is_missing_and_does_not_pass(served: QualityFigures | None) -> None:
    check = served_check(served, _figures(300), Quality(), why_missing="HTTP 400")

    assert (check.passed, check.measured) == (False, None)


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
