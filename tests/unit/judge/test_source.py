"""A model that was broken before quantizing must fail before anything is built of it."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.profile import Quality
from headway.domain.release import QualityFigures
from headway.judge.source import refusal, source_checks

QUALITY = Quality()


def figures(perplexity: float, tokens: int = 1000, texts: str = "t") -> QualityFigures:
    """Figures with this perplexity."""
    nll = tokens * math.log(perplexity)
    return QualityFigures(
        prompt_set_digest=texts, engine="x", tokens=tokens, nll=nll, per_text_nll=(nll,), per_text_tokens=(tokens,)
    )


def test_a_good_source_passes_both_parts() -> None:
    """And the checks say what was measured."""
    checks = source_checks(figures(14.2), figures(14.0), QUALITY)

    assert [check.passed for check in checks] == [True, True]
    assert refusal(checks) is None


def test_a_damaged_source_is_refused_in_a_sentence_for_people() -> None:
    """It names both figures, the limit and what to look at."""
    said = refusal(source_checks(figures(41234.1), figures(21.3), QUALITY))

    assert said is not None
    assert "41234.1" in said
    assert "21.3" in said
    assert "1.10 times" in said
    assert "damaged" in said


def test_a_first_release_has_only_the_absolute_limit() -> None:
    """Nothing to compare with."""
    assert len(source_checks(figures(14), None, QUALITY)) == 1
    assert refusal(source_checks(figures(500), None, QUALITY))


def test_other_texts_are_not_compared() -> None:
    """Figures on other texts say nothing."""
    assert len(source_checks(figures(14), figures(2, texts="other"), QUALITY)) == 1


def test_nan_is_beyond_measure_and_plain_json() -> None:
    """A model that answers NaN is refused, and its record can be written."""
    broken = QualityFigures(
        prompt_set_digest="t", engine="x", tokens=10, nll=1e9, per_text_nll=(1e9,), per_text_tokens=(10,)
    )
    checks = source_checks(broken, figures(14), QUALITY)

    assert "beyond measure" in (refusal(checks) or "")
    json.dumps([check.to_json() for check in checks], allow_nan=False)


def test_a_tokenizer_with_fewer_tokens_is_no_worse_model() -> None:
    """Half the tokens with the same likelihood of the whole texts: perplexity a token squares, and means nothing."""
    stable = figures(10, tokens=1000)
    same_texts = QualityFigures(
        prompt_set_digest="t",
        engine="x",
        tokens=500,
        nll=stable.nll,
        per_text_nll=(stable.nll,),
        per_text_tokens=(500,),
    )

    assert refusal(source_checks(same_texts, stable, QUALITY)) is None


@given(st.floats(1.01, 1e4), st.floats(1.01, 1e4))
def test_the_limit_is_the_ratio_of_perplexities(source: float, stable: float) -> None:
    """With one tokenizer, both parts are what the profile says they are."""
    checks = source_checks(figures(source), figures(stable), QUALITY)
    ratio = source / stable

    assert checks[0].passed == (source <= QUALITY.max_ppl) or math.isclose(source, QUALITY.max_ppl)
    assert checks[1].passed == (ratio <= QUALITY.max_stable_ppl_ratio) or math.isclose(
        ratio, QUALITY.max_stable_ppl_ratio, rel_tol=1e-6
    )
