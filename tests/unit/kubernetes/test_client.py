"""Access to the API server: what is sent again, how lists are read, and what errors say."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml

from headway.adapters.kubernetes import errors
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.kinds import CONFIG_MAP, HTTP_ROUTE, JOB, NODE, POD, RAY_SERVICE, SECRET, Kind
from headway.errors import BackendUnavailable, ConfigError, Conflict, HeadwayError, NotFound, Refused


@dataclass
class Server:
    """An API server that answers what a test has put down, and keeps what it was asked."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""

    def says(self, *answers: tuple[int, Any]) -> None:
        """Put down the next answers."""
        self.answers += answers


@pytest.fixture
def server() -> Iterator[Server]:
    """A server on loopback."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            state.asked.append((self.command, self.path, body))
            status, content = state.answers.pop(0)
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.send_header("Retry-After", "0.01")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = answer  # noqa: N815 - names of the base

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    yield state
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of it."""
    configuration = kubernetes.client.Configuration()
    configuration.host = server.url
    made = Client(configuration)
    yield made
    made.close()


def refusal(code: int, reason: str, message: str = "no") -> tuple[int, dict[str, Any]]:
    """Return an answer as Kubernetes refuses."""
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}


def test_a_busy_server_is_asked_again_and_then_named(server: Server, client: Client) -> None:
    """A storm of 429 that ends is not seen at all; one that stays is an error that may be tried again."""
    server.says(refusal(429, "TooManyRequests"), refusal(503, "ServiceUnavailable"), (200, {"metadata": {"name": "a"}}))
    assert client.get(CONFIG_MAP, "a", "n") == {"metadata": {"name": "a"}}

    server.says(*[refusal(429, "TooManyRequests", "slow down")] * 4)
    with pytest.raises(BackendUnavailable, match="cannot read ConfigMap n/a: 429 TooManyRequests: slow down"):
        client.get(CONFIG_MAP, "a", "n")
    assert not server.answers, "it is asked four times, and no more"


def test_a_long_list_is_read_page_by_page(server: Server, client: Client) -> None:
    """All pages, in one go for the caller."""
    server.says(
        (200, {"metadata": {"continue": "more"}, "items": [{"n": 1}]}), (200, {"metadata": {}, "items": [{"n": 2}]})
    )

    assert client.list(POD, "n", labelSelector="a=b") == [{"n": 1}, {"n": 2}]
    assert [path.split("?")[0] for _, path, _ in server.asked] == ["/api/v1/namespaces/n/pods"] * 2
    assert "continue=more" in server.asked[1][1]
    assert "labelSelector=a%3Db" in server.asked[1][1]


def test_what_is_not_there_is_none_and_deleting_it_is_fine(server: Server, client: Client) -> None:
    """Absence is no error where it is asked for."""
    server.says(*[refusal(404, "NotFound", 'configmaps "a" not found')] * 2)

    assert client.get(CONFIG_MAP, "a", "n") is None
    client.delete(CONFIG_MAP, "a", "n")


def test_a_kind_that_the_server_does_not_know_is_no_absence(server: Server, client: Client) -> None:
    """A cluster without the CRDs must not look like an empty one."""
    server.says((404, "404 page not found\n"))

    with pytest.raises(Refused, match=r"install the Gateway API's CRDs.*doctor --kubernetes"):
        client.get(HTTP_ROUTE, "a", "n")


def test_applying_names_the_field_manager_and_does_not_force(server: Server, client: Client) -> None:
    """Fields of somebody else are a conflict, which says whose."""
    message = 'Apply failed with 1 conflict: conflict with "kubectl-edit" using gateway: .spec.rules'
    server.says(refusal(409, "Conflict", message))

    with pytest.raises(Conflict, match=r'apply HTTPRoute n/a: .*"kubectl-edit".*\.spec\.rules'):
        client.apply(HTTP_ROUTE, {"metadata": {"name": "a", "namespace": "n"}})

    method, path, _ = server.asked[0]
    assert method == "PATCH"
    assert "fieldManager=headway" in path
    assert "force=false" in path


