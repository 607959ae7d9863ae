"""Plays a gateway's data plane: routes real requests as the HTTPRoutes of one Gateway say (Gateway API v1).

Statuses are KWOK's (`stages.py`); a route counts once it is accepted for its generation, and what was accepted before
counts until then. As the specification wants it, a rule without a backend and a backend without a Service answer 500, a
Service without a ready endpoint 503, a path that no rule matches 404. Clusters are reached by the proxy that plays Ray,
so `Ray.forward` decides what answers behind a Service.
"""

import asyncio
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from .api import GATEWAY, HTTP_ROUTE, Api, ApiError, Kind
from .ray import Ray

Object = dict[str, Any]
ENDPOINT_SLICE, SERVICE = Kind("discovery.k8s.io/v1", "EndpointSlice"), Kind("v1", "Service")
OWNER = "kubernetes.io/service-name"
READ_EVERY_S = 0.15
STARTS_WITHIN_S = 10
HOP_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
BROKEN = 599
"""Stands for the status of an answer that never came, or not whole."""
KNOWN_FILTERS = ("RequestHeaderModifier", "ResponseHeaderModifier", "URLRewrite")


@dataclass(frozen=True)
class Target:
    """A backend of a rule.

    Attributes:
        fault: Why it cannot be asked, as a status and a sentence.
    """

    service: str
    address: str
    weight: int
    filters: tuple[Object, ...]
    fault: tuple[int, str] | None = None


@dataclass(frozen=True)
class Rule:
    """One match of one rule of a route, on the listeners that the route names."""

    route: str
    listeners: frozenset[str] | None  # none: all of the Gateway
    path: str
    exact: bool
    headers: Mapping[str, str]
    filters: tuple[Object, ...]
    targets: tuple[Target, ...]
    age: tuple[str, str, int]

    def takes(self, listener: str, path: str, headers: Mapping[str, str]) -> bool:
        """Tell whether a request is for this rule."""
        here = self.listeners is None or listener in self.listeners
        prefix = self.path.rstrip("/")
        fits = path == self.path if self.exact else path == prefix or path.startswith(f"{prefix}/")
        return here and fits and all(headers.get(name) == value for name, value in self.headers.items())

    @property
    def precedence(self) -> tuple[bool, int, int, tuple[str, str, int]]:
        """Sorts what matches first to the front: exact, longest path, most headers, oldest."""
        return (not self.exact, -len(self.path), -len(self.headers), self.age)


@dataclass
class Counts:
    """What a gateway counts of a Service behind a route."""

    tried: int = 0
    failed: int = 0
    """Answers of 500 and above, and broken ones."""
    active: int = 0
    took_s: list[float] = field(default_factory=list)
    """Of each request that ended."""


