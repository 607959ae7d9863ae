"""How often a canary's margins are wrong: what a profile publishes of it, and what is wrong with what it publishes.

The figures come from real decisions or from recorded blocks that were drawn again (`judge.resample`); the bounds are
exact (C. J. Clopper, E. S. Pearson, "The use of confidence or fiducial limits", Biometrika 26, 1934).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from headway.domain.profile import Canary, Trials
from headway.domain.value import digest
from headway.judge.records import Run
from headway.judge.rule import rule_of
from headway.judge.sequential import t_of

MOST_FALSE_PROMOTION = 0.05
"""What the bound on promoting a candidate that is worse by a margin may be; the rule's own `ALPHA`."""
CONFIDENCE = 0.95
NEAR_MARGIN = 0.02
"""How far from a margin, as a share of it, a trial counts as at it: what rounding of an injected delay costs. A
candidate that is worse by more is easier to take back, and says nothing about the margin."""

EVERY_REQUEST, SLOW_REQUESTS, FIRST_TOKEN = "p50", "p95", "ttft_p50"
"""`Trials.metric` of what was injected: every latency longer by the share; only those of each block's slowest requests,
from the 95th percentile on; a delay before every request, which reaches the time to first token alone."""

DECIDES = (
    "p50_margin", "p95_margin", "p99_guard", "error_margin_pct", "goodput", "blocks", "looks", "requests_per_block",
    "rate_per_s", "api", "arrivals", "burstiness", "max_tokens", "prompts", "shared_prefix_pct",
)  # fmt: skip
"""Keys of the canary that evidence belongs to: margins, looks and load."""
DECIDES_NOTHING = (
    # What the evidence itself is, what is judged apart from the paired rule, and when a block or request is given up.
    "evidence", "guards", "trace", "warmup_requests", "first_ttft_p95_ms", "first_tpot_p95_ms", "first_error_pct",
    "max_lag_ms", "request_timeout_s", "demo_margins",
)  # fmt: skip


class Recovery(NamedTuple):
    """Whether a delay that was injected was measured."""

    injected_ms: float
    measured_ms: float
    low_ms: float
    high_ms: float
    found: bool


def rule_digest(canary: Canary) -> str:
    """Name what decides: evidence for other margins, blocks, looks, load or another rule is no evidence."""
    plain = canary.to_json()
    declared = rule_of(canary)
    return digest(
        {**{key: plain[key] for key in DECIDES}, "looks": list(declared.looks), "alphas": list(declared.low_alphas)}
    )


def flaw(canary: Canary, hardware: str) -> str:
    """Say why nobody knows how often these margins are wrong on this hardware; empty if it is known and good enough.

    Args:
        canary: The profile's.
        hardware: Its accelerator.
    """
    evidence = canary.evidence
    again = "run `headway calibrate`"
    if evidence is None:
        return f"the canary's margins have no evidence: nobody measured how often they are wrong; {again}"
    if evidence.hardware != hardware:
        return f"the canary's evidence was measured on {evidence.hardware}, the profile is for {hardware}; {again}"
    if evidence.rule != rule_digest(canary):
        return f"the canary's evidence is of other margins, blocks or load than the profile's; {again}"
    worst = [trial for trial in evidence.trials if _at_margin(trial, canary)]
    if not worst:
        return f"the canary's evidence says nothing about a candidate that is worse by a margin; {again}"
    for trial in worst:
        _, high = clopper_pearson(trial.promoted, trial.decisions)
        if high > MOST_FALSE_PROMOTION:
            return (
                f"the canary promoted {trial.promoted} of {trial.decisions} candidates whose {trial.metric} was slower "
                f"by {trial.slower_pct:g} %, so up to {high * 100:.1f} % may be; at most "
                f"{MOST_FALSE_PROMOTION * 100:g} % should: measure more decisions, or widen blocks or margins"
            )
    return ""


def clopper_pearson(count: int, of: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact two-sided interval of a share; (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(count, of - count + 1, tail)) if count else 0.0
    high = float(special.betaincinv(count + 1, of - count, 1 - tail)) if count < of else 1.0
    return low, high


def recovered(runs: Sequence[Run], injected_ms: float) -> Recovery:
    """Look for a delay that was put before every request of the candidate.

    A block's figure is the median over its pairs of how much later the candidate's first token came. The delay is found
    if the interval of the blocks' mean does not reach 0 and holds the delay, give or take a tenth of it.
    """
    medians = []
    for run in runs:
        pairs: dict[tuple[int, int], dict[str, float]] = {}
        for r in run.records:
            if r.error is None and r.ttft_ms is not None:
                pairs.setdefault((r.block, r.index), {})[r.side] = r.ttft_ms
        by_block: dict[int, list[float]] = {}
        for (block, _), found in pairs.items():
            if len(found) == 2:
                by_block.setdefault(block, []).append(found["candidate"] - found["stable"])
        medians += [float(np.median(values)) for values in by_block.values()]
    if len(medians) < 2:
        return Recovery(injected_ms, math.nan, -math.inf, math.inf, found=False)
    mean = float(np.mean(medians))
    reach = t_of((1 - CONFIDENCE) / 2, len(medians) - 1) * float(np.std(medians, ddof=1)) / math.sqrt(len(medians))
    slack = 0.1 * injected_ms
    there = mean - reach > 0 and mean - reach - slack <= injected_ms <= mean + reach + slack
    return Recovery(injected_ms, mean, mean - reach, mean + reach, found=there)


def _at_margin(trial: Trials, canary: Canary) -> bool:
    """Tell the trials in which something is worse by a margin: the hardest candidates that must not pass."""
    margin_pct = {EVERY_REQUEST: canary.p50_margin, SLOW_REQUESTS: canary.p95_margin, FIRST_TOKEN: canary.p50_margin}
    wanted = margin_pct.get(trial.metric, math.inf) * 100
    return wanted * (1 - NEAR_MARGIN) <= trial.slower_pct <= wanted * (1 + NEAR_MARGIN)
