"""Whoever acts is killed between any two requests of an act: what the next one finds, it brings to its end.

Each act is done once for every request that it sends, and killed when that one has been answered. A kill runs no code:
what stands in the API server then is all that is left of it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from headway.adapters.kubernetes import routes
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.clusters import KubernetesClusters
from headway.adapters.kubernetes.jobs import KubernetesJobs
from headway.adapters.kubernetes.lease import KubernetesLease
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.adapters.kubernetes.warm import KubernetesWarm
from headway.domain.job import Job
from headway.domain.profile import Replicas
from headway.domain.traffic import Backend, Route
from headway.domain.weight_jobs import StageJob

from .cluster_cases import BUDGET, spec
from .handed import nothing_stored
from .rig.api import DAEMON_SET, DEPLOYMENT, HTTP_ROUTE, JOB, RAY_SERVICE, Kind, wait_until
from .rig.nodes import H100
from .sites import KubernetesSite, serve_service

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

MAP = Kind("v1", "ConfigMap")
NOW = datetime(2026, 12, 1, tzinfo=UTC)
MOST = 8
"""Requests of an act after which it is killed; what comes later are looks at what it waits for."""
Act = Callable[[Client, int], object]


class KilledError(BaseException):
    """No handler of an error sees it, as none runs in a process that is killed."""


class Mortal(Client):
    """A client of a process that is killed when so many requests have been answered."""

    left = 0

    def _send(self, *arguments: Any) -> Any:
        answer = super()._send(*arguments)
        self.left -= 1
        if self.left == 0:
            raise KilledError
        return answer


def killed_at_every_request(
    at: KubernetesSite, act: Act, holds: Callable[[int], None], *, first: Act | None = None
) -> int:
    """Kill an act after its first request, its second and so on, and let the next one go on; return how often.

    Args:
        at: Where.
        act: What is done, on objects of its own for each number.
        holds: Asserts how it must be when the next one is done.
        first: What must be there before.
    """
    for number in count(1):
        if first is not None:
            first(at.client, number)
        client = Mortal(at.client._api.configuration)
        client.left = number
        try:
            act(client, number)
            killed = False
        except KilledError:
            killed = True
        finally:
            client.close()
        act(at.client, number)
        holds(number)
        if not killed or number == MOST:
            return number
    raise AssertionError("it counts for ever")


def side(cluster: str) -> Backend:
    return Backend(cluster=cluster, release=f"r-{cluster}", version=1, cluster_digest=cluster * 64)


def stable(number: int) -> Route:
    return Route(model=f"m{number}", stable=side("a"))


def test_a_shift_that_is_killed_names_no_cluster_that_nobody_knows(kubernetes_site: KubernetesSite) -> None:
    """A sweep deletes clusters that no route mentions: both routes stay within what is mentioned."""
    api, site = kubernetes_site.api, kubernetes_site.site
    for cluster in ("a", "b"):
        api.create(serve_service(cluster, site.namespace))

    def shift(client: Client, number: int) -> None:
        mentioned(number)
        wanted = stable(number).model_copy(update={"candidate": side("b"), "candidate_pct": 10})
        KubernetesTraffic(client, site).shift(wanted)

    def mentioned(number: int) -> None:
        state = KubernetesTraffic(kubernetes_site.client, site).route(f"m{number}")
        known = {f"{one.cluster}-serve-svc" for one in (state.stable, state.candidate) if one}
        for listener in routes.LISTENERS:
            found = api.get(HTTP_ROUTE, f"{listener}-m{number}", site.namespace)
            assert found is not None
            named = {ref["name"] for rule in found["spec"]["rules"] for ref in rule.get("backendRefs") or []}
            assert named <= known, listener

    def shifted(number: int) -> None:
        found = api.get(HTTP_ROUTE, f"public-m{number}", site.namespace)
        assert found is not None
        assert [one["weight"] for one in found["spec"]["rules"][-1]["backendRefs"]] == [90, 10]
        mentioned(number)

    times = killed_at_every_request(
        kubernetes_site,
        shift,
        shifted,
        first=lambda client, number: KubernetesTraffic(client, site).shift(stable(number)),
    )
    assert times > 4, "two routes are read and written"

    def gone(number: int) -> None:
        assert not [
            one for one in api.list(HTTP_ROUTE, site.namespace) if one["metadata"]["name"].endswith(f"m{number}")
        ]

    assert killed_at_every_request(
        kubernetes_site, lambda client, number: KubernetesTraffic(client, site).remove(f"m{number}"), gone
    )


def test_a_cluster_that_is_half_made_or_half_gone_is_brought_to_its_end(kubernetes_site: KubernetesSite) -> None:
    """One RayService with both of its budgets, or nothing at all."""
    api, site = kubernetes_site.api, kubernetes_site.site

    def apply(client: Client, number: int) -> None:
        KubernetesClusters(client, site).apply(spec(site, str(number)))

    def raised(client: Client, number: int) -> None:
        KubernetesClusters(client, site).floor(spec(site, str(number)).name, Replicas(min=2, max=3))

    def budgets(number: int) -> list[int]:
        found = [
            api.get(BUDGET, f"{spec(site, str(number)).name}-{part}", site.namespace) for part in ("head", "replica")
        ]
        return [one["spec"]["minAvailable"] for one in found if one is not None]

    def whole(number: int) -> None:
        assert budgets(number) == [1, 1]

    def is_raised(number: int) -> None:
        status = KubernetesClusters(kubernetes_site.client, site).status(spec(site, str(number)).name)
        assert status.spec is not None
        assert status.spec.replicas.min == 2

    def gone(number: int) -> None:
        assert api.get(RAY_SERVICE, spec(site, str(number)).name, site.namespace) is None

    made = killed_at_every_request(kubernetes_site, apply, whole)
    assert made > 4
    assert killed_at_every_request(kubernetes_site, raised, is_raised, first=apply) > 2
    killed_at_every_request(
        kubernetes_site,
        lambda client, number: KubernetesClusters(client, site).delete(spec(site, str(number)).name),
        gone,
        first=apply,
    )


def job(number: int) -> Job:
    return Job(name=f"probe-{number}", program="bench", environment="airflow", payload={"n": number}, deadline_s=60)


def stage_job(number: int, root: str) -> Job:
    digest = f"{number:064x}"[::-1]
    uri = f"s3://headway/artifacts/{digest}/"
    wanted = StageJob(artifact_digest=digest, artifact_uri=uri, dest_root=root)
    return job(number).model_copy(
        update={"program": "stage", "payload": wanted.to_json(), "accelerator": H100.product, "model": "tiny"}
    )


@pytest.mark.parametrize("program", ["bench", "stage"])
def test_a_job_that_is_half_submitted_or_half_cancelled_is_brought_to_its_end(
    kubernetes_site: KubernetesSite, program: str
) -> None:
    """One run with its input, or nothing at all, its input included."""
    api, site = kubernetes_site.api, kubernetes_site.site
    makes = JOB if program == "bench" else DAEMON_SET

    def made(number: int) -> Job:
        return job(number) if program == "bench" else stage_job(number, site.node_root)

    def submit(client: Client, number: int) -> None:
        KubernetesJobs(client, site, nothing_stored).submit(made(number))

    def cancel(client: Client, number: int) -> None:
        KubernetesJobs(client, site, nothing_stored).cancel(made(number).name)

    def there(number: int) -> None:
        kept = api.get(MAP, made(number).name, site.namespace)
        assert kept is not None
        assert [one["kind"] for one in kept["metadata"]["ownerReferences"]] == [makes.name]
        cancel(kubernetes_site.client, number)
        gone(number)

    def gone(number: int) -> None:
        assert api.get(JOB, made(number).name, site.namespace) is None
        assert api.get(MAP, made(number).name, site.namespace) is None

    killed_at_every_request(kubernetes_site, submit, there)
    killed_at_every_request(kubernetes_site, cancel, gone, first=submit)

    wait_until(lambda: not api.list(makes, site.namespace), "nothing is left")
    left = [one["metadata"]["name"] for one in api.list(MAP, site.namespace)]
    assert left == ["kube-root-ca.crt"]


def test_a_lease_and_held_room_survive_a_kill(kubernetes_site: KubernetesSite) -> None:
    """The same holder takes its lease again; room is held once."""
    api, site = kubernetes_site.api, kubernetes_site.site

    def work(client: Client, number: int) -> None:
        KubernetesLease(client, site).acquire(f"m{number}", "me", 60, NOW)
        KubernetesWarm(client, site).hold(f"m{number}", H100.product, 2, 1)

    def is_held(number: int) -> None:
        grant = KubernetesLease(kubernetes_site.client, site).holder(f"m{number}", NOW)
        assert grant is not None
        assert grant.holder == "me"
        found = api.get(DEPLOYMENT, f"pause-m{number}", site.namespace)
        assert found is not None
        assert found["spec"]["replicas"] == 1

    assert killed_at_every_request(kubernetes_site, work, is_held) > 3
