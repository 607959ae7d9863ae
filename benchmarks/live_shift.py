"""How often the shift's live check takes back a candidate wrongly, and how fast it finds a bad one.

`PYTHONPATH=src:. python -m benchmarks.live_shift` draws many shifts whose counters are looked at after every scrape,
for hours, and asks three rules at each look:

    always valid   `headway.judge.live`: evidence that stays right however often it is looked at
    plain limits   the share itself against the limit (and more than one failure); mean latency against its limit
    repeated test  a one-sided z-test at the same level as the whole budget, once 20 requests are there

Everything is vectorized; the seed is fixed. Slow requests come from lognormal latencies; the sums of latencies for the
plain limit are drawn as normal, which matters for no other column.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from headway.domain.profile import Shift
from headway.judge import always_valid, live
from headway.release.shift import ANEW_EVERY, ANEW_LATEST

Array = np.ndarray[Any, np.dtype[Any]]

SEED = 20260302
SCRAPE_S = 2.0
A_LOOK = 16
"""Requests of both sides between two looks."""
SHARE = 0.25
SIGMA = 0.8
"""Of the logarithm of the latencies: the 95th percentile is 3.7 times the median."""
SHIFT = Shift(steps_pct=(5, 25, 50, 100))
CHUNK = 250
BAD_LOOKS = 5000
"""Nobody waits longer for a bad candidate to be found."""
STEP = int(ANEW_EVERY.total_seconds() / SCRAPE_S)
"""Looks between two starts of the evidence."""


class Case(NamedTuple):
    """One kind of shift that is drawn many times."""

    title: str
    draw: Callable[[np.random.Generator, int, int], "Drawn"]
    from_look: int = 0
    """When the candidate breaks; requests are counted from then on."""


class Drawn(NamedTuple):
    """Counters of some runs, one column a look, summed up; the first column is the step itself."""

    events: Array
    """Failed requests of the candidate, or slow ones."""
    trials: Array
    """Requests of the candidate, or the slow ones of both sides."""
    limit: float
    requests: Array
    """Requests of the candidate."""
    plain: Array
    """Whether the plain limit is broken."""
    tested: Array
    """Whether the repeated test rejects."""


def log_evidence(events: Array, trials: Array, limit: float, burst: float) -> Array:
    """Do what `always_valid.log_evidence` does, for arrays."""
    bad, good, prior = events / burst, (trials - events) / burst, always_valid.PRIOR
    with np.errstate(divide="ignore"):
        above = np.log(special.betaincc(prior + bad, prior + good, limit) / special.betaincc(prior, prior, limit))
    mixed = special.betaln(prior + bad, prior + good) - special.betaln(prior, prior) + above
    found: Array = mixed - bad * np.log(limit) - good * np.log1p(-limit)
    return found


def breaches(drawn: Drawn) -> Array:
    """Return the first look at which the shift would take back, by run; none is the number of looks."""
    looks = drawn.events.shape[1]
    first: Array = np.full(drawn.events.shape[0], looks)
    for piece in range(0, looks, STEP):
        until = min(looks, piece + STEP)
        for start in (0, *range(max(1, piece // STEP - ANEW_LATEST + 1), piece // STEP + 1)):
            alive = np.nonzero(first > piece)[0]
            origin = start * STEP
            events = drawn.events[alive, piece:until] - drawn.events[alive, origin : origin + 1]
            trials = drawn.trials[alive, piece:until] - drawn.trials[alive, origin : origin + 1]
            rows, columns = _sure(events, trials, drawn.limit, start)
            np.minimum.at(first, alive[rows], columns + piece)
    return first


def _sure(events: Array, trials: Array, limit: float, start: int) -> tuple[Array, Array]:
    """Return where the evidence from a start suffices."""
    alpha = always_valid.alpha_of_start(live.alpha_of_check(SHIFT), start)
    rows, columns = np.nonzero(events > limit * trials)
    k, n = events[rows, columns].astype(float), trials[rows, columns].astype(float)
    # No mixture exceeds the largest ratio in it, so most looks are settled by that.
    most = (special.xlogy(k, k / n / limit) + special.xlogy(n - k, (1 - k / n) / (1 - limit))) / SHIFT.burst
    maybe = most >= -np.log(alpha)
    rows, columns, k, n = rows[maybe], columns[maybe], k[maybe], n[maybe]
    sure = log_evidence(k, n, limit, SHIFT.burst) >= -np.log(alpha)
    return rows[sure], columns[sure]


def first_true(flags: Array) -> Array:
    """Return the first look with a flag, by run; none is the number of looks."""
    found: Array = np.where(flags.any(axis=1), flags.argmax(axis=1), flags.shape[1])
    return found


def failing(rate: float, *, burst: int = 1, good_looks: int = 0) -> Callable[[np.random.Generator, int, int], Drawn]:
    """Draw failures of the candidate's requests, so many at once, after so many looks without any."""

    def draw(rng: np.random.Generator, runs: int, looks: int) -> Drawn:
        requests = (
            rng.binomial(A_LOOK, SHARE, (runs, looks)) * burst if burst == 1 else _bursts(rng, runs, looks, burst)
        )
        failed = rng.binomial(requests // burst, rate) * burst
        failed[:, :good_looks] = 0
        k, n = _summed(failed), _summed(requests)
        limit = SHIFT.max_error_pct / 100
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(n > 0, k / np.maximum(n, 1), 0.0)
            z = (share - limit) / np.sqrt(limit * (1 - limit) / np.maximum(n, 1))
        plain = (share > limit) & (k > 1)
        return Drawn(k, n, limit, n, plain, (z > stats.norm.isf(SHIFT.alpha)) & (n >= live.MIN_REQUESTS))

    return draw


def _bursts(rng: np.random.Generator, runs: int, looks: int, burst: int) -> Array:
    """Return requests that come in bursts, with the same mean."""
    found: Array = rng.poisson(A_LOOK * SHARE / burst, (runs, looks)) * burst
    return found


def slow(times: float, *, wave: float = 1.0) -> Callable[[np.random.Generator, int, int], Drawn]:
    """Draw latencies of a candidate that is so many times slower, while all of it swings by this factor."""

    def draw(rng: np.random.Generator, runs: int, looks: int) -> Drawn:
        mine = rng.binomial(A_LOOK, SHARE, (runs, looks))
        theirs = A_LOOK - mine
        # Half a period is the whole step: the load rises and falls once.
        swing = np.log(wave) * np.sin(np.linspace(0, np.pi, looks))
        z = stats.norm.isf(live.TAIL)
        slow_stable = rng.binomial(theirs, stats.norm.sf(z - swing / SIGMA))
        slow_mine = rng.binomial(
            mine, stats.norm.sf(z + (np.log(SHIFT.max_latency_ratio) - np.log(times) - swing) / SIGMA)
        )
        mean, spread = np.exp(swing + SIGMA**2 / 2), np.sqrt(np.expm1(SIGMA**2)) * np.exp(swing + SIGMA**2 / 2)
        took = {}
        for name, count, factor in (("mine", mine, times), ("theirs", theirs, 1.0)):
            took[name] = _summed(np.multiply(factor, rng.normal(count * mean, np.sqrt(count) * spread)))
        k, k_s, n, n_s = _summed(slow_mine), _summed(slow_stable), _summed(mine), _summed(theirs)
        enough = (n >= live.MIN_REQUESTS) & (n_s >= live.MIN_REQUESTS)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (took["mine"] / n) / (took["theirs"] / n_s)
            pooled = (k + k_s) / (n + n_s)
            score = (k / n - k_s / n_s) / np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / n_s))
        return Drawn(
            k,
            k + k_s,
            always_valid.part_of(SHARE),
            n,
            enough & (ratio > SHIFT.max_latency_ratio),
            enough & (score > stats.norm.isf(SHIFT.alpha)),
        )

    return draw