def test_a_service_is_reached_through_the_server(server: Server, client: Client) -> None:
    """As those must who are not in the cluster: the port stays a part of the Service's name, and the path a path."""
    server.says((200, {"data": []}))

    assert client.through("llm-serve-svc", 8000, "/v1/models", "n") == {"data": []}
    assert server.asked[0][1] == "/api/v1/namespaces/n/services/llm-serve-svc:8000/proxy/v1/models"


def test_a_log_is_text(server: Server, client: Client) -> None:
    """Also one that looks like JSON."""
    server.says((200, '{"a": 1}\n'))

    assert client.logs("p", "n", container="main", lines=5) == '{"a": 1}\n'
    assert server.asked[0][1].endswith("/pods/p/log?container=main&tailLines=5")


@pytest.mark.parametrize(
    ("said", "kind", "wanted", "remedy"),
    [
        ((401, "Unauthorized", "Unauthorized"), POD, Refused, "expired"),
        ((403, "Forbidden", 'User "x" cannot list pods'), POD, Refused, "doctor --kubernetes"),
        ((403, "Forbidden", "exceeded quota: q, requested: pods=1"), POD, Refused, "ResourceQuota"),
        ((403, "Forbidden", 'violates PodSecurity "restricted"'), POD, Refused, "Pod Security"),
        ((404, "NotFound", 'nodes "n" not found'), NODE, NotFound, "read again"),
        ((403, "Forbidden", 'admission webhook "p.example" denied the request: no'), POD, Refused, "policy of this"),
        ((403, "Forbidden", 'User "system:anonymous" cannot list pods'), POD, Refused, "log in"),
        ((404, "NotFound", errors.NO_SUCH_KIND), RAY_SERVICE, Refused, "KubeRay"),
        (
            (400, "BadRequest", 'unknown field "spec.upgradeStrategy"'),
            RAY_SERVICE,
            Refused,
            "update KubeRay's operator",
        ),
        ((400, "BadRequest", 'unknown field "spec.typo"'), JOB, ConfigError, "k8s/templates"),
        ((409, "AlreadyExists", "exists"), SECRET, Conflict, "read it again"),
        ((410, "Expired", "too old"), POD, BackendUnavailable, "tries again"),
        ((422, "Invalid", "name: must be no more than 63 characters"), POD, ConfigError, "correct"),
        ((413, "RequestEntityTooLarge", "limit is 3145728"), POD, ConfigError, "correct"),
        ((418, "Unknown", "teapot"), POD, Refused, "log"),
        ((500, "InternalError", "etcdserver: leader changed"), POD, BackendUnavailable, "tries again"),
    ],
)
def test_every_refusal_has_a_class_and_a_remedy(
    said: tuple[int, str, str], kind: Kind, wanted: type[HeadwayError], remedy: str
) -> None:
    """One map, for all adapters: what was tried, what was said, what to do."""
    status, reason, message = said
    error = errors.refused(status, json.dumps({"reason": reason, "message": message}), "do it", kind)

    assert type(error) is wanted
    assert error.message.startswith(f"cannot do it: {status} {reason}: {message}")
    assert remedy in error.message
    assert error.facts == {"status": status, "reason": reason}


def test_an_answer_that_is_not_kubernetes_own_is_told_as_it_is() -> None:
    """A proxy or a login page stands between."""
    error = errors.refused(502, "<html>Bad Gateway</html>", "do it", POD)

    assert isinstance(error, BackendUnavailable)
    assert "<html>Bad Gateway</html>" in error.message


