"""The load generator against its peers: `PYTHONPATH=src:. python -m benchmarks.generator`.

Three tables. How late requests leave, by rate and by processes, with httpx as the client of the same load for a peer;
medians of TTFT and TPOT beside `vllm.benchmarks.serve`, taking turns on one server; and how long a look takes.

The server is headway's mock server on a core of its own. `--url` measures a real vLLM instead (the second table only).
"""

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.mock import port_of
from headway.domain.bench import BenchJob, BlockSummary, RequestRecord, SideTarget
from headway.domain.profile import Canary
from headway.judge.quantiles import quantile
from headway.judge.records import block_line, header_line, parse, request_line
from headway.judge.verdict import analyse
from headway.pods.bench_load import Load
from headway.pods.bench_prompts import Ask, Prompts
from headway.pods.bench_stream import Clock, body_of

CHECKOUT = Path(__file__).parents[1]
MODEL, TTFT_MS, ITL_MS, SIGMA = "m", 60.0, 8.0, 0.1
RATES_PER_S = (100, 200, 300, 400)
PROCESSES = (1, 2)
TOKENS = 16
LONG = (200, 64)
"""Streams a second and tokens an answer: as many tokens as one process is trusted with."""
SERVE_TOKENS = 32
SERVE_PROGRAM = """
import argparse, sys
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args(sys.argv[1:]))
"""


class ServeLoad(NamedTuple):
    """A round of the second table."""

    rate_per_s: float = 10.0
    requests: int = 100


class Drive(NamedTuple):
    """What one client did in one round."""

    records: list[RequestRecord]
    summary: BlockSummary


class Cell(NamedTuple):
    """One row of the first table."""

    client: str
    processes: int
    rate_per_s: int
    """Of both sides together."""
    tokens: int


class Medians(NamedTuple):
    """Of one round."""

    ttft_ms: list[float]
    tpot_ms: list[float]


def job(url: str, model: str, *, rate_per_s: float, requests: int, tokens: int, seed: int, paired: bool) -> BenchJob:
    """Return a job of one block against one server, which is both sides where it is paired."""
    sides = ("stable", "candidate") if paired else ("candidate",)
    targets = [SideTarget(side=side, base_url=url, served_model=model, release="r1") for side in sides]  # type: ignore[arg-type]
    canary = Canary(
        blocks=2,
        requests_per_block=requests,
        rate_per_s=rate_per_s,
        max_tokens=tokens,
        warmup_requests=8,
        max_lag_ms=1e6,
    )
    return BenchJob(release="r1", targets=tuple(targets), canary=canary, seed=seed)


@contextmanager
def mock_server(folder: Path, core: int) -> Iterator[str]:
    """Run the mock server on one core; yield its address."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    figures = ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--sigma", str(SIGMA)]
    command = [sys.executable, "-m", "headway.pods.mock_vllm", "--port-file", str(port_file), *figures]
    server = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {core}))  # noqa: PLW1509 - one thread
    try:
        yield f"http://127.0.0.1:{port_of(server, port_file)}"
    finally:
        server.terminate()
        server.wait(10)


async def headway_client(work: BenchJob, processes: int) -> Drive:
    """Drive one block with headway's generator."""
    prompts = Prompts(work)
    async with Load(work, Clock(), processes=processes) as load:
        await load.run_block(0, prompts.warm_up())
        return Drive(*await load.run_block(1, prompts.block(1), stop_early=False))


