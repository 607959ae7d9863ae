"""Staging against its peers, all in one run: `make bench-staging`.

Each client brings one object of 2 GiB, and 40 small files, from a SeaweedFS on loopback to a directory on the disk,
fsync included. Clients take turns in each round, the order is another in each round, and medians are compared with the
time limit of the same run: eight curl processes, each with its range and its own file. Absolute times differ between
machines and hours; ratios within a run are what counts.
"""

import argparse
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.store import store

MIB = 1024 * 1024
CHECKOUT = Path(__file__).parents[1]
RANGES = 8
WITHIN_S = 120
BIG, SMALL, FOUR, FOUR_NEXT = "b" * 64, "5" * 64, "4" * 64, "e" * 64
LIMIT = "8 curl ranges"
TARGET_LIMIT, TARGET_S5CMD, TARGET_RSS_MIB, TARGET_HIT_MS = 0.70, 1.25, 150, 5.0


class Measured(NamedTuple):
    """One measurement."""

    seconds: float
    cpu_s: float
    rss_mib: float


class Case(NamedTuple):
    """What is brought."""

    title: str
    digest: str
    sizes: dict[str, int]
    urls: dict[str, str]

    @property
    def size_mib(self) -> float:
        """Sum of the files."""
        return sum(self.sizes.values()) / MIB


Client = Callable[[Case, Path], Measured]


def timed(*commands: list[str], finish: Callable[[], None] = lambda: None) -> Measured:
    """Run commands side by side, then what finishes them; count the CPU and memory of all."""
    started = time.monotonic()
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=CHECKOUT)
        for command in commands
    ]
    cpu_s = rss_mib = 0.0
    for process in running:
        said = process.stderr.read() if process.stderr else b""
        _, state, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(state)
        if process.returncode:
            raise SystemExit(f"{process.args} failed: {said.decode()[-2000:]}")
        cpu_s += usage.ru_utime + usage.ru_stime
        rss_mib += usage.ru_maxrss / 1024
    finish()
    return Measured(time.monotonic() - started, cpu_s, rss_mib)


