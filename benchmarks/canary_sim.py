"""How often the canary's rule is wrong, and how long it takes, beside the rules of others.

    PYTHONPATH=src:. python -m benchmarks.canary_sim [--runs N] [--latencies ttft]

Every row decides the same simulated benchmarks (`canary_sim_model`), with fixed seeds. headway's rows are made by the
very function that decides a release (`headway.judge.rule.decide`) under the default margins. The rows of rates
(`canary_sim_rates`) have no peers.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import canary_sim_peers as peers
from benchmarks.canary_sim_model import BLOCKS, PERCENTS, REQUESTS, Cell, Floats, Luck, draw, measure
from benchmarks.canary_sim_rates import RATE_CELLS, RateCell, decide_rates
from headway.domain.profile import Canary
from headway.judge.calibrate import clopper_pearson
from headway.judge.quantiles import LATENCIES
from headway.judge.rule import PROMOTE, ROLLBACK, Blocks, Rule, decide, rule_of

RUNS = 20_000
CHUNK = 2_000
"""Runs at a time; about 300 MiB."""
SEED = 20_260_501
KINDS = ("ttft", "tpot")

CELLS = (
    Cell("equal (A/A)"),
    *(Cell(f"+{pct:g} %", slower=(pct / 100, pct / 100)) for pct in (3.75, 5, 7.5, 10, 15)),
    Cell("TTFT alone +7.5 %", slower=(0.075, 0.0)),
    Cell("p95 of TTFT and TPOT +15 %", tail=(0.15, 0.15)),
    Cell("p95 of TTFT alone +15 %", tail=(0.15, 0.0)),
    Cell("stalls x2", stalls=2),
    Cell("stalls x3", stalls=3),
    *(
        Cell(f"{name}, {how}", slower=(share, share), lottery=True, swapped=swapped)
        for swapped, how in ((False, "2 % lottery"), (True, "2 % lottery, swapped"))
        for name, share in (("equal", 0.0), ("+7.5 %", 0.075), ("+15 %", 0.15))
    ),
)


class Tally(NamedTuple):
    """What the decisions of one rule on one cell came to."""

    cell: str
    rule: str
    promoted: int
    rolled_back: int
    held: int
    mean_blocks: float


def simulate(runs: int, cells: Sequence[Cell] = CELLS, kinds: Sequence[str] = KINDS, seed: int = SEED) -> list[Tally]:
    """Decide many benchmarks by every rule.

    Args:
        runs: Benchmarks of each cell.
        cells: What is different on the candidate's side.
        kinds: The latencies that are judged.
        seed: Of all luck; it is the same for every cell and rule.
    """
    counts: dict[tuple[str, str], Floats] = {}
    for luck in _chunks(runs, seed):
        for cell in cells:
            logs = _columns(measure(luck, cell), kinds)
            for name, decided in _rules(cell, kinds):
                decision, used = decided(logs)
                promoted, back = float((decision == PROMOTE).sum()), float((decision == ROLLBACK).sum())
                found = np.array([promoted, back, len(decision) - promoted - back, used.sum()])
                counts[cell.name, name] = counts.get((cell.name, name), np.zeros(4)) + found
    return [
        Tally(cell, rule, int(found[0]), int(found[1]), int(found[2]), float(found[3]) / runs)
        for (cell, rule), found in counts.items()
    ]


def simulate_rates(runs: int, cells: Sequence[RateCell] = RATE_CELLS, seed: int = SEED) -> list[Tally]:
    """Decide many benchmarks whose sides differ in one rate alone; see `simulate`."""
    tallies = []
    for cell in cells:
        outcome = decide_rates(np.random.default_rng((seed, runs)), runs, cell)
        promoted, back = (int((outcome.decision == decision).sum()) for decision in (PROMOTE, ROLLBACK))
        mean_blocks = float(outcome.blocks.mean())
        tallies.append(Tally(cell.name, "headway", promoted, back, runs - promoted - back, mean_blocks))
    return tallies


def ours(logs: Floats, rule: Rule, placement: Sequence[int]) -> peers.Decided:
    """Decide by headway's rule; no request fails.

    Args:
        logs: [run, block, side, metric]: log latencies; side 0 is stable.
        rule: With as many latency metrics, and the error rate.
        placement: Which way round the machines were, by block.
    """
    runs, blocks = logs.shape[:2]
    sent = np.full((blocks, len(rule.rate_limits), 2), float(REQUESTS))
    ratios = logs[:, :, 1] - logs[:, :, 0]
    outcome = decide(Blocks(ratios, np.zeros((runs, *sent.shape)), sent, [True] * blocks, placement), rule)
    return outcome.decision, outcome.blocks


def judged(kinds: Sequence[str]) -> Rule:
    """Return the default rule with these latencies only."""
    whole = rule_of(Canary(blocks=BLOCKS, requests_per_block=REQUESTS))
    keep = [name.split("_")[0] in kinds for name, _, _ in LATENCIES]
    limits = tuple(limit for limit, kept in zip(whole.limits, keep, strict=True) if kept)
    return whole._replace(limits=limits, guards=tuple(g for g, kept in zip(whole.guards, keep, strict=True) if kept))


def table(tallies: Sequence[Tally]) -> str:
    """Return the results as a Markdown table, with exact 95 % intervals."""
    lines = ["| candidate | rule | promoted % | rolled back % | held % | mean blocks |", "|---|---|---|---|---|---|"]
    for t in tallies:
        of = t.promoted + t.rolled_back + t.held
        shares = (_share(count, of) for count in (t.promoted, t.rolled_back, t.held))
        lines.append(f"| {t.cell} | {t.rule} | {' | '.join(shares)} | {t.mean_blocks:.1f} |")
    return "\n".join(lines)


def _share(count: int, of: int) -> str:
    low, high = clopper_pearson(count, of)
    return f"{100 * count / of:.2f} ({100 * low:.2f} to {100 * high:.2f})"


def _chunks(runs: int, seed: int) -> Iterator[Luck]:
    for number, first in enumerate(range(0, runs, CHUNK)):
        yield draw(np.random.default_rng((seed, number)), min(CHUNK, runs - first))


def _columns(logs: Floats, kinds: Sequence[str]) -> Floats:
    """Return [run, block, side, metric] in the order of `LATENCIES`, of some kinds."""
    wanted = [(name.split("_")[0], percent) for name, _, percent in LATENCIES]
    return np.stack(
        [logs[..., KINDS.index(kind), PERCENTS.index(int(percent))] for kind, percent in wanted if kind in kinds],
        axis=-1,
    )


def _rules(cell: Cell, kinds: Sequence[str]) -> list[tuple[str, Callable[[Floats], peers.Decided]]]:
    rule = judged(kinds)
    percents = np.array([percent for name, _, percent in LATENCIES if name.split("_")[0] in kinds])
    tail, judged_ones = percents == 95, percents < 99
    limits = np.array(rule.limits)[judged_ones]
    return [
        ("headway", lambda logs: ours(logs, rule, cell.placement)),
        ("headway before", lambda logs: peers.before(logs[..., judged_ones], limits)),
        ("Flagger-style", lambda logs: peers.flagger(logs[..., tail])),
        ("Argo-style", lambda logs: peers.argo(logs[..., tail])),
        ("Kayenta's judge", lambda logs: peers.kayenta(logs[..., judged_ones])),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="benchmarks of each cell (default %(default)s)")
    parser.add_argument("--latencies", nargs="+", choices=KINDS, default=list(KINDS), help="what is judged")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    tallies = simulate(options.runs, kinds=options.latencies) + simulate_rates(options.runs)
    sys.stdout.write(
        f"{options.runs} benchmarks a row, {BLOCKS} blocks of {REQUESTS} requests a side, judged: "
        f"{', '.join(options.latencies)}; {time.monotonic() - started:.0f} s\n\n{table(tallies)}\n"
    )


if __name__ == "__main__":
    main()
