"""What a look at clusters reads beside their RayServices: for one just what is its own, for many all at once."""

from collections.abc import Sequence
from functools import cached_property

from headway.adapters.kubernetes import reasons
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.kinds import EVENT, POD
from headway.adapters.kubernetes.objects import selector
from headway.adapters.kubernetes.rayservice import CLUSTER, pod_selector
from headway.adapters.kubernetes.site import Site


class Reads:
    """Reads of one cluster.

    Args:
        client: Access to the API server.
        site: The cluster's settings.
    """

    def __init__(self, client: Client, site: Site) -> None:
        self.client = client
        self.site = site

    def pods(self, name: str) -> Sequence[Object]:
        """Return the pods of a cluster."""
        return self.client.list(POD, self.site.namespace, labelSelector=pod_selector(name))

    def events(self, kind: str, name: str) -> Sequence[Object]:
        """Return the events of an object."""
        return reasons.events_of(self.client, self.site, kind, name)

    def why(self, pods: Sequence[Object]) -> reasons.Reason | None:
        """Return why pods do not run."""
        return reasons.of_found(self.client, self.site, pods)


class SharedReads(Reads):
    """Reads of many clusters: one list of pods and one of events, each when it is first needed."""

    def pods(self, name: str) -> Sequence[Object]:
        """Return the pods of a cluster."""
        return self._pods.get(name, ())

    def events(self, kind: str, name: str) -> Sequence[Object]:
        """Return the events of an object."""
        return self._events.get((kind, name), ())

    def why(self, pods: Sequence[Object]) -> reasons.Reason | None:
        """Return why pods do not run."""
        warnings = [one for pod in pods for one in self.events("Pod", pod["metadata"]["name"])]
        return reasons.of_found(self.client, self.site, pods, warnings)

    @cached_property
    def _pods(self) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for pod in self.client.list(POD, self.site.namespace, labelSelector=selector("cluster")):
            found.setdefault(pod["metadata"]["labels"].get(CLUSTER, ""), []).append(pod)
        return found

    @cached_property
    def _events(self) -> dict[tuple[str, str], list[Object]]:
        found: dict[tuple[str, str], list[Object]] = {}
        for event in self.client.list(EVENT, self.site.namespace):
            involved = event["involvedObject"]
            found.setdefault((involved.get("kind", ""), involved.get("name", "")), []).append(event)
        return found
