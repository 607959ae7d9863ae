"""The commands about models: `status`, `plan`, `release`, `rollback`, `pause`, `resume`, `report`, `schema`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from headway.errors import HeadwayError, NotFound

if TYPE_CHECKING:
    from headway.release.rollback import Rollback, RollbackOutcome
    from headway.wiring import Backend

Model = Annotated[str, typer.Argument(help="Name of the registered model.")]
Version = Annotated[
    int | None, typer.Option("--version", min=1, help="Number of the version. [default: what the alias names]")
]
Alias = Annotated[str | None, typer.Option("--alias", help="Alias in the registry. [default: the profile's]")]
SCHEMA_FILE = "schema.json"
PIPED_COLUMNS = 200


def status() -> None:
    """Show models, versions, clusters, split, replicas and last verdicts, and which part does not answer."""
    from headway.cli import show

    backend = _connect()
    console = _console()
    console.print(*show.status(backend), sep="\n")


def plan(model: Model, version: Version = None, alias: Alias = None) -> None:
    """Show what a release would do, without doing it."""
    from headway.cli import show
    from headway.release import calibration, select, validate
    from headway.release import plan as planning

    backend = _connect()
    profile = backend.profile(model)
    named = None if version else alias or profile.alias
    chosen = select.run(model, backend.registry, backend.weights, alias=named, version=version)
    checked = validate.run(chosen, backend.weights, profile.weights, backend.signatures)
    made = planning.make(
        profile,
        chosen,
        checked,
        serving_image=backend.serving_image(profile),
        model_root=backend.model_root,
        calibration_digest=calibration.run(profile, backend.weights, backend.checks),
    )
    _console().print(*show.plan(backend, made), sep="\n")


def release(  # noqa: PLR0917 - typer makes options of them
    model: Model,
    version: Version = None,
    alias: Alias = None,
    scheme: Annotated[str, typer.Option(help="Quantization scheme.")] = "profile",
    skip_approval: Annotated[bool, typer.Option(help="Do not ask a person, even if the profile wants it.")] = False,
    wait: Annotated[bool, typer.Option(help="Show the steps until the end. Exit code 0 only if promoted.")] = False,
) -> None:
    """Release a version of a model. Without `--wait` it is started, and Airflow does the rest."""
    from headway.cli.follow import RELEASE_DAG, Follower, utcnow
    from headway.domain.value import slug

    backend = _connect()
    profile = backend.profile(model)
    # Found out here too, so that a typing mistake is an answer at once and no red run in Airflow.
    found = backend.registry.resolve(model, alias=None if version else alias or profile.alias, version=version)
    conf: dict[str, Any] = {"model": model, "scheme": scheme, "skip_approval": skip_approval}
    conf |= {key: value for key, value in (("version", version), ("alias", alias)) if value is not None}
    console = _console()
    follower = Follower(backend, console)
    run_id = f"cli__{slug(model)}__v{found.version}__{utcnow():%Y%m%dT%H%M%S.%f}"
    run = backend.runs.trigger(RELEASE_DAG, run_id, conf, note="headway release")
    console.print(f"release of {model} version {found.version}: {backend.runs.run_url(RELEASE_DAG, run.run_id)}")
    if not wait:
        return
    followed = follower.follow(model, run.run_id)
    colour = "green" if followed.outcome == "promoted" else "red"
    console.print(f"[bold {colour}]{followed.outcome}[/]: {escape(followed.reason)}")
    if followed.report:
        console.print(f"report: {followed.report}")
    if followed.outcome != "promoted":
        raise typer.Exit(1)


def rollback(
    model: Model,
    direct: Annotated[bool, typer.Option("--direct", help="Without Airflow and MLflow: change the split now.")] = False,
) -> None:
    """Give all traffic back to what had it before; a matter of seconds."""
    backend = _connect()
    console = _console()
    if direct:
        for line in _rollback_direct(backend, model):
            console.print(line)
        return
    from headway.cli.follow import ROLLBACK_DAG, Follower, utcnow
    from headway.domain.value import slug

    # Refused here too, at once and in one sentence.
    from headway.release import rollback as way_back

    decided = way_back.decide(model, backend.traffic)
    run_id = f"cli__{slug(model)}__{utcnow():%Y%m%dT%H%M%S.%f}"
    Follower(backend, console).run_to_end(ROLLBACK_DAG, run_id, {"model": model})
    console.print(_taken_back(model, decided))


def _rollback_direct(backend: "Backend", model: str) -> Iterator[str]:
    """Yield what to say: first that the traffic is back, at once; then what could not be recorded of it."""
    from headway.cli.follow import utcnow
    from headway.release import rollback as way_back

    outcome = way_back.run(way_back.decide(model, backend.traffic), backend.traffic, backend.clusters)
    yield _taken_back(model, outcome)
    if outcome.warning:
        yield f"[yellow]note[/] {escape(outcome.warning)}"
    now = utcnow()
    try:
        way_back.remember(outcome, backend.registry, now)
    except HeadwayError as error:
        yield (
            f"[yellow]note[/] not recorded in the registry ({escape(error.message)}). As soon as it answers again, run "
            f"`headway pause {model}` or move the alias: until then nothing knows that version {outcome.leave.version} "
            "was taken back, and reconcile may bring it again"
        )
    try:
        backend.ledger.append(f"rollbacks/{_slug(model)}/direct-{now:%Y%m%d-%H%M%S}.json", outcome.to_json())
    except HeadwayError as error:
        yield f"[yellow]note[/] not recorded in the ledger ({escape(error.message)})"


def _taken_back(model: str, done: "Rollback | RollbackOutcome") -> str:
    return f"version {done.back.version} has all the traffic of {model}; version {done.leave.version} was taken back"


def pause(model: Model) -> None:
    """Freeze releases and pre-scaling of a model. A release on its way goes on; the traffic stays as it is."""
    _set_paused(model, paused=True)
    _console().print(f"{model} is paused; `headway resume {model}` lets releases start again")


def resume(model: Model) -> None:
    """Let releases and pre-scaling of a paused model go on."""
    _set_paused(model, paused=False)
    _console().print(f"{model} may be released again")


def _set_paused(model: str, *, paused: bool) -> None:
    backend = _connect()
    route = backend.traffic.route(model)
    if route.stable is None and route.candidate is None:
        # A model that serves nothing yet may be paused too, but not one that nobody knows.
        backend.profile(model)
    if route.paused != paused:
        backend.traffic.shift(route.model_copy(update={"paused": paused}))


def report(
    model: Model,
    release: Annotated[str | None, typer.Option(help="Id of the release. [default: the last one]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write the report to.")] = None,
) -> None:
    """Write the report of a model's last release to a file, and say where else it is."""
    from headway.cli import show

    backend = _connect()
    found = release or show.last_release(backend, model)
    if found is None:
        raise NotFound(f"no release of {model} has ended yet; `headway status` shows what is on its way", model=model)
    html, kept = show.report(backend, model, found)
    path = output or Path(f"report-{_slug(model)}-{found}.html")
    path.write_bytes(html)
    console = _console()
    console.print(f"release {found} of {model}, version {kept.get('version')}: [bold]{kept['outcome']}[/]")
    console.print(escape(str(kept.get("reason", ""))))
    console.print(f"report   {path.resolve()}")
    if kept.get("report"):
        console.print(f"MLflow   {kept['report']}")


def schema(
    write: Annotated[bool, typer.Option("--write", help="Write it to `profiles/schema.json`.")] = False,
) -> None:
    """Print the JSON schema of profiles, for editors."""
    text = schema_text()
    if not write:
        typer.echo(text, nl=False)
        return
    from headway.settings import Settings

    path = Settings.load().checkout / "profiles" / SCHEMA_FILE
    path.write_text(text)
    _console().print(f"wrote {path}")


def schema_text() -> str:
    """Return the schema that `profiles/schema.json` must hold."""
    from headway.domain.profile import Profile

    content = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "headway profile"}
    return json.dumps({**Profile.model_json_schema(), **content}, indent=2, sort_keys=True) + "\n"


def _slug(model: str) -> str:
    from headway.domain.value import slug

    return slug(model)


def _connect() -> "Backend":
    from headway import wiring

    return wiring.connect()


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    # Tables that are piped somewhere have no edge to be squeezed at.
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=PIPED_COLUMNS)
