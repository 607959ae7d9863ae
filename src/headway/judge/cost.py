"""What a million output tokens cost on each side, from what the benchmark measured."""

from collections.abc import Sequence

from headway.domain.profile import Profile
from headway.domain.release import MetricEffect
from headway.domain.value import Value
from headway.judge.metrics import SideFigures, Summary

TPOT = "tpot_p50"


class TokenCost(Value):
    """Cost of a million output tokens, in the currency of `gpu_hour_price`."""

    stable: float | None
    candidate: float | None


def token_cost(profile: Profile, effects: Sequence[MetricEffect]) -> TokenCost | None:
    """Compute the cost of both sides from a verdict alone, none without a price or a time per token.

    With `n` requests in flight on a replica (`replicas.target_ongoing`, at which the autoscaler holds it) and `t` the
    median time per output token, a replica gives `n / t` tokens a second:

        cost = gpu_hour_price x accelerators a replica / 3600 x t / n x 1e6

    `t` is the benchmark's, at the benchmark's load. Under more load it grows on both sides, so the ratio of the two
    says more than either figure. Where the records are at hand, `occupied_cost` counts the first token's time too.
    """
    tpot = next((effect for effect in effects if effect.metric == TPOT), None)
    if profile.gpu_hour_price is None or tpot is None or tpot.candidate is None:
        return None

    def cost(tpot_ms: float | None) -> float | None:
        return None if tpot_ms is None else _cost(profile, tpot_ms)

    return TokenCost(stable=cost(tpot.stable), candidate=cost(tpot.candidate))


def occupied_cost(profile: Profile, measured: Summary) -> TokenCost | None:
    """Compute the cost of both sides from their records, none without a price or a measured candidate.

    By Little's law (J. D. C. Little, Operations Research 9, 1961) a replica that holds `n` requests, each for a time
    `w` and giving `k` tokens, gives `n x k / w` tokens a second. So the time of `token_cost` becomes the time that a
    request occupies its place for each token, queue and first token included: all requests' time over all their tokens.

    Output tokens a second of the benchmark itself are no measure of an engine: the load is open loop, so both sides are
    asked for the same number, far below what they are able to give.
    """
    if profile.gpu_hour_price is None:
        return None
    found = TokenCost(stable=_of_side(profile, measured.stable), candidate=_of_side(profile, measured.candidate))
    return None if found.candidate is None else found


def _of_side(profile: Profile, side: SideFigures | None) -> float | None:
    if side is None or side.e2e.mean_ms is None or not side.output_tokens:
        return None
    return _cost(profile, side.e2e.mean_ms * side.e2e.count / side.output_tokens)


def _cost(profile: Profile, token_ms: float) -> float:
    """Return the cost of a million tokens, of which each occupies one of a replica's places for so long."""
    price_per_s = (profile.gpu_hour_price or 0.0) * profile.hardware.per_replica / 3600
    return price_per_s * token_ms / 1e3 / profile.replicas.target_ongoing * 1e6
