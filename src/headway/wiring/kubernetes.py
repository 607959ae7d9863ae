"""A Kubernetes cluster with KubeRay and a gateway; registry, store and Airflow are where the settings say."""

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.domain.profile import Profile
from headway.errors import ConfigError
from headway.ports import Clusters, Jobs, Lease, Metrics, Traffic, Warm
from headway.settings import PREFIX
from headway.wiring.shared import SharedBackend

if TYPE_CHECKING:
    from headway.adapters.kubernetes.client import Client
    from headway.adapters.kubernetes.site import Site
    from headway.adapters.local.layout import S3Role
    from headway.adapters.s3 import S3Connection

BY_DIGEST = re.compile(r"[^@\s]+@sha256:([0-9a-f]{64})")


class KubernetesBackend(SharedBackend):
    """The adapters of one cluster. Nothing is asked of it before a port is used."""

    @cached_property
    def client(self) -> "Client":
        """This process's access to the API server. Raises ConfigError without a usable kubeconfig."""
        from headway.adapters.kubernetes.client import Client

        return Client.connect(self._settings.kubeconfig)

    @cached_property
    def site(self) -> "Site":
        """What the settings say of the cluster. What only programs need may be missing: a way back needs none."""
        from headway.adapters.kubernetes.site import Site

        settings = self._settings
        place, _, name = settings.gateway.rpartition("/")
        return Site(
            templates=settings.checkout.expanduser().resolve() / "k8s" / "templates",
            namespace=settings.namespace,
            pods_image=settings.pods_image or "",
            quantize_image=settings.quantize_image or "",
            node_root=settings.node_root,
            s3_endpoint=settings.pod_s3_endpoint or settings.s3_endpoint or "",
            region=settings.s3_region,
            gateway=name,
            gateway_namespace=place,
            gateway_url=settings.pod_gateway_url or Site.gateway_url,
            pull_secret=settings.pull_secret or "",
        )

    @property
    def site_of_programs(self) -> "Site":
        """The site, with all that programs in pods need.

        Raises:
            ConfigError: Something is not set; names every setting that is missing.
        """
        site = self.site
        named = (("PODS_IMAGE", site.pods_image), ("QUANTIZE_IMAGE", site.quantize_image))
        missing = [f"{PREFIX}{name}" for name, value in named if not value]
        if not site.s3_endpoint:
            missing.append(f"{PREFIX}POD_S3_ENDPOINT (pods cannot reach {self.layout.s3_url})")
        if missing:
            raise ConfigError(
                f"{PREFIX}BACKEND is kubernetes, and these are not set: {', '.join(missing)}; docs/settings.md says "
                "what each is",
                missing=missing,
            )
        return site

    @cached_property
    def jobs(self) -> Jobs:
        """Jobs, and a DaemonSet for each staged artifact."""
        from headway.adapters.kubernetes.jobs import KubernetesJobs
        from headway.adapters.s3 import S3Client

        site, store = self.site_of_programs, S3Client(self.s3("headway"))
        return KubernetesJobs(self.client, site, store.read)

    @cached_property
    def clusters(self) -> Clusters:
        """One RayService a cluster."""
        from headway.adapters.kubernetes.clusters import KubernetesClusters

        return KubernetesClusters(self.client, self.site)

    @cached_property
    def traffic(self) -> Traffic:
        """Two HTTPRoutes a model."""
        from headway.adapters.kubernetes.traffic import KubernetesTraffic

        return KubernetesTraffic(self.client, self.site)

    @cached_property
    def lease(self) -> Lease:
        """Leases of Kubernetes."""
        from headway.adapters.kubernetes.lease import KubernetesLease

        return KubernetesLease(self.client, self.site)

    @cached_property
    def warm(self) -> Warm | None:
        """Pods of no worth on nodes that are to be kept."""
        from headway.adapters.kubernetes.warm import KubernetesWarm

        return KubernetesWarm(self.client, self.site)

    @cached_property
    def metrics(self) -> Metrics:
        """Prometheus. Raises ConfigError if none is named: without it no candidate could be judged."""
        from headway.adapters.prometheus import PrometheusMetrics

        if not self._settings.prometheus_url:
            raise ConfigError(
                f"{PREFIX}BACKEND is kubernetes, and {PREFIX}PROMETHEUS_URL is not set: what gateway and engines "
                "report is read there; set it to the address of the cluster's Prometheus"
            )
        return PrometheusMetrics(self._settings.prometheus_url)

    def s3(self, role: "S3Role") -> "S3Connection":
        """Return the connection to the store; the embedded stack's where no other is named."""
        from headway.adapters.s3 import S3Connection

        settings = self._settings
        if not settings.s3_endpoint:
            return super().s3(role)
        return S3Connection(
            endpoint=settings.s3_endpoint, region=settings.s3_region, credentials_file=settings.s3_credentials
        )

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow."""
        return self._settings.mlflow_url or self.layout.mlflow_url

    @property
    def airflow_url(self) -> str:
        """Address of Airflow."""
        return self._settings.airflow_url or self.layout.airflow_url

    @property
    def airflow_passwords(self) -> Path:
        """File with the password of headway's user of Airflow."""
        return self._settings.airflow_passwords or self.layout.airflow_passwords

    @property
    def gateway_url(self) -> str:
        """The gateway's internal listener, as the benchmark's pods see it."""
        return self.site.gateway_url

    @property
    def stats_url(self) -> str | None:
        """None: a gateway has many proxies, and each knows only its own share."""
        return None

    @property
    def model_root(self) -> str:
        """Where the node's NVMe is in a pod."""
        return self.site.node_root

    def serving_image(self, profile: Profile) -> str:
        """Return the profile's image.

        Raises:
            ConfigError: It names none, or not by digest: then a plan's digest would not say what serves.
        """
        image = profile.serving_image or ""
        found = BY_DIGEST.fullmatch(image)
        if not found or not found[1].strip("0"):
            said = f"is `{image}`" if image else "is not set"
            raise ConfigError(
                f"`serving_image` of profile {profile.model} {said}; on Kubernetes it must be an image by its digest, "
                "such as registry/ray-llm@sha256:<64 hex digits>",
                model=profile.model,
                image=image,
            )
        return image
