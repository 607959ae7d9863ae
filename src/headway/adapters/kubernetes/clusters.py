"""vLLM clusters as RayServices, one for each plan.

A RayService of headway is named by its plan and says in an annotation what it was made from. It is created once and
never replaced: of a running one only the replica range changes (`rayservice.with_range`). What others change of it is
told with its status and left as it is.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from headway.adapters.kubernetes import cluster_view as view
from headway.adapters.kubernetes import room, scaling
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.cluster_reads import SharedReads
from headway.adapters.kubernetes.kinds import DISRUPTION_BUDGET, NODE, POD, RAY_CLUSTER, RAY_SERVICE
from headway.adapters.kubernetes.objects import MANAGED_BY, annotation, is_ours, selector
from headway.adapters.kubernetes.rayservice import (
    SCALING,
    bounds,
    disruption_budgets,
    pod_selector,
    ray_service,
    replica_shape,
    spec_of,
    with_range,
)
from headway.adapters.kubernetes.site import Site
from headway.domain.cluster import ClusterSpec, ClusterStatus, Room, ScaleUp, checked_range
from headway.domain.profile import Replicas
from headway.errors import BackendUnavailable, Conflict, HeadwayError, NotFound

GONE_WITHIN_S = 300.0
"""Above the grace of the serving pods in `k8s/templates/rayservice.yaml`."""
LOOK_EVERY_S = 0.5
TRIES = 5
"""Of a change that somebody else's came before."""
JSON_PATCH = "application/json-patch+json"


