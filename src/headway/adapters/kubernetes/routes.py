"""The two HTTPRoutes of a model, as pure functions: made from its routing state, compared, and read back.

    public-<slug>      on the listener `public`: the split. Its annotation holds the whole routing state.
    internal-<slug>    on the listener `internal`: first who asks by `x-headway-cluster`, then the split.

Stable is the first backend of a rule and keeps its place at weight 0, a candidate is the second: gateways name what
they count by the place. A candidate without a share is not named in the split at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from headway.adapters.kubernetes.client import Object
from headway.adapters.kubernetes.kinds import HTTP_ROUTE
from headway.adapters.kubernetes.objects import ASKED, annotation, labels, patched
from headway.adapters.kubernetes.site import SERVE_PORT, Site, serve_service
from headway.domain.traffic import Backend, Route, path_of
from headway.domain.value import canonical_json, slug
from headway.errors import IntegrityError

Listener = Literal["public", "internal"]
LISTENERS: tuple[Listener, Listener] = ("public", "internal")
COMPONENT, LISTENER = "route", "headway/listener"
"""Label: which of the two routes it is."""
WRITTEN = "headway/written"
"""Annotation: gateways and rules as headway wrote them."""
CHOICE, RELEASE = "x-headway-cluster", "x-headway-release"
OWNED = ("parentRefs", "rules")
OUR_LABELS = ("headway/", "app.kubernetes.io/")
TOLD = ("Accepted", "ResolvedRefs")
"""What a gateway must say of a route."""


class Verdict(NamedTuple):
    """What the gateway says of a route as it is now.

    Args:
        taken: Whether it has taken it.
        against: Its words if it refuses it; empty as long as it has said nothing.
    """

    taken: bool
    against: str


def name_of(model: str, listener: Listener) -> str:
    """Return the name of one of a model's routes."""
    return f"{listener}-{slug(model)}"


def manifest(site: Site, template: Object, route: Route, listener: Listener) -> Object:
    """Return one of a model's routes.

    Nothing to route to: it hangs on no gateway, so that the gateway's own answer for unknown paths is given. (A rule
    without backends would be answered by 500.)

    Args:
        site: Where gateway and clusters are.
        template: `k8s/templates/httproute.yaml`.
        route: The routing state.
        listener: Which of the two.
    """
    pattern = template["spec"]["rules"][0]
    served = route.stable if listener == "public" else route.stable or route.candidate
    parent = {
        "name": site.gateway,
        "namespace": site.gateway_namespace or site.namespace,
        "sectionName": listener,
    }
    written = {
        "parentRefs": [patched(template["spec"]["parentRefs"][0], parent)] if served else [],
        "rules": list(_rules(pattern, route, listener)),
    }
    return patched(
        template,
        {
            "metadata": {
                "name": name_of(route.model, listener),
                "namespace": site.namespace,
                "labels": {**_labels(route), LISTENER: listener},
                "annotations": {
                    ASKED: canonical_json(route).decode(),
                    WRITTEN: canonical_json(written).decode(),
                },
            },
            "spec": {"rules": written["rules"], "parentRefs": written["parentRefs"] or None},
        },
    )


def state_of(found: Object) -> Route:
    """Return the routing state that a route was made from.

    Raises:
        IntegrityError: It is not what headway wrote there.
    """
    try:
        return Route.model_validate_json(annotation(found, ASKED) or "")
    except ValidationError as error:
        raise garbled(found, ASKED) from error


def again(found: Object) -> Object:
    """Return the manifest of a route as it was found, to put it back."""
    metadata = found["metadata"]
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.name,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {key: value for key, value in metadata["labels"].items() if key.startswith(OUR_LABELS)},
            "annotations": {key: metadata["annotations"][key] for key in (ASKED, WRITTEN)},
        },
        "spec": {key: found["spec"][key] for key in OWNED if found["spec"].get(key)},
    }


