"""A thin client of the API server for tests: plain objects in, plain objects out, every kind by discovery."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import kubernetes
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
T = TypeVar("T")
TIMEOUT_S = 30
BUSY_FOR_S = 10
POLL_S = 0.05
FIELD_MANAGER = "rig"


class Kind(NamedTuple):
    """A kind of object, as its manifests name it."""

    api_version: str
    name: str


NODE = Kind("v1", "Node")
POD = Kind("v1", "Pod")
EVENT = Kind("v1", "Event")
NAMESPACE = Kind("v1", "Namespace")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount")
JOB = Kind("batch/v1", "Job")
DAEMON_SET = Kind("apps/v1", "DaemonSet")
DEPLOYMENT = Kind("apps/v1", "Deployment")
RAY_SERVICE = Kind("ray.io/v1", "RayService")
RAY_CLUSTER = Kind("ray.io/v1", "RayCluster")
HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute")
GATEWAY = Kind("gateway.networking.k8s.io/v1", "Gateway")
GATEWAY_CLASS = Kind("gateway.networking.k8s.io/v1", "GatewayClass")


class ApiError(Exception):
    """The API server refused.

    Attributes:
        status: HTTP status.
        reason: Kubernetes' own word, as in `AlreadyExists`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class Api:
    """One user's access to one cluster.

    Args:
        kubeconfig: Any that Kubernetes' own client reads.
    """

    def __init__(self, kubeconfig: Path) -> None:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        if urlsplit(configuration.host).hostname == "127.0.0.1":
            configuration.proxy = None  # the client would ask the proxy of the environment even for loopback
        self._client = kubernetes.client.ApiClient(configuration)
        self._discovered = cache(self._discover)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """Send a request.

        Returns:
            The answer, parsed.

        Raises:
            ApiError: The server refused.
            ConnectionError: It could not be reached.
        """
        headers = {"Accept": "application/json", "Content-Type": content_type}
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        url = f"{self._client.configuration.host}{path}"
        content = None if body is None else json.dumps(body)
        end = monotonic() + BUSY_FOR_S
        while True:
            try:
                answer = self._client.rest_client.pool_manager.request(
                    method, url, body=content, headers=headers, timeout=TIMEOUT_S, retries=False
                )
            except HTTPError as error:
                raise ConnectionError(f"{url} does not answer: {error}") from error
            # A server that has just come up says so of kinds whose storage is not read yet, and did nothing.
            if answer.status != 429 or monotonic() >= end:
                break
            sleep(POLL_S)
        if answer.status >= 400:
            raise _error(answer.status, answer.data.decode(errors="replace"))
        return json.loads(answer.data) if "json" in answer.headers.get("Content-Type", "") else answer.data.decode()

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, or nothing where there is none."""
        try:
            found: Object = self.request("GET", self._path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def list(self, kind: Kind, namespace: str | None = None, **query: str) -> list[Object]:
        """Return objects of a kind, of one namespace or of all; `labelSelector` and `fieldSelector` narrow them."""
        items: list[Object] = self.request("GET", f"{self._path(kind, namespace)}?{urlencode(query)}")["items"]
        return items

    def create(self, content: Object) -> Object:
        """Create an object."""
        created: Object = self.request("POST", self._path_of(content, named=False), content)
        return created

    def apply(self, content: Object, manager: str = FIELD_MANAGER) -> Object:
        """Apply an object on the server's side; fields of other managers are taken over."""
        query = urlencode({"fieldManager": manager, "force": "true"})
        path = f"{self._path_of(content, named=True)}?{query}"
        applied: Object = self.request("PATCH", path, content, "application/apply-patch+yaml")
        return applied

    def patch(self, kind: Kind, name: str, change: Object, namespace: str | None = None) -> Object:
        """Change an object by a merge patch."""
        path = self._path(kind, namespace, name)
        patched: Object = self.request("PATCH", path, change, "application/merge-patch+json")
        return patched

    def annotate(self, kind: Kind, name: str, values: Mapping[str, str | None], namespace: str | None = None) -> Object:
        """Set annotations of an object; None takes one away."""
        return self.patch(kind, name, {"metadata": {"annotations": dict(values)}}, namespace)

    def delete(self, kind: Kind, name: str, namespace: str | None = None, *, propagation: str = "Background") -> None:
        """Delete an object and what it owns; one that is not there is fine."""
        try:
            self.request("DELETE", self._path(kind, namespace, name), {"propagationPolicy": propagation})
        except ApiError as error:
            if error.status != 404:
                raise

    def delete_all(self, kind: Kind, namespace: str) -> None:
        """Delete all objects of a kind in a namespace, and what they own."""
        self.request("DELETE", self._path(kind, namespace), {"propagationPolicy": "Background"})

    def token(self, account: str, namespace: str, duration_s: int = 3600) -> str:
        """Return a fresh token of a ServiceAccount."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": duration_s}})
        return str(answer["status"]["token"])

    def _path_of(self, content: Object, *, named: bool) -> str:
        metadata = content["metadata"]
        kind = Kind(content["apiVersion"], content["kind"])
        return self._path(kind, metadata.get("namespace"), metadata["name"] if named else None)

    def _path(self, kind: Kind, namespace: str | None = None, name: str | None = None) -> str:
        plural, namespaced = self._discovered(kind.api_version)[kind.name]
        place = f"namespaces/{namespace}/" if namespaced and namespace else ""
        return f"{_group(kind.api_version)}/{place}{plural}" + (f"/{quote(name)}" if name else "")

    def _discover(self, api_version: str) -> dict[str, tuple[str, bool]]:
        found = self.request("GET", _group(api_version))["resources"]
        return {one["kind"]: (one["name"], one["namespaced"]) for one in found if "/" not in one["name"]}


def _group(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _error(status: int, said: str) -> ApiError:
    try:
        answer = json.loads(said)
    except ValueError:
        return ApiError(status, "", said[:500])
    return ApiError(status, str(answer.get("reason", "")), str(answer.get("message", "")))


def condition(content: Object | None, kind: str) -> str:
    """Return the status of a condition of an object, or nothing."""
    found = ((content or {}).get("status") or {}).get("conditions") or []
    return next((str(one["status"]) for one in found if one["type"] == kind), "")


def wait_until(condition: Callable[[], T], what: str, within_s: float = 20) -> T:
    """Return what a condition gives once it gives something true.

    Raises:
        AssertionError: It never did; the message has the last value.
    """
    ends = monotonic() + within_s
    while not (value := condition()):
        assert monotonic() < ends, f"{what}: not within {within_s} s; the last look gave {value!r}"
        sleep(POLL_S)
    return value