class KubernetesClusters:
    """The port `Clusters` on KubeRay.

    Args:
        client: Access to the API server.
        site: The cluster's settings and templates.
        clock: Seconds since the epoch.
        rest: Lets that many seconds pass.
    """

    def __init__(
        self,
        client: Client,
        site: Site,
        *,
        clock: Callable[[], float] = time.time,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._site = site
        self._clock = clock
        self._rest = rest
        self._view = view.View(client, site, clock)

    def apply(self, spec: ClusterSpec) -> ClusterStatus:
        """Bring the cluster up, or adopt the one of this name. Does not wait for it.

        Raises:
            Conflict: An object of this name is somebody else's, or runs something else.
            ConfigError: The cluster cannot be built from this specification, or the API server refuses it as invalid.
            Refused: Quota, admission or rights forbid it.
        """
        wanted = ray_service(spec, self._site)
        found = self._found(spec.name)
        if found is None:
            found = self._create(wanted, spec)
        known = spec_of(found)
        if known.cluster_digest != spec.cluster_digest:
            raise Conflict(
                f"cluster {spec.name} is there with digest {known.cluster_digest[:12]}, asked for was "
                f"{spec.cluster_digest[:12]}; delete it first",
                cluster=spec.name,
            )
        if found["metadata"].get("deletionTimestamp"):
            raise Conflict(f"cluster {spec.name} is being deleted; try again when it is gone", cluster=spec.name)
        self._budget(known, found)
        return self.status(spec.name)

    def status(self, name: str) -> ClusterStatus:
        """Tell where the cluster stands: by the operator, its pods, Serve, and an answer of the endpoint.

        Raises:
            Conflict: An object of this name is somebody else's.
        """
        found = self._found(name)
        if found is None:
            return ClusterStatus(name=name, phase="absent")
        return self._view.status(found)

    def list(self, model: str | None = None) -> Sequence[ClusterStatus]:
        """Return every cluster of headway, or those of one model, with one request for all that need no closer look.

        While it starts, is ill, or waits for replicas, a cluster is looked at more closely: all of these share two more
        requests, and only those whose head is ready are asked themselves.
        """
        wanted = selector("cluster", **({"model": model} if model else {}))
        found = self._client.list(RAY_SERVICE, self._site.namespace, labelSelector=wanted)
        reads = SharedReads(self._client, self._site)
        statuses = [self._view.brief(one) or self._view.status(one, reads) for one in found]
        # Two models may have one label, and of an object that nobody can read only the label is known.
        return [one for one in statuses if model is None or one.spec is None or one.spec.model == model]

    def delete(self, name: str) -> None:
        """End the cluster; returns when none of its pods is left. Absent is fine.

        Raises:
            Conflict: An object of this name is somebody else's; it was left as it is.
            BackendUnavailable: Pods are still ending; call again.
        """
        found = self._found(name)
        if found is not None:
            uid = found["metadata"]["uid"]
            self._client.delete(RAY_SERVICE, name, self._site.namespace, propagation="Foreground", uid=uid)
        self._wait_until_gone(name)

    def floor(self, name: str, replicas: Replicas) -> None:
        """Change the replica range in place; the operator gives it to Serve within seconds.

        Raises:
            ConfigError: The range contradicts itself.
            NotFound: There is no such cluster.
            Conflict: An object of this name is somebody else's, or others change it all the time.
        """
        wanted = checked_range(replicas)
        for attempt in range(1, TRIES + 1):
            found = self._found(name)
            if found is None:
                known = ", ".join(sorted(one["metadata"]["name"] for one in self._every())) or "none"
                raise NotFound(f"no cluster {name}; there are: {known}", cluster=name)
            if spec_of(found).replicas == wanted:
                break
            try:
                self._client.merge(RAY_SERVICE, name, self._range_change(found, wanted), self._site.namespace)
                break
            except Conflict:
                if attempt == TRIES:
                    raise
        # Also where the range was there already: an earlier try may have ended before these.
        found = self._found(name)
        if found is not None:
            self._bound_workers(found, wanted)
            self._budget(spec_of(found), found)

    def scale_ups(self, name: str, since: datetime) -> Sequence[ScaleUp]:
        """Return the scale-ups of a cluster that ended since then, oldest first; none of a cluster that is absent.

        They are noted by whoever looks at the cluster; asking for them is a look.
        """
        found = self._found(name)
        if found is None:
            return []
        if scaling.parse(annotation(found, SCALING)).due:
            self._view.status(found)
            found = self._found(name)
        kept = scaling.parse(annotation(found, SCALING) if found else None).came
        return sorted((one for one in kept if one.ready_at > since), key=lambda one: one.ready_at)

    def room(self, spec: ClusterSpec) -> Room:
        """Tell whether the replicas of a cluster find nodes, pause pods counted as free; if not, what is missing."""
        shape = replica_shape(spec, self._site)
        nodes, pods = self._client.list(NODE), self._client.list(POD)
        return room.room(room.of_nodes(nodes, pods, shape), shape, spec.replicas.min, nodes)

    def _found(self, name: str) -> Object | None:
        found = self._client.get(RAY_SERVICE, name, self._site.namespace)
        if found is not None and not is_ours(found):
            raise Conflict(
                f"RayService {self._site.namespace}/{name} is not headway's (no label {MANAGED_BY}); it was left as it "
                "is. Rename or delete it, or give headway a namespace of its own",
                cluster=name,
            )
        return found

    def _every(self) -> Sequence[Object]:
        return self._client.list(RAY_SERVICE, self._site.namespace, labelSelector=selector("cluster"))

    def _create(self, wanted: Object, spec: ClusterSpec) -> Object:
        """Create the RayService with its budgets, both or none; or find that another was as quick with the same one."""
        try:
            made = self._client.create(RAY_SERVICE, wanted)
        except Conflict:
            found = self._found(spec.name)
            if found is None:
                raise
            return found
        try:
            self._budget(spec, made)
        except HeadwayError:
            self._client.delete(RAY_SERVICE, spec.name, self._site.namespace, uid=made["metadata"]["uid"])
            raise
        return made

    def _budget(self, spec: ClusterSpec, owner: Object) -> None:
        for one in disruption_budgets(spec, self._site, owner):
            self._client.apply(DISRUPTION_BUDGET, one, force=True)

    def _range_change(self, found: Object, replicas: Replicas) -> Object:
        change = with_range(found, replicas)
        seen = scaling.asked(scaling.parse(annotation(found, SCALING)), replicas.min, self._clock())
        change["metadata"]["annotations"][SCALING] = scaling.text(seen)
        return change

    def _bound_workers(self, found: Object, replicas: Replicas) -> None:
        """Give the bounds to the live RayCluster, as KubeRay leaves them alone there.

        Only the bounds: `replicas` belongs to Ray's autoscaler, which knows which worker is idle.
        """
        for ray_cluster in view.ray_clusters(found):
            live = self._client.get(RAY_CLUSTER, ray_cluster, self._site.namespace)
            if live is None:
                continue
            changes: list[dict[str, Any]] = []
            for index, group in enumerate(live["spec"]["workerGroupSpecs"]):
                place = f"/spec/workerGroupSpecs/{index}"
                changes.append({"op": "test", "path": f"{place}/groupName", "value": group["groupName"]})
                changes += [
                    {"op": "add", "path": f"{place}/{key}", "value": value} for key, value in bounds(replicas).items()
                ]
            path = RAY_CLUSTER.path(self._site.namespace, ray_cluster)
            what = f"change the bounds of RayCluster {self._site.namespace}/{ray_cluster}"
            self._client.request(
                "PATCH", f"{path}?fieldManager=headway", changes, what=what, kind=RAY_CLUSTER, content_type=JSON_PATCH
            )

    def _wait_until_gone(self, name: str) -> None:
        end = self._clock() + GONE_WITHIN_S
        while True:
            there = self._client.get(RAY_SERVICE, name, self._site.namespace)
            pods = self._client.list(POD, self._site.namespace, labelSelector=pod_selector(name))
            if there is not None and not there["metadata"].get("deletionTimestamp"):
                return  # somebody has made it anew
            if there is None and not pods:
                return
            if self._clock() >= end:
                left = ", ".join(sorted(pod["metadata"]["name"] for pod in pods)) or "its RayService"
                raise BackendUnavailable(
                    f"cluster {name} is still ending after {GONE_WITHIN_S:.0f} s: {left}; headway tries again, look "
                    "for a finalizer or a node that does not answer",
                    cluster=name,
                )
            self._rest(LOOK_EVERY_S)