def verdict(found: Object) -> Verdict:
    """Return what the gateway that a route names says of its present generation."""
    parents = found["spec"].get("parentRefs")
    if not parents:
        return Verdict(taken=True, against="")
    generation = found["metadata"]["generation"]
    against: list[str] = []
    for entry in (found.get("status") or {}).get("parents") or []:
        if not _is_parent(entry["parentRef"], parents[0]):
            continue
        seen = [
            one
            for one in entry.get("conditions") or []
            if one["type"] in TOLD and (one.get("observedGeneration") or 0) >= generation
        ]
        if sum(one["status"] == "True" for one in seen) == len(TOLD):
            return Verdict(taken=True, against="")
        against += [_said(one) for one in seen if one["status"] == "False"]
    return Verdict(taken=False, against="; ".join(against))


def order(before: Route | None, after: Route) -> tuple[Listener, ...]:
    """Return in which order the two routes are written.

    Whoever dies between the two leaves a state that mentions every cluster that a route names: then no cluster that is
    still named gets deleted as one that nobody knows.

    Args:
        before: The state so far; none if there is none.
        after: The new one.
    """
    if before is None:
        return LISTENERS
    mentioned = {backend.cluster for backend in (before.stable, before.candidate, before.previous) if backend}
    named = {backend.cluster for backend in (after.stable, after.candidate) if backend}
    return ("internal", "public") if named <= mentioned else ("public", "internal")


def _rules(pattern: Object, route: Route, listener: Listener) -> Iterator[Object]:
    split = route.split
    shares = [(route.stable, split.stable_pct)] if route.stable else []
    if route.stable and route.candidate and split.candidate_pct:
        shares.append((route.candidate, split.candidate_pct))
    if listener == "internal":
        # One that is not there must refuse: falling through to the split would measure the other side.
        for side, chosen in (("stable", route.stable), ("candidate", route.candidate)):
            yield _rule(pattern, route.model, [(chosen, 100)] if chosen else [], side)
    yield _rule(pattern, route.model, shares)


def _rule(pattern: Object, model: str, shares: Sequence[tuple[Backend | None, int]], side: str = "") -> Object:
    match: Object = {"path": {"type": "PathPrefix", "value": f"{path_of(model)}/v1"}}
    if side:
        match["headers"] = [{"type": "Exact", "name": CHOICE, "value": side}]
    base = pattern["backendRefs"][0]
    backends = [_backend(base, backend, weight) for backend, weight in shares if backend]
    return patched(pattern, {"matches": [match], "backendRefs": backends})


def _backend(base: Object, backend: Backend, weight: int) -> Object:
    release = {"set": [{"name": RELEASE, "value": backend.release}]}
    return patched(
        base,
        {
            "name": serve_service(backend.cluster),
            "port": SERVE_PORT,
            "weight": weight,
            "filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": release}],
        },
    )


def _labels(route: Route) -> dict[str, str]:
    stable = route.stable
    more = {"release": stable.release, "digest": stable.cluster_digest} if stable else {}
    return labels(COMPONENT, model=route.model, **more)


def garbled(found: Object, key: str) -> IntegrityError:
    """Return the error for an annotation that cannot be read."""
    metadata = found["metadata"]
    return IntegrityError(
        f"annotation {key} of HTTPRoute {metadata['namespace']}/{metadata['name']} is not what headway wrote there; "
        "the gateway keeps serving what it has. Put the annotation right, or delete the route and release the model "
        "again",
        route=metadata["name"],
    )


def _is_parent(told: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    same = (told["name"], told.get("namespace", ours["namespace"])) == (ours["name"], ours["namespace"])
    return same and told.get("sectionName", ours["sectionName"]) == ours["sectionName"]


def _said(condition: Mapping[str, Any]) -> str:
    message = " ".join(str(condition["message"]).split())
    return f"{condition['type']} is False ({condition['reason']}{f': {message}' if message else ''})"
