"""Jobs on the rig whose programs run for real: what they need in a namespace, and who runs them."""

import base64
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.adapters.kubernetes.jobs import KubernetesJobs
from headway.adapters.kubernetes.program_results import Read
from headway.adapters.kubernetes.programs import WORK_VOLUME
from headway.adapters.kubernetes.site import ARTIFACT_KEYS, S3_SECRETS, SIGNING_SECRET, Site
from headway.errors import NotFound

from .rig.api import Api
from .rig.hands import Hands, hands
from .sites import CHECKOUT, CLAIM, KubernetesSite

PYTHONPATH = f"{CHECKOUT / 'src'}:{CHECKOUT}"


@dataclass(frozen=True)
class Handed:
    """Jobs whose programs run for real.

    Attributes:
        jobs: The adapter.
        site: With a folder of this machine for every node's volume.
        hands: What runs the programs.
        at: The namespace.
    """

    jobs: KubernetesJobs
    site: Site
    hands: Hands
    at: KubernetesSite

    def work(self, pod: Mapping[str, Any]) -> Path:
        """Return the folder in which a pod's program runs."""
        uid = str(pod["metadata"]["uid"])
        return self.hands.folder / uid / "volumes" / WORK_VOLUME


def nothing_stored(uri: str) -> bytes:
    """Read a store that is empty."""
    raise NotFound(f"there is no {uri}", uri=uri)


@contextmanager
def handed(
    at: KubernetesSite,
    folder: Path,
    *,
    read: Read = nothing_stored,
    s3: Mapping[str, tuple[str, str]] | None = None,
    s3_endpoint: str = "",
    artifact_keys: str = "",
    signing_key: str = "",
    package: str = "headway.pods",
    patience_s: float = 60,
) -> Iterator[Handed]:
    """Let jobs of a namespace run for real.

    Args:
        at: The prepared namespace; the rig's, as a real cluster runs its pods by itself.
        folder: Volumes of pods and of nodes.
        read: Reads results that are too large for a message.
        s3: Access key and secret key by role; anything where none is given.
        s3_endpoint: Of the store.
        artifact_keys: PEM text of public keys.
        signing_key: PEM text of the private key.
        package: Where the programs are.
        patience_s: As `KubernetesJobs` has it.
    """
    assert at.rig is not None, "programs run by hand on the rig only"
    node_root = folder / "node"
    node_root.mkdir(parents=True, exist_ok=True)
    site = replace(at.site, node_root=str(node_root), s3_endpoint=s3_endpoint)
    give_secrets(at.api, site.namespace, s3 or {}, artifact_keys=artifact_keys, signing_key=signing_key)
    claims = {one["metadata"]["name"]: node_root for one in at.api.list(CLAIM, site.namespace)}
    jobs = KubernetesJobs(at.client, site, read, patience_s=patience_s)
    with hands(
        at.rig,
        site.namespace,
        folder / "pods",
        python={"": Path(sys.executable)},
        claims=claims,
        environment={"PYTHONPATH": PYTHONPATH},
        extra_arguments=[f"--package={package}"],
    ) as running:
        yield Handed(jobs, site, running, at)


def give_secrets(
    api: Api, namespace: str, s3: Mapping[str, tuple[str, str]], *, artifact_keys: str = "", signing_key: str = ""
) -> None:
    """Create what a platform engineer creates by hand: the Secrets of each role, and both halves of the key pair."""
    for role, name in S3_SECRETS.items():
        access, secret = s3.get(role, ("none", "none"))
        _secret(api, namespace, name, {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret})
    _secret(api, namespace, SIGNING_SECRET, {"signing.pem": signing_key})
    metadata = {"name": ARTIFACT_KEYS, "namespace": namespace}
    keys = {"artifact.pem": artifact_keys}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": keys})


def _secret(api: Api, namespace: str, name: str, content: Mapping[str, str]) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
    metadata = {"name": name, "namespace": namespace}
    api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
