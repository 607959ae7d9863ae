"""The Kubernetes backend: KubeRay, Gateway API and plain objects, by server-side apply."""
