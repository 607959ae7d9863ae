"""Reconciling, as a task: look at every model, start what is due, end what is over."""

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.timezone import utcnow

from headway.domain.model import ModelVersion
from headway.domain.prescaling import Tick, plan_key, read_tick
from headway.domain.profile import Profile
from headway.domain.traffic import Route
from headway.domain.value import slug
from headway.errors import (
    ConfigError,
    Conflict,
    HeadwayError,
    IntegrityError,
    ModelRejected,
    NotFound,
    PlanInfeasible,
)
from headway.prescale import schedule
from headway.release import calibration, plan, recall, reconcile, select, validate
from operators.base import RETRIES, RETRY_DELAY
from operators.errors import translated
from operators.hook import HeadwayHook
from operators.lease import holder_of
from operators.release import won
from operators.select import ALIAS_RECORD

if TYPE_CHECKING:
    from operators.hook import Backend

RELEASE_DAG = "release"
ACT_TTL_S = 120.0
"""Deleting a cluster and moving a route takes seconds; the lease is there to keep releases out meanwhile."""


class ReconcileOperator(BaseOperator):
    """Brings the world back to what registry and profiles ask for.

    A model that cannot be looked at costs the others nothing: all are tried, then the task fails with every reason.
    """

    ui_color = "#e3f3df"

    def __init__(self, **kwargs: Any) -> None:
        """Keep Airflow's own arguments. Retried: a task that starts before the API server is up fails."""
        super().__init__(**{"retries": RETRIES, "retry_delay": RETRY_DELAY, **kwargs})

    def execute(self, context: Context) -> Any:
        """Look, decide, act."""
        with translated():
            backend = HeadwayHook().backend
            profiles = backend.profiles()
            active = {str(run.conf.get("model")) for run in backend.runs.active(RELEASE_DAG)}
        done: list[str] = []
        faults: list[str] = []
        routes = _routes(backend)
        for model, profile in profiles.items():
            try:
                route = routes.get(model) or backend.traffic.route(model)
                done += self.start_due(backend, profile, route, busy=model in active)
            except HeadwayError as error:
                faults.append(f"{model}: {error.message}")
            try:
                faults += ticks_missed(backend, profile)
            except HeadwayError as error:
                faults.append(f"{model}: {error.message}")
        try:
            done += self.end_expired(backend, str(context["dag_run"].run_id))
        except HeadwayError as error:
            faults.append(f"expiry: {error.message}")
        for line in done:
            self.log.info(line)
        if faults:
            raise AirflowFailException("; ".join(faults))
        return done

    def start_due(self, backend: "Backend", profile: Profile, route: Route, *, busy: bool) -> list[str]:
        """Start the release of one model if it is due, and no other is at work on it."""
        if busy or route.paused:
            return []
        wanted = desired(backend, profile, route)
        action = reconcile.start(wanted, route, busy=busy, now=utcnow()) if wanted else None
        if action is None or holder_of(backend, profile.model, utcnow()) is not None:
            return []
        conf = {"model": action.model, "version": action.version}
        run = backend.runs.trigger(RELEASE_DAG, action.run_id, conf, note=action.reason)
        return [f"{'started' if run.fresh else 'already started'} {run.run_id}: {action.reason}"]

    def end_expired(self, backend: "Backend", holder: str) -> list[str]:
        """End what is over, each under its model's lease, so that no release works on it meanwhile."""
        now = utcnow()
        routes = backend.traffic.routes()
        clusters = backend.clusters.list()
        models = {r.model for r in routes} | {c.spec.model for c in clusters if c.spec}
        # Asked for are the leases of those alone that might have something to end: each is a request.
        due = {action.model for action in reconcile.expired(routes, clusters, dict.fromkeys(models, False), now)}
        leased = {model: holder_of(backend, model, now) is not None for model in due}
        done = []
        for action in reconcile.expired(routes, clusters, leased, now):
            try:
                backend.lease.acquire(slug(action.model), holder, ACT_TTL_S, utcnow())
            except Conflict:
                continue
            try:
                _act(backend, action)
            finally:
                backend.lease.release(slug(action.model), holder, utcnow())
            done.append(f"{action.kind} {action.cluster}: {action.reason}")
        return done