def python(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run a Python client in a process of its own; return what it measured."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.staging_clients", name, file.name]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, timeout=WITHIN_S * 3, check=False)
    if ended.returncode:
        raise SystemExit(f"{name} failed: {ended.stderr[-3000:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def client(name: str) -> Client:
    """Return a Python client."""

    def run(case: Case, target: Path) -> Measured:
        job = {"digest": case.digest, "target": str(target), "sizes": case.sizes, "urls": case.urls}
        found = python(name, job)
        return Measured(found["seconds"], found["cpu_s"], found["rss_mib"])

    return run


def curl(ranges: int) -> Client:
    """Return curl: a large object in so many ranges side by side, or small files in so many processes."""

    def run(case: Case, target: Path) -> Measured:
        target.mkdir()
        quiet = ["curl", "--silent", "--show-error", "--fail"]
        if len(case.sizes) == 1:
            [(name, size)] = case.sizes.items()
            url, step = case.urls[f"{case.digest}/{name}"], math.ceil(size / ranges)
            commands = [
                [*quiet, "--range", f"{at}-{min(at + step, size) - 1}", "--output", str(target / f"{at}"), url]
                for at in range(0, size, step)
            ]
        else:
            shares: list[list[str]] = [[] for _ in range(ranges)]
            for number, name in enumerate(case.sizes):
                shares[number % ranges] += ["--output", str(target / name), case.urls[f"{case.digest}/{name}"]]
            commands = [[*quiet, *share] for share in shares]
        return timed(*commands, finish=lambda: sync(target))

    return run


def s5cmd(case: Case, target: Path) -> Measured:
    """Run s5cmd with its defaults."""
    target.mkdir()
    command = [str(Path(sys.executable).parent / "s5cmd"), "cp", f"s3://headway/artifacts/{case.digest}/f*"]
    return timed([*command, f"{target}/"], finish=lambda: sync(target))


def s5cmd_sha256(case: Case, target: Path) -> Measured:
    """Run s5cmd, then hash what came."""
    brought, hashed = s5cmd(case, target), python("sha256", {"target": str(target)})
    cpu_s, rss_mib = brought.cpu_s + hashed["cpu_s"], max(brought.rss_mib, hashed["rss_mib"])
    return Measured(brought.seconds + hashed["seconds"], cpu_s, rss_mib)


def dd(case: Case, target: Path) -> Measured:
    """Write as many zeros as fast as the disk takes them."""
    target.mkdir()
    command = ["dd", "if=/dev/zero", f"of={target / 'zeros'}", "bs=1M", f"count={math.ceil(case.size_mib)}"]
    return timed([*command, "conv=fsync"])


def sync(folder: Path) -> None:
    """Bring every file of a folder to the disk."""
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


CLIENTS: dict[str, tuple[Client, bool, str]] = {
    LIMIT: (curl(RANGES), False, "the limit"),
    "curl": (curl(1), False, ""),
    "headway stage": (client("headway"), True, "sha256 of each part, compared, published by rename"),
    "s5cmd": (s5cmd, False, ""),
    "s5cmd, then sha256": (s5cmd_sha256, True, ""),
    "boto3 tuned": (client("boto3-tuned"), False, "4 x 64 MiB"),
    "boto3": (client("boto3"), False, ""),
    "huggingface_hub": (client("hf"), False, "its `http_get`"),
    "Run:ai streamer": (client("runai"), False, "4 x 64 MiB, to memory only"),
    "dd conv=fsync": (dd, False, "the disk alone"),
}


def measure(case: Case, folder: Path, rounds: int, only: set[str]) -> dict[str, list[Measured]]:
    """Let the clients take turns."""
    found: dict[str, list[Measured]] = {name: [] for name in CLIENTS if not only or name in only}
    order = random.Random(4)  # noqa: S311 - the same orders each time
    for number in range(rounds):
        names = list(found)
        order.shuffle(names)
        for name in names:
            target = folder / "target"
            os.sync()
            measured = CLIENTS[name][0](case, target)
            found[name].append(measured)
            print(f"{case.title} {number + 1}/{rounds} {name}: {measured.seconds:.2f} s", file=sys.stderr, flush=True)
            shutil.rmtree(target, ignore_errors=True)
    return found


def table(case: Case, found: dict[str, list[Measured]]) -> None:
    """Print a table in Markdown."""
    limit = statistics.median(m.seconds for m in found[LIMIT]) if LIMIT in found else math.nan
    rounds = len(next(iter(found.values())))
    print(f"\n{case.title}: {len(case.sizes)} files, {case.size_mib:.0f} MiB; medians of {rounds}\n")
    print("| client | seconds | min to max | MiB/s | x limit | CPU s | RSS MiB | verified |")
    print("|---|---|---|---|---|---|---|---|")
    for name, measured in found.items():
        seconds = [one.seconds for one in measured]
        middle = statistics.median(seconds)
        print(
            f"| {name}{f' ({CLIENTS[name][2]})' if CLIENTS[name][2] else ''} | {middle:.2f} "
            f"| {min(seconds):.2f} to {max(seconds):.2f} | {case.size_mib / middle:.0f} | {limit / middle:.2f} "
            f"| {statistics.median(one.cpu_s for one in measured):.2f} | {max(one.rss_mib for one in measured):.0f} "
            f"| {'yes' if CLIENTS[name][1] else 'no'} |"
        )


def targets(case: Case, found: dict[str, list[Measured]]) -> None:
    """Say which promises this run kept."""
    middle = {name: statistics.median(one.seconds for one in rounds) for name, rounds in found.items()}
    ours, rss = middle["headway stage"], max(one.rss_mib for one in found["headway stage"])
    promises = [
        (f"at least {TARGET_LIMIT:.2f} of the limit", middle[LIMIT] / ours, middle[LIMIT] / ours >= TARGET_LIMIT),
        ("faster than s5cmd, then sha256", middle["s5cmd, then sha256"] / ours, ours < middle["s5cmd, then sha256"]),
        (f"at most {TARGET_S5CMD} x s5cmd", ours / middle["s5cmd"], ours <= TARGET_S5CMD * middle["s5cmd"]),
        *(
            (f"ahead of {name}", middle[name] / ours, ours < middle[name])
            for name in ("boto3 tuned", "boto3", "huggingface_hub", "Run:ai streamer")
        ),
        (f"memory under {TARGET_RSS_MIB} MiB", rss, rss < TARGET_RSS_MIB),
    ]
    print(f"\n{case.title}, the promises:\n")
    for text, value, kept in promises:
        print(f"- {text}: {value:.2f}, {'kept' if kept else 'NOT KEPT'}")


def others(folder: Path) -> None:
    """Measure hits, six processes at once, and a version that shares shards with the one before."""
    root = folder / "node"
    job = {"digest": BIG, "target": str(root)}
    hit = python("headway", {**job, "hits": 50})["hits_ms"]
    print(f"\nHit in process, 2 GiB: median {statistics.median(hit):.2f} ms, slowest {max(hit):.2f} ms", end="")
    print(f" ({'kept' if max(hit) < TARGET_HIT_MS else 'NOT KEPT'}: under {TARGET_HIT_MS:.0f} ms)")
    shutil.rmtree(root)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        running = []
        for number in range(6):
            place = Path(work) / str(number)
            place.mkdir()
            asked = {"artifact_digest": BIG, "artifact_uri": f"s3://headway/artifacts/{BIG}/", "dest_root": str(root)}
            (place / "job.json").write_text(json.dumps({**asked, "high_pct": 100, "low_pct": 100}))
            command = [sys.executable, "-m", "headway.pods.stage", "job.json"]
            running.append((place, subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL)))
        codes = [process.wait(WITHIN_S) for _, process in running]
        results = [json.loads((place / "result.json").read_text()) for place, _ in running]
    took, fetched = time.monotonic() - began, sum(result.get("fetched_bytes", 0) for result in results)
    outcomes = sorted(result.get("outcome", "failed") for result in results)
    print(f"Six processes at once, 2 GiB: {outcomes.count('staged')} staged, {outcomes.count('hit')} hits, ", end="")
    print(f"{fetched / MIB:.0f} MiB fetched in {took:.2f} s (their start included), exit codes {codes}")
    shutil.rmtree(root)
    first = python("headway", {"digest": FOUR, "target": str(root)})["result"]
    second = python("headway", {"digest": FOUR_NEXT, "target": str(root)})["result"]
    print(
        f"A second version with 1 of 4 shards of 128 MiB changed: {second['fetched_bytes'] / MIB:.0f} MiB fetched, ",
        end="",
    )
    print(f"{second['shared_bytes'] / MIB:.0f} MiB shared; {first['seconds']:.2f} s, then {second['seconds']:.2f} s")
    shutil.rmtree(root)
    began = time.monotonic()
    start = "import benchmarks.staging_clients as clients; clients.headway_client()"
    subprocess.run([sys.executable, "-c", start], cwd=CHECKOUT, check=True)
    took = time.monotonic() - began
    print(f"Start of Python, imports and the S3 client, which no row counts for any Python client: {took:.2f} s")


