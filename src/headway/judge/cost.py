"""What a million output tokens cost on each side, from what the benchmark measured."""

from collections.abc import Sequence

from headway.domain.profile import Profile
from headway.domain.release import MetricEffect
from headway.domain.value import Value

TPOT = "tpot_p50"


class TokenCost(Value):
    """Cost of a million output tokens, in the currency of `gpu_hour_price`."""

    stable: float | None
    candidate: float | None


def token_cost(profile: Profile, effects: Sequence[MetricEffect]) -> TokenCost | None:
    """Compute the cost of both sides, none without a price or a time per token.

    With `n` requests in flight on a replica (`replicas.target_ongoing`, at which the autoscaler holds it) and `t` the
    median time per output token, a replica gives `n / t` tokens a second:

        cost = gpu_hour_price x accelerators a replica / 3600 x t / n x 1e6

    `t` is the benchmark's, at the benchmark's load. Under more load it grows on both sides, so the ratio of the two
    says more than either figure.
    """
    tpot = next((effect for effect in effects if effect.metric == TPOT), None)
    if profile.gpu_hour_price is None or tpot is None or tpot.candidate is None:
        return None
    price_per_s = profile.gpu_hour_price * profile.hardware.per_replica / 3600

    def cost(tpot_ms: float | None) -> float | None:
        return None if tpot_ms is None else price_per_s * tpot_ms / 1e3 / profile.replicas.target_ongoing * 1e6

    return TokenCost(stable=cost(tpot.stable), candidate=cost(tpot.candidate))