def ticks_missed(backend: "Backend", profile: Profile) -> list[str]:
    """Return a sentence if nobody plans a model ahead any more that asks for it.

    Nothing lowers a floor but a tick, so a DAG that is dead or paused is found by what it no longer writes.
    """
    if not profile.prescale.enabled:
        return []
    now = utcnow()
    last = read_tick(backend.objects.read(plan_key(profile.model)), profile.model)
    if last is None:
        # From now on the first tick is waited for.
        waits = Tick.off(profile.model, now, profile.replicas.min, "The first tick is waited for.")
        backend.objects.write(plan_key(profile.model), waits.model_dump_json().encode())
        return []
    late = schedule.overdue(last, now)
    return [late] if late else []


def _routes(backend: "Backend") -> dict[str, Route]:
    """Return every model's route by one request; none where one cannot be read: then each is asked for by itself."""
    try:
        return {route.model: route for route in backend.traffic.routes()}
    except IntegrityError:
        return {}


def desired(backend: "Backend", profile: Profile, route: Route) -> reconcile.Desired | None:
    """Find out what the registry and the profile ask for now; none if the alias names nothing."""
    try:
        version = backend.registry.resolve(profile.model, alias=profile.alias)
    except NotFound:
        return None
    releases = _releases(backend, profile.model)
    stable = route.stable
    alias = (
        backend.ledger.read(f"releases/{slug(profile.model)}/{stable.release}/{ALIAS_RECORD}.json") if stable else None
    )
    return reconcile.Desired(
        model=profile.model,
        version=version.version,
        cluster_digest=_cluster_digest(backend, profile, version),
        releases=len(releases),
        tags=dict(backend.registry.tags(profile.model, version.version)),
        alias_at_release=alias["version"] if alias else None,
    )


def _cluster_digest(backend: "Backend", profile: Profile, version: ModelVersion) -> str:
    """Return the digest of the plan that a release would make now.

    What would be refused is named by its source: it is released once all the same, so that somebody says why, and
    the outcome is remembered under that name.
    """
    refused = f"source:{recall.refused_ref('', version).source_digest}"
    try:
        chosen = select.run(profile.model, backend.registry, backend.weights, version=version.version)
        refused = f"source:{chosen.source_digest}"
        checked = validate.run(chosen, backend.weights, profile.weights, backend.signatures)
        made = plan.make(
            profile,
            chosen,
            checked,
            serving_image=backend.serving_image(profile),
            model_root=backend.model_root,
            calibration_digest=calibration.run(profile, backend.weights, backend.checks),
        )
    except (ModelRejected, PlanInfeasible, ConfigError, IntegrityError):
        return refused
    return won(backend, made).cluster_digest


def _releases(backend: "Backend", model: str) -> set[str]:
    prefix = f"releases/{slug(model)}/"
    return {key.removeprefix(prefix).split("/", 1)[0] for key in backend.ledger.list(prefix)}


def _act(backend: "Backend", action: reconcile.Expiry) -> None:
    """Route first, then the cluster; what another role of the route still names stays."""
    route = backend.traffic.route(action.model)
    if action.kind == "end-previous" and route.previous and route.previous.cluster == action.cluster:
        route = reconcile.without_previous(route)
        backend.traffic.shift(route)
    elif action.kind == "end-candidate" and route.candidate and route.candidate.cluster == action.cluster:
        route = reconcile.without_candidate(route)
        backend.traffic.shift(route)
    named = {b.cluster for b in (route.stable, route.candidate, route.previous) if b is not None}
    if action.cluster not in named:
        backend.clusters.delete(action.cluster)
