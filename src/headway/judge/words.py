"""Effects in words."""

from headway.domain.release import MetricEffect

NAMES = {
    "ttft_p50": "median time to first token",
    "ttft_p95": "95th percentile of time to first token",
    "tpot_p50": "median time per output token",
    "tpot_p95": "95th percentile of time per output token",
    "ttft_p99": "99th percentile of time to first token",
    "tpot_p99": "99th percentile of time per output token",
    "error_rate": "error rate",
    "goodput": "share of requests within their limits",
}
"""What people call the metrics."""


def say(effect: MetricEffect) -> str:
    """Say an effect in words, with its bound and its margin."""
    name = NAMES[effect.metric]
    if effect.ratio is not None and effect.ratio_low is not None and effect.ratio_high is not None and effect.margin:
        return (
            f"{name} {_percent(effect.ratio)} ({_percent(effect.ratio_low)} to {_percent(effect.ratio_high)}, "
            f"margin +{effect.margin * 100:g} %)"
        )
    margin = effect.margin or 0.0
    worst = effect.difference_high if margin >= 0 else effect.difference_low
    if effect.difference is not None and worst is not None:
        most = "at most" if margin >= 0 else "at least"
        return f"{name} {effect.difference:+.2f} points ({most} {worst:+.2f}, margin {margin:+g})"
    measured = "not measured" if effect.candidate is None else f"{effect.candidate:.4g} {effect.unit}"
    return f"{name} {measured} (limit {effect.margin or 0:g} {effect.unit})"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %" if ratio < 10 else f"x{ratio:.3g}"
