"""The Deployment that holds room for replicas: valid for any model, and of a whole replica's size."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.adapters.kubernetes import objects
from headway.adapters.kubernetes.site import Site
from headway.adapters.kubernetes.warm import manifest
from headway.ports import Held
from tests.kubernetes_schema import faults

SITE = Site(templates=Path(__file__).resolve().parents[3] / "k8s" / "templates", pull_secret="images")
TEMPLATE = objects.template(SITE.templates, "pause")


@settings(max_examples=20)
@given(
    st.builds(
        Held,
        model=st.sampled_from(["tiny", "Llama 3.1/8B", "a" * 80]),
        accelerator=st.sampled_from(["NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"]),
        per_replica=st.integers(1, 16),
        replicas=st.integers(1, 500),
        ready=st.just(0),
    )
)
def test_every_wish_makes_a_valid_deployment_of_whole_replicas(wanted: Held) -> None:
    """One pod a replica, on the right nodes, which ends at once and which everything else may push out."""
    made = manifest(SITE, TEMPLATE, wanted)
    pod = made["spec"]["template"]["spec"]

    assert faults(made) == []
    assert made["spec"]["replicas"] == wanted.replicas
    assert made["spec"]["selector"]["matchLabels"].items() <= made["spec"]["template"]["metadata"]["labels"].items()
    assert pod["nodeSelector"]["nvidia.com/gpu.product"] == wanted.accelerator
    assert pod["terminationGracePeriodSeconds"] == 0
    assert pod["priorityClassName"] == "headway-pause"
    assert pod["imagePullSecrets"] == [{"name": "images"}]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(wanted.per_replica)
    assert container["resources"]["requests"]["nvidia.com/gpu"] == str(wanted.per_replica)
