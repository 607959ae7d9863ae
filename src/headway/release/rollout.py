"""Step 6: the candidate comes up beside stable, takes no traffic yet, and has answered for real."""

from datetime import datetime

from headway.domain.cluster import ClusterStatus, Room
from headway.domain.release import ReleasePlan, ReleaseRef
from headway.domain.traffic import Backend
from headway.domain.value import Value
from headway.errors import BackendError, Refused
from headway.ports import Clusters, Traffic


class RolloutOutcome(Value):
    """A candidate that answers and has no traffic."""

    cluster: str
    endpoint: str
    replicas_ready: int
    evicted: str | None = None
    """Previous cluster that had to make room."""


def begin(plan: ReleasePlan, ref: ReleaseRef, clusters: Clusters, traffic: Traffic) -> ClusterStatus:
    """Start the candidate, or adopt the running one of this plan.

    Without room the warm previous cluster of the model goes first: it is the only thing that may be given up. Then the
    profile's `rollout.no_room` tells what is done. One that waits is absent, with what it waits for as its reason;
    call again then.

    Raises:
        Refused: There is no room, and nothing may be given up; or no node could ever hold a replica.
    """
    status = clusters.status(plan.cluster.name)
    if status.phase in ("starting", "ready"):
        return status
    if status.phase == "failed":
        clusters.delete(plan.cluster.name)
    spec, room = plan.cluster, _room(plan, clusters, traffic)
    no_room = plan.profile.rollout.no_room
    if not room.possible:
        raise Refused(
            f"no machine can hold a replica of {plan.model}: {room.detail}; lower `hardware.per_replica`, or name an "
            "accelerator that is there",
            possible=False,
        )
    if not room.fits and no_room == "wait":
        return ClusterStatus(name=spec.name, phase="absent", reason=f"waits for room: {room.detail}")
    if not room.fits and (no_room == "refuse" or room.replicas < 1):
        raise Refused(
            f"there is no room for a second cluster of {plan.model}: {room.detail}; free some, lower `replicas.min` or "
            "what a replica needs, or set `rollout.no_room` of the profile to wait or to shrink",
            replicas=room.replicas,
        )
    if not room.fits:
        smaller = spec.replicas.model_copy(update={"min": min(room.replicas, spec.replicas.min)})
        spec = spec.model_copy(update={"replicas": smaller})
    return clusters.apply(spec.model_copy(update={"release": ref.release}))


def finish(plan: ReleasePlan, ref: ReleaseRef, clusters: Clusters, traffic: Traffic, now: datetime) -> RolloutOutcome:
    """Make the ready candidate reachable for the benchmark, with none of the traffic.

    Raises:
        BackendError: The candidate is not ready; the reason is the engine's own.
    """
    status = clusters.status(plan.cluster.name)
    if status.phase != "ready" or status.endpoint is None:
        raise BackendError(
            f"candidate {plan.cluster.name} of {plan.model} is {status.phase}: {status.reason or 'no reason given'}",
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


def _room(plan: ReleasePlan, clusters: Clusters, traffic: Traffic) -> Room:
    """Return what room there is, once the previous cluster has gone where it is needed."""
    room = clusters.room(plan.cluster)
    if room.fits or not room.possible:
        return room
    route = traffic.route(plan.model)
    if route.previous is None:
        return room
    traffic.shift(route.model_copy(update={"previous": None, "keep_previous_until": None}))
    clusters.delete(route.previous.cluster)
    return clusters.room(plan.cluster)
