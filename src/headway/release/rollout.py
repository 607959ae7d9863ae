"""Step 6: the candidate comes up beside stable, takes no traffic yet, and has answered for real."""

from datetime import datetime

from headway.domain.cluster import ClusterStatus
from headway.domain.release import ReleasePlan, ReleaseRef
from headway.domain.traffic import Backend
from headway.domain.value import Value
from headway.errors import BackendError, Refused
from headway.ports import Clusters, Traffic
from headway.units import format_bytes


class RolloutOutcome(Value):
    """A candidate that answers and has no traffic."""

    cluster: str
    endpoint: str
    replicas_ready: int
    evicted: str | None = None
    """Previous cluster that had to make room."""


def begin(plan: ReleasePlan, ref: ReleaseRef, clusters: Clusters, traffic: Traffic) -> ClusterStatus:
    """Start the candidate, or adopt the running one of this plan.

    Without room the warm previous cluster of the model goes first: it is the only thing that may be given up.

    Raises:
        Refused: There is no room, and nothing may be given up.
    """
    status = clusters.status(plan.cluster.name)
    if status.phase in ("starting", "ready"):
        return status
    if status.phase == "failed":
        clusters.delete(plan.cluster.name)
    _make_room(plan, clusters, traffic)
    return clusters.apply(plan.cluster.model_copy(update={"release": ref.release}))


def finish(plan: ReleasePlan, ref: ReleaseRef, clusters: Clusters, traffic: Traffic, now: datetime) -> RolloutOutcome:
    """Make the ready candidate reachable for the benchmark, with none of the traffic.

    Raises:
        BackendError: The candidate is not ready; the reason is the engine's own.
    """
    status = clusters.status(plan.cluster.name)
    if status.phase != "ready" or status.endpoint is None:
        raise BackendError(
            f"candidate {plan.cluster.name} of {plan.model} is {status.phase}: {status.reason or 'no reason given'}; "
            f"its log is cluster-{plan.cluster.name}.log",
            cluster=plan.cluster.name,
            phase=status.phase,
        )
    route = traffic.route(plan.model)
    is_stable = route.stable is not None and route.stable.cluster == plan.cluster.name
    is_candidate = route.candidate is not None and route.candidate.cluster == plan.cluster.name
    if not is_stable and not is_candidate:
        was_previous = route.previous is not None and route.previous.cluster == plan.cluster.name
        traffic.shift(
            route.model_copy(
                update={
                    **({"previous": None, "keep_previous_until": None} if was_previous else {}),
                    "candidate": backend_of(plan, ref),
                    "candidate_pct": 0,
                    "candidate_pct_since": now.isoformat(),
                }
            )
        )
    return RolloutOutcome(cluster=status.name, endpoint=status.endpoint, replicas_ready=status.replicas_ready)


def backend_of(plan: ReleasePlan, ref: ReleaseRef) -> Backend:
    """Return the plan's cluster as the gateway knows it."""
    return Backend(
        cluster=plan.cluster.name,
        release=ref.release,
        version=ref.version,
        cluster_digest=plan.cluster_digest,
    )


def _make_room(plan: ReleasePlan, clusters: Clusters, traffic: Traffic) -> None:
    capacity = clusters.capacity()
    if capacity.free_bytes >= plan.cluster.memory_bytes:
        return
    route = traffic.route(plan.model)
    if route.previous is not None:
        traffic.shift(route.model_copy(update={"previous": None, "keep_previous_until": None}))
        clusters.delete(route.previous.cluster)
        capacity = clusters.capacity()
    if capacity.free_bytes < plan.cluster.memory_bytes:
        raise Refused(
            f"a second cluster of {plan.model} needs {format_bytes(plan.cluster.memory_bytes)} and "
            f"{format_bytes(capacity.free_bytes)} of {format_bytes(capacity.total_bytes)} are free "
            f"({capacity.detail}); free memory, or lower `engine.kv_cache_gib` or `replicas.min` of the profile",
            needed_bytes=plan.cluster.memory_bytes,
            free_bytes=capacity.free_bytes,
        )
