"""The objects of a cluster: valid as Kubernetes and KubeRay define them, and as the plan says."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.kubernetes import objects, programs, ray_pods, rayservice
from headway.adapters.kubernetes.site import GPU, PRODUCT, Site
from headway.domain.cluster import ClusterSpec, serve_config
from headway.domain.hardware import ACCELERATORS
from headway.domain.profile import Replicas
from headway.domain.weight_jobs import StageJob
from headway.errors import ConfigError
from tests.factories import make_plan, make_profile
from tests.kubernetes_schema import faults

CHECKOUT = Path(__file__).resolve().parents[3]
SITE = Site(templates=CHECKOUT / "k8s" / "templates", pull_secret="registry")
H100 = "NVIDIA-H100-80GB-HBM3"
IMAGE = f"registry.example/ray-llm@sha256:{'0' * 64}"
PLANNED = make_plan().cluster
SPEC = PLANNED.model_copy(
    update={
        "accelerator": H100,
        "tensor_parallel": 2,
        "serving_image": IMAGE,
        "release": "20261130-120310-4f0c2a",
        "replicas": Replicas(min=2, max=5),
        "model_dir": f"{SITE.node_root}/{PLANNED.artifact_digest}",
    }
)


def built(spec: ClusterSpec = SPEC, site: Site = SITE) -> dict[str, Any]:
    """The RayService of a cluster."""
    return rayservice.ray_service(spec, site)


BUILT = built()


def on(accelerator: str, count: int = 1) -> ClusterSpec:
    """The cluster on another accelerator."""
    return SPEC.model_copy(update={"accelerator": accelerator, "tensor_parallel": count})


def pods(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod templates of a RayService, by part."""
    config = content["spec"]["rayClusterConfig"]
    return {"head": config["headGroupSpec"]["template"], "replica": config["workerGroupSpecs"][0]["template"]}


def stored(content: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server would have it."""
    found = copy.deepcopy(content)
    found["metadata"] |= {"resourceVersion": "7", "uid": "u", "generation": 1}
    return found


# --- The whole object -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_every_object_is_what_its_definition_allows(accelerator: str) -> None:
    """On every accelerator that a profile may name."""
    assert faults(built(on(accelerator), replace(SITE, pull_secret=""))) == []


def test_budgets_are_what_their_definition_allows() -> None:
    """With a private registry named too."""
    assert faults(BUILT) == []
    assert [faults(one) for one in rayservice.disruption_budgets(SPEC, SITE, stored(BUILT))] == [[], []]


def test_kuberay_never_replaces_a_cluster_by_itself() -> None:
    """A new plan is a new RayService, and headway moves the traffic."""
    assert BUILT["spec"]["upgradeStrategy"] == {"type": "None"}


def test_a_worker_is_a_replica() -> None:
    """It has the accelerators of one, and only these nodes; the head has none, and nothing of the model."""
    config, both = BUILT["spec"]["rayClusterConfig"], pods(BUILT)
    (group,) = config["workerGroupSpecs"]

    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 5)
    engine, head = (both[part]["spec"]["containers"][0] for part in ("replica", "head"))
    assert [engine["resources"][kind][GPU] for kind in ("requests", "limits")] == ["2", "2"]
    assert both["replica"]["spec"]["nodeSelector"] == {PRODUCT: H100}
    assert GPU not in head["resources"]["requests"]
    assert config["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert config["enableInTreeAutoscaling"]
    assert engine["image"] == head["image"] == IMAGE


def test_requests_grow_with_the_accelerators_of_a_replica() -> None:
    """The template's are those for one."""
    one, four = (pods(built(on(H100, count)))["replica"]["spec"]["containers"][0] for count in (1, 4))

    assert (one["resources"]["requests"]["memory"], four["resources"]["requests"]["memory"]) == ("12Gi", "48Gi")
    assert (one["resources"]["limits"]["memory"], four["resources"]["limits"]["memory"]) == ("24Gi", "96Gi")


def test_on_a_cpu_a_replica_has_the_memory_of_the_plan() -> None:
    """No accelerator is asked for, its nodes need no toleration, and vLLM gets what it needs there."""
    spec = on("cpu")
    worker = pods(built(spec))["replica"]["spec"]
    engine = worker["containers"][0]

    assert engine["resources"]["requests"]["memory"] == str(spec.memory_bytes)
    assert "tolerations" not in worker
    assert {"name": "TORCHDYNAMO_DISABLE", "value": "1"} in engine["env"]
    assert {"name": "TORCHDYNAMO_DISABLE", "value": "1"} not in pods(BUILT)["replica"]["spec"]["containers"][0]["env"]
    served = json.loads(built(spec)["spec"]["serveConfigV2"])
    assert served["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"]["enforce_eager"]


def test_a_worker_verifies_the_model_before_the_engine_sees_it_and_the_engine_cannot_change_it() -> None:
    """The stage program runs first; its job comes with the pod itself, so there is nothing that could be missing."""
    worker = pods(BUILT)["replica"]
    (first,) = worker["spec"]["initContainers"]
    engine = worker["spec"]["containers"][0]
    mounts = {one["name"]: one for one in engine["volumeMounts"]}
    volumes = {one["name"]: one for one in worker["spec"]["volumes"]}

    job = StageJob.model_validate_json(worker["metadata"]["annotations"][ray_pods.JOB])
    assert (job.artifact_digest, job.dest_root) == (SPEC.artifact_digest, SITE.node_root)
    assert (job.high_pct, job.low_pct) == (100, 100), "nothing makes way for it"
    assert "stage" in first["command"]
    assert volumes[programs.JOB_VOLUME]["downwardAPI"]["items"][0]["path"] == programs.JOB_FILE
    assert mounts[programs.NODE_VOLUME] == {
        "name": programs.NODE_VOLUME,
        "mountPath": SITE.node_root,
        "readOnly": True,
    }
    assert volumes[programs.NODE_VOLUME]["persistentVolumeClaim"]["claimName"] == SITE.claim(H100)
    (model,) = json.loads(BUILT["spec"]["serveConfigV2"])["applications"][0]["args"]["llm_configs"]
    assert model["model_loading_config"]["model_source"].startswith(SITE.node_root)


def test_no_container_has_rights_that_it_does_not_need() -> None:
    """Pod Security `restricted`, and the only account with a token is that of Ray's autoscaler, in its container."""
    for part, pod in pods(BUILT).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, part
        assert spec["securityContext"]["runAsNonRoot"], part
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, container["name"]
            assert security["capabilities"] == {"drop": ["ALL"]}, container["name"]
            assert "autoscaler-account" not in {one["name"] for one in container["volumeMounts"]}
        assert not any("hostPath" in volume for volume in spec["volumes"]), part
    options = BUILT["spec"]["rayClusterConfig"]["autoscalerOptions"]
    assert options["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert options["volumeMounts"][1]["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_a_pod_that_goes_has_the_time_to_answer_what_it_began() -> None:
    """What stops requests, what Serve gives to those in flight, and a rest: together within the pod's grace."""
    for pod in pods(BUILT).values():
        (container,) = pod["spec"]["containers"]
        wait = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])[1]
        served = json.loads(BUILT["spec"]["serveConfigV2"])["applications"][0]["deployments"][0]
        in_flight = served["graceful_shutdown_timeout_s"] if "initContainers" in pod["spec"] else 0
        assert pod["spec"]["terminationGracePeriodSeconds"] > int(wait) + in_flight


