"""The routes of a model: made from any state, read back, compared with what others made of them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.adapters.kubernetes import objects, route_edits, routes
from headway.adapters.kubernetes.routes import LISTENERS, Listener
from headway.adapters.kubernetes.site import Site
from headway.domain.traffic import Backend, Route
from headway.errors import IntegrityError
from tests.kubernetes_schema import faults

Object = dict[str, Any]

SITE = Site(templates=Path(__file__).resolve().parents[3] / "k8s" / "templates")
TEMPLATE = objects.template(SITE.templates, "httproute")
MIRROR: Object = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "shadow", "port": 80}}}
AUTH: Object = {
    "type": "ExtensionRef",
    "extensionRef": {"group": "gateway.envoyproxy.io", "kind": "HTTPRouteFilter", "name": "key"},
}


def backend(cluster: str) -> Backend:
    """A cluster as the gateway knows it."""
    return Backend(cluster=cluster, release=f"r-{cluster}", version=1, cluster_digest=(cluster * 64)[:64])


BACKENDS = st.none() | st.sampled_from([backend(name) for name in "abcd"])
ROUTES = st.builds(
    Route,
    model=st.sampled_from(["tiny", "Llama 3.1/8B", "a" * 80, "llama-3.3-70b"]),
    stable=BACKENDS,
    candidate=BACKENDS,
    previous=BACKENDS,
    candidate_pct=st.integers(0, 100),
    paused=st.booleans(),
)
SPLIT = Route(model="tiny", stable=backend("a"), candidate=backend("b"), candidate_pct=10)


def made(route: Route, listener: Listener) -> Object:
    """Return a manifest."""
    return routes.manifest(SITE, TEMPLATE, route, listener)


def stored(manifest: Object) -> Object:
    """Return an object as an API server keeps it: with its own fields and defaults."""
    found = copy.deepcopy(manifest)
    found["metadata"] |= {"resourceVersion": "7", "generation": 3, "uid": "u", "managedFields": []}
    for rule in found["spec"]["rules"]:
        rule["new-default"] = True
        for reference in rule["backendRefs"]:
            reference["new-default"] = 1
    return found


@settings(max_examples=30)
@given(ROUTES, st.sampled_from(LISTENERS))
def test_every_state_makes_a_valid_route_that_tells_it(route: Route, listener: Listener) -> None:
    """Names of any model, sides that are there or not: the object is valid, and nothing of the state is lost."""
    manifest = made(route, listener)

    assert faults(manifest) == []
    assert routes.state_of(manifest) == route
    assert route_edits.edits(stored(manifest)) == []
    assert route_edits.holds(stored(manifest), manifest)


@settings(max_examples=30)
@given(ROUTES)
def test_the_split_is_the_weights_and_stable_comes_first(route: Route) -> None:
    """Gateways count by place: the first backend is stable's, whatever its share; who has none is not named."""
    rule = made(route, "public")["spec"]["rules"][0]
    weights = [(one["name"], one["weight"]) for one in rule["backendRefs"]]
    if route.stable is None:
        assert weights == []
        return
    wanted = [(f"{route.stable.cluster}-serve-svc", route.split.stable_pct)]
    if route.candidate and route.candidate_pct:
        wanted.append((f"{route.candidate.cluster}-serve-svc", route.candidate_pct))
    assert weights == wanted
    assert sum(weight for _, weight in weights) == 100


@settings(max_examples=30)
@given(ROUTES)
def test_a_model_without_stable_hangs_on_no_gateway(route: Route) -> None:
    """The gateway then answers what it answers for unknown paths, and not 500."""
    assert ("parentRefs" in made(route, "public")["spec"]) == (route.stable is not None)
    assert ("parentRefs" in made(route, "internal")["spec"]) == (
        route.stable is not None or route.candidate is not None
    )


def test_each_answer_names_its_release_and_no_cluster_sees_the_choice() -> None:
    """A client knows who answered; the header by which the benchmark chooses ends at the gateway."""
    for listener in LISTENERS:
        for rule in made(SPLIT, listener)["spec"]["rules"]:
            removed = [
                one["requestHeaderModifier"]["remove"] for one in rule["filters"] if "requestHeaderModifier" in one
            ]
            assert removed == [["x-headway-cluster"]]
            for one in rule["backendRefs"]:
                told = one["filters"][0]["responseHeaderModifier"]["set"]
                assert told == [{"name": "x-headway-release", "value": f"r-{one['name'][0]}"}]


@pytest.mark.parametrize("side", ["stable", "candidate"])
def test_who_asks_for_a_side_that_is_not_there_gets_no_other(side: str) -> None:
    """A benchmark of a candidate that is gone must fail, not measure stable."""
    first, second, split = made(Route(model="tiny", stable=backend("a")), "internal")["spec"]["rules"]
    chosen = {"stable": first, "candidate": second}[side]

    assert chosen["matches"][0]["headers"] == [{"type": "Exact", "name": "x-headway-cluster", "value": side}]
    assert [one["name"] for one in chosen["backendRefs"]] == (["a-serve-svc"] if side == "stable" else [])
    assert "headers" not in split["matches"][0]


