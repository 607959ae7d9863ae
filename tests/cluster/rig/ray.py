"""Tells the played Ray clusters what to do, and asks what they were told (`ray_server.py`)."""

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["RUNNING", "DEPLOYING", "UNHEALTHY", "DEPLOY_FAILED", "NOT_STARTED", "DELETING"]
TIMEOUT_S = 10


@dataclass(frozen=True)
class Request:
    """One request that reached a cluster.

    Attributes:
        at: Seconds since the epoch.
        cluster: `NAMESPACE/RAYCLUSTER`, or the address of a pod for health pages.
    """

    at: float
    method: str
    cluster: str
    path: str
    status: int


@dataclass(frozen=True)
class Ray:
    """The control interface. A cluster is named by a pattern over `NAMESPACE/RAYCLUSTER`, as in `tenant-a/llm-*`.

    Attributes:
        port: Where the server listens, on 127.0.0.1.
    """

    port: int

    @property
    def proxy_url(self) -> str:
        """What a program gets as HTTP_PROXY to see the played clusters under their real names."""
        return f"http://127.0.0.1:{self.port}"

    def behave(
        self,
        cluster: str = "*",
        *,
        deploy_s: float | None = None,
        deploy_as: Status | None = None,
        message: str | None = None,
        put_status: int | None = None,
        get_status: int | None = None,
        health_status: int | None = None,
        replica_s: float | None = None,
        most_running: int | None = None,
        answer_status: int | None = None,
        lists: list[str] | None = None,
    ) -> None:
        """Change how clusters behave from now on; what is not given stays.

        Args:
            cluster: Which ones; for `health_status` the address of the head's pod.
            deploy_s: How long an application is DEPLOYING.
            deploy_as: What it is afterwards.
            message: What Serve says about it.
            put_status: The answer to a new configuration; 400 and above refuses it.
            get_status: The answer to a question for the applications.
            health_status: The answer of Serve's health page.
            replica_s: How long a replica starts.
            most_running: Replicas beyond these start for ever.
            answer_status: The answer to a completion; 400 and above refuses it.
            lists: What `/v1/models` lists in place of what was deployed.
        """
        given = {
            "deploy_s": deploy_s,
            "deploy_as": deploy_as,
            "message": message,
            "put_status": put_status,
            "get_status": get_status,
            "health_status": health_status,
            "replica_s": replica_s,
            "most_running": most_running,
            "answer_status": answer_status,
            "lists": lists,
        }
        self._post("behave", cluster=cluster, **{key: value for key, value in given.items() if value is not None})

    def set_status(self, status: Status, message: str = "", *, cluster: str = "*", application: str = "*") -> int:
        """Give applications a status until the next configuration comes.

        Returns:
            How many applications matched.
        """
        answer = self._post("status", cluster=cluster, application=application, status=status, message=message)
        return int(answer)

    def forget(self, cluster: str = "*") -> None:
        """Lose what clusters were told to serve, as a head does that starts again without a store."""
        self._post("forget", cluster=cluster)

    def forward(self, to: Mapping[str, str]) -> None:
        """Hand requests on to real servers, in place of what was handed on before.

        Args:
            to: Pattern over the address that the caller used (`llm-*:8265`, `10.244.*:8000`) to `127.0.0.1:PORT`.
        """
        self._post("forward", to=dict(to))

    def reset(self) -> None:
        """Forget all that was told, deployments included."""
        self._post("reset")

    def configs(self) -> dict[str, Any]:
        """Return the last Serve configuration that each cluster has got."""
        return dict(self._post("state")["configs"])

    def requests(self, method: str | None = None) -> list[Request]:
        """Return the last requests to clusters, oldest first."""
        found = [Request(**one) for one in self._post("state")["requests"]]
        return [one for one in found if method is None or one.method == method]

    def answers(self) -> bool:
        """Return whether the server is up.

        Raises:
            OSError: It is not.
        """
        self._post("state")
        return True

    def _post(self, action: str, **told: Any) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"{self.proxy_url}/rig/{action}"
        request = urllib.request.Request(url, json.dumps(told).encode())  # noqa: S310 - our own loopback address
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
