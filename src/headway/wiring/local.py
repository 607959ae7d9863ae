"""The embedded stack."""

from functools import cached_property

from headway.domain.profile import Profile
from headway.ports import Clusters, Jobs, Lease, Metrics, Traffic, Warm
from headway.wiring.shared import SharedBackend


class LocalBackend(SharedBackend):
    """The embedded stack's adapters."""

    @cached_property
    def jobs(self) -> Jobs:
        """Child processes in their environments."""
        from headway.adapters.local.jobs import LocalJobs

        return LocalJobs(self.layout)

    @cached_property
    def clusters(self) -> Clusters:
        """One Ray head a cluster."""
        from headway.adapters.local.clusters import LocalClusters

        return LocalClusters(self.layout)

    @cached_property
    def traffic(self) -> Traffic:
        """Envoy with watched files."""
        from headway.adapters.local.traffic import LocalTraffic

        return LocalTraffic(self.layout)

    @cached_property
    def lease(self) -> Lease:
        """Numbered objects in SeaweedFS."""
        from headway.adapters.s3 import S3Lease

        return S3Lease(self.s3("headway"))

    @property
    def warm(self) -> Warm | None:
        """None: this machine is the only node, and is always there."""
        return None

    @cached_property
    def metrics(self) -> Metrics:
        """Scraped series in files, or Prometheus where one is named."""
        if self.layout.prometheus_url:
            from headway.adapters.prometheus import PrometheusMetrics

            return PrometheusMetrics(self.layout.prometheus_url)
        from headway.adapters.local.metrics import LocalMetrics

        return LocalMetrics(self.layout)

    @property
    def gateway_url(self) -> str:
        """Envoy's internal listener."""
        return self.layout.internal_gateway_url

    @property
    def stats_url(self) -> str | None:
        """Envoy's statistics."""
        return f"{self.layout.envoy_admin_url}/stats"

    @property
    def model_root(self) -> str:
        """The folder that plays the node's NVMe."""
        return str(self.layout.node)

    def serving_image(self, profile: Profile) -> str:
        """Return the serving environment's lock, which takes the image's place here, whatever the profile names."""
        from headway.adapters.local.layout import lock_digest

        return f"lock:{lock_digest(self.layout.checkout, 'serve')}"
