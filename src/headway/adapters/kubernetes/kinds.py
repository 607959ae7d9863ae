"""The kinds of objects that headway touches, with the paths that the API server has for them."""

from typing import NamedTuple
from urllib.parse import quote


class Kind(NamedTuple):
    """A kind of object."""

    api_version: str
    name: str
    """As `kind` stands in a manifest."""
    plural: str
    """As a path names it."""
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Return the path of all objects of the kind (of one namespace), or of one object or its subresource."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        place = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        one = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{place}/{self.plural}{one}{f'/{subresource}' if subresource else ''}"

    @property
    def group(self) -> str:
        """API group; empty for the core."""
        return self.api_version.rpartition("/")[0]


NODE = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
SECRET = Kind("v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
EVENT = Kind("v1", "Event", "events")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
JOB = Kind("batch/v1", "Job", "jobs")
DAEMON_SET = Kind("apps/v1", "DaemonSet", "daemonsets")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
PRIORITY_CLASS = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False)
RAY_SERVICE = Kind("ray.io/v1", "RayService", "rayservices")
RAY_CLUSTER = Kind("ray.io/v1", "RayCluster", "rayclusters")
GATEWAY_CLASS = Kind("gateway.networking.k8s.io/v1", "GatewayClass", "gatewayclasses", namespaced=False)
GATEWAY = Kind("gateway.networking.k8s.io/v1", "Gateway", "gateways")
HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")

INSTALLED_BY = {
    "ray.io": "KubeRay's operator and its CRDs",
    "gateway.networking.k8s.io": "the Gateway API's CRDs and a gateway",
}
"""What brings the kinds of a group that Kubernetes itself does not have."""
