"""What the commands about models show: values in, something rich can print out."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from headway.domain.release import ReleasePlan, record_key
from headway.domain.traffic import Backend as Side
from headway.domain.traffic import Route
from headway.domain.value import short, slug
from headway.errors import HeadwayError, NotFound
from headway.judge.calibrate import flaw
from headway.release import canary, recall, record
from headway.release import report as reporting
from headway.units import format_bytes

if TYPE_CHECKING:
    from headway.wiring import Backend

Answer = TypeVar("Answer")
Other = TypeVar("Other")
NONE = "[dim]-[/]"
MODEL_COLUMNS = ("model", "alias", "stable", "candidate", "previous", "split", "last verdict")
OUTCOME_COLOURS = {"promoted": "green", "held": "yellow", "rejected": "red", "rolled_back": "red", "failed": "red"}


class Asker:
    """Asks parts that may be down, and remembers which were."""

    def __init__(self) -> None:
        self.down: dict[str, str] = {}

    def ask(self, part: str, question: Callable[[], Answer], otherwise: Other) -> Answer | Other:
        """Return the answer, or `otherwise` if the part does not give one; a part that is down is asked once."""
        if part in self.down:
            return otherwise
        try:
            return question()
        except NotFound:
            return otherwise
        except HeadwayError as error:
            self.down[part] = error.message
            return otherwise


def status(backend: "Backend") -> Sequence[RenderableType]:
    """Show every model that has a profile or a route, every cluster, and each part that does not answer."""
    asker = Asker()
    profiles = asker.ask("profiles", backend.profiles, None) or {}
    routes = {r.model: r for r in asker.ask("gateway", backend.traffic.routes, ())}
    clusters = asker.ask("clusters", backend.clusters.list, ())

    models = Table(*MODEL_COLUMNS, title="Models", title_justify="left")
    for name in sorted({*profiles, *routes}):
        route = routes.get(name, Route(model=name))
        alias = profiles[name].alias if name in profiles else "champion"
        wanted = asker.ask("registry", lambda n=name, a=alias: backend.registry.resolve(n, alias=a).version, None)  # type: ignore[misc]
        split = route.split
        models.add_row(
            escape(name) + (" [yellow](paused)[/]" if route.paused else ""),
            f"{escape(alias)} = {wanted}" if wanted is not None else NONE,
            _side(route.stable),
            _side(route.candidate) + (f" held until {_time(route.hold_until)}" if route.hold_until else ""),
            _side(route.previous) + (f" until {_time(route.keep_previous_until)}" if route.keep_previous_until else ""),
            f"{split.stable_pct} : {split.candidate_pct}" if route.stable or route.candidate else NONE,
            asker.ask("ledger", lambda n=name: _last_verdict(backend, n), NONE),  # type: ignore[misc]
        )

    running = Table(
        "cluster", "model", "version", "state", "replicas", "endpoint", title="Clusters", title_justify="left"
    )
    for cluster in clusters:
        spec = cluster.spec
        running.add_row(
            cluster.name,
            escape(spec.model) if spec else NONE,
            str(spec.version) if spec else NONE,
            cluster.phase + (f": {escape(cluster.reason)}" if cluster.reason and cluster.phase != "ready" else ""),
            f"{cluster.replicas_ready} of {cluster.replicas_target}",
            cluster.endpoint or NONE,
        )

    health = asker.ask("airflow", backend.runs.health, None) or {}
    for part, state in health.items():
        if state not in ("healthy", "None"):
            asker.down[f"airflow {part}"] = f"Airflow says it is {state}"
    active = asker.ask("airflow", lambda: backend.runs.active("release"), ())
    shown: list[RenderableType] = [models, running]
    shown += [
        f"release on its way: {escape(str(run.conf.get('model')))} ({run.state}, run {escape(run.run_id)})"
        for run in active
    ]
    shown += [f"[red]{part} does not answer:[/] {escape(why)}" for part, why in asker.down.items()]
    if asker.down:
        shown.append("what it would say is missing above; `headway up` starts what is down")
    return shown


def plan(backend: "Backend", made: ReleasePlan) -> Sequence[RenderableType]:
    """Show what a release of this plan would make, keep and take down."""
    asker = Asker()
    version = made.selection.model.version
    route = asker.ask("gateway", lambda: backend.traffic.route(made.model), Route(model=made.model))
    state = asker.ask(
        "registry", lambda: record.read_state(backend.registry.tags(made.model, version)).get(made.cluster_digest), None
    )
    lines: list[str] = []
    if route.stable is not None and route.stable.cluster_digest == made.cluster_digest:
        lines.append(f"[green]=[/] {made.cluster.name} has all the traffic already: a release would change nothing")
    else:
        lines += [*_artifact_lines(asker, backend, made), *_cluster_lines(asker, backend, made, route)]
        lines += _traffic_lines(made, route)
        if state is not None:
            lines.append(f"[yellow]note[/] this pair was {state.outcome} at {_time(state.at)}: {escape(state.reason)}")
    if route.paused:
        lines.append(f"[red]![/] {escape(made.model)} is paused; `headway resume {escape(made.model)}` first")
    lines += [f"[red]{part} does not answer:[/] {escape(why)}" for part, why in asker.down.items()]
    head = f"[bold]{escape(made.model)} version {version}[/] ({escape(made.selection.selected_by)})"
    return [head, _facts(made), *lines]


def _facts(made: ReleasePlan) -> Table:
    source, shape, memory = made.selection, made.validated.shape, made.memory
    size = format_bytes(source.size_bytes)
    facts = Table(show_header=False, box=None, padding=(0, 2))
    facts.add_row("source", f"{short(source.source_digest)}, {len(source.files)} files, {size}")
    weights = f"{shape.parameters / 1e6:.0f} M weights"
    facts.add_row("model", f"{shape.architecture}, {weights}, {shape.layers} layers, {shape.dtype}")
    facts.add_row("scheme", made.recipe.scheme)
    facts.add_row(
        "memory",
        f"{format_bytes(memory.needed_bytes)} of {format_bytes(memory.available_bytes)} on each of "
        f"{made.cluster.tensor_parallel} x {made.cluster.accelerator}: weights {format_bytes(memory.weights_bytes)}, "
        f"KV cache {format_bytes(memory.kv_cache_bytes)}, overhead {format_bytes(memory.overhead_bytes)}",
    )
    return facts


def _artifact_lines(asker: Asker, backend: "Backend", made: ReleasePlan) -> Iterator[str]:
    known = asker.ask("artifacts", lambda: backend.weights.manifest(made.artifact_digest), None)
    name = f"artifact {short(made.artifact_digest)}"
    if known is not None:
        yield f"[green]=[/] {name} is there ({format_bytes(known.size_bytes)}), nothing to quantize"
    else:
        yield f"[green]+[/] {name} by {made.recipe.scheme}, behind the quality gate"


def _cluster_lines(asker: Asker, backend: "Backend", made: ReleasePlan, route: Route) -> Iterator[str]:
    cluster = asker.ask("clusters", lambda: backend.clusters.status(made.cluster.name), None)
    if cluster is not None and cluster.phase in ("starting", "ready"):
        yield f"[green]=[/] cluster {made.cluster.name} is {cluster.phase}"
        return
    yield f"[green]+[/] cluster {made.cluster.name} as candidate, without traffic"
    room = asker.ask("room", lambda: backend.clusters.room(made.cluster), None)
    if room is None or room.fits:
        return
    if route.previous is not None:
        yield f"[red]-[/] previous cluster {route.previous.cluster} makes room ({room.detail})"
    else:
        yield f"[red]![/] there is no room: {room.detail}"


def _traffic_lines(made: ReleasePlan, route: Route) -> Iterator[str]:
    canary, shift = made.profile.canary, made.profile.shift
    if route.stable is None:
        yield "[yellow]~[/] canary against the profile's absolute limits, since nothing serves yet"
    else:
        demo = " (demo margins)" if canary.demo_margins else ""
        yield (
            f"[yellow]~[/] canary: up to {canary.blocks} paired blocks of {canary.requests_per_block} requests, "
            f"margins p50 {canary.p50_margin:.1%} and p95 {canary.p95_margin:.1%}{demo}"
        )
        unsure = flaw(canary, made.profile.hardware.accelerator)
        if unsure:
            yield f"[yellow]![/] {unsure}"
    if shift.approve:
        yield "[yellow]~[/] a person is asked"
    if route.stable is None:
        yield "[yellow]~[/] traffic: all of it to the candidate"
        return
    steps = ", ".join(f"{step} %" for step in shift.steps_pct)
    yield f"[yellow]~[/] traffic: {steps}, each watched for {shift.bake_s:.0f} s"
    keep_s = made.profile.keep_previous_s
    yield f"[yellow]~[/] version {route.stable.version} stays warm for {keep_s:.0f} s as the way back"


def last_release(backend: "Backend", model: str) -> str | None:
    """Return the id of the release that ended last, none if there is none. Ids sort by time."""
    prefix = f"releases/{slug(model)}/"
    ended = (key for key in backend.ledger.list(prefix) if key.endswith("/release.json"))
    return max((key.removeprefix(prefix).split("/", 1)[0] for key in ended), default=None)


def report(backend: "Backend", model: str, release: str) -> tuple[bytes, dict[str, Any]]:
    """Return the report of a release, made again from its records, and its last record.

    Raises:
        NotFound: There is no such release, or it has not ended.
    """
    kept = backend.ledger.read(record_key(slug(model), release, "release"))
    if not kept:
        raise NotFound(f"release {release} of {model} has not ended, or never was; `headway status` shows the last one")
    story = recall.story(backend.ledger, model, release)
    if story.ref is None:
        raise NotFound(f"release {release} of {model} selected no version, so it has no report: {kept.get('reason')}")
    html, _ = reporting.render(
        story.ref,
        story.plan,
        story.steps,
        story.verdict,
        record.Ending(outcome=kept["outcome"], reason=str(kept.get("reason", ""))),
        now=datetime.fromisoformat(str(kept["ended_at"])),
        records=canary.read_records(story.verdict, backend.weights),
    )
    return html, dict(kept)


def _last_verdict(backend: "Backend", model: str) -> str:
    release = last_release(backend, model)
    kept = backend.ledger.read(record_key(slug(model), release, "release")) if release else None
    if not kept:
        return NONE
    outcome = str(kept.get("outcome"))
    colour = OUTCOME_COLOURS.get(outcome, "dim")
    return f"version {kept.get('version')} [{colour}]{outcome}[/]: {escape(_cut(str(kept.get('reason', ''))))}"


def _side(side: Side | None) -> str:
    return f"version {side.version} ({escape(side.release)})" if side else NONE


def _time(text: str | None) -> str:
    try:
        return f"{datetime.fromisoformat(text or ''):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return str(text)


def _cut(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}..."
