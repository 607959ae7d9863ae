"""How often real decisions are wrong: `python -m benchmarks.canary_real --folder DIR [--minutes M] [--decisions N]`.

Equal sides (A/A), and a candidate whose every latency is longer by 15 % (A/B), in turn: two mock servers in processes
of their own, the bench program as a release runs it, and the judge on the records it left. Each decision has servers
with other seeds. Decisions are kept in the folder as they are made, so a run that was stopped goes on; the table is of
all that are there.

The load is as small as a decision can be, so that hundreds fit into an hour or two. The latencies' margins are the
defaults: the spread of equal sides that is printed at the end (medians 1 to 5 %, 95th percentiles 6 to 7 % on two busy
cores) lets them decide within 20 blocks. That of the error rate is twice the default, because 100 requests a block
would otherwise need 12 blocks to show half a percent, without a single failure.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.mock import port_of
from headway.domain.bench import BenchJob, Side, SideTarget
from headway.domain.profile import Canary
from headway.errors import HeadwayError
from headway.judge import replay
from headway.judge.calibrate import clopper_pearson
from headway.judge.records import parse
from headway.judge.resample import spread
from headway.pods import bench

TTFT_MS, ITL_MS, SIGMA = 40.0, 4.0, 0.15
SLOWER = 1.15
CANARY = Canary(
    blocks=20,
    requests_per_block=100,
    rate_per_s=100,
    max_tokens=8,
    warmup_requests=10,
    p50_margin=0.075,
    p95_margin=0.10,
    p99_guard=0.20,
    error_margin_pct=1.0,
    max_lag_ms=40,
)
KINDS: tuple[tuple[str, float], ...] = (("A/A", 1.0), ("A/B +15 %", SLOWER))
RESULTS = "decisions.jsonl"


class Made(NamedTuple):
    """One decision."""

    kind: str
    number: int
    decision: str
    blocks: int
    seconds: float
    """From the first scheduled arrival to the last end."""
    sentence: str


@contextmanager
def servers(folder: Path, number: int, factor: float) -> Iterator[tuple[SideTarget, ...]]:
    """Start stable and candidate; both as processes, so that neither shares the other's interpreter."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        targets = []
        sides: tuple[tuple[Side, float], ...] = (("stable", 1.0), ("candidate", factor))
        for place, (side, by) in enumerate(sides):
            port_file = folder / f"{side}.port"
            port_file.unlink(missing_ok=True)
            options = {
                "port": 0,
                "port-file": port_file,
                "release": side,
                "ttft-ms": TTFT_MS * by,
                "itl-ms": ITL_MS * by,
                "sigma": SIGMA,
                "seed": 2 * number + place,
            }
            words = [part for name, value in options.items() for part in (f"--{name}", str(value))]
            started.append(subprocess.Popen([sys.executable, "-m", "headway.pods.mock_vllm", *words]))
            url = f"http://127.0.0.1:{port_of(started[-1], port_file)}"
            targets.append(SideTarget(side=side, base_url=url, served_model="m", release=side))
        yield tuple(targets)
    finally:
        for server in started:
            server.terminate()
            server.wait(10)


def decide(folder: Path, kind: str, number: int, factor: float) -> Made:
    """Make one decision and keep its records."""
    name = f"{'aa' if factor == 1 else 'ab'}-{number:04d}"
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    with servers(own, number, factor) as targets:
        job = BenchJob(release="candidate", targets=targets, canary=CANARY, seed=number)
        asyncio.run(bench.run(job, own, lambda _percent, _text: None))
    run = parse((own / "records.jsonl").read_bytes())
    verdict = replay.decide(run, replay.basis_of(run, CANARY))
    seconds = max(s.ended_s for s in run.summaries) - min(s.started_s for s in run.summaries)
    return Made(kind, number, verdict.decision, verdict.blocks_used, round(seconds, 2), verdict.sentence)


def kept(folder: Path) -> list[Made]:
    """Return the decisions that were made before."""
    path = folder / RESULTS
    return [Made(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def table(made: Sequence[Made]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| sides | decisions | promoted | rolled back | held | blocks | time to decision |"
    yield "|---|---|---|---|---|---|---|"
    for kind, _ in KINDS:
        own = [m for m in made if m.kind == kind]
        if not own:
            continue
        shares = []
        for decision in ("PROMOTE", "ROLLBACK", "HOLD"):
            count = sum(m.decision == decision for m in own)
            low, high = clopper_pearson(count, len(own))
            shares.append(f"{count} = {count / len(own) * 100:.1f} % ({low * 100:.1f} to {high * 100:.1f})")
        blocks, seconds = (np.array([getattr(m, field) for m in own]) for field in ("blocks", "seconds"))
        yield (
            f"| {kind} | {len(own)} | {' | '.join(shares)} | {blocks.mean():.1f} (median {np.median(blocks):.0f}) | "
            f"{seconds.mean():.1f} s (up to {seconds.max():.1f} s) |"
        )


def main() -> None:
    """Make decisions until there are enough or the time is over, then print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, default=Path("canary-real"))
    parser.add_argument("--decisions", type=int, default=150, help="of each kind")
    parser.add_argument("--minutes", type=float, default=240.0)
    given: Any = parser.parse_args()
    # As after Ctrl-C: the servers of the decision at work end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given.folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.minutes * 60
    made = kept(given.folder)
    there = {(m.kind, m.number) for m in made}
    for number in range(given.decisions):
        for kind, factor in KINDS:
            if (kind, number) in there or time.monotonic() > until:
                continue
            try:
                made.append(decide(given.folder, kind, number, factor))
            except HeadwayError as error:
                # Not counted: the benchmark itself could not be run, and the next run tries it again.
                print(f"{kind} {number}: {error.message}", file=sys.stderr, flush=True)
                continue
            with (given.folder / RESULTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(made[-1]._asdict()) + "\n")
            print(f"{kind} {number}: {made[-1].sentence[:160]} [{made[-1].seconds:.1f} s]", flush=True)
    print("\n".join(["", *table(made)]))
    runs = [parse(path.read_bytes()) for path in sorted(given.folder.glob("aa-*/records.jsonl"))]
    try:
        found = ", ".join(f"{name} {value * 100:.1f} %" for name, value in spread(runs, CANARY).items())
    except HeadwayError as error:
        found = f"not known ({error.message})"
    print(f"\nSpread of the log ratio of equal sides, block by block: {found}")


if __name__ == "__main__":
    main()
