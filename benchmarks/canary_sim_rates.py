"""Rates of the simulated benchmarks: requests that break a limit, and failures that come in some blocks only.

Every latency metric is equal and quiet here, so only the rate decides.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from benchmarks.canary_sim_model import BLOCKS, OWN, REQUESTS, SHARED, SPREAD, Floats
from headway.domain.profile import Canary, Goodput
from headway.judge.quantiles import LATENCIES
from headway.judge.rule import Blocks, Outcome, decide, rule_of

LATE = 0.1
"""Share of stable's requests that break the limit of goodput."""


class RateCell(NamedTuple):
    """What is worse on the candidate's side."""

    name: str
    spread: float = 0.0
    """Of goodput: standard deviation of one request's log latency, beside the block's luck; 0 judges failures."""
    worse: float = 1.0
    """How much higher the candidate's rate of bad requests is, in margins."""
    blocks_hit: float = 1.0
    """Of failures: the chance of each block to have them, always equally many; 1 makes each request fail by itself."""


RATE_CELLS = (
    RateCell("goodput, equal", spread=SPREAD, worse=0),
    RateCell("goodput, at the margin", spread=SPREAD),
    RateCell("goodput, narrow latencies, equal", spread=0.1, worse=0),
    RateCell("goodput, narrow latencies, at the margin", spread=0.1),
    RateCell("no failures", worse=0),
    RateCell("failures at the margin"),
    RateCell("failures at the margin, 4 at once in a quarter of the blocks", blocks_hit=1 / 4),
    RateCell("failures at the margin, 10 at once in a tenth of the blocks", blocks_hit=1 / 10),
    RateCell("failures at the margin, 30 at once in one block of 30", blocks_hit=1 / 30),
)


def canary_of(cell: RateCell) -> Canary:
    """Return the default canary, with a limit for good requests where that is what the cell is about."""
    goodput = Goodput(e2e_ms=1000) if cell.spread else None
    return Canary(blocks=BLOCKS, requests_per_block=REQUESTS, goodput=goodput)


def decide_rates(rng: np.random.Generator, runs: int, cell: RateCell) -> Outcome:
    """Decide benchmarks that differ in one rate alone."""
    rule = rule_of(canary_of(cell))
    margin = rule.rate_limits[-1]
    bad = np.zeros((runs, BLOCKS, len(rule.rate_limits), 2))
    excess = cell.worse * margin
    bad[:, :, -1] = late(rng, runs, cell.spread, excess) if cell.spread else failing(rng, runs, excess, cell.blocks_hit)
    ratios = np.zeros((runs, BLOCKS, len(LATENCIES)))
    return decide(Blocks(ratios, bad, np.full(bad.shape[1:], float(REQUESTS)), [True] * BLOCKS, [0] * BLOCKS), rule)


def late(rng: np.random.Generator, runs: int, spread: float, excess: float) -> Floats:
    """Count requests that break a limit, [run, block, side] with the candidate first.

    Latencies are lognormal around the block's level, and so slower on the candidate's side that this share of its
    requests more is late, over all blocks.
    """
    whole = math.sqrt(spread**2 + SHARED**2 + OWN**2)
    limit = -special.ndtri(LATE) * whole
    level = SHARED * rng.standard_normal((runs, BLOCKS, 1)) + OWN * rng.standard_normal((runs, BLOCKS, 2))
    level[..., 0] += limit + special.ndtri(LATE + excess) * whole
    counts: Floats = rng.binomial(REQUESTS, special.ndtr((level - limit) / spread)).astype(float)
    return counts


def failing(rng: np.random.Generator, runs: int, excess: float, blocks_hit: float) -> Floats:
    """Count failures, which only the candidate has; [run, block, side]."""
    if blocks_hit < 1:
        failed = (rng.random((runs, BLOCKS)) < blocks_hit) * round(REQUESTS * excess / blocks_hit)
    else:
        failed = rng.binomial(REQUESTS, excess, (runs, BLOCKS))
    return np.stack([failed, np.zeros_like(failed)], axis=-1).astype(float)
