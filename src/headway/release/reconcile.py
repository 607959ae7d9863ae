"""What the world should be, against what it is: which releases to start and which clusters to end.

Pure: `decide` gets everything it needs as values and returns what to do. Webhooks are lost when Airflow is away for
ten seconds; this finds what they would have said, and it alone enforces that previous and held clusters expire.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from headway.domain.cluster import ClusterStatus
from headway.domain.release import FINAL_OUTCOMES
from headway.domain.traffic import Route
from headway.domain.value import Value, short, slug
from headway.release.record import read_state

RETRY_AFTER = timedelta(hours=1)
"""A release that failed for a reason that may pass is tried again by itself at most this often."""


class Desired(Value):
    """What the registry and the profile ask for, for one model."""

    model: str
    version: int
    cluster_digest: str
    """Of the plan that a release would make now; `source:...` when the files or the plan are refused."""
    releases: int
    """How many releases of the model the ledger has: makes the next run's id new, and the same until it has begun."""
    tags: Mapping[str, str] = {}
    """Of the version."""
    alias_at_release: int | None = None
    """The version that the alias named when the release that serves now began."""


class Start(Value):
    """Start a release."""

    kind: Literal["start"] = "start"
    model: str
    version: int
    run_id: str
    reason: str


class EndPrevious(Value):
    """The previous cluster has been warm long enough."""

    kind: Literal["end-previous"] = "end-previous"
    model: str
    cluster: str
    reason: str


class EndCandidate(Value):
    """Nobody works on this candidate any more: all traffic to stable, and the candidate goes."""

    kind: Literal["end-candidate"] = "end-candidate"
    model: str
    cluster: str
    reason: str


class EndCluster(Value):
    """No route names this cluster and no release is at work on it."""

    kind: Literal["end-cluster"] = "end-cluster"
    model: str
    cluster: str
    reason: str


Expiry = EndPrevious | EndCandidate | EndCluster


def run_id(desired: Desired) -> str:
    """Name the run, so that asking twice starts one: a second start of the same is a duplicate for Airflow."""
    mark = desired.cluster_digest.removeprefix("source:")
    return f"reconcile__{slug(desired.model)}__v{desired.version}__{short(mark)}__{desired.releases + 1}"


def start(desired: Desired, route: Route, *, busy: bool, now: datetime) -> Start | None:
    """Decide whether a release of this model is due.

    Args:
        desired: What should serve.
        route: What does serve.
        busy: Whether a release of the model waits or runs already.
        now: UTC.
    """
    if route.paused or busy:
        return None
    if route.stable is not None and route.stable.cluster_digest == desired.cluster_digest:
        return None
    state = read_state(desired.tags).get(desired.cluster_digest)
    if state is not None:
        final = state.outcome in FINAL_OUTCOMES
        # A promoted version that lost its cluster and its route (a restore, a wiped gateway) is brought back.
        wanted_again = state.outcome == "promoted" and (route.stable is None or _moved_back(desired))
        if final and not wanted_again:
            return None
        if not final and now < _time(state.at) + RETRY_AFTER:
            return None
    serving = f"version {route.stable.version}" if route.stable else "nothing"
    return Start(
        model=desired.model,
        version=desired.version,
        run_id=run_id(desired),
        reason=f"version {desired.version} should serve, and {serving} does",
    )


def expired(
    routes: Sequence[Route],
    clusters: Sequence[ClusterStatus],
    leased: Mapping[str, bool],
    now: datetime,
) -> list[Expiry]:
    """Decide which clusters are over.

    Args:
        routes: Every model's routing state.
        clusters: Every cluster of headway.
        leased: For each model, whether a release holds its lease; a model that is missing counts as leased, since
            a lease that could not be read protects.
        now: UTC.
    """
    actions: list[Expiry] = []
    named = set()
    for route in routes:
        named |= {b.cluster for b in (route.stable, route.candidate, route.previous) if b is not None}
        if route.previous is not None and route.keep_previous_until and now >= _time(route.keep_previous_until):
            actions.append(
                EndPrevious(
                    model=route.model,
                    cluster=route.previous.cluster,
                    reason=f"version {route.previous.version} was kept warm until {route.keep_previous_until}",
                )
            )
        if route.candidate is not None and not leased.get(route.model, True):
            if route.hold_until and now < _time(route.hold_until):
                continue
            why = f"was held until {route.hold_until}" if route.hold_until else "was left by its release"
            actions.append(
                EndCandidate(
                    model=route.model,
                    cluster=route.candidate.cluster,
                    reason=f"candidate version {route.candidate.version} {why}",
                )
            )
    for cluster in clusters:
        model = cluster.spec.model if cluster.spec else None
        if cluster.phase == "absent" or cluster.name in named or model is None or leased.get(model, True):
            continue
        actions.append(
            EndCluster(model=model, cluster=cluster.name, reason="no route names it and no release is at work on it")
        )
    return actions


def without_previous(route: Route) -> Route:
    """Return the route without its previous cluster."""
    return route.model_copy(update={"previous": None, "keep_previous_until": None})


def without_candidate(route: Route) -> Route:
    """Return the route with all traffic on stable."""
    return route.model_copy(
        update={"candidate": None, "candidate_pct": 0, "candidate_pct_since": None, "hold_until": None}
    )


def _moved_back(desired: Desired) -> bool:
    """Whether the alias was moved since what serves now was released.

    Then it asks for a version that once had the traffic: a wish. If it was not moved, a person released another
    version by its number, and must not find the alias's version back five minutes later.
    """
    return desired.alias_at_release is not None and desired.alias_at_release != desired.version


def _time(text: str) -> datetime:
    """Read a time of ours; what is not one counts as long ago, so that nothing is kept for ever by a typo."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return at if at.tzinfo else datetime.fromisoformat(f"{at.isoformat()}+00:00")