# --- Order ------------------------------------------------------------------------------------------------------------


def mentioned(route: Route) -> set[str]:
    """Clusters that the state knows of."""
    return {one.cluster for one in (route.stable, route.candidate, route.previous) if one}


def named(route: Route) -> set[str]:
    """Clusters that routes of this state name."""
    return {one.cluster for one in (route.stable, route.candidate) if one}


@given(ROUTES, ROUTES)
def test_who_dies_between_the_two_leaves_a_state_that_knows_every_named_cluster(before: Route, after: Route) -> None:
    """Otherwise a cluster that a route still names would be deleted as one that nobody knows."""
    if not (named(after) <= mentioned(before) or named(before) <= mentioned(after)):
        return  # one candidate for another at once: no step of a release does it
    state = {"public": before, "internal": before}
    for listener in routes.order(before, after):
        state[listener] = after
        assert named(state["internal"]) <= mentioned(state["public"])


def test_the_first_state_comes_before_the_route_that_names_it() -> None:
    """A cluster that the internal route names is known from the first moment on."""
    assert routes.order(None, SPLIT) == ("public", "internal")


# --- Foreign edits ----------------------------------------------------------------------------------------------------

Edit = Callable[[Object], object]
STEERS: dict[str, Edit] = {
    "a weight": lambda spec: spec["rules"][0]["backendRefs"][0].update(weight=50),
    "a Service": lambda spec: spec["rules"][0]["backendRefs"][0].update(name="other"),
    "its namespace": lambda spec: spec["rules"][0]["backendRefs"][0].update(namespace="other"),
    "a backend more": lambda spec: spec["rules"][0]["backendRefs"].append({"name": "other", "port": 1}),
    "a backend less": lambda spec: spec["rules"][0]["backendRefs"].pop(),
    "a backend's header": lambda spec: spec["rules"][0]["backendRefs"][0].pop("filters"),
    "a rule more": lambda spec: spec["rules"].append({"backendRefs": [{"name": "other", "port": 1}]}),
    "a path": lambda spec: spec["rules"][0]["matches"][0]["path"].update(value="/"),
    "a condition more": lambda spec: spec["rules"][0]["matches"][0].update(method="GET"),
    "a match more": lambda spec: spec["rules"][0]["matches"].append({"path": {"type": "PathPrefix", "value": "/"}}),
    "our filter gone": lambda spec: spec["rules"][0]["filters"].pop(0),
    "a time-out": lambda spec: spec["rules"][0]["timeouts"].update(request="15s"),
    "another gateway": lambda spec: spec["parentRefs"][0].update(name="other"),
    "no gateway": lambda spec: spec.pop("parentRefs"),
}


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("edit", STEERS)
def test_an_edit_of_who_answers_is_seen(edit: str, listener: Listener) -> None:
    """Whatever moves traffic elsewhere is told, with what headway wrote."""
    found = stored(made(SPLIT, listener))
    STEERS[edit](found["spec"])

    changed = route_edits.edits(found)

    assert len(changed) >= 1
    assert all(line.startswith("spec.") for line in changed)


def test_an_edit_is_told_with_both_values() -> None:
    """A person reads what it is and what it was."""
    found = stored(made(SPLIT, "public"))
    STEERS["a weight"](found["spec"])

    assert route_edits.edits(found) == ["spec.rules[0].backendRefs[0].weight is 50, headway wrote 90"]


def test_backends_on_a_rule_that_had_none_are_an_edit() -> None:
    """Also where headway left it to the gateway to refuse."""
    found = stored(made(Route(model="tiny", candidate=backend("b")), "public"))
    found["spec"]["rules"][0]["backendRefs"].append({"name": "other", "port": 1})

    assert route_edits.edits(found) == ["spec.rules[0].backendRefs has 1 entries, headway wrote 0"]