@pytest.mark.parametrize(
    "answer", [(200, "<html>log in</html>"), (200, ""), (200, "{"), (200, [1]), (302, ""), (307, {"kind": "Status"})]
)
def test_what_is_no_api_server_is_told_however_well_it_answers(
    server: Server, client: Client, answer: tuple[int, Any]
) -> None:
    """A page to log in comes with 200 or leads elsewhere; nothing of it may be taken for an object."""
    asked: list[Callable[[], object]] = [
        lambda: client.get(CONFIG_MAP, "a", "n"),
        lambda: client.list(POD, "n"),
        lambda: client.allowed("get", POD, "n"),
        lambda: client.delete(POD, "a", "n"),
    ]
    for ask in asked:
        server.says(answer)
        with pytest.raises(Refused, match=r"no API server says; check that the kubeconfig names the API server"):
            ask()


def test_a_service_that_answers_no_json_is_asked_again(server: Server, client: Client) -> None:
    """It is behind the API server, so the kubeconfig is right."""
    server.says((200, "<html>starting</html>"))

    with pytest.raises(BackendUnavailable, match=r"Service n/s: it answered `<html>starting</html>`, expected JSON"):
        client.through("s", 8000, "/v1/models", "n")


def test_a_field_that_the_server_does_not_know_is_not_dropped(server: Server, client: Client) -> None:
    """Older kinds would take the object without it, such as a RayService without its `upgradeStrategy`."""
    server.says((201, {"metadata": {"name": "a"}}))
    client.create(RAY_SERVICE, {"metadata": {"name": "a", "namespace": "n"}})

    assert "fieldValidation=Strict" in server.asked[0][1]


def test_a_server_that_is_gone_may_come_back() -> None:
    """It is said which one was asked; nobody waits for ever."""
    configuration = kubernetes.client.Configuration()
    configuration.host = "http://127.0.0.1:9"

    with pytest.raises(BackendUnavailable, match=r"API server at http://127\.0\.0\.1:9 does not answer"):
        Client(configuration).get(POD, "p", "n")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not: [yaml",
        "just text",
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [], "users": []}),
        yaml.safe_dump({"apiVersion": "v1", "current-context": "a", "contexts": [{"name": "a", "context": {}}]}),
    ],
)
def test_a_kubeconfig_that_is_none_says_so(tmp_path: Path, content: str) -> None:
    """With the file's name and the setting."""
    path = tmp_path / "kubeconfig"
    path.write_text(content)

    with pytest.raises(ConfigError, match=r"kubeconfig .*cannot be used.*HEADWAY_KUBECONFIG"):
        Client.connect(path)


NO_PEM = base64.b64encode(b"no certificate").decode()


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"server": "cluster.example"}, {}),
        ({"server": "ftp://cluster.example"}, {}),
        ({"server": "https://cluster.example:port"}, {}),
        ({"server": "https://[::1"}, {}),
        ({"server": "https://c", "certificate-authority-data": NO_PEM}, {}),
        ({"server": "https://c"}, {"client-certificate-data": NO_PEM, "client-key-data": NO_PEM}),
        ({"server": "https://c"}, {"tokenFile": "/not/there"}),
    ],
)
def test_what_no_request_could_be_sent_with_is_not_taken_for_a_server_that_is_away(
    tmp_path: Path, cluster: dict[str, str], user: dict[str, str]
) -> None:
    """Nobody tries it again for hours: an address or a certificate that is none does not get better."""
    path = tmp_path / "kubeconfig"
    context = {"name": "a", "context": {"cluster": "c", "user": "u"}}
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "a", "contexts": [context]}
    clusters, users = [{"name": "c", "cluster": cluster}], [{"name": "u", "user": user}]
    path.write_text(yaml.safe_dump({**content, "clusters": clusters, "users": users}))

    with pytest.raises(ConfigError, match=r"kubeconfig .*cannot be used.*HEADWAY_KUBECONFIG"):
        Client.connect(path)


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before anything is asked."""
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "a", "context": {"cluster": "c", "user": "u"}}
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "a", "clusters": [cluster]}
    path.write_text(yaml.safe_dump({**content, "contexts": [context], "users": [{"name": "u", "user": {}}]}))

    assert Client.connect(path).host == "http://127.0.0.1:9"
    with pytest.raises(ConfigError, match="b"):
        Client.connect(path, context="b")