def test_pods_are_found_by_their_cluster_and_spread_over_zones() -> None:
    """By the same labels the budgets count them."""
    worker = pods(BUILT)["replica"]
    found = {rayservice.CLUSTER: SPEC.name, rayservice.PART: "replica"}
    (spread,) = worker["spec"]["topologySpreadConstraints"]
    _, budget = rayservice.disruption_budgets(SPEC, SITE, stored(BUILT))

    assert found.items() <= worker["metadata"]["labels"].items()
    assert spread["labelSelector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"] == found
    assert rayservice.pod_selector(SPEC.name, "replica") == f"headway/cluster={SPEC.name},headway/part=replica"


@pytest.mark.parametrize(("least", "kept"), [(1, 1), (2, 1), (5, 4)])
def test_a_drain_takes_one_replica_at_a_time_and_never_the_last(least: int, kept: int) -> None:
    """The head holds all of a cluster's state, so it always stays."""
    spec = SPEC.model_copy(update={"replicas": Replicas(min=least, max=5)})
    head, replicas = rayservice.disruption_budgets(spec, SITE, stored(built(spec)))

    assert (head["spec"]["minAvailable"], replicas["spec"]["minAvailable"]) == (1, kept)
    assert replicas["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_it_says_what_it_was_made_from() -> None:
    """Whoever comes later reads it from the cluster itself."""
    found = built()

    assert rayservice.spec_of(found) == SPEC
    assert objects.is_ours(found)
    assert found["metadata"]["labels"][objects.MODEL] == "tiny"


def test_an_annotation_that_cannot_be_read_says_which() -> None:
    """Nobody guesses what runs."""
    found = built()
    found["metadata"]["annotations"][objects.ASKED] = "{"

    with pytest.raises(ConfigError, match=f"RayService headway/{SPEC.name} .* release the model again"):
        rayservice.spec_of(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "8b-model-0123456789ab"}, "a letter first"),
        ({"name": "x" * 48}, "at most 47"),
        ({"name": "Tiny"}, "lower-case"),
        ({"serving_image": ""}, "set `serving_image`"),
        ({"model_dir": "/elsewhere/abc"}, "pods see the node's artifacts below /var/lib/headway/node"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_made(change: dict[str, str], words: str) -> None:
    """One clear error each."""
    with pytest.raises(ConfigError, match=words):
        built(SPEC.model_copy(update=change))


@pytest.mark.parametrize("model", ["70b", "4o-mini", "Org/Llama_3.1@x", "ü" * 80, "a" * 200, "-", "qwen-"])
def test_any_model_has_a_cluster_that_kuberay_takes(model: str) -> None:
    """Names and labels are cut and changed where they must be, and stay apart by their digests."""
    made = make_plan(profile=make_profile(model=model)).cluster
    site = replace(SITE, node_root="/nodes")
    found = built(made.model_copy(update={"serving_image": IMAGE}), site)

    assert faults(found) == []
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,42}", found["metadata"]["name"])


