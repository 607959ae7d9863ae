"""A model's routes on a real API server: what a shift leaves behind, whatever comes between."""

import copy
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.adapters.kubernetes import objects, routes
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.kinds import HTTP_ROUTE, Kind
from headway.adapters.kubernetes.traffic import KubernetesTraffic
from headway.domain.traffic import Backend, Route
from headway.domain.value import slug
from headway.errors import BackendUnavailable, Conflict, Refused

from .rig.annotations import FAULT
from .rig.api import HTTP_ROUTE as ROUTE_KIND
from .rig.rig import Rig
from .sites import KubernetesSite, gateway, local_account, restart_api, serve_service

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

STABLE = Backend(cluster="a", release="r-a", version=1, cluster_digest="a" * 64)
CANDIDATE = Backend(cluster="b", release="r-b", version=2, cluster_digest="b" * 64)
FIRST = Route(model="tiny", stable=STABLE)
SPLIT = Route(model="tiny", stable=STABLE, candidate=CANDIDATE, candidate_pct=10)
HALF = SPLIT.model_copy(update={"candidate_pct": 50})
MIRROR = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "a-serve-svc", "port": 8000}}}
MODELS = 300
LISTS = 1
"""Pages of 500 objects that 300 models need."""


class Counting(Client):
    """A client that counts its requests, and lets a test act after the first change."""

    requests = 0
    after_apply: Callable[[], None] | None = None

    def request(self, *arguments: Any, **more: Any) -> Any:
        self.requests += 1
        return super().request(*arguments, **more)

    def apply(self, kind: Kind, content: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        applied = super().apply(kind, content, force=force, dry_run=dry_run)
        act, self.after_apply = self.after_apply, None
        if act:
            act()
        return applied


def counting(site: KubernetesSite) -> Counting:
    """Return such a client, of the same account."""
    return Counting(site.client._api.configuration)


@pytest.fixture
def traffic(kubernetes_site: KubernetesSite) -> KubernetesTraffic:
    """The adapter in a namespace with the Services of two clusters and nothing else."""
    for cluster in ("a", "b"):
        kubernetes_site.api.create(serve_service(cluster, kubernetes_site.site.namespace))
    return KubernetesTraffic(kubernetes_site.client, kubernetes_site.site)


def get(site: KubernetesSite, listener: str, model: str = "tiny") -> Object:
    """Return one of a model's routes, which must be there."""
    found = site.api.get(ROUTE_KIND, f"{listener}-{model}", site.site.namespace)
    assert found is not None
    return found


def weights(found: Object) -> list[tuple[str, int]]:
    """Return Services and weights of a route's last rule, which is the split."""
    return [(one["name"], one["weight"]) for one in found["spec"]["rules"][-1].get("backendRefs") or []]


def rules(site: KubernetesSite) -> dict[str, Any]:
    """Return what both routes do."""
    return {listener: get(site, listener)["spec"]["rules"] for listener in routes.LISTENERS}


def test_a_shift_is_over_when_the_gateway_has_taken_it(
    traffic: KubernetesTraffic, kubernetes_site: KubernetesSite
) -> None:
    """Both routes carry the split, and the gateway has said so of their present generation."""
    for route in (FIRST, SPLIT, HALF):
        traffic.shift(route)
        for listener in routes.LISTENERS:
            assert routes.verdict(get(kubernetes_site, listener)).taken
    assert weights(get(kubernetes_site, "public")) == [("a-serve-svc", 50), ("b-serve-svc", 50)]
    assert weights(get(kubernetes_site, "internal")) == [("a-serve-svc", 50), ("b-serve-svc", 50)]


def test_quick_shifts_do_not_meet_the_gateways_own_writing(
    traffic: KubernetesTraffic, kubernetes_site: KubernetesSite
) -> None:
    """The gateway changes the same object at any moment; that is no conflict."""
    for pct in range(0, 100, 7):
        traffic.shift(SPLIT.model_copy(update={"candidate_pct": pct}))

    assert weights(get(kubernetes_site, "public"))[1] == ("b-serve-svc", 98)


def test_a_model_that_lost_its_stable_leaves_the_gateway(
    traffic: KubernetesTraffic, kubernetes_site: KubernetesSite
) -> None:
    """It hangs on no gateway then, and its state stays."""
    traffic.shift(FIRST)
    traffic.shift(Route(model="tiny", paused=True))

    assert "parentRefs" not in get(kubernetes_site, "public")["spec"]
    assert traffic.route("tiny") == Route(model="tiny", paused=True)
    traffic.shift(FIRST)
    assert get(kubernetes_site, "public")["spec"]["parentRefs"][0]["sectionName"] == "public"


# --- Others on the routes ---------------------------------------------------------------------------------------------


def test_a_moved_weight_is_told_and_not_fought(traffic: KubernetesTraffic, kubernetes_site: KubernetesSite) -> None:
    """A person's edit stays until that person takes it back; the state that headway wrote can be read meanwhile."""
    traffic.shift(SPLIT)
    before = get(kubernetes_site, "public")["spec"]["rules"]
    moved = copy.deepcopy(before)
    moved[0]["backendRefs"][1]["weight"] = 99
    kubernetes_site.api.apply(edited(get(kubernetes_site, "public"), moved), manager="kubectl-edit")

    with pytest.raises(Conflict, match=r"changed by kubectl-edit .*backendRefs\[1\].weight is 99, headway wrote 10"):
        traffic.shift(FIRST)

    assert get(kubernetes_site, "public")["spec"]["rules"] == moved
    assert weights(get(kubernetes_site, "internal"))[1] == ("b-serve-svc", 10)
    assert traffic.route("tiny") == SPLIT
    kubernetes_site.api.apply(edited(get(kubernetes_site, "public"), before), manager="kubectl-edit")
    traffic.shift(FIRST)
    assert weights(get(kubernetes_site, "public")) == [("a-serve-svc", 100)]


def test_an_edit_that_is_what_headway_wants_is_no_conflict(
    traffic: KubernetesTraffic, kubernetes_site: KubernetesSite
) -> None:
    """Somebody took a candidate back by hand; so does the release."""
    traffic.shift(SPLIT)
    for listener in routes.LISTENERS:
        wanted = routes.manifest(
            kubernetes_site.site, objects.template(kubernetes_site.site.templates, "httproute"), FIRST, listener
        )
        found = get(kubernetes_site, listener)
        kubernetes_site.api.apply(edited(found, wanted["spec"]["rules"]), manager="kubectl-edit")

    traffic.shift(FIRST)

    assert traffic.route("tiny") == FIRST


def test_a_filter_that_somebody_added_stays(traffic: KubernetesTraffic, kubernetes_site: KubernetesSite) -> None:
    """Through shifts, a promotion and back."""
    traffic.shift(SPLIT)
    more = copy.deepcopy(get(kubernetes_site, "public")["spec"]["rules"])
    more[0]["filters"].insert(0, MIRROR)
    kubernetes_site.api.apply(edited(get(kubernetes_site, "public"), more), manager="kubectl-edit")

    for route in (HALF, Route(model="tiny", stable=CANDIDATE, previous=STABLE), FIRST):
        traffic.shift(route)
        filters = get(kubernetes_site, "public")["spec"]["rules"][0]["filters"]
        mirrored = [one for one in filters if one["type"] == MIRROR["type"]]
        assert [one["requestMirror"]["backendRef"]["name"] for one in mirrored] == ["a-serve-svc"]
        assert len(filters) == 3


def edited(found: Object, rules_now: list[Any]) -> Object:
    """Return what a person applies to change a route's rules."""
    metadata = {key: found["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": HTTP_ROUTE.api_version, "kind": HTTP_ROUTE.name, "metadata": metadata} | {
        "spec": {"rules": rules_now}
    }


@pytest.mark.parametrize("listener", routes.LISTENERS)
def test_somebody_elses_route_of_our_name_stays(
    traffic: KubernetesTraffic, kubernetes_site: KubernetesSite, listener: str
) -> None:
    """It is named, and nothing of ours is left beside it."""
    foreign = {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.name,
        "metadata": {"name": f"{listener}-tiny", "namespace": kubernetes_site.site.namespace},
        "spec": {"rules": [{"backendRefs": [{"name": "theirs", "port": 80}]}]},
    }
    kubernetes_site.api.create(foreign)

    with pytest.raises(Conflict, match=f"{listener}-tiny is not headway's"):
        traffic.shift(FIRST)
    with pytest.raises(Conflict, match="not headway's"):
        traffic.remove("tiny")

    assert get(kubernetes_site, listener)["spec"]["rules"][0]["backendRefs"][0]["name"] == "theirs"
    assert len(kubernetes_site.api.list(ROUTE_KIND, kubernetes_site.site.namespace)) == 1


def test_two_models_that_would_share_a_name_do_not_share_a_route(traffic: KubernetesTraffic) -> None:
    """The second one is refused, and the first goes on."""
    first = Route(model="Tiny", stable=STABLE)
    traffic.shift(first)

    with pytest.raises(Conflict, match="is that of the model Tiny"):
        traffic.shift(Route(model=slug("Tiny"), stable=CANDIDATE))

    assert list(traffic.routes()) == [first]


# --- Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["refused", "unresolved"])
@pytest.mark.parametrize("listener", routes.LISTENERS)
def test_a_route_that_the_gateway_refuses_is_put_back(
    rig: Rig, traffic: KubernetesTraffic, kubernetes_site: KubernetesSite, listener: str, fault: str
) -> None:
    """Both are as they were, whichever was refused, and the error has the gateway's words."""
    impatient = KubernetesTraffic(kubernetes_site.client, kubernetes_site.site, taken_within_s=1.5)
    traffic.shift(FIRST)
    before = rules(kubernetes_site)
    rig.fault(f"{listener}-tiny", fault, namespace=kubernetes_site.site.namespace, kind=ROUTE_KIND)

    with pytest.raises(Refused, match=r"(NotAllowedByListeners|BackendNotFound)\).*routes are as they were"):
        impatient.shift(SPLIT)

    assert rules(kubernetes_site) == before
    assert impatient.route("tiny") == FIRST
    rig.fault(f"{listener}-tiny", None, namespace=kubernetes_site.site.namespace, kind=ROUTE_KIND)
    traffic.shift(SPLIT)
    assert traffic.route("tiny") == SPLIT


def test_a_first_route_that_is_refused_is_gone(rig: Rig, kubernetes_site: KubernetesSite, tmp_path: Path) -> None:
    """A model that the gateway does not take leaves nothing."""
    shutil.copytree(kubernetes_site.site.templates, tmp_path, dirs_exist_ok=True)
    template = objects.template(tmp_path, "httproute")
    refused = objects.patched(template, {"metadata": {"annotations": {FAULT: "refused"}}})
    (tmp_path / "httproute.yaml").write_text(yaml.safe_dump(refused))
    site = replace(kubernetes_site.site, templates=tmp_path)

    with pytest.raises(Refused, match="routes are as they were"):
        KubernetesTraffic(kubernetes_site.client, site, taken_within_s=1.5).shift(FIRST)

    assert rig.api.list(ROUTE_KIND, site.namespace) == []


def test_a_gateway_that_says_nothing_is_waited_for_and_told(rig: Rig, kubernetes_site: KubernetesSite) -> None:
    """What is written stays for it; where there is no gateway at all, or no class that would run it, nothing does."""
    client, site = kubernetes_site.client, kubernetes_site.site
    impatient = KubernetesTraffic(client, site, taken_within_s=1)
    rig.kill("kwok")
    try:
        with pytest.raises(Refused, match=r"no Gateway .*/absent .*routes are as they were"):
            KubernetesTraffic(client, replace(site, gateway="absent"), taken_within_s=1).shift(FIRST)
        classless = replace(site, gateway="classless")
        kubernetes_site.api.create(gateway(classless, "absent"))
        with pytest.raises(Refused, match=r"asks for the GatewayClass absent, which is not there.*are as they were"):
            KubernetesTraffic(client, classless, taken_within_s=1).shift(FIRST)
        assert rig.api.list(ROUTE_KIND, site.namespace) == []
        with pytest.raises(BackendUnavailable, match="did not say within 1 s"):
            impatient.shift(FIRST)
        assert impatient.route("tiny") == FIRST
    finally:
        rig.restart("kwok")
    KubernetesTraffic(client, site).shift(FIRST)
    assert routes.verdict(get(kubernetes_site, "public")).taken


def test_an_api_server_that_dies_between_the_two_routes_costs_nothing(
    rig: Rig, kubernetes_site: KubernetesSite
) -> None:
    """The state can be read, and the same shift again ends where it would have ended."""
    client = counting(kubernetes_site)
    traffic = KubernetesTraffic(client, kubernetes_site.site)
    traffic.shift(FIRST)
    client.after_apply = lambda: rig.kill("api")
    try:
        with pytest.raises(BackendUnavailable, match="does not answer"):
            traffic.shift(SPLIT)
    finally:
        restart_api(kubernetes_site)

    assert traffic.route("tiny") == SPLIT
    assert weights(get(kubernetes_site, "internal")) == [("a-serve-svc", 100)]
    traffic.shift(SPLIT)
    assert weights(get(kubernetes_site, "internal")) == [("a-serve-svc", 90), ("b-serve-svc", 10)]
    client.close()


def test_rights_that_are_taken_away_change_nothing(rig: Rig, kubernetes_site: KubernetesSite) -> None:
    """Neither at once nor after the first of the two routes."""
    site = kubernetes_site.site
    every = {"apiGroups": ["gateway.networking.k8s.io"], "resources": ["httproutes"], "verbs": ["*"]}
    config = local_account(rig, site.namespace, "router", every)
    client = Client.connect(config)
    traffic = KubernetesTraffic(client, site)
    traffic.shift(FIRST)
    before = rules(kubernetes_site)

    only_public = [{**every, "verbs": ["get"]}, {**every, "resourceNames": ["public-tiny"]}]
    for less in (only_public, [{**every, "verbs": ["get", "list"]}]):
        local_account(rig, site.namespace, "router", *less)
        with pytest.raises(Refused, match="403 Forbidden") as refused:
            traffic.shift(SPLIT)
        assert "doctor --kubernetes" in refused.value.message
        assert rules(kubernetes_site) == before
        assert traffic.route("tiny") == FIRST
    client.close()


# --- Scale ------------------------------------------------------------------------------------------------------------


def test_the_routes_of_a_fleet_are_one_list(kubernetes_site: KubernetesSite) -> None:
    """300 models cost as many calls as one; the internal routes are not read."""
    site = kubernetes_site.site
    template = objects.template(site.templates, "httproute")
    models = [f"model-{number:03d}" for number in range(MODELS)]
    made = [routes.manifest(site, template, Route(model=model, stable=STABLE), "public") for model in models]
    made.append(routes.manifest(site, template, Route(model=models[0], stable=STABLE), "internal"))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(kubernetes_site.api.create, made))
    client = counting(kubernetes_site)

    found = KubernetesTraffic(client, site).routes()

    assert [route.model for route in found] == models
    assert client.requests == LISTS
    client.close()
    kubernetes_site.api.delete_all(ROUTE_KIND, site.namespace)
