"""The fixed texts are what stored references were measured on."""

from headway.domain import texts


def test_the_texts_are_those_of_the_stored_references() -> None:
    """A changed letter measures every source anew; change this digest only on purpose."""
    assert texts.prompt_set_digest() == "71fca387bf658a2386ced57803eaad8851dc5d518e3c39828b1d0e495645b75f"


def test_there_are_enough_and_none_is_there_twice() -> None:
    """1294 tokens as SmolLM2 splits them: some 3.8 characters each."""
    assert len(set(texts.QUALITY_TEXTS)) == 12
    assert 4500 < sum(map(len, texts.QUALITY_TEXTS)) < 6500
    assert len(set(texts.BENCH_PROMPTS)) == 64
    assert max(map(len, texts.BENCH_PROMPTS)) < 100
