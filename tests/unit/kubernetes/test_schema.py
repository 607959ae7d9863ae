"""The check that every object of headway goes through offline finds what an API server would refuse."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster import examples
from tests.kubernetes_crds import KINDS, files
from tests.kubernetes_pods import incoherent, not_restricted
from tests.kubernetes_schema import faults

GOOD = {
    "RayService": examples.ray_service("llm", "here"),
    "Job": examples.job("one", "here"),
    "Deployment": examples.pause_pods("pause", "here", 2, product="NVIDIA-L4", priority_class="low"),
    "Gateway": examples.gateway("front", "here", "envoy"),
    "HTTPRoute": examples.route("llm", "here", "front", stable=90, candidate=10),
    "PriorityClass": examples.priority("low", -1),
}
Path = tuple[str | int, ...]


def maps(part: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of every map whose keys a schema names; maps of free text (labels, amounts) are left out."""
    if isinstance(part, Mapping):
        if not path or path[-1] not in ("labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits"):
            if not (path and path[-1] == "rayStartParams"):
                yield path
            for key, one in part.items():
                yield from maps(one, (*path, key))
    elif isinstance(part, list):
        for index, one in enumerate(part):
            yield from maps(one, (*path, index))


def at(content: Any, path: Path) -> Any:
    for step in path:
        content = content[step]
    return content


@pytest.mark.parametrize("kind", GOOD)
def test_what_an_api_server_takes_is_without_fault(kind: str) -> None:
    """tests/cluster creates the same objects for real."""
    assert faults(GOOD[kind]) == []
    assert incoherent(GOOD[kind]) == []


@given(kind=st.sampled_from(sorted(GOOD)), choice=st.randoms(use_true_random=False))
def test_a_misspelt_key_is_found_wherever_it_stands(kind: str, choice: Any) -> None:
    """An unknown key would be dropped by the server without a word."""
    content = copy.deepcopy(GOOD[kind])
    place = choice.choice(list(maps(content)))
    key = choice.choice(sorted(at(content, place)))
    changed = at(content, place)
    changed[f"{key}x"] = changed.pop(key)

    found = faults(content)

    named = f"{key}x" if place or key not in ("apiVersion", "kind") else "no schema of"
    assert any(named in fault for fault in found), (place, key, found)


@given(kind=st.sampled_from(sorted(GOOD)), choice=st.randoms(use_true_random=False))
def test_a_value_of_another_type_is_found_wherever_it_stands(kind: str, choice: Any) -> None:
    """A number for text, or text for a list, is refused by the server."""
    content = copy.deepcopy(GOOD[kind])
    place = choice.choice([path for path in maps(content) if path])
    parent, step = at(content, place[:-1]), place[-1]
    parent[step] = 7

    assert len(faults(content)) >= 1, place


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "Jobs"}, "no schema of batch/v1 Jobs"),
        ({"apiVersion": "apps/v1"}, "no schema of apps/v1 Job"),
        ({"metadata": {"name": "One"}}, "not a name"),
        ({"metadata": {}}, "metadata.name: missing"),
        ({"metadata": {"name": "one", "labels": {"headway/model": "a b"}}}, "not a label's value"),
        ({"metadata": {"name": "one", "labels": {"headway/model": "a" * 64}}}, "not a label's value"),
        ({"metadata": {"name": "one", "labels": {"a/b/c": "x"}}}, "is not a key"),
        ({"metadata": "one"}, "not of type object"),
        ({"spec": None}, "null"),
        ({"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}, "containers[0].name: missing"),
        ({"spec": {"backoffLimit": True}}, "not of type integer"),
    ],
)
def test_faults_are_told_with_their_place(change: dict[str, Any], said: str) -> None:
    assert any(said in fault for fault in faults({**GOOD["Job"], **change})), faults({**GOOD["Job"], **change})


