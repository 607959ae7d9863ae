"""Effects in words."""

from headway.domain.release import MetricEffect

NAMES = {
    "ttft_p50": "median time to first token",
    "ttft_p95": "95th percentile of time to first token",
    "tpot_p50": "median time per output token",
    "tpot_p95": "95th percentile of time per output token",
    "error_rate": "error rate",
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
    if effect.difference is not None and effect.difference_high is not None:
        return (
            f"{name} {effect.difference:+.2f} points (at most {effect.difference_high:+.2f}, margin "
            f"+{effect.margin or 0:g})"
        )
    measured = "not measured" if effect.candidate is None else f"{effect.candidate:.4g} {effect.unit}"
    return f"{name} {measured} (limit {effect.margin or 0:g} {effect.unit})"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %" if ratio < 10 else f"x{ratio:.3g}"
