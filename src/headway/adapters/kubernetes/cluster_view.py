"""Where a cluster stands, from what is there: its RayService, its pods, Serve, and an answer of its endpoint.

Ready is not the operator's Ready, which counts endpoints and stays true while the application is ill. It is: Serve says
that the application runs, and the endpoint has listed the model and answered a sampled completion. That it has answered
is remembered for the life of the head, in an annotation, so that not every look asks the engine again.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from headway.adapters.kubernetes import reasons, scaling, serve_view
from headway.adapters.kubernetes.client import Client, Object, service_url
from headway.adapters.kubernetes.cluster_reads import Reads
from headway.adapters.kubernetes.kinds import RAY_SERVICE
from headway.adapters.kubernetes.objects import annotation, condition
from headway.adapters.kubernetes.rayservice import (
    ANSWERED,
    PART,
    SCALING,
    foreign_managers,
    spec_of,
)
from headway.adapters.kubernetes.serve_view import Application
from headway.adapters.kubernetes.site import SERVE_PORT, Site, serve_service
from headway.domain.cluster import ClusterPhase, ClusterSpec, ClusterStatus
from headway.errors import ConfigError, NotFound
from headway.units import format_seconds

REFUSED_BY_OPERATOR = ("ValidationFailed", "InitializingTimeout")
"""Reasons of Ready=False after which the operator does nothing more."""
UNSEEN_S = 30.0
"""An operator that runs has looked at a new object by then."""


class _Case(NamedTuple):
    """One cluster at one look."""

    found: Object
    spec: ClusterSpec
    now_s: float
    ray_cluster: str
    head: Object | None
    pods: Sequence[Object]
    reads: Reads

    @property
    def life(self) -> str:
        """What tells one life of the cluster from another: its head loses all state when it ends."""
        return f"{self.ray_cluster}/{self.head['metadata']['uid'] if self.head else ''}"

    @property
    def answered(self) -> bool:
        """Whether the endpoint has answered a completion in this life."""
        return self.head is not None and annotation(self.found, ANSWERED) == self.life

    @property
    def served(self) -> bool:
        """Whether it has answered in any life of this RayCluster: what fails now did work."""
        return (annotation(self.found, ANSWERED) or "").startswith(f"{self.ray_cluster}/")


class View:
    """Looks at clusters.

    Args:
        client: Access to the API server.
        site: The cluster's settings.
        clock: Seconds since the epoch.
    """

    def __init__(self, client: Client, site: Site, clock: Callable[[], float]) -> None:
        self._client = client
        self._site = site
        self._clock = clock

    def brief(self, found: Object) -> ClusterStatus | None:
        """Return the status of a cluster that serves, from its RayService alone; None if a closer look is needed."""
        if found["metadata"].get("deletionTimestamp") or _unseen(found) or annotation(found, ANSWERED) is None:
            return None
        spec, part = _spec(found), _part(found)
        application = serve_view.from_operator(part)
        ray_cluster = str(part.get("rayClusterName") or "")
        served = (annotation(found, ANSWERED) or "").startswith(f"{ray_cluster}/")
        waits = scaling.parse(annotation(found, SCALING)).due
        operators_ready = (condition(found, "Ready") or {}).get("status") == "True"
        if spec is None or not (ray_cluster and served and operators_ready) or waits:
            return None
        if application is None or application.status != "RUNNING":
            return None
        workers = part.get("rayClusterStatus") or {}
        target = int(workers.get("desiredWorkerReplicas") or spec.replicas.min)
        ready = min(int(workers.get("availableWorkerReplicas") or 0), target)
        if ready < 1:
            return None
        return self._status(found, spec, "ready", edits(found), ready=ready, target=target)

    def status(self, found: Object, reads: Reads | None = None) -> ClusterStatus:
        """Return the status of a cluster.

        Args:
            found: Its RayService.
            reads: What else is read, where several clusters share it.
        """
        try:
            spec = spec_of(found)
        except ConfigError as error:
            return ClusterStatus(name=found["metadata"]["name"], phase="failed", reason=error.message)
        now_s = self._clock()
        if found["metadata"].get("deletionTimestamp"):
            return self._status(found, spec, "failed", "it is being deleted")
        ready = condition(found, "Ready") or {}
        if ready.get("status") == "False" and ready.get("reason") in REFUSED_BY_OPERATOR:
            words = f"KubeRay gives up on it ({ready['reason']}): {ready.get('message') or 'no message'}"
            return self._status(found, spec, "failed", words)
        ray_cluster = next(iter(ray_clusters(found)), "")
        reads = reads or Reads(self._client, self._site)
        pods = [pod for pod in reads.pods(spec.name) if not pod["metadata"].get("deletionTimestamp")]
        head = next((pod for pod in pods if _is_head(pod) and _is_ready(pod)), None)
        case = _Case(found, spec, now_s, ray_cluster, head, pods, reads)
        if not ray_cluster or not pods:
            return self._without_pods(case)
        if head is None:
            return self._held_up(case, "Ray's head is not ready")
        application = serve_view.from_dashboard(self._client, self._site, ray_cluster, spec.model)
        if application is None:
            application = serve_view.from_operator(_part(found))
        if application is None:
            return self._held_up(case, f"Ray is starting, {_since(found, now_s)}")
        return self._by_application(case, application)

    def _by_application(self, case: _Case, application: Application) -> ClusterStatus:
        ready, target = self._replicas(case, application)
        if application.status == "DEPLOY_FAILED":
            words = f"Serve: {application.message or application.status}"
            return self._status(case.found, case.spec, "failed", words, ready=ready, target=target)
        # While replicas are added Serve calls the application deploying; those that are there serve all the same.
        grows = application.status == "DEPLOYING" and ready > 0 and case.answered
        if application.status != "RUNNING" and not grows:
            said = f"Serve: {application.message or application.status.lower()}, {_since(case.found, case.now_s)}"
            return self._held_up(case, said, ready=ready, target=target)
        if ready < 1:
            # Serve and the operator go on saying that all is well while the last worker is gone.
            return self._held_up(case, "no replica serves", ready=ready, target=target)
        missing = "" if case.answered else serve_view.unanswered(self._client, self._site, case.spec)
        if missing:
            return self._held_up(case, missing, ready=ready, target=target)
        self._remember(case, application, target)
        reason = f"Serve: {application.message or 'deploying'}" if grows else edits(case.found)
        return self._status(case.found, case.spec, "ready", reason, ready=ready, target=target)

    def _without_pods(self, case: _Case) -> ClusterStatus:
        """Tell why a cluster has no pods: the operator is away, or was not allowed to make them."""
        kind, name = ("RayCluster", case.ray_cluster) if case.ray_cluster else ("RayService", case.spec.name)
        refused = reasons.refused(case.reads.events(kind, name))
        if refused is not None:
            phase: ClusterPhase = "starting" if refused.retryable or case.served else "failed"
            return self._status(case.found, case.spec, phase, refused.words)
        age_s = case.now_s - _made_at(case.found)
        if _unseen(case.found) and age_s > UNSEEN_S:
            words = (
                f"KubeRay's operator has not looked at it for {format_seconds(age_s)}; check that it runs and watches "
                f"the namespace {self._site.namespace}"
            )
        else:
            words = f"KubeRay makes its pods, {_since(case.found, case.now_s)}"
        return self._status(case.found, case.spec, "starting", words)

    def _held_up(self, case: _Case, said: str, *, ready: int = 0, target: int | None = None) -> ClusterStatus:
        """Return a cluster that does not serve (yet), with what its pods say before what else is known.

        What waiting does not heal fails a cluster that has never served. One that has served is never given up by
        itself: that is for whoever watches its traffic.
        """
        why = _why(case)
        failed = why is not None and not why.retryable and not case.served
        words = f"{why.words}; {said}" if why is not None else said
        return self._status(
            case.found, case.spec, "failed" if failed else "starting", words, ready=ready, target=target
        )

    def _replicas(self, case: _Case, application: Application) -> tuple[int, int]:
        """Return how many replicas serve, and how many are wanted; pods stand in where Serve cannot be asked."""
        if application.serving is None:
            ready = sum(not _is_head(pod) and _is_ready(pod) for pod in case.pods)
            return ready, case.spec.replicas.min
        return application.serving, case.spec.replicas.min if application.target is None else application.target

    def _remember(self, case: _Case, application: Application, target: int) -> None:
        """Keep with the RayService that it has answered, and what this look has seen of scale-ups, where it is news."""
        news = {} if case.answered else {ANSWERED: case.life}
        if application.serving is not None:
            known = scaling.parse(annotation(case.found, SCALING))
            seen = scaling.looked(
                known,
                case.life,
                case.now_s,
                target=target,
                serving=application.serving,
                started_s=application.started_s,
            )
            news |= {SCALING: scaling.text(seen)} if seen != known else {}
        if not news:
            return
        change = {"metadata": {"annotations": news}}
        try:
            self._client.merge(RAY_SERVICE, case.spec.name, change, self._site.namespace)
        except NotFound:  # deleted meanwhile: there is nothing left to remember
            return

    def _status(
        self,
        found: Object,
        spec: ClusterSpec,
        phase: ClusterPhase,
        reason: str = "",
        *,
        ready: int = 0,
        target: int | None = None,
    ) -> ClusterStatus:
        url = service_url(serve_service(spec.name), SERVE_PORT, self._site.namespace)
        return ClusterStatus(
            name=found["metadata"]["name"],
            phase=phase,
            reason=reason,
            endpoint=url if phase == "ready" else None,
            replicas_ready=ready,
            replicas_target=spec.replicas.min if target is None else target,
            spec=spec,
        )


def _why(case: _Case) -> reasons.Reason | None:
    """Return what keeps pods from serving: what waiting does not heal first, then what is wrong now.

    A pod that failed is replaced by the operator; it takes several of them, or memory that is too small for one, to
    know that the next will not do better.
    """
    alive = [pod for pod in case.pods if pod["status"].get("phase") != "Failed"]
    events = case.reads.events("RayCluster", case.ray_cluster)
    workers = sum(not _is_head(pod) for pod in case.pods)
    told = [
        reasons.refused(events) if workers < case.spec.replicas.min else None,
        case.reads.why(alive),
        reasons.deaths(events),
        case.reads.why([pod for pod in case.pods if pod not in alive]),
    ]
    if told[-1] is not None:
        told[-1] = told[-1]._replace(retryable=True)
    found = [one for one in told if one is not None]
    return next((one for one in found if not one.retryable), found[0] if found else None)


def ray_clusters(found: Object) -> list[str]:
    """Return the names of the RayClusters of a RayService: the one that serves first, then the one that comes up."""
    status = found.get("status") or {}
    parts = [status.get(key) or {} for key in ("activeServiceStatus", "pendingServiceStatus")]
    return [str(part["rayClusterName"]) for part in parts if part.get("rayClusterName")]


def edits(found: Object) -> str:
    """Say who else has changed the spec of a RayService; empty if nobody."""
    others = foreign_managers(found)
    if not others:
        return ""
    return f"its RayService was changed by {', '.join(others)}; headway leaves that as it is"


def _spec(found: Object) -> ClusterSpec | None:
    try:
        return spec_of(found)
    except ConfigError:
        return None


def _part(found: Object) -> Object:
    """Return the part of a status that tells of the newest RayCluster which does anything."""
    status = found.get("status") or {}
    active: Object = status.get("activeServiceStatus") or {}
    return active if active.get("rayClusterName") else status.get("pendingServiceStatus") or {}


def _unseen(found: Object) -> bool:
    """Tell whether the operator has not looked at the newest change yet."""
    return int((found.get("status") or {}).get("observedGeneration") or 0) < int(found["metadata"]["generation"])


def _is_head(pod: Object) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(PART) == "head")


def _is_ready(pod: Object) -> bool:
    return (condition(pod, "Ready") or {}).get("status") == "True"


def _made_at(found: Object) -> float:
    return datetime.fromisoformat(found["metadata"]["creationTimestamp"]).timestamp()


def _since(found: Object, now_s: float) -> str:
    return f"{format_seconds(max(0.0, now_s - _made_at(found)))} so far"
