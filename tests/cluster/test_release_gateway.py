"""The gateway's player keeps to the Gateway API, so that what a release shows on it means something."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.domain.traffic import Backend, Route
from headway.pods.mock_vllm import MockVllm

from .rig.annotations import FAULT
from .rig.api import HTTP_ROUTE, POD, wait_until
from .rig.gateway import SERVICE, Gateway
from .rig.ray import Ray
from .sites import KubernetesSite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

OLD = Backend(cluster="old", release="r-old", version=1, cluster_digest="1" * 64)
NEW = Backend(cluster="new", release="r-new", version=2, cluster_digest="2" * 64)
ASKED = 200


def cluster_of(place: KubernetesSite, name: str) -> None:
    """Make a Service with one pod behind it, named as KubeRay names a cluster's."""
    labels = {"app": name}
    metadata: Any = {"name": f"{name}-serve-svc", "namespace": place.site.namespace}
    spec: Any = {"selector": labels, "ports": [{"port": 8000}]}
    place.api.create({"apiVersion": "v1", "kind": SERVICE.name, "metadata": metadata, "spec": spec})
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "engine", "image": "engine", "securityContext": security}
    metadata = {"name": name, "namespace": place.site.namespace, "labels": labels}
    place.api.create({"apiVersion": "v1", "kind": POD.name, "metadata": metadata, "spec": {"containers": [container]}})


@pytest.fixture
def gateway(kubernetes_site: KubernetesSite, ray: Ray) -> Iterator[Gateway]:
    """The player, with the clusters `old` and `new` up behind it."""
    with MockVllm(model="m", ttft_ms=1, itl_ms=1) as old, MockVllm(model="m", ttft_ms=1, itl_ms=1) as new:
        ray.forward({"old-serve-svc.*": f"127.0.0.1:{old.port}", "new-serve-svc.*": f"127.0.0.1:{new.port}"})
        for name in ("old", "new"):
            cluster_of(kubernetes_site, name)
        site = kubernetes_site.site
        with Gateway(kubernetes_site.api, site.namespace, site.gateway, ray) as running:
            yield running


def ask(gateway: Gateway, listener: str = "public", path: str = "/m/v1/models", **headers: str) -> requests.Response:
    return requests.get(f"{gateway.url(listener)}{path}", headers=headers, timeout=20)


def answers(gateway: Gateway, listener: str = "public", **headers: str) -> bool:
    return bool(ask(gateway, listener, **headers).status_code == 200)


def test_traffic_goes_where_the_routes_send_it(gateway: Gateway, kubernetes_site: KubernetesSite) -> None:
    """Weights, the header of the internal listener, the path and the header that names the release all count."""
    traffic = KubernetesTraffic(kubernetes_site.client, kubernetes_site.site)
    assert ask(gateway).status_code == 404

    traffic.shift(Route(model="m", stable=OLD, candidate=NEW, candidate_pct=25))
    wait_until(lambda: answers(gateway), "the route is taken")
    seen = Counter(ask(gateway).headers["x-headway-release"] for _ in range(ASKED))

    assert set(seen) == {"r-old", "r-new"}
    assert 0.15 * ASKED < seen["r-new"] < 0.35 * ASKED
    for side, release in (("stable", "r-old"), ("candidate", "r-new")):
        found = {ask(gateway, "internal", **{"x-headway-cluster": side}).headers["x-headway-release"] for _ in range(8)}
        assert found == {release}
    with_header = Counter(
        ask(gateway, **{"x-headway-cluster": "candidate"}).headers["x-headway-release"] for _ in range(40)
    )
    assert with_header["r-old"] > 0, "the public listener must not let a user choose"
    assert ask(gateway, path="/mm/v1/models").status_code == 404
    assert ask(gateway, path="/m/v2/models").status_code == 404
    assert ask(gateway).json()["data"][0]["id"] == "m"


def test_a_stream_stays_a_stream(gateway: Gateway, kubernetes_site: KubernetesSite) -> None:
    """A benchmark through the player measures tokens as they come."""
    KubernetesTraffic(kubernetes_site.client, kubernetes_site.site).shift(Route(model="m", stable=OLD))
    wait_until(lambda: answers(gateway), "the route is taken")

    body = {"model": "m", "prompt": "x", "max_tokens": 5, "stream": True}
    with requests.post(f"{gateway.url('public')}/m/v1/completions", json=body, stream=True, timeout=20) as answer:
        events = [line for line in answer.iter_lines() if line]

    assert answer.headers["x-headway-release"] == "r-old"
    assert len(events) == 6
    assert events[-1] == b"data: [DONE]"


def test_what_cannot_answer_is_told_as_the_specification_wants_it(
    gateway: Gateway, kubernetes_site: KubernetesSite
) -> None:
    """A Service that is not there costs 500, one without a ready pod 503, each for its own share alone."""
    place = kubernetes_site
    traffic = KubernetesTraffic(place.client, place.site)
    traffic.shift(Route(model="m", stable=OLD, candidate=NEW, candidate_pct=0))
    wait_until(lambda: answers(gateway, "internal", **{"x-headway-cluster": "candidate"}), "both sides answer")

    def candidate() -> int:
        return int(ask(gateway, "internal", **{"x-headway-cluster": "candidate"}).status_code)

    place.api.annotate(POD, "new", {FAULT: "unready"}, place.site.namespace)
    wait_until(lambda: candidate() == 503, "the candidate has no ready pod")
    assert answers(gateway)

    place.api.delete(SERVICE, "new-serve-svc", place.site.namespace)
    wait_until(lambda: candidate() == 500, "the candidate has no Service")
    assert answers(gateway)


def test_a_route_that_the_gateway_refuses_routes_nothing(gateway: Gateway, kubernetes_site: KubernetesSite) -> None:
    """Nobody is served by a route that its controller did not take."""
    place = kubernetes_site
    KubernetesTraffic(place.client, place.site).shift(Route(model="m", stable=OLD))
    wait_until(lambda: answers(gateway), "the route is taken")
    [name] = [
        one["metadata"]["name"]
        for one in place.api.list(HTTP_ROUTE, place.site.namespace)
        if one["metadata"]["name"].startswith("public")
    ]

    place.api.annotate(HTTP_ROUTE, name, {FAULT: "refused"}, place.site.namespace)
    place.api.patch(HTTP_ROUTE, name, {"spec": {"hostnames": ["models.example"]}}, place.site.namespace)

    wait_until(lambda: ask(gateway).status_code == 404, "the refused route is gone")
