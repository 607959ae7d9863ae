"""Setting the floor of what serves, and of a candidate with a share of the traffic; holding room for what comes."""

import math

from headway.domain.cluster import ClusterStatus
from headway.domain.prescaling import Tick
from headway.domain.profile import Profile, Replicas
from headway.domain.traffic import Route
from headway.ports import Clusters, Warm
from headway.prescale import ladder


def act(profile: Profile, route: Route, stable: ClusterStatus, floor: int, clusters: Clusters) -> None:
    """Set the floor of a model.

    While a candidate has a share of the traffic, the floor divides with the split: the candidate has the replicas for
    its share, and stable keeps what it has, because all of the traffic may come back at any moment. What served before
    the last promotion keeps the replicas of the profile's minimum from then on; a rollback to it says what is missing.

    Args:
        profile: Of the model.
        route: Who has the traffic.
        stable: The cluster that serves.
        floor: Replicas of the model that must be up.
        clusters: Where it is set.

    Raises:
        HeadwayError: A cluster cannot be changed.
    """
    if route.previous is not None:
        give_back(profile, clusters.status(route.previous.cluster), clusters)
    shifting = route.candidate is not None and route.candidate_pct > 0
    _set(clusters, stable, profile.replicas, floor, may_fall=not shifting)
    if route.candidate is not None and shifting:
        share = math.ceil(floor * route.candidate_pct / 100)
        _set(clusters, clusters.status(route.candidate.cluster), profile.replicas, share, may_fall=False)


def _set(clusters: Clusters, cluster: ClusterStatus, wished: Replicas, floor: int, *, may_fall: bool) -> None:
    if cluster.spec is None:
        return
    now = cluster.spec.replicas
    low = max(floor, wished.min) if may_fall else max(floor, wished.min, now.min)
    replicas = wished.model_copy(update={"min": low, "max": max(low, wished.max)})
    if replicas != now:
        clusters.floor(cluster.name, replicas)


def give_back(profile: Profile, cluster: ClusterStatus, clusters: Clusters) -> None:
    """Set the range of the profile, which stands when nothing is planned ahead."""
    if cluster.spec is not None and cluster.spec.replicas != profile.replicas:
        clusters.floor(cluster.name, profile.replicas)


def hold(profile: Profile, made: Tick, warm: Warm) -> None:
    """Hold room for the replicas that the ladder wants to be ready for and that are neither up nor asked for.

    Room is held by a forecast alone: where it is not in force, all is given back, except that nothing is given up
    because the load could not be measured, or while a person has paused the model.

    Args:
        profile: Of the model.
        made: Its plan; the floor is set by then.
        warm: What holds room.

    Raises:
        HeadwayError: It cannot be held or given back.
    """
    hardware = profile.hardware
    if hardware.accelerator == "cpu" or made.mode == "paused":
        return
    if made.mode in ("forecast", "reactive") and made.load is None:
        return
    ready_for = next((rung.count for rung in made.ladder if rung.name == ladder.HELD.name), 0)
    count = max(ready_for - max(made.floor, made.running + made.pending), 0) if made.mode == "forecast" else 0
    warm.hold(profile.model, hardware.accelerator, hardware.per_replica, count)
