"""`headway demo-prescale`: a real second replica is up before a replayed peak needs it.

The fortnight before is made up; requests, gateway, engines and plans are real. Traffic and clock run faster than life,
and the ports are read by that clock (`headway.cli.warp`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.adapters.local.layout import LocalLayout
from headway.adapters.local.processes import strays
from headway.cli import made_traffic
from headway.cli.demo import MODEL, Demo, DemoFailed, only_one
from headway.cli.follow import Follower, utcnow
from headway.cli.morning import SPEED, Outcome, Replayed, Script, Seen, clock, judged, over, script
from headway.cli.morning_page import page
from headway.cli.progress import Progress
from headway.cli.users import Users
from headway.cli.warp import FastPorts, Memory, Warp, WarpedClusters, WarpedMetrics
from headway.domain.cluster import ClusterSpec
from headway.domain.prescaling import EVERY_S, Tick, history_key
from headway.domain.release import record_key
from headway.domain.value import slug
from headway.errors import Conflict, DeadlineExceeded
from headway.ports import REQUESTS
from headway.prescale.capacity import Throughput, measured
from headway.prescale.history import STEP_S, History, to_parquet
from headway.prescale.tick import tick

if TYPE_CHECKING:
    from headway.wiring import Backend

LEAST_LEAD_S = 60.0
ROLLOUT_SHARE = 0.7
"""Share of a whole rollout that a second replica is given: Ray, its proxy and the ingress came up in it too."""
LEAD_MARGIN = 1.3
"""Times the slowest start of a replica that was seen: the cores work for the users meanwhile, too."""
DAYS = 14
WARM_S, SATURATED_S = 5.0, 20.0
MAX_TOKENS = 4
SEED = 6
READ_AFTER = timedelta(minutes=3)
"""From the end of a bin to its tick, by the fast clock: until the bin's last counters have been read."""
SETTLES_WITHIN_S = 180.0
LOOK_S = 0.5
REPLICA = ("VLLM::", "ray::ServeReplica:llm:LLMServer")
"""How the processes of a replica call themselves."""
SPAWNED = "multiprocessing.spawn"
"""What an engine's processes are before they have a name."""
FULL = 0.5
"""Share of the requests that the autoscaler aims at with which a replica counts as busy here: the cores are shared."""


