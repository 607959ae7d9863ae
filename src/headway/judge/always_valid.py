"""Bounds on a share that hold at every look, so that looking often makes nobody wrong more often.

**One share against a limit.** Of `n` requests `k` failed; is the share of failures above `limit`? The evidence is the
likelihood ratio of all larger shares, mixed, over the limit:

    M(k, n) = integral over p in (limit, 1) of (p/limit)^k ((1-p)/(1-limit))^(n-k) dW(p)

with `W` the Beta(1/2, 1/2) distribution cut to that interval. While every request fails with a probability of at most
`limit`, whatever came before, each factor has a mean of at most 1, so `M` is a nonnegative supermartingale that starts
at 1, and Ville's inequality gives `P(M >= 1/alpha at any time) <= alpha`. It depends on the totals alone: nothing has
to be remembered between looks. (Ville 1939; Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021; the Beta mixture
is in closed form.) The shares at which `M` stays below `1/alpha` are a confidence sequence.

**Two arms.** The gateway gives each request to the candidate with a known probability `share`. If events (slow
requests, say) are at most `times` as likely on the candidate as on stable, then an event is the candidate's with a
probability of at most `share * times / (share * times + 1 - share)`. So the candidate's part of all events is held
against this limit by the same evidence. The rate of events cancels: it may change with the hour and the load. (The
conditional test of two rates of Przyborowski and Wilenski 1940, used sequentially by Kulldorff et al. 2011.)

**Bursts.** Requests that are in flight together fail together. A burst of up to `burst` requests in a row may depend on
each other in any way if all logarithms are divided by `burst`: by Hoelder's inequality the mean of a product of
`burst` factors, each to the power `1/burst`, is at most 1 if that of each factor is, so what was a supermartingale
request by request is one burst by burst. What remains assumed: the bursts are no longer than that, and the limit holds
in each one given all earlier ones.

**Late changes.** A candidate that was good for an hour and then breaks has an hour of good evidence. So evidence is
also collected anew from later starts; start `i` (0, 1, ...) gets `alpha / ((i + 1) (i + 2))`, which sums to `alpha`
over all starts there can ever be.
"""

import math

from scipy import special

PRIOR = 0.5
"""Both parameters of the mixing Beta distribution (Jeffreys)."""
_HALVINGS = 60


def log_evidence(events: float, trials: float, limit: float, *, burst: float = 1) -> float:
    """Return the logarithm of the evidence that the share of events is above the limit.

    Args:
        events: How many there were.
        trials: Among how many.
        limit: The share, between 0 and 1, that is not exceeded if all is well.
        burst: How many trials in a row may depend on each other.

    Raises:
        ValueError: There are more events than trials, or fewer than none.
    """
    if not 0 <= events <= trials:
        raise ValueError(f"there are {events} events among {trials} trials; it must be 0 or more and not above")
    if limit >= 1 or trials == 0:
        return 0.0
    if limit <= 0:
        return math.inf if events > 0 else 0.0
    good, bad = (trials - events) / burst, events / burst
    above = float(special.betaincc(PRIOR + bad, PRIOR + good, limit))
    if above <= 0:
        return -math.inf
    prior_above = float(special.betaincc(PRIOR, PRIOR, limit))
    mixed = special.betaln(PRIOR + bad, PRIOR + good) - special.betaln(PRIOR, PRIOR) + math.log(above / prior_above)
    return float(mixed) - bad * math.log(limit) - good * math.log1p(-limit)


def above(events: float, trials: float, limit: float, alpha: float, *, burst: float = 1) -> bool:
    """Tell whether the share is surely above the limit: wrong with a probability of at most `alpha`, ever."""
    return log_evidence(events, trials, limit, burst=burst) >= -math.log(alpha)


def lower_bound(events: float, trials: float, alpha: float, *, burst: float = 1) -> float:
    """Return a share that the true one is below with a probability of at most `alpha`, at all looks together."""
    if events == 0:
        return 0.0
    low, high = 0.0, events / trials
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if above(events, trials, middle, alpha, burst=burst):
            low = middle
        else:
            high = middle
    return low


def interval(events: float, trials: float, alpha: float, *, burst: float = 1) -> tuple[float, float]:
    """Return bounds that hold the true share at all looks together with a probability of at least `1 - alpha`."""
    if trials == 0:
        return 0.0, 1.0
    return (
        lower_bound(events, trials, alpha / 2, burst=burst),
        1.0 - lower_bound(trials - events, trials, alpha / 2, burst=burst),
    )


def part_of(share: float, times: float = 1.0) -> float:
    """Return the largest part of all events that is the candidate's if its rate is at most `times` stable's.

    Args:
        share: Of the requests that went to the candidate.
        times: Ratio of the rates that is allowed.
    """
    return share * times / (share * times + 1 - share)


def alpha_of_start(alpha: float, start: int) -> float:
    """Return the part of the error budget that the evidence collected from a start on may spend.

    Args:
        alpha: Budget of all starts together.
        start: 0 for the first.
    """
    return alpha / ((start + 1) * (start + 2))


def events_needed(limit: float, alpha: float, *, burst: float = 1, rate: float = 1.0, most: int = 1_000_000) -> int:
    """Return after how many trials a steady rate of events is surely above the limit.

    Args:
        limit: The share that is allowed.
        alpha: Error budget.
        burst: How many trials in a row may depend on each other.
        rate: True share of events; 1 for a side on which nothing works.
        most: Where to give up.

    Raises:
        ValueError: It takes more than `most`.
    """
    low, high = 0, 1
    while not above(rate * high, high, limit, alpha, burst=burst):
        low, high = high, 2 * high
        if high > 2 * most:
            raise ValueError(f"a rate of {rate} is not told from the limit {limit} within {most} trials")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if above(rate * middle, middle, limit, alpha, burst=burst) else (middle, high)
    return high