async def httpx_client(work: BenchJob) -> tuple[list[float], float]:
    """Drive the same block with httpx in one process; return how late each request left, and the use of the core."""
    import httpx

    clock, lags_ms = Clock(), list[float]()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=120) as client:

        async def one(target: SideTarget, ask: Ask) -> None:
            lags_ms.append((clock.now() - ask.at_s) * 1e3)
            body = body_of(ask, target.served_model, "completions")
            async with client.stream("POST", f"{target.base_url}/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        json.loads(line[6:])

        cpu_s, clock = time.thread_time(), Clock()
        async with asyncio.TaskGroup() as group:
            for ask in Prompts(work).block(1):
                await clock.wait_until(ask.at_s)
                for target in work.targets:
                    group.create_task(one(target, ask))
        return lags_ms, (time.thread_time() - cpu_s) / clock.now() * 100


def lag_table(folder: Path, rounds: range, seconds: float) -> None:
    """Print how late requests leave."""
    cores = sorted(os.sched_getaffinity(0))
    print("\n## How late requests leave\n")
    print(f"{len(cores)} cores; server on one, the generator on the others (2 processes: on all).")
    print(f"Both sides together, {seconds:g} s a round, {len(rounds)} rounds taking turns.\n")
    print(
        "| client | processes | streams/s | tokens | lag p50 ms | p99 ms (each round) | CPU % | TTFT p50 ms | dropped |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    cells = [Cell("headway", n, rate, TOKENS) for n in PROCESSES for rate in RATES_PER_S]
    cells.append(Cell("headway", 1, *LONG))
    if importlib.util.find_spec("httpx"):
        cells += [Cell("httpx", 1, rate, TOKENS) for rate in RATES_PER_S]
    found: dict[Cell, list[tuple[float, float, float, float, int]]] = {cell: [] for cell in cells}
    with mock_server(folder, cores[-1]) as url:
        for number in rounds:
            for cell in cells:
                client, processes, rate, tokens = cell
                work = job(
                    url,
                    MODEL,
                    rate_per_s=rate / 2,
                    requests=int(rate / 2 * seconds),
                    tokens=tokens,
                    seed=number,
                    paired=True,
                )
                os.sched_setaffinity(0, cores if processes > 1 else cores[:-1] or cores)
                if client == "httpx":
                    lags_ms, cpu_pct = asyncio.run(httpx_client(work))
                    figures = (quantile(lags_ms, 50) or 0, quantile(lags_ms, 99) or 0, cpu_pct, float("nan"), 0)
                else:
                    records, summary = asyncio.run(headway_client(work, processes))
                    lags_ms = [(r.sent_s - r.scheduled_s) * 1e3 for r in records]
                    ttft_ms = quantile((r.ttft_ms for r in records), 50) or 0
                    figures = (
                        quantile(lags_ms, 50) or 0,
                        summary.lag_p99_ms,
                        summary.cpu_pct,
                        ttft_ms,
                        summary.dropped,
                    )
                found[cell].append(figures)
                os.sched_setaffinity(0, cores)
    for (client, processes, rate, tokens), rows in found.items():
        lag50, lag99, cpu, ttft, dropped = zip(*rows, strict=True)
        late = f"{statistics.median(lag50):.1f} | {statistics.median(lag99):.1f}"
        each = ", ".join(f"{value:.1f}" for value in lag99)
        shown = "-" if client == "httpx" else f"{statistics.median(ttft):.1f}"
        rest = f"{statistics.median(cpu):.0f} | {shown} | {sum(dropped)}"
        print(f"| {client} | {processes} | {rate} | {tokens} | {late} ({each}) | {rest} |")


def ours(url: str, model: str, seed: int, load: ServeLoad) -> Medians:
    """Measure one round with headway's generator."""
    work = job(
        url,
        model,
        rate_per_s=load.rate_per_s,
        requests=load.requests,
        tokens=SERVE_TOKENS,
        seed=seed,
        paired=False,
    )
    records = [r for r in asyncio.run(headway_client(work, 1)).records if not r.error]
    return Medians([r.ttft_ms or 0 for r in records], [r.tpot_ms or 0 for r in records])


class Peer(NamedTuple):
    """How vLLM's own benchmark is run."""

    python: Path
    tokenizer: Path
    folder: Path
    """For its input and its result."""


def theirs(url: str, model: str, seed: int, load: ServeLoad, peer: Peer) -> Medians:
    """Measure one round with vLLM's own benchmark, in its environment."""
    folder = peer.folder
    prompts = [ask.prompt for ask in Prompts(_prompts_job(url, model, seed, load)).block(1)]
    data, result = folder / "prompts.jsonl", folder / "serve.json"
    data.write_text("".join(json.dumps({"prompt": p, "output_tokens": SERVE_TOKENS}) + "\n" for p in prompts))
    command = [
        *(str(peer.python), "-c", SERVE_PROGRAM, "--backend", "openai", "--base-url", url, "--model", model),
        *("--dataset-name", "custom", "--dataset-path", str(data), "--custom-output-len", str(SERVE_TOKENS)),
        *("--num-prompts", str(load.requests), "--request-rate", str(load.rate_per_s), "--ignore-eos"),
        *("--temperature", "0", "--tokenizer", str(peer.tokenizer), "--skip-chat-template", "--disable-shuffle"),
        *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", result.name),
        *("--num-warmups", "8", "--disable-tqdm", "--seed", str(seed)),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert done.returncode == 0, f"vllm.benchmarks.serve failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    figures = json.loads(result.read_text())
    ttft_ms = [value * 1e3 for value in figures["ttfts"]]
    tokens = figures["output_lens"]
    tpot_ms = [sum(gaps) * 1e3 / (n - 1) for gaps, n in zip(figures["itls"], tokens, strict=True) if n > 1]
    return Medians(ttft_ms, tpot_ms)


def _prompts_job(url: str, model: str, seed: int, load: ServeLoad) -> BenchJob:
    return job(url, model, rate_per_s=1, requests=load.requests, tokens=SERVE_TOKENS, seed=seed + 1000, paired=False)


def serve_table(url: str, model: str, rounds: range, load: ServeLoad, peer: Peer) -> None:
    """Print medians beside those of `vllm.benchmarks.serve`."""
    print("\n## Beside vllm.benchmarks.serve\n")
    print(
        f"{len(rounds)} rounds each, taking turns; {load.requests} requests a round at {load.rate_per_s:g}/s, ",
        end="",
    )
    print(f"{SERVE_TOKENS} tokens. Ours counts from the scheduled arrival, theirs from the sending.\n")
    print("| figure | headway p50 | serve p50 | ratio of pooled medians | ratio round by round |")
    print("|---|---|---|---|---|")
    pairs = [(ours(url, model, number, load), theirs(url, model, number, load, peer)) for number in rounds]
    for place, name in enumerate(("TTFT ms", "TPOT ms")):
        each = [statistics.median(a[place]) / statistics.median(b[place]) for a, b in pairs]
        a, b = ([value for pair in pairs for value in pair[side][place]] for side in (0, 1))
        mine, other = statistics.median(a), statistics.median(b)
        spread = ", ".join(f"{ratio:.3f}" for ratio in each)
        print(f"| {name} | {mine:.2f} | {other:.2f} | {mine / other:.3f} | {spread} |")


def look_table(rounds: int) -> None:
    """Print how long a look over 6,000 records takes: one decision over 30 blocks of 100 requests on each side."""
    canary = Canary(blocks=30, requests_per_block=100)
    lines = [header_line("0" * 64)]
    for block in range(canary.blocks):
        for side in ("candidate", "stable"):
            lines += [request_line(_record(block, side, index)) for index in range(canary.requests_per_block)]
        lines.append(block_line(BlockSummary(block=block, planned=canary.requests_per_block, lag_p99_ms=1.0)))
    content = ("\n".join(lines) + "\n").encode()
    reading, looking = [], []
    for _ in range(rounds):
        started = time.monotonic()
        run = parse(content)
        read = time.monotonic()
        analyse(run.records, run.summaries, canary)
        reading.append(read - started)
        looking.append(time.monotonic() - read)
    print("\n## A look\n")
    print("| records | read, s | judge all looks, s | worst of both together |")
    print("|---|---|---|---|")
    both = max(a + b for a, b in zip(reading, looking, strict=True))
    print(f"| {len(run.records)} | {statistics.median(reading):.2f} | {statistics.median(looking):.2f} | {both:.2f} |")


def _record(block: int, side: str, index: int) -> RequestRecord:
    at = block * 100 + index * 0.25
    first = at + 0.05 + (block * 31 + index * 17 + len(side)) % 23 / 1e3
    return RequestRecord(
        block=block,
        side=side,  # type: ignore[arg-type]
        index=index,
        prompt_sha256=f"{block:032x}{index:032x}",
        scheduled_s=at,
        sent_s=at + 0.001,
        release=side,
        first_token_s=first,
        ended_s=first + 0.5 + (index * 7) % 13 / 1e3,
        prompt_tokens=9,
        output_tokens=64,
        status=200,
        served_model="m",
        served_release=side,
        itl_ms=(8.0,) * 63,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the next one has the next")
    parser.add_argument("--seconds", type=float, default=8, help="length of a round of the first table")
    parser.add_argument("--only", nargs="+", choices=("lag", "serve", "look"), default=("lag", "serve", "look"))
    parser.add_argument("--url", help="a running vLLM, up to and without /v1; only the second table is made")
    parser.add_argument("--model", default=MODEL, help="its name there")
    usual = ServeLoad()
    parser.add_argument("--rate", type=float, default=usual.rate_per_s, help="requests/s of the second table")
    parser.add_argument("--requests", type=int, default=usual.requests, help="requests of a round of it")
    parser.add_argument(
        "--serve-python", type=Path, help="python with vLLM; by default that of the environment `serve`"
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="a folder with a tokenizer for vLLM's benchmark; by default the demo model's"
    )
    given = parser.parse_args(arguments)
    only = ("serve",) if given.url else given.only
    python = given.serve_python
    if python is None:
        told = subprocess.run([CHECKOUT / "local/env_path", "serve"], capture_output=True, text=True, check=True)
        python = Path(told.stdout.strip()) / "bin/python"
    tokenizer = given.tokenizer or Path.home() / ".cache/headway/demo-model/v1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounds = range(given.seed, given.seed + given.rounds)
        peer, load = Peer(python, tokenizer, folder), ServeLoad(given.rate, given.requests)
        if "lag" in only:
            lag_table(folder, rounds, given.seconds)
        if "serve" in only and given.url:
            serve_table(given.url, given.model, rounds, load, peer)
        elif "serve" in only:
            with mock_server(folder, max(os.sched_getaffinity(0))) as url:
                serve_table(url, MODEL, rounds, load, peer)
        if "look" in only:
            look_table(given.rounds)


if __name__ == "__main__":
    main()