def main() -> None:
    """Run it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--size-mib", type=int, default=2048)
    arguments.add_argument("--folder", type=Path, default=None, help="where to work; must be on a disk")
    arguments.add_argument("--only", nargs="*", default=[], help="clients, for a quick look")
    chosen = arguments.parse_args()
    os.environ["PYTHONPATH"] = f"{CHECKOUT / 'src'}:{CHECKOUT}"
    only = set(chosen.only)
    with tempfile.TemporaryDirectory(prefix="headway-bench-", dir=chosen.folder) as name, store(Path(name) / "s3"):
        folder = Path(name)
        cases = prepare(folder, chosen.size_mib)
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        for case in cases:
            found = measure(case, folder, chosen.rounds, only)
            table(case, found)
            if not only:
                targets(case, found)
        if not only:
            others(folder)


def prepare(folder: Path, size_mib: int) -> list[Case]:
    """Make the files, and put them into the store."""
    made = folder / "made"
    files: dict[str, dict[str, tuple[Path, int, int]]] = {
        BIG: {"f0.safetensors": (made / "big", size_mib * MIB, 0)},
        SMALL: {f"f{n:02d}.safetensors": (made / f"small-{n}", 256 * 1024, n) for n in range(40)},
        FOUR: {f"f{n}.safetensors": (made / f"four-{n}", 128 * MIB, 100 + n) for n in range(4)},
    }
    files[FOUR_NEXT] = {**files[FOUR], "f3.safetensors": (made / "four-next", 128 * MIB, 200)}
    made.mkdir()
    for listed in files.values():
        for path, size, seed in listed.values():
            if not path.exists():
                write_safetensors(path, size, seed)
    job = {"bucket": True, "artifacts": {d: {n: str(p) for n, (p, _, _) in fs.items()} for d, fs in files.items()}}
    urls = python("prepare", job)["urls"]
    shutil.rmtree(made)
    titles = {BIG: "One large object", SMALL: "Many small files"}
    return [Case(titles[d], d, {n: s for n, (_, s, _) in files[d].items()}, urls) for d in (BIG, SMALL)]


def write_safetensors(path: Path, size: int, seed: int) -> None:
    """Write a file of random bytes that is one tensor to whoever parses it."""
    body = size - 4096
    header = json.dumps({"t": {"dtype": "U8", "shape": [body], "data_offsets": [0, body]}}).encode().ljust(4088)
    # One block again and again, with its number: as good as random to whoever neither compresses nor looks for copies.
    block, number, left = random.Random(seed).randbytes(1 * MIB), 0, body  # noqa: S311 - content, no secret
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        while left:
            piece = number.to_bytes(8, "little") + block[8:]
            left -= file.write(piece[: min(left, len(piece))])
            number += 1


if __name__ == "__main__":
    main()