class PrescaleDemo:
    """The demonstration on one stack.

    Args:
        layout: Where the stack is.
        backend: Its ports.
        console: Where progress goes.
    """

    def __init__(self, layout: LocalLayout, backend: "Backend", console: Console) -> None:
        self._layout = layout
        self._backend = backend
        self._console = console
        self._progress = Progress(console)

    def run(self) -> Path:
        """Show it, and return where the page with the picture is.

        Raises:
            DemoFailed: Something was not as it must be; what was found is in the text.
            Conflict: A release of the model is under way.
        """
        spec = self.stable()
        throughput = self.measure(spec)
        story = script(self._backend.profile(MODEL), requests_per_s=throughput.requests_per_s, lead_s=self.lead_s(spec))
        with self.wider(spec, story):
            replayed = self.replay(spec, story)
        outcome = judged(story, replayed)
        path = self._layout.home / "demo-prescale.html"
        path.write_bytes(page(story, replayed, outcome))
        self.summary(outcome, path)
        return path

    def stable(self) -> ClusterSpec:
        """Return the cluster that has the model's traffic, with room for a second replica.

        A first version is released if there is none.

        Raises:
            Conflict: A release of the model is under way.
            DemoFailed: The cluster is not ready, or there is no room.
        """
        held = self._backend.lease.holder(slug(MODEL), utcnow())
        if held is not None:
            raise Conflict(f"a release of {MODEL} is under way ({held.holder}); wait for its end, then try again")
        if self._backend.traffic.route(MODEL).stable is None:
            demo = Demo(self._layout, self._backend, Follower(self._backend, self._console), self._console)
            demo.reset()
            demo.register(demo.prepare())
            demo.promote(1, wanted="promoted")
        route = self._backend.traffic.route(MODEL)
        status = self._backend.clusters.status(route.stable.cluster) if route.stable else None
        if status is None or status.spec is None or status.phase != "ready":
            found = f"{status.name} is {status.phase}: {status.reason}" if status else "no cluster has its traffic"
            raise DemoFailed(f"{MODEL} should have a ready cluster, and {found}; `headway status` says more")
        room = self._backend.clusters.room(status.spec)
        if not room.fits:
            raise DemoFailed(f"there is no room for a second replica: {room.detail}; free memory and try again")
        return status.spec

    def measure(self, spec: ClusterSpec) -> Throughput:
        """Return what one replica sustains while its answers stay quick, by keeping so much under way at all times."""
        together = max(1, round(FULL * spec.replicas.target_ongoing))
        with self._progress.timed(f"measure what one replica sustains ({together} requests at a time)"):
            with self._users() as users:
                users.saturate(together)
                sleep(WARM_S + SATURATED_S)
            if users.failures:
                raise DemoFailed(f"{len(users.failures)} requests failed; the first: {users.failures[0]}")
            found = measured(users.records, warm_s=WARM_S, until_s=WARM_S + SATURATED_S)
        self._progress.say(
            f"    {found.requests_per_s:.2f} requests/s with {found.prompt_tokens:.0f} tokens in and "
            f"{found.output_tokens:.0f} out: this is one busy replica"
        )
        return found

    def lead_s(self, spec: ClusterSpec) -> float:
        """Return how long a second replica is given, in real seconds: by scale-ups that were seen, or the rollout."""
        ups = self._backend.clusters.scale_ups(spec.name, datetime.fromtimestamp(0, UTC))
        took_s = [LEAD_MARGIN * (up.ready_at - up.asked_at).total_seconds() for up in ups]
        rollout = self._backend.ledger.read(record_key(slug(MODEL), spec.release, "rollout"))
        if not took_s and rollout is not None:
            began, ended = (datetime.fromisoformat(str(rollout[name])) for name in ("started_at", "ended_at"))
            took_s.append(ROLLOUT_SHARE * (ended - began).total_seconds())
        return max([LEAST_LEAD_S, *took_s])

    @contextmanager
    def wider(self, spec: ClusterSpec, story: Script) -> Iterator[None]:
        """Let the cluster have a second replica; afterwards it is as before, whatever happened."""
        processes = self._processes(spec.name)
        self._backend.clusters.floor(spec.name, story.profile.replicas)
        try:
            yield
        finally:
            self._backend.clusters.floor(spec.name, spec.replicas)
            with self._progress.timed("let the cluster be as it was"):
                self._settle(spec, processes)

    def replay(self, spec: ClusterSpec, story: Script) -> Replayed:
        """Send the morning's requests, and make a plan at the end of each bin, until the floor has fallen again."""
        arrivals = made_traffic.arrivals_s(
            story.start,
            story.end,
            peak_h=story.peak_h,
            requests_per_s=story.requests_per_s,
            speed=SPEED,
            seed=SEED,
        )
        ticks: list[Tick] = []
        seen: list[Seen] = []
        with self._progress.timed("learn from the fortnight before, without changing anything"):
            # It also loads what planning needs: an hour of the fast clock, the first time.
            watching = story.profile.prescale.model_copy(update={"shadow": True})
            tick(
                story.profile.model_copy(update={"prescale": watching}),
                self._ports(story, Warp(utcnow(), story.start, SPEED)),
                now=story.start,
            )
        self._progress.say(
            f"[dim]...[/] replay {clock(story.start)} to {clock(story.end)}, {SPEED} times faster than life: one "
            f"replica is not enough from {clock(story.needed_at)} on"
        )
        warp = Warp(utcnow(), story.start, SPEED)
        ports = self._ports(story, warp)
        with self._users() as users:
            users.follow(arrivals)
            due = story.start + timedelta(seconds=EVERY_S) + READ_AFTER
            while not seen or not over(story, ticks, seen[-1]):
                status, now = self._backend.clusters.status(spec.name), warp.virtual(utcnow())
                seen.append(Seen(now, status.replicas_ready, status.replicas_target))
                if now >= due:
                    ticks.append(tick(story.profile, ports, now=now))
                    while due <= warp.virtual(utcnow()):
                        # One that was missed is not made up for: the next one sees all that came.
                        due += timedelta(seconds=EVERY_S)
                    self._show(ticks[-1], seen[-1])
                sleep(LOOK_S)
        rates = ports.metrics.rate(REQUESTS, {"model": MODEL}, story.start, seen[-1].at, STEP_S)
        return Replayed(
            ticks=ticks,
            seen=seen,
            load=[(one.at, one.value / story.requests_per_s) for one in rates],
            answered=[one for one in users.records if one.error is None],
            failures=users.failures,
        )

    def _ports(self, story: Script, warp: Warp) -> FastPorts:
        """Return the stack's ports by the fast clock, with the made fortnight as the history."""
        rates = made_traffic.history(
            story.start,
            days=DAYS,
            step_s=STEP_S,
            peak_h=story.peak_h,
            requests_per_s=story.requests_per_s,
            counted_s=STEP_S / SPEED,
            seed=SEED,
        )
        history = History(story.start - timedelta(days=DAYS), STEP_S, {"requests_per_s": rates})
        objects = Memory()
        objects.write(history_key(MODEL), to_parquet(history))
        backend = self._backend
        return FastPorts(
            metrics=WarpedMetrics(backend.metrics, warp),
            clusters=WarpedClusters(backend.clusters, warp),
            objects=objects,
            traffic=backend.traffic,
            ledger=backend.ledger,
            checks=backend.checks,
        )

    def summary(self, outcome: Outcome, path: Path) -> None:
        """Print what was shown, and where the picture is."""
        table = Table(title="Capacity before the peak", title_justify="left", show_header=False)
        for name, value in outcome.facts:
            table.add_row(name, value)
        self._console.print(table)
        self._progress.say(f"picture   {path}")

    def _show(self, made: Tick, seen: Seen) -> None:
        load = "  -  " if made.load is None else f"{made.load:5.2f}"
        self._progress.say(
            f"    {clock(made.made_at)}  load {load}  growth x{made.growth:4.2f}  floor {made.floor}  "
            f"replicas {seen.ready} of {seen.target}  ({made.by}) {escape(' '.join(made.problems))}"
        )

    def _settle(self, spec: ClusterSpec, processes: int) -> None:
        end = monotonic() + SETTLES_WITHIN_S
        while True:
            status, left = self._backend.clusters.status(spec.name), self._processes(spec.name)
            if status.replicas_ready == status.replicas_target == spec.replicas.min and left <= processes:
                return
            if monotonic() > end:
                raise DeadlineExceeded(
                    f"{spec.name} to be at {spec.replicas.min} replica and {processes} processes of it again",
                    waited_s=SETTLES_WITHIN_S,
                    last=f"{status.replicas_ready} of {status.replicas_target} replicas, {left} processes",
                )
            sleep(LOOK_S)

    def _processes(self, cluster: str) -> int:
        """Return how many processes the replicas of the cluster have, those included that start or end."""
        found = 0
        for pid in strays({"HEADWAY_STACK": self._layout.stack_mark, "HEADWAY_CLUSTER": cluster}):
            try:
                line = " ".join(psutil.Process(pid).cmdline())
            except psutil.Error:  # it ended meanwhile
                continue
            found += line.startswith(REPLICA) or SPAWNED in line
        return found

    def _users(self) -> Users:
        stable = self._backend.traffic.route(MODEL).stable
        release = stable.release if stable else ""
        return Users(f"{self._layout.gateway_url}/{MODEL}", MODEL, release=release, max_tokens=MAX_TOKENS)


def demo_prescale() -> None:
    """Show a second replica up before a replayed peak needs it: real engines, a clock that runs faster than life."""
    from headway.adapters.local import stack
    from headway.settings import Settings
    from headway.wiring import connect

    settings = Settings.load()
    layout = settings.layout()
    console = Console(highlight=False, soft_wrap=True)
    with only_one(layout):
        stack.up(layout, lambda line: console.print(escape(line)))
        PrescaleDemo(layout, connect(settings), console).run()
