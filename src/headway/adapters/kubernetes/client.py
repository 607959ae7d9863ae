"""One account's access to one API server: plain objects in, plain objects out, headway's errors.

Kubernetes' own client reads the kubeconfig and renews tokens; its typed models are left aside, because objects of
KubeRay and the Gateway API have none. A request that the server turned away for being busy is sent again a few times.
"""

import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import kubernetes
from urllib3.exceptions import HTTPError

from headway.adapters.kubernetes import errors
from headway.adapters.kubernetes.kinds import ACCESS_REVIEW, POD, SERVICE, Kind
from headway.adapters.kubernetes.site import IN_CLUSTER
from headway.errors import BackendUnavailable, ConfigError, NotFound

Object = dict[str, Any]

MANAGER = "headway"
"""Field manager of everything that headway applies."""
TIMEOUT_S = 30.0
PAGE = 500
"""Objects of one page of a list (kubectl's own chunk)."""
BUSY = (429, 500, 502, 503, 504)
TRIES = 4
LONGEST_WAIT_S = 4.0
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Asks for an object's name and labels alone."""
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


class Client:
    """Access to an API server.

    Args:
        configuration: Of Kubernetes' client: host, credentials, certificates.
        in_cluster: Whether this process is a pod of the cluster, which reaches Services by their names.
    """

    def __init__(self, configuration: "kubernetes.client.Configuration", *, in_cluster: bool = False) -> None:
        if urlsplit(configuration.host).hostname in ("127.0.0.1", "localhost", "::1"):
            configuration.proxy = None  # the client would ask the environment's proxy even for loopback
        self._api = kubernetes.client.ApiClient(configuration)
        self.in_cluster = in_cluster

    @classmethod
    def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> Self:
        """Return a client of the account that the kubeconfig names, or of this pod's own.

        Args:
            kubeconfig: None: the pod's account inside of a cluster, else kubectl's own default.
            context: Of the kubeconfig; None: its current one.

        Raises:
            ConfigError: There is no kubeconfig, or it cannot be used.
        """
        configuration = kubernetes.client.Configuration()
        in_cluster = kubeconfig is None and IN_CLUSTER in os.environ
        try:
            if in_cluster:
                kubernetes.config.load_incluster_config(client_configuration=configuration)
            else:
                kubernetes.config.load_kube_config(
                    None if kubeconfig is None else str(kubeconfig), context, client_configuration=configuration
                )
            _check(configuration)
        except Exception as error:  # login libraries of clouds raise what they like
            where = f"the kubeconfig {kubeconfig}" if kubeconfig else "the kubeconfig (KUBECONFIG, ~/.kube/config)"
            raise ConfigError(
                f"{where} cannot be used: {' '.join(str(error).split())[:300]}; set HEADWAY_KUBECONFIG to a valid one",
                kubeconfig=str(kubeconfig) if kubeconfig else None,
            ) from error
        return cls(configuration, in_cluster=in_cluster)

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._api.configuration.host)

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return an object, none if there is none. A kind that the server does not know raises Refused."""
        try:
            what = _what("read", kind, name, namespace)
            found: Object = self.request("GET", kind.path(namespace, name), what=what, kind=kind)
        except NotFound:
            return None
        return found

    def exists(self, kind: Kind, name: str, namespace: str | None = None) -> bool:
        """Tell whether there is an object, without its content: that of a Secret stays where it is."""
        what = _what("look for", kind, name, namespace)
        try:
            self.request("GET", kind.path(namespace, name), what=what, kind=kind, accept=METADATA)
        except NotFound:
            return False
        return True

    def list(self, kind: Kind, namespace: str | None = None, **selectors: str) -> Sequence[Object]:
        """Return the objects of a kind, of one namespace or of all.

        Args:
            kind: Which.
            namespace: None: of all namespaces.
            selectors: `labelSelector` and `fieldSelector`.
        """
        return [item for page in self._pages(kind, namespace, selectors) for item in page]

    def create(self, kind: Kind, content: Object) -> Object:
        """Create an object.

        Raises:
            Conflict: One of its name is there.
            Refused: The cluster's kinds are too old to know a field, which would be dropped without a word otherwise.
        """
        name, namespace = _name(content)
        what = _what("create", kind, name, namespace)
        query = urlencode({"fieldManager": MANAGER, "fieldValidation": "Strict"})
        created: Object = self.request("POST", f"{kind.path(namespace)}?{query}", content, what=what, kind=kind)
        return created

    def apply(self, kind: Kind, content: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        """Apply an object on the server's side: what headway does not name stays as it is.

        Args:
            kind: Which.
            content: The fields that headway owns, all of them.
            force: Whether to take over fields that somebody else has set; otherwise they are a Conflict.
            dry_run: Whether only to ask what would be, admission included.

        Raises:
            Conflict: Somebody else owns a field that would change; names who and which.
        """
        name, namespace = _name(content)
        query = {"fieldManager": MANAGER, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        path = f"{kind.path(namespace, name)}?{urlencode(query)}"
        what = _what("apply", kind, name, namespace)
        applied: Object = self.request("PATCH", path, content, content_type=APPLY, what=what, kind=kind)
        return applied

    def merge(
        self, kind: Kind, name: str, change: Object, namespace: str | None = None, *, subresource: str = ""
    ) -> Object:
        """Change an object by a merge patch. Raises NotFound, and Conflict where `resourceVersion` is in the change."""
        path = f"{kind.path(namespace, name, subresource)}?{urlencode({'fieldManager': MANAGER})}"
        what = _what("change", kind, name, namespace)
        changed: Object = self.request("PATCH", path, change, content_type=MERGE, what=what, kind=kind)
        return changed

    def replace(self, kind: Kind, content: Object) -> Object:
        """Replace an object of the `resourceVersion` that it carries. Raises Conflict if it has changed since."""
        name, namespace = _name(content)
        path = f"{kind.path(namespace, name)}?{urlencode({'fieldManager': MANAGER})}"
        replaced: Object = self.request("PUT", path, content, what=_what("replace", kind, name, namespace), kind=kind)
        return replaced

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Delete an object and what it owns; absent is fine.

        Args:
            kind: Which.
            name: Its name.
            namespace: Its namespace.
            propagation: `Foreground` to keep it until everything that it owns is gone.
            uid: Only this very object; another one of the same name is a Conflict.
            grace_s: Seconds that a pod gets to end; 0 forgets it without asking its node. None: as it says itself.
        """
        options: Object = {
            "propagationPolicy": propagation,
            **({"preconditions": {"uid": uid}} if uid else {}),
            **({} if grace_s is None else {"gracePeriodSeconds": grace_s}),
        }
        what = _what("delete", kind, name, namespace)
        try:
            self.request("DELETE", kind.path(namespace, name), options, what=what, kind=kind)
        except NotFound:
            return

    def logs(self, pod: str, namespace: str, *, container: str | None = None, lines: int | None = None) -> str:
        """Return what a pod's container has printed; raises NotFound if the pod is gone."""
        query = {
            **({"container": container} if container else {}),
            **({"tailLines": str(lines)} if lines is not None else {}),
        }
        path = f"{POD.path(namespace, pod, 'log')}?{urlencode(query)}"
        return str(self.request("GET", path, what=_what("read the log of", POD, pod, namespace), kind=POD, text=True))

    def allowed(
        self, verb: str, kind: Kind, namespace: str | None = None, *, name: str = "", subresource: str = ""
    ) -> bool:
        """Ask the API server whether this account may do something."""
        attributes = {
            "verb": verb,
            "group": kind.group,
            "resource": kind.plural,
            "subresource": subresource,
            "name": name,
            "namespace": namespace or "",
        }
        review = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "spec": {"resourceAttributes": attributes},
        }
        answer = self.request("POST", ACCESS_REVIEW.path(), review, what="ask for rights", kind=ACCESS_REVIEW)
        return bool(answer["status"]["allowed"])

    def through(
        self,
        service: str,
        port: str | int,
        path: str,
        namespace: str,
        *,
        method: str = "GET",
        body: object = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """Send a request to a Service by the API server's own proxy, as those outside of the cluster must.

        What stands behind the proxy is asked once: a server error may be its own answer.

        Args:
            service: Its name.
            port: Name or number of its port.
            path: With a leading slash.
            namespace: Where it is.
            method: HTTP method.
            body: JSON to send.
            timeout_s: How long to wait for the answer.

        Raises:
            BackendUnavailable: What is behind the proxy answered with something that is no JSON.
            HeadwayError: As `errors` maps it.
        """
        place = f"{SERVICE.path(namespace, f'{service}:{port}')}/proxy{quote(path, safe='/?=&')}".replace("%3A", ":")
        what = f"ask Service {namespace}/{service}"
        answer = self.request(method, place, body, what=what, timeout_s=timeout_s, tries=1, text=True)
        try:
            return json.loads(answer)
        except ValueError as error:
            said = " ".join(answer.split())[: errors.LEAST_CHARACTERS] or "nothing"
            raise BackendUnavailable(
                f"cannot {what}: it answered `{said}`, expected JSON; look whether it is what the name says"
            ) from error

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        what: str,
        kind: Kind | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        text: bool = False,
        timeout_s: float = TIMEOUT_S,
        tries: int = TRIES,
    ) -> Any:
        """Send a request, again a few times while the server is busy.

        Args:
            method: HTTP method.
            path: With its query.
            body: JSON to send.
            what: What is tried, in words; it begins the text of an error.
            kind: What it is tried on.
            content_type: Of the body.
            accept: Which form of the answer.
            text: Whether the answer is taken as it is.
            timeout_s: How long to wait for an answer.
            tries: How often it is sent at most.

        Returns:
            The answer, parsed if it is JSON.

        Raises:
            Refused: What answers is no API server.
            HeadwayError: As `errors` maps it.
        """
        wanted = {"Accept": accept, "Content-Type": content_type}
        for attempt in range(1, tries + 1):
            try:
                status, headers, answer = self._send(method, path, body, wanted, timeout_s)
            except (HTTPError, OSError) as error:
                raise errors.unreachable(self.host, what, error) from error
            if status < 300 and text:
                return answer.decode(errors="replace")
            if status < 400:
                return self._parsed(status, answer, what)
            if status not in BUSY or attempt == tries:
                break
            time.sleep(_wait_s(headers, attempt))
        raise errors.refused(status, answer.decode(errors="replace"), what, kind)

    def _send(
        self, method: str, path: str, body: object, wanted: Mapping[str, str], timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = dict(wanted)
        self._api.update_params_for_auth(headers, [], ["BearerToken"])
        answer = self._api.rest_client.pool_manager.request(
            method,
            f"{self.host}{path}",
            body=None if body is None else json.dumps(body),
            headers=headers,
            timeout=timeout_s,
            retries=False,
        )
        return int(answer.status), answer.headers, bytes(answer.data)

    def _parsed(self, status: int, answer: bytes, what: str) -> Any:
        """Return an answer's JSON. A page to log in, or the way to one, is none, and comes with a good status."""
        try:
            found = json.loads(answer) if status < 300 else None
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        raise errors.no_api_server(self.host, what, status, answer.decode(errors="replace"))

    def _pages(self, kind: Kind, namespace: str | None, selectors: Mapping[str, str]) -> Iterator[Sequence[Object]]:
        what = f"list {kind.plural}{f' of {namespace}' if namespace else ''}"
        query = {**selectors, "limit": str(PAGE)}
        while True:
            page = self.request("GET", f"{kind.path(namespace)}?{urlencode(query)}", what=what, kind=kind)
            yield page["items"]
            following = page["metadata"].get("continue")
            if not following:
                return
            query["continue"] = following


def _check(configuration: "kubernetes.client.Configuration") -> None:
    """Raise ValueError or OSError for an address or certificates that no request could be sent with."""
    parts = urlsplit(str(configuration.host))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(f"its server is `{configuration.host}`, expected https://<host>:<port>")
    certificates = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        certificates.load_cert_chain(configuration.cert_file, configuration.key_file)


def service_url(service: str, port: int, namespace: str) -> str:
    """Return the address of a Service inside of the cluster."""
    return f"http://{service}.{namespace}.svc:{port}"


def _wait_s(headers: Mapping[str, str], attempt: int) -> float:
    """Return how long to wait: as the server asks, else twice as long each time."""
    try:
        asked = float(headers.get("Retry-After", ""))
    except ValueError:
        asked = 0.25 * 2.0**attempt
    return min(max(asked, 0.1), LONGEST_WAIT_S)


def _what(verb: str, kind: Kind, name: str, namespace: str | None) -> str:
    return f"{verb} {kind.name} {f'{namespace}/' if namespace else ''}{name}"


def _name(content: Object) -> tuple[str, str | None]:
    metadata = content["metadata"]
    return metadata["name"], metadata.get("namespace")


__all__ = ["MANAGER", "Client", "Object", "service_url"]
