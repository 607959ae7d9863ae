"""What the simulated benchmarks measure: log quantiles of the latencies of two sides, block by block.

The model is an assumption, not a measurement. One request's latency is lognormal around the block's level; 2 % of the
requests are stalls, which lie about four times higher and vary more. All requests of a block share its luck (10 %), and
each side has luck of its own (4 %: its machine, so times to first token and times per output token share it). With 200
requests a block and side, the log ratio of equal sides then has a standard deviation of 0.073 (median), 0.12 (95th
percentile) and 0.50 (99th).

No request is drawn and nothing is sorted: within a block the requests are independent, so their survival probabilities
are uniform, and the order statistics of uniforms are ratios of sums of exponential gaps (L. Devroye, "Non-Uniform
Random Variate Generation", 1986, chapter V.2). The sum of the gaps between two ranks is one gamma variate. So the few
ranks that numpy's percentiles need come from as many draws, with exactly the joint distribution that sorting 200
latencies would give, and the inverse of the survival function turns them into latencies. A regression changes that
function, or adds to the logarithm; the uniforms stay, so all rows of the table see the same luck.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats: TypeAlias = NDArray[np.float64]

BLOCKS, REQUESTS = 30, 200
SPREAD = 0.36
STALL_FACTOR, STALL_SPREAD = 4.05, 0.6
SHARED, OWN = 0.10, 0.04
HARDWARE = 0.02
"""Of the lottery: standard deviation of the log ratio of the two machines' speeds."""
TAIL = 0.1
"""Share of the requests that a regression of the tail makes slower."""
PERCENTS = (50, 95, 99)


class Cell(NamedTuple):
    """What is different on the candidate's side."""

    name: str
    slower: tuple[float, float] = (0.0, 0.0)
    """By which share every time to first token is longer, and every time per output token."""
    tail: tuple[float, float] = (0.0, 0.0)
    """The same of the slowest tenth of the requests only."""
    stalls: float = 1.0
    """How many times as many requests stall."""
    lottery: bool = False
    """Whether the two machines differ."""
    swapped: bool = False
    """Whether they change sides after every block."""

    @property
    def placement(self) -> list[int]:
        """Which way round the machines were given, by block."""
        return [1 + block % 2 if self.swapped else 0 for block in range(BLOCKS)]


class Luck(NamedTuple):
    """All chance of some runs."""

    survival: Floats
    """[run, block, side, latency, rank]; side 0 is stable, latency 0 the time to first token."""
    level: Floats
    """[run, block, side]: log level."""
    hardware: Floats
    """[run]: log of how much slower one machine is than the other one."""


def draw(rng: np.random.Generator, runs: int) -> Luck:
    """Draw the luck of some runs."""
    shared = SHARED * rng.standard_normal((runs, BLOCKS, 1))
    level = shared + OWN * rng.standard_normal((runs, BLOCKS, 2))
    return Luck(survivals(rng, (runs, BLOCKS, 2, 2)), level, HARDWARE * rng.standard_normal(runs))


def measure(luck: Luck, cell: Cell) -> Floats:
    """Return what the benchmark measures, [run, block, side, latency, percentile]: log latencies."""
    stable = log_at(luck.survival[:, :, 0], stalls=0.02)
    candidate = log_at(luck.survival[:, :, 1], stalls=0.02 * cell.stalls)
    slow = luck.survival[:, :, 1] < TAIL
    candidate += np.log1p(np.array(cell.slower))[:, None] + slow * np.log1p(np.array(cell.tail))[:, None]
    logs = log_quantiles(np.stack([stable, candidate], axis=2)) + luck.level[..., None, None]
    if cell.lottery:
        signs = np.array([-1.0 if placed == 2 else 1.0 for placed in cell.placement])
        logs[:, :, 1] += (luck.hardware[:, None] * signs)[..., None, None]
    return logs


def log_at(survival: Floats, *, stalls: float) -> Floats:
    """Return the log latencies that are exceeded with these probabilities."""
    x = np.linspace(-2.5, 6.0, 8000)
    above = (1 - stalls) * special.ndtr(-x / SPREAD)
    above += stalls * special.ndtr(-(x - math.log(STALL_FACTOR)) / STALL_SPREAD)
    found: Floats = np.interp(survival, above[::-1], x[::-1])
    return found


def ranks(requests: int = REQUESTS) -> tuple[int, ...]:
    """Return the ranks, counted from the slowest, between which numpy's percentiles interpolate."""
    at = {math.floor((requests - 1) * percent / 100) for percent in PERCENTS}
    return tuple(sorted({requests - k for k in at} | {requests - k - 1 for k in at if k + 1 < requests}))


def survivals(rng: np.random.Generator, shape: tuple[int, ...], requests: int = REQUESTS) -> Floats:
    """Draw the survival probabilities of the latencies at `ranks`, along a last axis."""
    steps = np.diff([0, *ranks(requests), requests + 1])
    sums = np.cumsum(rng.standard_gamma(steps, size=(*shape, len(steps))), axis=-1)
    return sums[..., :-1] / sums[..., -1:]


def log_quantiles(logs: Floats, requests: int = REQUESTS) -> Floats:
    """Turn log latencies at `ranks` into log percentiles (numpy's linear interpolation), along the last axis."""
    place = {rank: index for index, rank in enumerate(ranks(requests))}
    found = []
    for percent in PERCENTS:
        at = (requests - 1) * percent / 100
        below = math.floor(at)
        low = np.exp(logs[..., place[requests - below]])
        high = np.exp(logs[..., place[max(requests - below - 1, 1)]])
        found.append(np.log(low + (at - below) * (high - low)))
    return np.stack(found, axis=-1)
