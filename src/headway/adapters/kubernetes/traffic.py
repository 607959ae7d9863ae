"""The `Traffic` port on the Gateway API: two HTTPRoutes a model (`routes.py`), whose weights are the split.

What holds on Envoy Gateway 1.9 (read in its source; `docs/kubernetes.md` says it to users):

- A header filter of a backend makes it an Envoy cluster of its own, named by its place in the rule
  (`httproute/<namespace>/<route>/rule/<n>/backend/<m>`). So each answer carries the release of the side that was
  chosen; in the moment of a promotion, when the candidate takes the first place, it may still be the former one.
- A retry (a BackendTrafficPolicy; `retry` is not in the standard HTTPRoute) stays within the side that was chosen. No
  other side saves a request, as the embedded stack's priority groups do.
- A Service without a ready pod is answered by 503, one that is not there by 500, each for its share.
- The API has no answer of the gateway's own. A model without stable hangs on no gateway, so that it is answered what
  unknown paths are: 503 and why by the route `nothing` of k8s/base (Envoy Gateway's HTTPRouteFilter), else 404.
- Accepted and ResolvedRefs say that the controller took a route. Its proxies follow within milliseconds, unseen.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property

from headway.adapters.kubernetes import objects, route_edits, routes
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.kinds import GATEWAY, GATEWAY_CLASS, HTTP_ROUTE
from headway.adapters.kubernetes.routes import LISTENERS, Listener
from headway.adapters.kubernetes.site import Site
from headway.domain.traffic import Route
from headway.errors import BackendUnavailable, Conflict, HeadwayError, Refused

TAKEN_WITHIN_S = 15.0
POLL_S = 0.1
TRIES = 3
"""The gateway writes into the same object, so a change may have to be read and made again."""

Pair = Mapping[Listener, Object | None]


class KubernetesTraffic:
    """The `Traffic` port.

    Args:
        client: Access to the cluster.
        site: Where routes and gateway are.
        taken_within_s: How long a gateway may take for a route.
    """

    def __init__(self, client: Client, site: Site, *, taken_within_s: float = TAKEN_WITHIN_S) -> None:
        self._client = client
        self._site = site
        self._taken_within_s = taken_within_s

    def route(self, model: str) -> Route:
        """Return the model's routing state, as headway wrote it last; an empty route if there is none.

        Raises:
            Conflict: Somebody else's object has the name of the model's route.
            IntegrityError: Somebody damaged the state.
        """
        found = self._get(model, "public")
        return Route(model=model) if found is None else routes.state_of(found)

    def routes(self) -> Sequence[Route]:
        """Return every model's routing state, sorted by model, by one list.

        Raises:
            IntegrityError: Somebody damaged the state of one.
        """
        wanted = f"{objects.selector(routes.COMPONENT)},{routes.LISTENER}=public"
        found = self._client.list(HTTP_ROUTE, self._site.namespace, labelSelector=wanted)
        return sorted((routes.state_of(one) for one in found), key=lambda route: route.model)

    def shift(self, route: Route) -> None:
        """Make the gateway route like this; returns when the gateway has taken it.

        Both routes are written before the gateway is waited for. If it refuses one, both are put back.

        Raises:
            Conflict: Somebody else changed who gets the traffic, or owns an object of this name; nothing was changed.
            Refused: The gateway does not take it, in its own words, there is none, or nobody who runs it, or rights are
                missing; all is as it was.
            BackendUnavailable: The API server or the gateway does not answer. What is written stays; the same call
                again goes on.
        """
        before: Pair = {listener: self._get(route.model, listener) for listener in LISTENERS}
        wanted = {one: routes.manifest(self._site, self._template, route, one) for one in LISTENERS}
        for listener, found in before.items():
            if found is not None:
                _check(found, wanted[listener])
        known = routes.state_of(before["public"]) if before["public"] else None
        written: dict[Listener, Object] = {}
        try:
            for listener in routes.order(known, route):
                written[listener] = self._write(route.model, listener, wanted[listener])
            for listener in LISTENERS:
                self._wait(written[listener])
        except BackendUnavailable:
            raise
        except HeadwayError as error:
            if not written:
                raise
            raise self._put_back(before, written, error) from error

    def remove(self, model: str) -> None:
        """Forget the model; the gateway answers for it what it answers for unknown paths.

        Raises:
            Conflict: Somebody else's object has the name of the model's route; it stays.
        """
        found = {listener: self._get(model, listener) for listener in LISTENERS}
        # The state goes last: as long as it is there, nobody deletes a cluster that the other route names.
        for one in (found["internal"], found["public"]):
            if one is not None:
                self._delete(one)

    @cached_property
    def _template(self) -> Object:
        return objects.template(self._site.templates, "httproute")

    def _get(self, model: str, listener: Listener) -> Object | None:
        name = routes.name_of(model, listener)
        found = self._client.get(HTTP_ROUTE, name, self._site.namespace)
        if found is None:
            return None
        if not objects.is_ours(found):
            raise Conflict(
                f"HTTPRoute {self._site.namespace}/{name} is not headway's (no label {objects.MANAGED_BY}); it was "
                f"left as it is. {model} needs this name: rename that route, or give headway a namespace of its own",
                route=name,
            )
        if (owner := routes.state_of(found).model) != model:
            raise Conflict(
                f"HTTPRoute {self._site.namespace}/{name} is that of the model {owner}; {model} would need the same "
                "name: rename one of the two models",
                route=name,
            )
        return found

    def _write(self, model: str, listener: Listener, wanted: Object) -> Object:
        """Apply a route with what others have added to it, unless somebody changed it since it was read."""
        for attempt in range(1, TRIES + 1):
            found = self._get(model, listener)
            if found is None:
                return self._client.apply(HTTP_ROUTE, wanted)
            _check(found, wanted)
            seen = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}}
            try:
                return self._client.apply(
                    HTTP_ROUTE, objects.patched(route_edits.keeping(wanted, found), seen), force=True
                )
            except Conflict:
                if attempt == TRIES:
                    raise
        raise AssertionError("a loop that always returns or raises")

    def _wait(self, written: Object) -> None:
        """Return when the gateway has taken this generation of a route."""
        name, generation = written["metadata"]["name"], written["metadata"]["generation"]
        end = time.monotonic() + self._taken_within_s
        found: Object | None = written
        while found is not None and found["metadata"]["generation"] >= generation:
            said = routes.verdict(found)
            if said.taken:
                return
            if time.monotonic() > end:
                raise self._not_taken(name, said.against)
            time.sleep(POLL_S)
            found = self._client.get(HTTP_ROUTE, name, self._site.namespace)
        raise Conflict(
            f"HTTPRoute {self._site.namespace}/{name} was deleted while the gateway was waited for; try again"
        )

    def _not_taken(self, name: str, against: str) -> HeadwayError:
        place = f"{self._site.gateway_namespace or self._site.namespace}/{self._site.gateway}"
        route = f"HTTPRoute {self._site.namespace}/{name}"
        if against:
            return Refused(f"the Gateway {place} refuses {route}: {against}; correct what it names", route=name)
        gateway = self._client.get(GATEWAY, self._site.gateway, self._site.gateway_namespace or self._site.namespace)
        if gateway is None:
            return Refused(
                f"there is no Gateway {place} to take {route}; apply k8s/base, or name the right one in HEADWAY_GATEWAY"
            )
        chosen = str(gateway["spec"]["gatewayClassName"])
        if not self._is_run(chosen):
            return Refused(
                f"the Gateway {place} asks for the GatewayClass {chosen}, which is not there, so nobody takes {route}; "
                "apply k8s/platform/envoy-gateway, or name a class in k8s/base that is there"
            )
        said = objects.condition(gateway, "Programmed")
        programmed = f"{said['status']}: {said['message']}" if said else "not told"
        return BackendUnavailable(
            f"the Gateway {place} did not say within {self._taken_within_s:.0f} s that it took {route} (Programmed is "
            f"{programmed}); what is written stays and is taken when its controller is back: look into the log of "
            "the controller"
        )

    def _is_run(self, gateway_class: str) -> bool:
        """Tell whether a class is there; whoever may not look takes it for granted."""
        try:
            return self._client.get(GATEWAY_CLASS, gateway_class) is not None
        except Refused:
            return True

    def _put_back(self, before: Pair, written: Mapping[Listener, Object], error: HeadwayError) -> HeadwayError:
        """Put routes back as they were, last one first; return the error with what came of it."""
        try:
            for listener in reversed(list(written)):
                was = before[listener]
                if was is None:
                    self._delete(written[listener])
                else:
                    self._client.apply(HTTP_ROUTE, routes.again(was), force=True)
        except HeadwayError as second:
            return type(error)(f"{error.message}. It could not be put back: {second.message}", **error.facts)
        return type(error)(f"{error.message}. The routes are as they were", **error.facts)

    def _delete(self, found: Object) -> None:
        metadata = found["metadata"]
        self._client.delete(HTTP_ROUTE, metadata["name"], metadata["namespace"], uid=metadata["uid"])


def _check(found: Object, wanted: Object) -> None:
    """Raise Conflict where others changed who answers, unless it is just what is wanted."""
    changed = route_edits.edits(found)
    if not changed or route_edits.holds(found, wanted):
        return
    metadata = found["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    raise Conflict(
        f"HTTPRoute {name} was changed by {route_edits.editors(found)}: {'; '.join(changed)}. headway does not fight "
        f"over it: set it back to what its annotation {routes.WRITTEN} holds, and the release goes on",
        route=metadata["name"],
        changed=changed,
    )
