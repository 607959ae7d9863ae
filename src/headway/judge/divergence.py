"""How far a served model's next-token distribution is from its source's, from the heads of both.

Neither side shows its whole distribution: vLLM gives the 20 most probable tokens (`max_logprobs`) and the text's own
token. So both are coarsened in the same way before they are compared: each token that both heads hold is a cell of its
own, and all others together are one cell, the tail:

    KL(P' || Q') = sum over common tokens of p ln(p / q)  +  p_tail ln(p_tail / q_tail)

with `p_tail = 1 - sum of p over the common tokens`, and `q_tail` likewise. A token that the served head does not hold
therefore goes to the tail on both sides, which needs no guess about its probability. Coarsening never raises a
divergence (the log-sum inequality and the data-processing inequality that follows from it: Cover and Thomas, Elements
of Information Theory, 2nd edition, theorem 2.7.1 and section 2.8), so the figure is a lower bound of the divergence of
the whole distributions: what it refuses, the exact figure would refuse too.
"""

import math
from collections.abc import Mapping

WIDTH = 20
"""Tokens of a head. vLLM's `max_logprobs` is 20 unless told otherwise."""
TAIL_FLOOR = 1e-6
"""Least probability of a tail. Log-probabilities are rounded (5 digits in a reference, float32 in an answer), so that a
head may seem to hold everything, or a millionth more; without a floor that would read as an infinite divergence."""


def divergence(source: Mapping[int, float], served: Mapping[int, float]) -> float:
    """Return the lumped KL of one position, in nats; never below 0, and 0 of equal heads.

    Args:
        source: Log-probability by token, of the source's head and of the text's own token.
        served: The same of what is served.
    """
    common = [token for token in source if token in served]
    p, q = _cells([source[token] for token in common]), _cells([served[token] for token in common])
    total = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
    return max(0.0, total)


def agrees(first: int, served: Mapping[int, float]) -> bool:
    """Tell whether the source's first choice is the served model's too; of several equal ones any will do."""
    return first in served and served[first] >= max(served.values())


def _cells(logprobs: list[float]) -> list[float]:
    """Return probabilities with the tail's at the end, as a distribution."""
    # Below e^-700 a double is 0; a cell of the served side must not be, because it is divided by.
    head = [math.exp(max(-700.0, min(0.0, value))) for value in logprobs]
    whole = math.fsum(head)
    tail = max(TAIL_FLOOR, 1.0 - whole)
    return [value / (whole + tail) for value in (*head, tail)]
