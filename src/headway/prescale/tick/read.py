"""What is there when a tick begins: the cluster, the history of the traffic, the present load, the last plan."""

from datetime import datetime
from typing import NamedTuple

from headway.domain.cluster import ClusterStatus
from headway.domain.prescaling import Tick, history_key, plan_key, read_tick
from headway.domain.traffic import Backend, Route
from headway.errors import BackendError, BackendUnavailable, IntegrityError
from headway.prescale import ladder
from headway.prescale.history import STEP_S, History, Load, collect, from_parquet, observe
from headway.prescale.ladder import LeadTimes
from headway.prescale.tick.ports import Case
from headway.units import format_seconds


class Found(NamedTuple):
    """What was there.

    Args:
        route: Who has the traffic.
        cluster: What serves.
        previous: The last plan; none if there is none of use.
        lead_times: What scale-ups took.
        history: What was asked for, and what ticks before saw.
        load: What is asked for now; none where the metrics did not answer.
    """

    route: Route
    cluster: ClusterStatus
    previous: Tick | None
    lead_times: LeadTimes
    history: History
    load: Load | None


def read(case: Case, route: Route, stable: Backend) -> Found:
    """Return what is there. Metrics that do not answer cost the load and the newest bins, never the floor.

    Args:
        case: The model.
        route: Who has the traffic.
        stable: What serves.

    Raises:
        HeadwayError: Store or cluster cannot be read, or the cluster does not run.
    """
    cluster = case.ports.clusters.status(stable.cluster)
    if cluster.spec is None or cluster.phase in ("absent", "failed"):
        raise BackendUnavailable(
            f"the cluster of {case.model} ({cluster.name}) is {cluster.phase}"
            f"{f': {cluster.reason}' if cluster.reason else ''}; its floor stays as it is until the cluster is back: "
            "see `headway status`"
        )
    previous = last_plan(case)
    history = _history(case)
    return Found(route, cluster, previous, _lead_times(case, cluster, previous), history, _load(case))


def last_plan(case: Case) -> Tick | None:
    """Return the last plan, none if there is none of use."""
    try:
        return read_tick(case.ports.objects.read(plan_key(case.model)), case.model)
    except IntegrityError as error:
        case.words.note(f"The last plan is lost, and what scale-ups took with it: {error.message}.")
        return None


def _load(case: Case) -> Load | None:
    try:
        return observe(case.model, case.ports.metrics, now=case.now)
    except BackendError as error:
        _unanswered(case, error)
        return None


def _history(case: Case) -> History:
    kept = None
    content = case.ports.objects.read(history_key(case.model))
    try:
        kept = None if content is None else from_parquet(content)
    except IntegrityError as error:
        case.words.note(f"The kept history cannot be used ({error.message}); it is read from the metrics again.")
    days = case.profile.prescale.history_days
    try:
        history, notes, faults = collect(case.model, case.ports.metrics, kept, now=case.now, days=days)
    except BackendError as error:
        _unanswered(case, error)
        begin = datetime.fromtimestamp(case.now.timestamp() // STEP_S * STEP_S, case.now.tzinfo)
        return kept if kept is not None else History(begin, STEP_S, {})
    case.words.note(*notes)
    case.words.problem(*faults)
    return history


def _unanswered(case: Case, error: BackendError) -> None:
    case.words.problem(f"The metrics do not answer ({error.message}); until they do, the floor does not fall.")


def _lead_times(case: Case, cluster: ClusterStatus, previous: Tick | None) -> LeadTimes:
    """Return what scale-ups took, with those that ended since the last tick."""
    times = LeadTimes(case.profile.prescale.lead_time_s, previous.lead_times_s if previous else ())
    if previous is None:
        return times
    for up in case.ports.clusters.scale_ups(cluster.name, previous.made_at):
        took_s = (up.ready_at - up.asked_at).total_seconds()
        if 0 < took_s <= ladder.LONGEST_S:
            times = times.append(took_s)
        else:
            case.words.note(f"A scale-up is said to have taken {format_seconds(took_s)}; it was left out.")
    return times
