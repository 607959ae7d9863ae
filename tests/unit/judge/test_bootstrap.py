"""An interval that depends on the day or on the order of the texts would be worse than none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.judge.bootstrap import interval

texts = st.lists(st.tuples(st.floats(-50, 500), st.integers(1, 400)), min_size=2, max_size=20)


@settings(max_examples=40, deadline=None)
@given(texts, st.randoms(use_true_random=False))
def test_it_encloses_the_figure_and_does_not_depend_on_the_order(
    given_texts: list[tuple[float, int]], chance: random.Random
) -> None:
    shuffled = list(given_texts)
    chance.shuffle(shuffled)

    found = interval([v for v, _ in given_texts], [t for _, t in given_texts])

    assert found is not None
    point = sum(v for v, _ in given_texts) / sum(t for _, t in given_texts)
    assert found[0] <= point + 1e-9
    assert found[1] >= point - 1e-9
    assert interval([v for v, _ in shuffled], [t for _, t in shuffled]) == found


def test_texts_that_agree_leave_no_doubt() -> None:
    low, high = interval([10.0, 20.0, 30.0], [100, 200, 300]) or (0.0, 0.0)

    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("values", "tokens"), [([], []), ([1.0], [10]), ([1.0, float("inf")], [10, 10]), ([1.0, 2.0], [10, 0])]
)
def test_of_less_than_two_texts_nothing_is_said(values: list[float], tokens: list[int]) -> None:
    assert interval(values, tokens) is None


def test_it_covers_what_it_should() -> None:
    """Of 200 draws of 12 texts from one population, the mean lies inside in most: BCa of so few covers a little less.

    The texts are skewed, as divergences are: a few are much worse than the rest.
    """
    chance = random.Random(1)  # noqa: S311 - the same texts every time
    inside = 0
    for _ in range(200):
        values = [chance.gammavariate(2.0, 0.5) * 100 for _ in range(12)]
        low, high = interval(values, [100] * 12) or (0.0, 0.0)
        inside += low <= 1.0 <= high

    assert 0.86 <= inside / 200 <= 0.99
