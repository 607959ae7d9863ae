"""`headway demo`: headway's main job on a real model, from nothing, with a client watching."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import requests
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.adapters.local.layout import EnvironmentName, LocalLayout
from headway.cli.follow import RELEASE_DAG, Followed, Follower, utcnow
from headway.cli.progress import Progress
from headway.cli.steady import SteadyClient, Tally
from headway.domain.value import slug
from headway.errors import Conflict, HeadwayError
from headway.release import record

if TYPE_CHECKING:
    from headway.wiring import Backend

MODEL = "smollm2-135m"
ALIAS = "champion"
VERSIONS = {1: "SmolLM2-135M-Instruct", 2: "the same with one layer changed a little", 3: "25 % of the weights zeroed"}
RUN_ENDS_WITHIN_S = 300.0
CLIENT_PERIOD_S = 1.5
"""A third of what one cluster on one core can answer, so that the benchmark has room beside the users."""
QUESTION = "What is the capital of France?"


@dataclass(frozen=True)
class Promotion:
    """One release of the demo, as the table shows it."""

    version: int
    followed: Followed
    wanted: str
    """The outcome that this version must have."""
    seconds: float


class DemoFailed(HeadwayError):
    """The demo did not show what it must show."""


class Demo:
    """The demo on one stack.

    Args:
        layout: Where the stack is.
        backend: Its ports.
        follower: Starts runs and shows their steps live.
        console: Where progress goes.
    """

    def __init__(self, layout: LocalLayout, backend: "Backend", follower: Follower, console: Console) -> None:
        self._layout = layout
        self._backend = backend
        self._follower = follower
        self._console = console
        self._progress = Progress(console)

    @property
    def model_url(self) -> str:
        """Address that an OpenAI client is given as its base URL, without `/v1`."""
        return f"{self._layout.gateway_url}/{MODEL}"

    def run(self) -> None:
        """Show it all.

        Raises:
            DemoFailed: Something was not as it must be; what was found is in the text.
        """
        with self._progress.timed("clear what an earlier demo left"):
            self.reset()
        with self._progress.timed("make the model's three versions"):
            folder = self.prepare()
        with self._progress.timed("register them in MLflow"):
            self.register(folder)

        promotions = [self.promote(1, wanted="promoted")]
        answer = self.ask()
        self._progress.say(f"\n[bold]Q[/] {QUESTION}\n[bold]A[/] {answer}\n")

        with SteadyClient(self.model_url, MODEL, period_s=CLIENT_PERIOD_S) as client:
            promotions.append(self.promote(2, wanted="promoted"))
            promotions.append(self.promote(3, wanted="rejected"))
            with self._progress.timed("see that nothing tries version 3 again"):
                self.nothing_tries_again(3)
        self.check(client.tally)
        self.summary(promotions, client.tally)

    def reset(self) -> None:
        """Take the demo model's traffic, clusters, alias and memory down; keep artifacts and registered versions."""
        client = self._mlflow()
        registered = bool(client.search_registered_models(f"name = '{MODEL}'"))
        if registered:
            # First, or the reconciling run brings back what is taken down below.
            for alias in dict(client.get_registered_model(MODEL).aliases):
                client.delete_registered_model_alias(MODEL, alias)
        self._end_releases()
        self._backend.traffic.remove(MODEL)
        for cluster in self._backend.clusters.list(MODEL):
            self._backend.clusters.delete(cluster.name)
        for version in client.search_model_versions(f"name = '{MODEL}'") if registered else ():
            for tag in [t for t in version.tags if t.startswith("headway.")]:
                client.delete_model_version_tag(MODEL, version.version, tag)

    def _end_releases(self) -> None:
        """End what an interrupted demo left at work: its runs, which clean up after themselves, and its benchmarks."""
        for run in self._backend.runs.active(RELEASE_DAG):
            if run.conf.get("model") == MODEL:
                self._backend.runs.fail(RELEASE_DAG, run.run_id)
                self._follower.wait_for(RELEASE_DAG, run.run_id, within_s=RUN_ENDS_WITHIN_S)
        left = self._backend.lease.holder(slug(MODEL), utcnow())
        if left is not None:
            self._backend.lease.release(slug(MODEL), left.holder, utcnow())
        for folder in self._layout.jobs.glob("bench-*"):
            if not self._backend.jobs.status(folder.name).ended:
                self._backend.jobs.cancel(folder.name)

    def prepare(self) -> Path:
        """Make the model's directories, in the cache that clones share; returns the folder with `v1`, `v2`, `v3`."""
        folder = self._layout.cache / "demo-model"
        self._program("quantize", "demo_model.py", str(folder))
        return folder

    def register(self, folder: Path) -> None:
        """Register the versions that the registry does not have yet."""
        for number, description in VERSIONS.items():
            self._program("airflow", "register_model.py", MODEL, str(number), str(folder / f"v{number}"), description)

    def promote(self, version: int, *, wanted: str) -> Promotion:
        """Set the alias as an ML engineer does, and follow the release that comes of it."""
        self._progress.say(f"\n[bold]{ALIAS} -> {MODEL} version {version}[/] ({VERSIONS[version]})")
        started = monotonic()
        # Before the alias moves: the reconciling run may be faster than this program.
        self._follower.remember_known()
        self._mlflow().set_registered_model_alias(MODEL, ALIAS, str(version))
        with self._progress.timed(f"release of version {version}"):
            self._follower.reconcile_now()
            followed = self._follower.follow_next(MODEL, version)
        state = self._state(version)
        outcome = state.outcome if state else "unknown"
        if outcome != wanted:
            raise DemoFailed(
                f"version {version} should be {wanted}, and it is {outcome}: "
                f"{state.reason if state else 'nothing was recorded'}"
            )
        self._progress.say(f"[bold]{outcome}[/]: {state.reason if state else ''}")
        return Promotion(version, followed, wanted, monotonic() - started)

    def ask(self) -> str:
        """Ask one question through the gateway and return the answer."""
        answer = requests.post(
            f"{self.model_url}/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": QUESTION}],
                "max_tokens": 32,
                "temperature": 0,
            },
            timeout=120,
        )
        if not answer.ok:
            raise DemoFailed(f"the gateway answered {answer.status_code} to a chat request: {answer.text[:300]}")
        return str(answer.json()["choices"][0]["message"]["content"]).strip()

    def nothing_tries_again(self, version: int) -> None:
        """Let reconcile look once more and see that it leaves the refused version alone."""
        before = self._follower.releases_of(MODEL, version)
        self._follower.reconcile_now()
        after = self._follower.releases_of(MODEL, version)
        if after != before:
            raise DemoFailed(f"the refused version {version} was tried again: {sorted(after - before)}")

    def check(self, tally: Tally) -> None:
        """See that the gateway is as the story says."""
        route = self._backend.traffic.route(MODEL)
        if route.stable is None or route.stable.version != 2 or route.candidate is not None:
            raise DemoFailed(f"version 2 should have all the traffic, and the route is {route.to_json()}")
        if tally.failures:
            raise DemoFailed(
                f"{len(tally.failures)} of {tally.answered + len(tally.failures)} requests of the client failed; "
                f"the first: {tally.failures[0]}",
                failures=tally.failures,
            )
        if len(tally.releases) < 2:
            raise DemoFailed(f"the client should have seen both versions, and saw {dict(tally.releases)}")

    def summary(self, promotions: list[Promotion], tally: Tally) -> None:
        """Print the tables and where to look."""
        for promotion in promotions:
            table = Table(
                title=f"Release of {MODEL} version {promotion.version}: {promotion.wanted}", title_justify="left"
            )
            table.add_column("step")
            table.add_column("seconds", justify="right")
            table.add_column("result")
            for step in promotion.followed.steps:
                table.add_row(step.name, f"{step.seconds:.0f}", step.result)
            table.add_row("all", f"{promotion.seconds:.0f}", promotion.wanted, style="bold")
            self._console.print(table)
        where = Table(title="Where the time went", title_justify="left")
        where.add_column("part")
        where.add_column("seconds", justify="right")
        for name, seconds in self._progress.spent:
            where.add_row(name, f"{seconds:.0f}")
        self._console.print(where)
        answers = ", ".join(f"{count} by {release}" for release, count in tally.releases.items())
        self._progress.say(
            f"The client asked {tally.answered + len(tally.failures)} times: {len(tally.failures)} failures; {answers}."
        )
        self._progress.say(
            "The paired benchmark used demo margins, chosen for two noisy CPU cores; they are no production margins."
        )
        layout = self._layout
        self._progress.say(
            f"\n[bold]Where to look[/]\n"
            f"  Airflow   {layout.airflow_url}  (user admin, password in {layout.airflow_passwords})\n"
            f"  MLflow    {layout.mlflow_url}\n"
            f"  report    {self._report_address(2)}\n"
            f"            or: bin/headway report {MODEL}\n"
            f"  gateway   curl {self.model_url}/v1/chat/completions -H 'content-type: application/json' "
            f"""-d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'\n"""
            f"  status    bin/headway status\n"
            f"  stop      make down"
        )

    def _program(self, environment: EnvironmentName, name: str, *arguments: str) -> None:
        layout = self._layout
        mlflow = {"MLFLOW_TRACKING_URI": layout.mlflow_url, "MLFLOW_S3_ENDPOINT_URL": layout.s3_url}
        ended = subprocess.run(
            [str(layout.python(environment)), str(layout.checkout / "local" / name), *arguments],
            env=layout.child_env(environment, role="mlflow", extra=mlflow),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise DemoFailed(f"{name} ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")

    def _report_address(self, version: int) -> str:
        return str(self._backend.registry.tags(MODEL, version).get(record.REPORT_TAG, "not recorded"))

    def _state(self, version: int) -> record.VersionState | None:
        states = record.read_state(self._backend.registry.tags(MODEL, version))
        return max(states.values(), key=lambda s: s.at, default=None)

    def _mlflow(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(self._layout.mlflow_url, self._layout.mlflow_url)


@contextmanager
def only_one(layout: LocalLayout) -> Iterator[None]:
    """Hold the demo's lock, so that a second demo on the same stack says so and stops.

    Raises:
        Conflict: Another demo holds it; names its process.
    """
    layout.run.mkdir(parents=True, exist_ok=True)
    path = layout.run / "demo.lock"
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            raise Conflict(
                f"a demo is already running on this stack (process {handle.read().strip() or 'unknown'}); "
                "wait for its end, or stop it with Ctrl-C there",
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def demo() -> None:
    """Show headway's main job on a real model: three promotions, a client watching, on a stack that is left up."""
    from headway.adapters.local import stack
    from headway.settings import Settings
    from headway.wiring import connect

    settings = Settings.load()
    layout = settings.layout()
    console = Console(highlight=False, soft_wrap=True)
    with only_one(layout):
        stack.up(layout, lambda line: console.print(escape(line)))
        backend = connect(settings)
        Demo(layout, backend, Follower(backend, console), console).run()