# --- The one change that a running cluster gets -----------------------------------------------------------------------

RANGES = st.tuples(st.integers(1, 40), st.integers(0, 40)).map(lambda pair: Replicas(min=pair[0], max=sum(pair)))


@given(replicas=RANGES)
def test_another_range_changes_bounds_and_override_and_nothing_else(replicas: Replicas) -> None:
    """Anything else in the Serve configuration would rebuild every replica; anything else in the group is ignored."""
    before = stored(BUILT)
    after = objects.patched(before, rayservice.with_range(before, replicas))

    wanted = SPEC.model_copy(update={"replicas": replicas})
    assert rayservice.spec_of(after) == wanted
    assert json.loads(after["spec"]["serveConfigV2"]) == serve_config(wanted, cpu=False, http_port=8000)
    (group,) = after["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (replicas.min, replicas.max)
    assert group["replicas"] == 2, "that is the autoscaler's"
    for content in (before, after):
        content["metadata"]["annotations"].clear()
        content["spec"].pop("serveConfigV2")
        for key in ("minReplicas", "maxReplicas"):
            content["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].pop(key)
    assert before == after


def test_the_change_keeps_what_others_have_added_to_the_serve_configuration() -> None:
    """Only the entry with the model's replicas is replaced; text in YAML is read as well."""
    found = stored(BUILT)
    config = json.loads(found["spec"]["serveConfigV2"])
    config["logging_config"] = {"encoding": "JSON"}
    config["applications"][0]["deployments"].append({"name": "OpenAiIngress", "num_replicas": 2})
    found["spec"]["serveConfigV2"] = yaml.safe_dump(config)

    changed = json.loads(rayservice.with_range(found, Replicas(min=3, max=9))["spec"]["serveConfigV2"])

    assert changed["logging_config"] == {"encoding": "JSON"}
    override, ingress = changed["applications"][0]["deployments"]
    assert override["autoscaling_config"]["min_replicas"] == 3
    assert ingress == {"name": "OpenAiIngress", "num_replicas": 2}


def test_who_else_changes_a_spec_is_told() -> None:
    """Not the operator, which writes the status, nor who only labels it."""
    found = stored(BUILT)
    found["metadata"]["managedFields"] = [
        {"manager": "headway", "operation": "Update", "fieldsV1": {"f:spec": {}, "f:metadata": {}}},
        {"manager": "kuberay", "subresource": "status", "fieldsV1": {"f:status": {}, "f:spec": {}}},
        {"manager": "kubectl-annotate", "fieldsV1": {"f:metadata": {}}},
        {"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:serveConfigV2": {}}}},
    ]

    assert rayservice.foreign_managers(found) == ["kubectl-edit"]


@pytest.mark.parametrize(
    ("quantity", "count", "product"),
    [("3", 4, "12"), ("12Gi", 2, "24Gi"), ("500m", 8, "4000m"), (2, 3, "6"), ("0.5", 3, "1.5"), ("1.5Gi", 4, "6Gi")],
)
def test_quantities_are_multiplied_in_their_own_unit(quantity: object, count: int, product: str) -> None:
    """As a person has written them."""
    assert ray_pods.times(quantity, count) == product


@pytest.mark.parametrize("quantity", ["", "12 Gi", "-1", "many", "1e3", "12Gb"])
def test_what_is_no_quantity_is_refused_with_what_it_should_be(quantity: str) -> None:
    """A template is a platform's to edit."""
    with pytest.raises(ConfigError, match="is no quantity; write it as in"):
        ray_pods.times(quantity, 2)


@pytest.mark.parametrize("part", ["workerGroupSpecs", "headGroupSpec"])
def test_a_template_that_lacks_what_is_built_upon_is_named(tmp_path: Path, part: str) -> None:
    """Whoever edits it reads which file, and what is missing."""
    content = objects.template(SITE.templates, "rayservice")
    del content["spec"]["rayClusterConfig"][part]
    (tmp_path / "rayservice.yaml").write_text(yaml.safe_dump(content))

    with pytest.raises(ConfigError, match=f"rayservice.yaml lacks '{part}'"):
        built(SPEC, replace(SITE, templates=tmp_path))