@settings(max_examples=30)
@given(ROUTES, ROUTES, st.sampled_from(LISTENERS), st.lists(st.sampled_from([MIRROR, AUTH]), max_size=3), st.booleans())
def test_what_others_add_to_a_rule_stays(
    before: Route, after: Route, listener: Listener, added: list[Object], grown: bool
) -> None:
    """Filters, settings of a rule, and headers in headway's own filter go through every shift, and are no edit."""
    after = after.model_copy(update={"model": before.model})
    found = stored(made(before, listener))
    for rule in found["spec"]["rules"]:
        rule["filters"] = [*copy.deepcopy(added[:1]), *rule["filters"], *copy.deepcopy(added[1:])]
        rule["sessionPersistence"] = {"sessionName": "s"}
        if grown:
            next(one for one in rule["filters"] if one["type"] == "RequestHeaderModifier")["requestHeaderModifier"][
                "set"
            ] = [{"name": "x-team", "value": "a"}]
    wanted = made(after, listener)

    kept = route_edits.keeping(wanted, found)

    assert route_edits.edits(found) == []
    assert route_edits.edits(stored(kept)) == []
    assert route_edits.holds(stored(kept), wanted)
    for rule in kept["spec"]["rules"]:
        assert [one for one in rule["filters"] if one in (MIRROR, AUTH)] == added
        assert rule["sessionPersistence"] == {"sessionName": "s"}
        modifier = next(one for one in rule["filters"] if one["type"] == "RequestHeaderModifier")
        assert ("set" in modifier["requestHeaderModifier"]) == grown
    assert route_edits.keeping(wanted, stored(kept))["spec"]["rules"] == [
        {**rule, "new-default": True} for rule in kept["spec"]["rules"]
    ]


def test_a_template_that_changed_is_no_foreign_edit() -> None:
    """An update of headway, or of the template, takes over routes that an earlier one wrote."""
    found = stored(made(SPLIT, "public"))
    newer = copy.deepcopy(TEMPLATE)
    newer["spec"]["rules"][0]["filters"].append(AUTH)
    del newer["spec"]["rules"][0]["timeouts"]

    wanted = routes.manifest(SITE, newer, SPLIT, "public")

    assert route_edits.edits(found) == []
    assert route_edits.keeping(wanted, found)["spec"]["rules"][0]["filters"][-1] == AUTH


def test_who_edited_is_named() -> None:
    """Only those who wrote to what headway owns."""
    found = stored(made(SPLIT, "public"))
    found["metadata"]["managedFields"] = [
        {"manager": "headway", "fieldsV1": {"f:spec": {"f:rules": {}}}},
        {"manager": "kubectl-edit", "time": "2026-03-02T09:00:00Z", "fieldsV1": {"f:spec": {"f:rules": {}}}},
        {"manager": "labeller", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
        {"manager": "envoy-gateway", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]

    assert route_edits.editors(found) == "kubectl-edit (2026-03-02T09:00:00Z)"


@pytest.mark.parametrize("key", [objects.ASKED, routes.WRITTEN])
@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"model": 1}', "no JSON"])
def test_a_damaged_annotation_is_told(key: str, text: str | None) -> None:
    """Never taken for an empty state: that would end a model's traffic."""
    found = objects.patched(stored(made(SPLIT, "public")), {"metadata": {"annotations": {key: text}}})

    with pytest.raises(IntegrityError, match="release the model again"):
        _ = (routes.state_of(found), route_edits.edits(found))


# --- What the gateway says --------------------------------------------------------------------------------------------


GOOD = {"Accepted": "True", "ResolvedRefs": "True"}


def told(found: Object, conditions: dict[str, str], *, generation: int = 3, section: str | None = "public") -> Object:
    """Return a route with a status of its gateway."""
    reference = {"name": "headway", "namespace": "headway", **({"sectionName": section} if section else {})}
    seen = [
        {"type": name, "status": status, "reason": "Why", "message": f"about {name}", "observedGeneration": generation}
        for name, status in conditions.items()
    ]
    return {**found, "status": {"parents": [{"parentRef": reference, "conditions": seen}]}}


def test_a_route_is_taken_when_its_gateway_says_so_of_this_generation() -> None:
    """Of an older one, or of another listener, it says nothing."""
    found = stored(made(SPLIT, "public"))

    assert routes.verdict(told(found, GOOD)).taken
    assert routes.verdict(told(found, GOOD, section=None)).taken
    for waits in (
        found,
        told(found, {}),
        told(found, {"Accepted": "True"}),
        told(found, GOOD, generation=2),
        told(found, GOOD, section="internal"),
    ):
        assert routes.verdict(waits) == (False, "")


def test_a_refusal_is_told_in_the_gateways_words() -> None:
    """The reason and the sentence, of each condition that does not hold."""
    found = told(stored(made(SPLIT, "public")), GOOD | {"ResolvedRefs": "False"})

    assert routes.verdict(found) == (False, "ResolvedRefs is False (Why: about ResolvedRefs)")


def test_a_route_that_hangs_on_no_gateway_waits_for_none() -> None:
    """There is nobody who could say anything."""
    assert routes.verdict(stored(made(Route(model="tiny"), "public"))).taken


@settings(max_examples=20)
@given(ROUTES, st.sampled_from(LISTENERS))
def test_a_route_can_be_put_back_as_it_was(route: Route, listener: Listener) -> None:
    """With its state, and without what only the server writes."""
    found = stored(made(route, listener))

    put_back = routes.again(found)

    assert routes.state_of(put_back) == route
    assert put_back["spec"] == {key: value for key, value in found["spec"].items() if value}
    assert put_back["metadata"]["labels"] == found["metadata"]["labels"]
    assert "resourceVersion" not in put_back["metadata"]
