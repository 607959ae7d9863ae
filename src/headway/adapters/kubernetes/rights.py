"""What headway does to a cluster, as Kubernetes names it: what `k8s/base/roles.yaml` gives, and the doctor asks for."""

from typing import NamedTuple

from headway.adapters.kubernetes.kinds import (
    CLAIM,
    CONFIG_MAP,
    CRD,
    DAEMON_SET,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    GATEWAY,
    GATEWAY_CLASS,
    HTTP_ROUTE,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    PRIORITY_CLASS,
    QUOTA,
    RAY_CLUSTER,
    RAY_SERVICE,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
)


class Right(NamedTuple):
    """What may be done to a kind of object."""

    kind: Kind
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def resource(self) -> str:
        """As a rule names it."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


LOOK = ("get", "list")
APPLY = ("create", "patch")
"""Server-side apply, of an object that is there or not."""

IN_NAMESPACE: tuple[Right, ...] = (
    *(Right(kind, (*LOOK, *APPLY, "delete")) for kind in (RAY_SERVICE, DAEMON_SET, DEPLOYMENT, CONFIG_MAP, HTTP_ROUTE)),
    Right(JOB, ("get", *APPLY, "delete")),
    # It goes with the RayService that owns it.
    Right(DISRUPTION_BUDGET, APPLY),
    # The number of workers follows the floor; everything else of a RayCluster is the operator's.
    Right(RAY_CLUSTER, ("get", "patch")),
    # A lease is renewed by what was read of it, so that of two only one gets it; none is ever deleted.
    Right(LEASE, ("get", "create", "update")),
    # One whose node is gone is forgotten, and one that staged something else is made anew.
    Right(POD, ("list", "delete")),
    Right(POD, ("get",), "log"),
    Right(EVENT, ("list",)),
    # Ray's dashboard and an engine's answer, by the API server's proxy.
    Right(SERVICE, ("get", "create"), "proxy"),
    Right(GATEWAY, ("get",)),
    # What the doctor looks at.
    Right(QUOTA, ("list",)),
    *(Right(kind, ("get",)) for kind in (CLAIM, SERVICE_ACCOUNT)),
)
EVERYWHERE: tuple[Right, ...] = (
    # Free accelerators: what nodes have, and what pods of every namespace ask of them.
    Right(NODE, LOOK),
    Right(POD, ("list",)),
    # What the doctor looks at.
    Right(DEPLOYMENT, ("list",)),
    *(Right(kind, ("get",)) for kind in (NAMESPACE, PRIORITY_CLASS, GATEWAY_CLASS, CRD)),
)
"""Of kinds that belong to no namespace, and of what other namespaces have."""
