"""The figure that the gate refuses by must never be more than the truth."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.judge.divergence import TAIL_FLOOR, agrees, divergence

SIZE, WIDTH = 40, 20

weights = st.lists(st.floats(0.001, 100.0), min_size=SIZE, max_size=SIZE)


def logprobs(given_weights: list[float]) -> dict[int, float]:
    """A distribution over `SIZE` tokens."""
    whole = math.fsum(given_weights)
    return {token: math.log(weight / whole) for token, weight in enumerate(given_weights)}


def head(whole: dict[int, float], own: int, width: int = WIDTH) -> dict[int, float]:
    """What a server shows of it: the most probable tokens, and the text's own."""
    first = sorted(whole, key=lambda token: -whole[token])[:width]
    return {token: whole[token] for token in {own, *first}}


def exact(p: dict[int, float], q: dict[int, float]) -> float:
    """The divergence of the whole distributions."""
    return math.fsum(math.exp(p[token]) * (p[token] - q[token]) for token in p)


@given(weights, weights, st.integers(0, SIZE - 1))
def test_it_is_a_lower_bound_of_the_exact_divergence(a: list[float], b: list[float], own: int) -> None:
    p, q = logprobs(a), logprobs(b)

    assert 0 <= divergence(head(p, own), head(q, own)) <= exact(p, q) + 20 * TAIL_FLOOR


@given(weights, st.integers(0, SIZE - 1), st.integers(1, SIZE))
def test_equal_distributions_do_not_diverge(a: list[float], own: int, width: int) -> None:
    """Also where the two servers show heads of another width."""
    p = logprobs(a)

    assert divergence(head(p, own), head(p, own)) == 0
    assert divergence(head(p, own), head(p, own, width)) == pytest.approx(0, abs=1e-9)


@given(weights, weights, st.integers(0, SIZE - 1))
def test_a_narrower_head_shows_no_more(a: list[float], b: list[float], own: int) -> None:
    """Coarser cells, smaller divergence (data processing), as long as both sides name the same tokens."""
    p, q = logprobs(a), logprobs(b)
    names = sorted(p, key=lambda token: -p[token])

    wide = divergence({t: p[t] for t in names[:WIDTH]}, q)
    narrow = divergence({t: p[t] for t in names[: WIDTH // 2]}, q)

    assert narrow <= wide + 20 * TAIL_FLOOR


@given(weights, weights, st.integers(0, SIZE - 1))
def test_rounding_to_what_is_stored_hardly_matters(a: list[float], b: list[float], own: int) -> None:
    p, q = head(logprobs(a), own), head(logprobs(b), own)
    rounded = {token: round(value, 5) for token, value in p.items()}

    assert divergence(rounded, q) == pytest.approx(divergence(p, q), abs=5e-4)


def test_a_certain_source_whose_token_the_served_model_excludes_diverges_finitely() -> None:
    """VLLM writes minus infinity as -9999."""
    found = divergence({1: 0.0, 2: -9999.0}, {1: -9999.0, 2: 0.0})

    assert 100 < found < 1000


def test_tokens_that_only_one_head_has_are_lumped() -> None:
    """By hand: cells {1} and the tail, 0.5 and 0.5 against 0.25 and 0.75."""
    found = divergence({1: math.log(0.5), 2: math.log(0.4)}, {1: math.log(0.25), 3: math.log(0.7)})

    assert found == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))


def test_of_equally_probable_first_choices_any_will_do() -> None:
    """float32 makes ties, and either side may list them in its own order."""
    served = {1: -1.0, 2: -1.0, 3: -2.0}

    assert agrees(1, served)
    assert agrees(2, served)
    assert not agrees(3, served)
    assert not agrees(4, served)