class Gateway:
    """The data plane, as a context manager in a thread of its own.

    Attributes:
        counts: By route and Service.
        refused: Requests that no backend was asked for, by status.

    Args:
        api: Reads the routes.
        namespace: Of the Gateway and its routes.
        name: Of the Gateway.
        ray: Reaches the clusters.
        ports: Where each listener listens; any that is free by default.
    """

    def __init__(self, api: Api, namespace: str, name: str, ray: Ray, ports: Mapping[str, int] | None = None) -> None:
        self.counts: defaultdict[tuple[str, str], Counts] = defaultdict(Counts)
        self.refused: Counter[int] = Counter()
        self._api, self._namespace, self._name, self._ray = api, namespace, name, ray
        found = api.get(GATEWAY, name, namespace)
        if found is None:
            raise LookupError(f"there is no Gateway {namespace}/{name}")
        self._ports = {one["name"]: (ports or {}).get(one["name"], 0) for one in found["spec"]["listeners"]}
        self._accepted: dict[str, Object] = {}
        self._rules: tuple[Rule, ...] = ()
        self._random = random.Random(0)  # noqa: S311 - shares of traffic, reproducible
        self._started_s = monotonic()
        self._ready, self._ended = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._serve, self._follow)]

    def __enter__(self) -> Self:
        self._read()
        for thread in self._threads:
            thread.start()
        if not self._ready.wait(STARTS_WITHIN_S):
            raise RuntimeError(f"the gateway did not listen within {STARTS_WITHIN_S} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(STARTS_WITHIN_S)

    def url(self, listener: str) -> str:
        """Return the address of a listener."""
        return f"http://127.0.0.1:{self._ports[listener]}"

    def only_on(self, route: str, listener: str) -> bool:
        """Tell whether a route is on this listener and on no other."""
        named = [rule.listeners for rule in self._rules if rule.route == route]
        return bool(named) and all(one == frozenset({listener}) for one in named)

    @property
    def uptime_s(self) -> float:
        """For how long it has been counting."""
        return monotonic() - self._started_s

    def _follow(self) -> None:
        """Take what changes, until the end. While the API server is away, what was read last counts."""
        while not self._ended.wait(READ_EVERY_S):
            try:
                self._read()
            except (ApiError, ConnectionError):
                continue

    def _read(self) -> None:
        routes = self._api.list(HTTP_ROUTE, self._namespace, resourceVersion="0")
        named = [one for one in routes if self._parents(one)]
        services = {one["metadata"]["name"] for one in self._api.list(SERVICE, self._namespace, resourceVersion="0")}
        slices = self._api.list(ENDPOINT_SLICE, self._namespace, resourceVersion="0")
        ready = {
            (one["metadata"].get("labels") or {}).get(OWNER)
            for one in slices
            if any((end.get("conditions") or {}).get("ready", True) for end in one.get("endpoints") or ())
        }
        accepted = {}
        for one in named:
            verdict = self._verdict(one)
            kept = one if verdict else self._accepted.get(one["metadata"]["name"]) if verdict is None else None
            if kept is not None:
                accepted[one["metadata"]["name"]] = kept
        self._accepted = accepted
        rules = [rule for one in accepted.values() for rule in self._rules_of(one, services, ready)]
        self._rules = tuple(sorted(rules, key=lambda rule: rule.precedence))

    def _parents(self, route: Object) -> list[Object]:
        own = route["metadata"]["namespace"]
        return [
            one
            for one in route["spec"].get("parentRefs", ())
            if one["name"] == self._name and one.get("namespace", own) == self._namespace
        ]

    def _verdict(self, route: Object) -> bool | None:
        """Tell whether the controller has taken this generation; none if it has not looked yet."""
        for one in (route.get("status") or {}).get("parents", ()):
            for found in one.get("conditions", ()):
                current = found.get("observedGeneration") == route["metadata"]["generation"]
                if one["parentRef"]["name"] == self._name and found["type"] == "Accepted" and current:
                    return bool(found["status"] == "True")
        return None

    def _rules_of(self, route: Object, services: set[str], ready: set[str | None]) -> list[Rule]:
        name, created = route["metadata"]["name"], route["metadata"]["creationTimestamp"]
        sections = [one.get("sectionName") for one in self._parents(route)]
        listeners = None if None in sections else frozenset(str(one) for one in sections)
        found = []
        for index, rule in enumerate(route["spec"].get("rules", ())):
            targets = tuple(self._target(one, services, ready) for one in rule.get("backendRefs", ()))
            for match in rule.get("matches") or [{}]:
                path = match.get("path") or {"type": "PathPrefix", "value": "/"}
                headers = {one["name"].lower(): one["value"] for one in match.get("headers", ())}
                filters = tuple(rule.get("filters", ()))
                exact = path["type"] == "Exact"
                age = (created, name, index)
                found.append(Rule(name, listeners, path["value"], exact, headers, filters, targets, age))
        return found

    def _target(self, ref: Object, services: set[str], ready: set[str | None]) -> Target:
        service, fault = ref["name"], None
        if ref.get("kind", "Service") != "Service" or service not in services:
            fault = (500, f"there is no Service {service}")
        elif service not in ready:
            fault = (503, f"no endpoint of {service} is ready")
        address = f"http://{service}.{ref.get('namespace', self._namespace)}.svc:{ref.get('port')}"
        return Target(service, address, ref.get("weight", 1), tuple(ref.get("filters", ())), fault)

    def _serve(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True), auto_decompress=False
        ) as session:
            runners = []
            for listener in self._ports:
                runner = web.ServerRunner(web.Server(self._handler(session, listener), access_log=None))
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", self._ports[listener], backlog=1024).start()
                self._ports[listener] = runner.addresses[0][1]
                runners.append(runner)
            self._ready.set()
            await asyncio.to_thread(self._ended.wait)
            for runner in runners:
                await runner.cleanup()

    def _handler(self, session: aiohttp.ClientSession, listener: str) -> Any:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            path = request.rel_url.raw_path
            headers = {name.lower(): value for name, value in request.headers.items()}
            rule = next((one for one in self._rules if one.takes(listener, path, headers)), None)
            if rule is None:
                return self._refuse(404, f"no route for {path} on {listener}")
            weights = [one.weight for one in rule.targets]
            if not any(weights):
                return self._refuse(500, f"{rule.route} has no backend for {path}")
            [target] = self._random.choices(rule.targets, weights)
            filters = [*rule.filters, *target.filters]
            if strange := [one["type"] for one in filters if one["type"] not in KNOWN_FILTERS]:
                return self._refuse(500, f"{rule.route} has filters that are not played: {', '.join(strange)}")
            counts = self.counts[(rule.route, target.service)]
            counts.tried += 1
            if target.fault:
                counts.failed += 1
                return self._refuse(*target.fault)
            return await self._forward(session, request, rule, target)

        return handle

    async def _forward(
        self, session: aiohttp.ClientSession, request: web.BaseRequest, rule: Rule, target: Target
    ) -> web.StreamResponse:
        counts, filters = self.counts[(rule.route, target.service)], [*rule.filters, *target.filters]
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in HOP_HEADERS)
        path = request.rel_url.raw_path
        for one in filters:
            if one["type"] == "RequestHeaderModifier":
                _modify(headers, one["requestHeaderModifier"])
            elif one["type"] == "URLRewrite":
                path = _rewritten(path, rule, one["urlRewrite"])
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        url, body = f"{target.address}{path}{query}", await request.read()
        began_s = monotonic()
        counts.active += 1
        status = BROKEN
        try:
            async with session.request(
                request.method, url, data=body or None, headers=headers, proxy=self._ray.proxy_url
            ) as answer:
                response = await _relay(request, answer, filters)
                status = answer.status
                return response
        except aiohttp.ClientConnectorError as error:
            return self._refuse(503, f"{target.service} does not answer ({type(error).__name__})")
        finally:
            counts.active -= 1
            counts.failed += status >= 500
            counts.took_s.append(monotonic() - began_s)

    def _refuse(self, status: int, why: str) -> web.Response:
        self.refused[status] += 1
        return web.json_response({"error": {"message": why, "code": status}}, status=status)


async def _relay(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, filters: Sequence[Object]
) -> web.StreamResponse:
    """Hand on an answer as it comes, so that a stream of tokens stays a stream."""
    headers = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS)
    for one in filters:
        if one["type"] == "ResponseHeaderModifier":
            _modify(headers, one["responseHeaderModifier"])
    response = web.StreamResponse(status=answer.status, headers=headers)
    if answer.content_length is not None:
        response.content_length = answer.content_length
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


def _modify(headers: "CIMultiDict[str]", change: Object) -> None:
    for one in change.get("set", ()):
        headers[one["name"]] = one["value"]
    for one in change.get("add", ()):
        headers.add(one["name"], one["value"])
    for name in change.get("remove", ()):
        headers.popall(name, None)


def _rewritten(path: str, rule: Rule, rewrite: Object) -> str:
    change = rewrite.get("path") or {}
    if change.get("type") == "ReplaceFullPath":
        return str(change["replaceFullPath"])
    if change.get("type") == "ReplacePrefixMatch":
        rest = path[len(rule.path.rstrip("/")) :]
        return f"{change['replacePrefixMatch'].rstrip('/')}{rest}" or "/"
    return path
