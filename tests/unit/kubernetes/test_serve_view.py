"""What Serve shows of a cluster, as headway reads it."""

from typing import Any

import pytest

from headway.adapters.kubernetes import serve_view
from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.serve_view import Application
from headway.adapters.kubernetes.site import Site
from headway.errors import BackendUnavailable
from tests.factories import make_plan
from tests.unit.kubernetes.test_rayservice import SITE

SPEC = make_plan().cluster


class Answering(Client):
    """A client whose proxied Services answer as told."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.in_cluster = False
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def through(self, service: str, port: str | int, path: str, namespace: str, **how: Any) -> Any:
        """Answer what was told for the path."""
        self.asked.append((f"{service}:{port}{path}", how.get("body")))
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


def dashboard(**application: Any) -> Answering:
    """A dashboard that shows an application."""
    return Answering({serve_view.APPLICATIONS: {"applications": {"llm": application}}})


def shown(client: Answering, site: Site = SITE) -> Application | None:
    """What is read from it."""
    return serve_view.from_dashboard(client, site, "tiny-abc-x7k2p", "tiny")


def test_the_application_is_read_with_its_replicas() -> None:
    """Those of the model only: the ingress has replicas of its own."""
    replicas = [
        {"state": "RUNNING", "start_time_s": 10.5},
        {"state": "STARTING", "start_time_s": 30.0},
        {"state": "STOPPING"},
    ]
    client = dashboard(
        status="DEPLOYING",
        message="",
        deployments={
            "LLMServer:tiny": {"target_num_replicas": 2, "replicas": replicas, "message": "first\n  waits for GPU\n"},
            "OpenAiIngress": {"target_num_replicas": 5, "replicas": [{"state": "RUNNING"}] * 5},
        },
    )

    assert shown(client) == Application("DEPLOYING", "waits for GPU", 1, 2, (10.5, 30.0))
    assert client.asked == [("tiny-abc-x7k2p-head-svc:8265/api/serve/applications/", None)]


@pytest.mark.parametrize(
    "answer",
    [
        BackendUnavailable("no endpoints"),
        {"applications": {}},
        {"applications": {"llm": None}},
        {},
        [],
        "<html>",
        {"applications": []},
    ],
)
def test_a_dashboard_that_says_nothing_is_none(answer: Any) -> None:
    """The operator's copy stands in for it."""
    assert shown(Answering({serve_view.APPLICATIONS: answer})) is None


def test_the_operators_copy_has_status_and_message() -> None:
    """It knows no replicas."""
    deployments = {"LLMServer:tiny": {"status": "UNHEALTHY", "message": "died"}, "OpenAiIngress": {"message": ""}}
    part = {"applicationStatuses": {"llm": {"status": "UNHEALTHY", "serveDeploymentStatuses": deployments}}}

    assert serve_view.from_operator(part) == Application("UNHEALTHY", "died")
    assert serve_view.from_operator({}) is None


LISTS = {"data": [{"id": "tiny"}]}
ANSWERS = {"choices": [{"text": " there"}]}


@pytest.mark.parametrize(
    ("models", "completion", "words"),
    [
        (LISTS, ANSWERS, ""),
        ({"data": []}, ANSWERS, "/v1/models lists nothing and not tiny"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, ANSWERS, "/v1/models lists a, b and not tiny"),
        (LISTS, {"choices": []}, "a completion came back empty"),
        (LISTS, BackendUnavailable("500: EngineDeadError"), "does not answer a completion yet: 500: EngineDeadError"),
        (LISTS, {"error": {}}, "does not answer as Ray Serve LLM does"),
        ("<html>", ANSWERS, "does not answer as Ray Serve LLM does"),
    ],
)
def test_an_endpoint_has_answered_when_it_lists_the_model_and_completes(
    models: Any, completion: Any, words: str
) -> None:
    """And otherwise says what it lacks. The completion is sampled: a greedy one proves less."""
    client = Answering({"/v1/models": models, "/v1/completions": completion})

    assert words in serve_view.unanswered(client, SITE, SPEC)

    if not words:
        assert client.asked[-1][1]["temperature"] > 0
        assert serve_view.unanswered(client, SITE, SPEC) == ""