def _summed(counts: Array) -> Array:
    found: Array = np.concatenate([np.zeros((counts.shape[0], 1), counts.dtype), np.cumsum(counts, axis=1)], axis=1)
    return found


def run(case: Case, runs: int, looks: int, rng: np.random.Generator) -> tuple[list[float], list[Array]]:
    """Return by rule how often it took back, and after how many of the candidate's requests."""
    hits, after = [0, 0, 0], [[], [], []]  # type: tuple[list[int], list[list[Array]]]
    for begin in range(0, runs, CHUNK):
        size = min(CHUNK, runs - begin)
        drawn = case.draw(rng, size, looks)
        for rule, first in enumerate((breaches(drawn), first_true(drawn.plain), first_true(drawn.tested))):
            found = np.nonzero(first <= looks)[0]
            found = found[first[found] < drawn.events.shape[1]]
            hits[rule] += len(found)
            after[rule].append(
                drawn.requests[found, first[found]] - drawn.requests[found, np.minimum(case.from_look, first[found])]
            )
    return [hit / runs for hit in hits], [np.concatenate(found) for found in after]


CALM = (
    Case("failures 0.1 %, limit 1 %", failing(0.001)),
    Case("failures 0.5 %", failing(0.005)),
    Case("failures 1 %: at the limit", failing(0.01)),
    Case("the same, in bursts of 4", failing(0.01, burst=4)),
    Case("the same, in bursts of 16 (4 declared)", failing(0.01, burst=16)),
    Case("as fast as stable, limit 2 times", slow(1.0)),
    Case("2 times as slow: at the limit", slow(2.0)),
    Case("the same, while the load triples all times", slow(2.0, wave=3.0)),
)
BAD = (
    Case("failures 2 %", failing(0.02)),
    Case("failures 5 %", failing(0.05)),
    Case("failures 20 %", failing(0.2)),
    Case("failures 100 %", failing(1.0)),
    Case("failures 20 % after an hour without any", failing(0.2, good_looks=1800), from_look=1800),
    Case("failures 100 % after an hour without any", failing(1.0, good_looks=1800), from_look=1800),
    Case("2.5 times as slow", slow(2.5)),
    Case("3 times as slow", slow(3.0)),
    Case("4 times as slow", slow(4.0)),
    Case("8 times as slow", slow(8.0)),
)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--looks", type=int, default=10_000)
    given = parser.parse_args()
    rng = np.random.default_rng(SEED)
    _agrees(rng)
    rules = ("always valid", "plain limits", "repeated test")
    print(
        f"{given.runs} runs a row, {given.looks} looks {SCRAPE_S:g} s apart, "
        f"{SHARE * A_LOOK:g} requests of the candidate a look at {100 * SHARE:g} % of the traffic;\n"
        f"alpha {SHIFT.alpha:g} a shift, of which {live.alpha_of_check(SHIFT):.3g} is one check's in one step; "
        f"bursts of {SHIFT.burst}.\n"
    )
    print("Taken back, % of the runs (95 % interval)")
    print(f"{'':45}" + "".join(f"{rule:>24}" for rule in rules))
    for case in CALM:
        shares, _ = run(case, given.runs, given.looks, rng)
        cells = [f"{100 * share:.2f} ({_interval(share, given.runs)})" for share in shares]
        print(f"{case.title:45}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    print("\nRequests of the candidate until it is taken back: median, 95th percentile (% found")
    print(f"within {min(given.looks, BAD_LOOKS)} looks)")
    print(f"{'':45}" + "".join(f"{rule:>24}" for rule in rules))
    for case in BAD:
        shares, after = run(case, given.runs, min(given.looks, BAD_LOOKS), rng)
        cells = [
            f"{np.median(n):.0f}, {np.quantile(n, 0.95):.0f} ({100 * share:.4g})" if len(n) else "never"
            for share, n in zip(shares, after, strict=True)
        ]
        print(f"{case.title:45}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    alpha = always_valid.alpha_of_start(live.alpha_of_check(SHIFT), 0)
    needed = [
        f"{rate:g} %: {always_valid.events_needed(0.01, alpha, burst=SHIFT.burst, rate=rate / 100)}"
        for rate in (2, 5, 20, 50, 100)
    ]
    print(f"\nRequests at a steady rate of failures until the evidence suffices, limit 1 %: {'; '.join(needed)}")


def _agrees(rng: np.random.Generator) -> None:
    """Fail if the arrays are not reckoned as the judge does."""
    for trials in (1, 7, 300, 20_000):
        for events in rng.integers(0, trials + 1, 5).tolist():
            ours = float(log_evidence(np.array([float(events)]), np.array([float(trials)]), 0.3, 4.0)[0])
            theirs = always_valid.log_evidence(events, trials, 0.3, burst=4)
            if not (ours == theirs or abs(ours - theirs) < 1e-6 * max(1.0, abs(theirs))):
                raise SystemExit(f"evidence of {events} in {trials}: {ours} here, {theirs} in the judge")


def _interval(share: float, runs: int) -> str:
    low, high = stats.binomtest(round(share * runs), runs).proportion_ci(0.95, "exact")
    return f"{100 * low:.2f} to {100 * high:.2f}"


if __name__ == "__main__":
    main()
