"""One tick of the pre-scaling for many models: time, memory, and how they grow: `make bench-tick`.

Histories, learned forecasts and plans lie in a real SeaweedFS on loopback, and the processes of the DAG's task plan all
models as they do in life. Played in memory are the gateway's and the engines' figures, routes and clusters, so the time
of a Prometheus is not in it. Models are at their usual state: one in 144 is due to be learned anew, one in six to be
stored. The store works on the same cores, and its time counts.
"""

import argparse
import json
import math
import os
import resource
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import numpy as np

from headway.adapters.expectations import ExpectationChecks
from headway.adapters.s3 import S3Connection, S3Ledger, S3Objects
from headway.cli.ticks import one
from headway.domain import engine_series
from headway.domain.cluster import ClusterStatus
from headway.domain.prescaling import EVERY_S, history_key, learned_key, plan_key
from headway.domain.profile import Profile, Replicas
from headway.domain.release import record_key
from headway.domain.series import DAY_S
from headway.domain.traffic import Backend, Route
from headway.domain.value import slug
from headway.ports import REQUESTS, Sample
from headway.prescale import calendar, clock, schedule, state, throughput
from headway.prescale.clean import without_faults
from headway.prescale.history import STEP_S, History, rows, to_parquet
from operators.workers import Workers
from tests.component.servers import S3Server, s3_server
from tests.factories import make_plan, make_profile
from tests.fakes import FakeClusters, FakeLease, FakeLedger, FakeMetrics, FakeObjects, FakeTraffic

NOW = datetime(2026, 11, 25, 10, 0, 20, tzinfo=UTC)
EVERY = timedelta(seconds=EVERY_S)
ZONE = "Europe/Berlin"
SHAPES = 6
"""Different traffics; models beyond them have copies, each in documents of its own."""
SUSTAINED = 2.0
TARGET_S, TARGET_ONE_S, TARGET_MIB = 60.0, 2.0, 2048
MIB = 1024 * 1024


def per_s(shape: int, at_s: float) -> float:
    """Return the requests a second of a traffic."""
    hour = at_s / 3600 + shape * 3
    day = 1 + 0.8 * math.sin(2 * math.pi * hour / 24) + 0.2 * math.sin(2 * math.pi * hour / 168)
    return (3 + shape) * day * math.exp(0.1 * math.sin(at_s * (shape + 1)))


def shape_of(model: str) -> int:
    """Return which traffic a model has."""
    return int(model.rsplit("-", 1)[1]) % SHAPES