def test_an_amount_is_text_that_kubernetes_can_read() -> None:
    content = copy.deepcopy(GOOD["Deployment"])
    container = content["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "half", "memory": "2Gi", "nvidia.com/gpu": "8"}}

    (fault,) = faults(content)

    assert "'half' is not an amount" in fault


def test_bounds_of_a_crd_hold() -> None:
    """A weight above a million, a listener without a port, a strategy that does not exist."""
    assert any("not 0 to 1000000" in fault for fault in faults(examples.route("a", "b", "c", x=2_000_000)))
    gateway = copy.deepcopy(GOOD["Gateway"])
    del gateway["spec"]["listeners"][0]["port"]
    assert any("port: missing" in fault for fault in faults(gateway))


def test_an_object_of_the_whole_cluster_has_no_namespace() -> None:
    content = {**GOOD["PriorityClass"], "metadata": {"name": "low", "namespace": "here"}}

    assert "belongs to no namespace" in faults(content)[0]


SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {"containers": [{"name": "main", "image": "x", "securityContext": SAFE, **(container or {})}], **spec},
    }


def test_a_pod_that_keeps_the_rules_is_restricted() -> None:
    assert not_restricted(pod()) == []
    of_pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not_restricted(pod({"securityContext": own}, securityContext=of_pod)) == []


@pytest.mark.parametrize(
    "content",
    [
        *(pod({"securityContext": {key: value for key, value in SAFE.items() if key != left}}) for left in SAFE),
        *(pod({"securityContext": {**SAFE, **bad}}) for bad in ({"privileged": True}, {"runAsUser": 0})),
        pod({"securityContext": {**SAFE, "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}}),
        pod({"ports": [{"containerPort": 80, "hostPort": 80}]}),
        pod({"livenessProbe": {"httpGet": {"host": "127.0.0.1", "port": 80}}}),
        pod(hostNetwork=True),
        pod(securityContext={"runAsUser": 0}),
        pod(volumes=[{"name": "disk", "hostPath": {"path": "/mnt"}}]),
    ],
)
def test_a_pod_that_breaks_a_rule_is_not(content: dict[str, Any]) -> None:
    assert faults(content) == []
    assert len(not_restricted(content)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pod({"volumeMounts": [{"name": "disk", "mountPath": "/mnt"}]}), "which is no volume"),
        (pod(volumes=[{"name": "disk", "emptyDir": {}}] * 2), "two volumes"),
        (pod(initContainers=[{"name": "main", "image": "x"}]), "two containers"),
        (pod({"env": [{"name": "A", "value": "1"}] * 2}), "sets A twice"),
        ({**GOOD["Deployment"], "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod()}}, "selector"),
    ],
)
def test_parts_of_a_pod_that_do_not_go_together_are_found(content: dict[str, Any], said: str) -> None:
    assert any(said in fault for fault in incoherent(content))


def test_only_what_is_used_of_a_crd_is_kept() -> None:
    """The stored version, without prose; what Kubernetes has itself is a reference."""
    spec = {"type": "object", "properties": {"containers": {"type": "array"}}}
    template = {"type": "object", "properties": {"metadata": {"type": "object"}, "spec": spec}}
    schema = {
        "type": "object",
        "description": "long",
        "properties": {
            "metadata": {"type": "object"},
            "spec": {"type": "object", "required": ["size"], "properties": {"size": {"default": 1}, "pod": template}},
            "status": {"type": "object"},
        },
    }
    versions = [
        {"name": "v1alpha1", "served": True, "storage": False, "schema": {"openAPIV3Schema": copy.deepcopy(schema)}},
        {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
    ]
    names = {"kind": KINDS[-1]}
    definition = {"spec": {"group": "ray.io", "names": names, "scope": "Namespaced", "versions": versions}}

    ((name, content),) = files([definition]).items()

    assert name == f"ray.io_v1_{KINDS[-1]}.json"
    assert '"$core": "V1PodTemplateSpec"' in content
    assert "default" not in content
    assert "status" not in content
    assert "long" not in content
