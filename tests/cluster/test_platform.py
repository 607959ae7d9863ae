"""`k8s/` on a real API server, and what tests offline know of CRDs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.adapters.kubernetes.kinds import CRD
from headway.adapters.kubernetes.site import PAUSE_PRIORITY
from tests.kubernetes_crds import FOLDER, KINDS, OTHERS, files
from tests.kubernetes_pods import not_restricted
from tests.kubernetes_schema import documents, faults

from . import examples
from .platform import MANAGER, Platform, apply, rendered
from .rig.api import Api, ApiError, Kind, wait_until
from .rig.rig import Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

TEMPLATES = Path(__file__).parents[2] / "k8s" / "templates"
DEFINITION = Kind(CRD.api_version, CRD.name)
VOLUME, CLAIM = Kind("v1", "PersistentVolume"), Kind("v1", "PersistentVolumeClaim")
QUOTA = Kind("v1", "ResourceQuota")
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(**spec: Any) -> dict[str, Any]:
    """Return a pod that the level `restricted` admits, unless the test changes that."""
    container = {"name": "main", "image": "example.invalid/program", "securityContext": SAFE}
    metadata = {"name": "one", "namespace": "headway"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def dry_run(api: Api, content: dict[str, Any]) -> dict[str, Any]:
    """Return what would be created, admission included."""
    path = f"/api/v1/namespaces/{content['metadata']['namespace']}/pods?dryRun=All"
    created: dict[str, Any] = api.request("POST", path, content)
    return created


def test_what_tests_know_of_crds_is_what_the_api_server_has(rig: Rig) -> None:
    """`python -m tests.kubernetes_crds --write` makes them anew after a new version."""
    found = files(rig.api.list(DEFINITION))

    assert len(found) == len(KINDS)
    for name, content in found.items():
        assert (FOLDER / name).read_text() == content, name


def test_the_rig_has_no_crd_for_the_kinds_that_are_checked_by_their_files_alone(platform: Platform) -> None:
    """So that nobody takes them for tried: Envoy Gateway's own kinds, and Prometheus'."""
    kinds = {one["spec"]["names"]["kind"] for one in platform.rig.api.list(DEFINITION)}

    assert not kinds & set(OTHERS)
    assert platform.left_out == set(OTHERS) - {"ClientTrafficPolicy", "ServiceMonitor"}


def test_applying_again_changes_nothing(platform: Platform) -> None:
    """Whoever applies `k8s/` from git every minute must not move anything."""
    kinds = [(Kind(one["apiVersion"], one["kind"]), one["metadata"]) for one in platform.objects]

    def versions() -> list[str]:
        found = [platform.rig.api.get(kind, about["name"], about.get("namespace")) for kind, about in kinds]
        return [one["metadata"]["resourceVersion"] for one in found if one]

    apply(platform.rig, platform.objects)  # whatever other tests have changed
    before = versions()
    said = apply(platform.rig, platform.objects)

    assert said.count("serverside-applied") == len(platform.objects)
    assert versions() == before
    assert len(before) == len(platform.objects)


@pytest.mark.parametrize("overlay", ["overlays/prod", "platform/envoy-gateway", "platform/airflow", "platform/mlflow"])
def test_the_others_would_be_taken_too(platform: Platform, overlay: str) -> None:
    """Asked of the API server, without keeping anything."""
    namespaces = {one["metadata"]["name"] for one in platform.rig.api.list(Kind("v1", "Namespace"))}
    asked = [one for one in rendered(overlay) if one["kind"] not in OTHERS and one["kind"] != "Namespace"]
    for one in asked:
        if (place := one["metadata"].get("namespace")) and place not in namespaces:
            one["metadata"]["namespace"] = "default"
    text = yaml.safe_dump_all(asked)
    manager = f"--field-manager={MANAGER}"
    said = platform.rig.kubectl("apply", "--server-side", manager, "--dry-run=server", "-f", "-", stdin=text)

    assert said.count("serverside-applied") == len(asked) > 0


def test_local_volumes_are_bound_to_their_claims(platform: Platform) -> None:
    """Without a class, a provisioner or a pod that asks first."""
    made = [one for one in rendered("overlays/prod") if one["kind"].startswith("PersistentVolume")]
    api = platform.rig.api
    try:
        apply(platform.rig, made)
        claims = [one["metadata"]["name"] for one in made if one["kind"] == CLAIM.name]

        def phases() -> list[str]:
            found = [api.get(CLAIM, name, "headway") for name in claims]
            return [one["status"].get("phase", "") for one in found if one]

        wait_until(lambda: phases() == ["Bound"] * len(claims), "the claims are bound")
    finally:
        for one in made:
            api.delete(Kind(one["apiVersion"], one["kind"]), one["metadata"]["name"], one["metadata"].get("namespace"))


def test_pods_that_keep_the_rules_are_admitted(platform: Platform) -> None:
    assert dry_run(platform.rig.api, pod())["spec"]["containers"][0]["name"] == "main"


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"volumes": [{"name": "disk", "hostPath": {"path": "/mnt"}}]},
        {"securityContext": {"runAsUser": 0}},
        {"containers": [{"name": "main", "image": "x"}]},
        *({"containers": [{"name": "main", "image": "x", "securityContext": {**SAFE, left: None}}]} for left in SAFE),
    ],
)
def test_pods_that_break_one_are_refused_as_the_check_offline_says(platform: Platform, spec: dict[str, Any]) -> None:
    """The check in unit tests and the real admission agree."""
    content = pod(**copy.deepcopy(spec))

    with pytest.raises(ApiError, match="violates PodSecurity"):
        dry_run(platform.rig.api, content)

    assert not_restricted(content)


def test_a_container_that_says_nothing_gets_a_request(platform: Platform) -> None:
    """KubeRay adds containers; the scheduler must know of each."""
    made = dry_run(platform.rig.api, pod())

    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}


def test_the_quota_counts_accelerators_and_lets_no_service_out(platform: Platform) -> None:
    api = platform.rig.api
    room = {"nvidia.com/gpu": "9"}
    container = {"name": "main", "image": "x", "securityContext": SAFE, "resources": {"requests": room, "limits": room}}

    with pytest.raises(ApiError, match="exceeded quota: headway"):
        dry_run(api, pod(containers=[container]))
    with pytest.raises(ApiError, match="exceeded quota: headway"):
        api.create(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "open", "namespace": "headway"},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"a": "b"}},
            }
        )


def test_the_quota_counts_ray_services(platform: Platform) -> None:
    """A count of a CRD's objects, which only works by its full name."""
    api = platform.rig.api
    found = api.get(QUOTA, "headway", "headway") or {}

    assert found["status"]["hard"]["count/rayservices.ray.io"] == "8"
    service = examples.ray_service("llm", "headway")
    service["metadata"]["annotations"] = {"ray.io/initializing-timeout": "1s"}
    api.create(service)
    try:
        wait_until(
            lambda: (api.get(QUOTA, "headway", "headway") or {})["status"]["used"]["count/rayservices.ray.io"] == "1",
            "the quota has counted it",
        )
    finally:
        api.delete(Kind("ray.io/v1", "RayService"), "llm", "headway", propagation="Foreground")


def test_pause_pods_have_the_lowest_priority(platform: Platform) -> None:
    """Admission gives the number; a pod cannot choose its own."""
    made = dry_run(platform.rig.api, pod(priorityClassName=PAUSE_PRIORITY))

    assert made["spec"]["priority"] == -10


@pytest.mark.parametrize("name", ["disruption_budget", "httproute", "job", "pause"])
def test_a_template_is_taken_by_the_api_server_as_it_is(platform: Platform, name: str) -> None:
    """No rule of a CRD is broken before anything is patched. The other two need a part filled in first."""
    (content,) = documents(TEMPLATES / f"{name}.yaml")
    content["metadata"]["namespace"] = "headway"

    said = platform.rig.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(content))

    assert "created" in said
    assert faults(content) == []
