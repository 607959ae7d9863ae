"""When requests arrive: drawn gaps, even gaps, or the gaps of recorded traffic."""

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

from headway.domain.profile import Canary
from headway.errors import ConfigError


def arrivals_s(
    canary: Canary, count: int, rng: random.Random, *, recorded_s: Sequence[float], first: int
) -> list[float]:
    """Return the arrivals of one block, from its start; they rise, and their mean rate is the profile's.

    Args:
        canary: Says how they come and how often.
        count: How many.
        rng: Drawn from, where they are drawn.
        recorded_s: For `replay`: rising moments of recorded traffic.
        first: For `replay`: which gap of the recording comes first.

    Raises:
        ConfigError: There is nothing to replay.
    """
    mean_s = 1 / canary.rate_per_s
    if canary.arrivals == "replay":
        gaps = _recorded_gaps(recorded_s, mean_s)
        return list(accumulate(gaps[(first + k) % len(gaps)] for k in range(count)))
    if canary.arrivals == "constant":
        return [(k + 1) * mean_s for k in range(count)]
    # With shape 1 the gamma distribution is the exponential one: Poisson arrivals.
    shape = canary.burstiness if canary.arrivals == "gamma" else 1.0
    return list(accumulate(rng.gammavariate(shape, mean_s / shape) for _ in range(count)))


def _recorded_gaps(recorded_s: Sequence[float], mean_s: float) -> list[float]:
    """Return the gaps of a recording, stretched so that their mean is this one."""
    span_s = recorded_s[-1] - recorded_s[0] if recorded_s else 0.0
    if span_s <= 0:
        raise ConfigError(
            f"`canary.arrivals` is replay, and the job carries {len(recorded_s)} recorded arrivals over {span_s:g} s; "
            "there is nothing to replay"
        )
    scale = mean_s * (len(recorded_s) - 1) / span_s
    return [(after - before) * scale for before, after in pairwise(recorded_s)]