class Played(FakeMetrics):
    """Gateway and engines, read without any delay."""

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        """Return the traffic of the model in each step."""
        times = {
            REQUESTS: 1.0,
            engine_series.REQUESTS.name: 1.0,
            engine_series.PROMPT_TOKENS.name: 220.0,
            engine_series.GENERATION_TOKENS.name: 55.0,
            engine_series.PREFIX_QUERIES.name: 220.0,
            engine_series.PREFIX_HITS.name: 40.0,
        }[name]
        shape, begin = shape_of(labels["model"]), start.timestamp()
        steps = range(int((end - start).total_seconds() // step_s))
        middles = [begin + (step + 0.5) * step_s for step in steps]
        return [
            Sample(start + timedelta(seconds=step * step_s), times * per_s(shape, middle))
            for step, middle in zip(steps, middles, strict=True)
        ]


class Running(FakeClusters):
    """A cluster for each model, with five replicas."""

    def status(self, name: str) -> ClusterStatus:
        """Return a cluster that runs."""
        return ClusterStatus(name=name, phase="ready", replicas_ready=5, replicas_target=5, spec=SPEC)

    def floor(self, name: str, replicas: Replicas) -> None:
        """Take the floor."""


class Routed(FakeTraffic):
    """Every model is served by the cluster of its name."""

    def route(self, model: str) -> Route:
        """Return its route."""
        return Route(model=model, stable=Backend(cluster=model, release="r1", version=1, cluster_digest="d" * 64))


def profile(model: str) -> Profile:
    """Return a profile that plans ahead."""
    wishes = {"enabled": True, "timezone": ZONE, "holidays": "DE", "max_replicas_step": 20}
    return make_profile(model=model, replicas={"min": 1, "max": 40}, prescale=wishes)


SPEC = make_plan(profile("model-0")).cluster


@dataclass
class World:
    """What a tick reads and acts on."""

    objects: Any
    ledger: Any
    metrics: FakeMetrics = field(default_factory=Played)
    clusters: FakeClusters = field(default_factory=Running)
    traffic: FakeTraffic = field(default_factory=Routed)
    lease: FakeLease = field(default_factory=FakeLease)

    @cached_property
    def checks(self) -> ExpectationChecks:
        """Great Expectations, as in life."""
        return ExpectationChecks()

    def calendar(self, made: Profile) -> None:
        """Return no calendar."""


def work(connection: S3Connection) -> None:
    """Plan what is told, a line each, as `headway.cli.ticks` does, and say how long it took."""
    world = World(S3Objects(connection), S3Ledger(connection))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # What is loaded at first use is a part of the start: the store's client, the checks, the holidays.
    world.objects.read(plan_key("model-0"))
    world.checks.check("traffic", rows(history(0, 1), 1, model="model-0"))
    calendar.events(None, "DE", ZONE, NOW, NOW + EVERY)
    for line in sys.stdin:
        order = json.loads(line)
        began, cpu = monotonic(), process_time()
        made = one(world, Profile.model_validate(order["profile"]), datetime.fromisoformat(order["at"]))  # type: ignore[arg-type]
        told = {
            "began": began,
            "ended": monotonic(),
            "cpu_s": process_time() - cpu,
            "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "tick": made.to_json(),
        }
        answers.write(json.dumps(told) + "\n")
        answers.flush()


def history(shape: int, days: int) -> History:
    """Return what was asked for, up to the last tick."""
    end = int(NOW.timestamp()) // STEP_S * STEP_S - EVERY_S
    at = np.arange(end - days * DAY_S, end, STEP_S)
    drawn = np.random.default_rng(shape).lognormal(0, 0.08, (2, len(at)))
    rate = np.array([per_s(shape, float(one) + STEP_S / 2) for one in at]) * drawn[0]
    busy = rate / SUSTAINED
    columns = {
        "requests_per_s": rate,
        "prompt_tokens": 200 * drawn[1],
        "output_tokens": 50 * drawn[1],
        "cached_share": np.full(len(at), 0.2),
        "busy": busy,
        "asked": np.ceil(busy * 1.15),
        "reactive": np.ceil(busy / 0.8),
        "cron": np.ceil(busy * 1.3),
    }
    return History(datetime.fromtimestamp(int(at[0]), UTC), STEP_S, columns)


def prepare(objects: S3Objects, ledger: S3Ledger, models: Sequence[str], days: int) -> None:
    """Store what earlier ticks would have left of each model."""
    scratch = World(FakeObjects(), FakeLedger())
    shapes, learned, plans = {}, {}, {}
    for shape in range(min(SHAPES, len(models))):
        found = history(shape, days)
        model = f"model-{shape}"
        shapes[shape] = to_parquet(found)
        series = clock.aligned(without_faults(found.series()).series, ZONE, NOW)
        offset_s = clock.offset_s(ZONE, NOW)
        # Stored at one of the last six ticks; from there it is rolled forward.
        for bins in range(6):
            known = state.brought_up(
                learned.get((shape, bins - 1)) if bins else None,
                series.before(len(series) - 5 + bins),
                now=NOW - EVERY,
                offset_s=offset_s,
                anew=False,
            )
            learned[shape, bins] = known
        scratch.ledger.append(record_key(slug(model), "r1", throughput.RECORD), sustained())
        scratch.objects.write(history_key(model), shapes[shape])
        plans[shape] = one(scratch, profile(model), NOW - EVERY)  # type: ignore[arg-type]
    for model in models:
        shape = shape_of(model)
        kept = next(
            k for k in range(1, 7) if schedule.due(model, NOW - (k + 1) * EVERY, NOW - k * EVERY, schedule.HOURLY)
        )
        known = replace(learned[shape, 6 - kept], kept_at=NOW - kept * EVERY)
        objects.write(history_key(model), shapes[shape])
        objects.write(learned_key(model), state.to_npz(known))
        objects.write(plan_key(model), plans[shape].model_copy(update={"model": model}).model_dump_json().encode())
        ledger.append(record_key(slug(model), "r1", throughput.RECORD), sustained())


def sustained() -> Mapping[str, Any]:
    """Return what the canary found a replica to sustain."""
    return throughput.Sustained(
        requests_per_s=SUSTAINED,
        prompt_tokens=200,
        output_tokens=50,
        cached_share=0.2,
        requests=300,
        measured_in_flight=2,
        in_flight=8,
        measured_requests_per_s=0.8,
        sentence="A replica sustains 2 requests/s.",
    ).to_json()


def measure(server: S3Server, models: Sequence[str], workers: int) -> dict[str, float]:
    """Plan all models once."""
    command = (sys.executable, "-m", "benchmarks.tick", "--work", server.endpoint, str(server.credentials("headway")))
    orders = {model: {"profile": profile(model).to_json(), "at": NOW.isoformat()} for model in models}
    began = monotonic()
    answers = list(Workers(command, count=workers, each_s=120, all_s=1200).answers(orders))
    total_s = monotonic() - began
    bodies = []
    for answer in answers:
        assert answer.body is not None, answer
        assert answer.body["tick"]["mode"] == "forecast", answer.body["tick"]
        bodies.append(answer.body)
    took = sorted(body["ended"] - body["began"] for body in bodies)
    return {
        "models": len(models),
        "tick_s": max(body["ended"] for body in bodies) - min(body["began"] for body in bodies),
        "with_start_s": total_s,
        "cpu_ms_each": 1000 * sum(body["cpu_s"] for body in bodies) / len(bodies),
        "median_ms": 1000 * statistics.median(took),
        "slowest_s": took[-1],
        "worker_mib": max(body["rss_mib"] for body in bodies),
        "all_mib": workers * max(body["rss_mib"] for body in bodies)
        + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


@contextmanager
def prepared(models: Sequence[str], days: int) -> Iterator[S3Server]:
    """Run a store that holds what earlier ticks left."""
    with tempfile.TemporaryDirectory(prefix="headway-tick-") as folder, s3_server(Path(folder) / "s3") as server:
        connection = server.connection()
        prepare(S3Objects(connection), S3Ledger(connection), models, days)
        yield server


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=int, nargs="+", default=[1, 100, 300, 1000])
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--work", nargs=2, metavar=("ENDPOINT", "CREDENTIALS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(S3Connection(endpoint=given.work[0], credentials_file=Path(given.work[1])))
        return
    # So that a benchmark that is ended takes its store along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = [f"model-{number}" for number in range(max(given.models))]
    print(
        f"{given.days} days of 10-minute bins, {given.workers} workers, {given.rounds} rounds, {os.cpu_count()} cores\n"
    )
    print(
        "| models | a tick, s (all rounds) | CPU a model, ms | median a model, ms | slowest, s | all processes, MiB |"
    )
    print("|---|---|---|---|---|---|")
    last: dict[str, float] = {}
    with prepared(names, given.days) as server:
        for count in given.models:
            # The same documents in each round: a round stores what it learned, so all but the first find it fresh.
            rounds = [measure(server, names[:count], min(given.workers, count)) for _ in range(given.rounds)]
            last = rounds[0]
            spread = ", ".join(f"{one['tick_s']:.1f}" for one in rounds)
            print(
                f"| {count} | {spread} | {last['cpu_ms_each']:.0f} | {last['median_ms']:.0f} | {last['slowest_s']:.2f} "
                f"| {last['all_mib']:.0f} |",
                flush=True,
            )
    print(
        f"\n{last['models']:.0f} models: {last['tick_s']:.1f} s (target {TARGET_S:.0f}), {last['all_mib']:.0f} MiB "
        f"(target {TARGET_MIB}); with the start of the processes {last['with_start_s']:.1f} s"
    )


if __name__ == "__main__":
    main()
