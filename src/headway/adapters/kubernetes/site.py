"""What headway must know of a cluster that is not in a profile: where, with which images, under which names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.domain.value import slug

GPU = "nvidia.com/gpu"
PRODUCT = f"{GPU}.product"
"""Label of GPU feature discovery; its values are the names of `domain.hardware.ACCELERATORS`."""
CPU_NODES: Mapping[str, str] = {"kubernetes.io/os": "linux"}
"""Where what needs no accelerator runs, and models on a CPU."""
SERVE_PORT, DASHBOARD_PORT = 8000, 8265
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Every pod has this variable."""


@dataclass(frozen=True)
class Site:
    """One cluster.

    Args:
        templates: Folder `k8s/templates`.
        namespace: Where headway's objects are: clusters, jobs, routes, staging. Its Pod Security level is `restricted`.
        pods_image: Runs `stage` and `bench`: headway's own code and what those need.
        quantize_image: Runs `quantize`, `quality` and `tasks`.
        node_root: Where the node's NVMe is mounted in a pod; artifacts lie below it by their digest.
        claims: Name of the claim of the local volumes by accelerator; by default `headway-nvme-<slug>`.
        s3_endpoint: Address of the store as pods see it; empty: Amazon's.
        region: Of the store.
        gateway: Name of the Gateway, with the listeners `public` and `internal`.
        gateway_namespace: Where it is; empty: the same namespace.
        gateway_url: Address of the internal listener as pods see it.
        image_pull_policy: Of every container.
        pull_secret: Name of the Secret for private images; empty: none.
        job_ttl_s: How long an ended Job and its log are kept.
    """

    templates: Path
    namespace: str = "headway"
    pods_image: str = "headway-pods"
    quantize_image: str = "headway-quantize"
    node_root: str = "/var/lib/headway/node"
    claims: Mapping[str, str] = field(default_factory=dict)
    s3_endpoint: str = ""
    region: str = "us-east-1"
    gateway: str = "headway"
    gateway_namespace: str = ""
    gateway_url: str = "http://headway-internal.headway.svc:8080"
    image_pull_policy: str = "IfNotPresent"
    pull_secret: str = ""
    job_ttl_s: int = 86_400

    def claim(self, accelerator: str) -> str:
        """Return the claim of the local volumes on nodes with an accelerator."""
        return self.claims.get(accelerator) or f"headway-nvme-{slug(accelerator)}"

    def node_selector(self, accelerator: str) -> dict[str, str]:
        """Return the labels of the nodes that have an accelerator; `cpu` and none mean any Linux node."""
        return dict(CPU_NODES) if accelerator in ("", "cpu") else {PRODUCT: accelerator}


SERVING_PRIORITY, BATCH_PRIORITY, PAUSE_PRIORITY = "headway-serving", "headway-batch", "headway-pause"
"""PriorityClasses of k8s/base, highest first: a candidate takes the place of a pause pod and of nothing else."""
S3_SECRETS: Mapping[str, str] = {
    "quantize": "headway-s3-quantize",
    "stage": "headway-s3-stage",
    "bench": "headway-s3-bench",
}
"""Secret of each role, with `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, as the stock secret keys are named."""
SIGNING_SECRET, ARTIFACT_KEYS = "headway-signing-key", "headway-artifact-keys"
"""Secret with the private key (`signing.pem`) for quantize; ConfigMap with the public ones (`artifact.pem`)."""
STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT, CONTROLLER_ACCOUNT = (
    "headway-stage",
    "headway-batch",
    "headway-serving",
    "headway",
)
"""ServiceAccounts of k8s/base. Those of programs have no rights and mount no token; `headway` is Airflow's."""


def serve_service(cluster: str) -> str:
    """Return the name of the Service that KubeRay makes for a cluster's requests."""
    return f"{cluster}-serve-svc"
