"""What `k8s/` applies to a cluster is what an API server takes, and is what the code counts on."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.adapters.kubernetes import rights, routes
from headway.adapters.kubernetes.kinds import GATEWAY_CLASS
from headway.adapters.kubernetes.objects import COMPONENT
from headway.adapters.kubernetes.site import (
    BATCH_ACCOUNT,
    BATCH_PRIORITY,
    CONTROLLER_ACCOUNT,
    PAUSE_PRIORITY,
    SERVE_PORT,
    SERVING_ACCOUNT,
    SERVING_PRIORITY,
    STAGE_ACCOUNT,
    Site,
)
from headway.adapters.prometheus import spellings
from headway.domain import engine_series
from headway.domain.hardware import ACCELERATORS
from headway.judge.live import LADDER_S
from headway.ports import REQUESTS, UPTIME
from headway.settings import Settings
from tests.kubernetes_pods import incoherent, not_restricted
from tests.kubernetes_schema import documents, faults

K8S = Path(__file__).parents[3] / "k8s"
RENDERED = ("base", "overlays/dev", "overlays/prod", "platform/airflow", "platform/envoy-gateway", "platform/mlflow")
VALUES = sorted(K8S.glob("platform/*/values.yaml"))
Object = dict[str, Any]


@cache
def rendered(folder: str) -> list[Object]:
    """Return what `kubectl apply -k` would send."""
    done = subprocess.run(
        [Path(sys.prefix) / "bin" / "kubectl", "kustomize", K8S / folder], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return list(yaml.load_all(done.stdout, loader))


def of_kind(kind: str, folder: str = "base") -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in rendered(folder) if one["kind"] == kind}


def named(folder: str) -> list[tuple[str, str, str]]:
    return [(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in rendered(folder)]


@pytest.mark.parametrize("folder", RENDERED)
def test_what_is_rendered_is_what_an_api_server_takes(folder: str) -> None:
    assert [fault for one in rendered(folder) for fault in [*faults(one), *incoherent(one)]] == []
    assert len(named(folder)) == len(set(named(folder)))


@pytest.mark.parametrize("path", sorted(K8S.glob("templates/*.yaml")), ids=lambda path: path.stem)
def test_a_template_is_one_valid_object(path: Path) -> None:
    """What code patches must be valid before; the patched ones are checked where they are made."""
    (content,) = documents(path)

    assert [fault for fault in faults(content) if "missing" not in fault] == []


def test_every_kustomization_is_rendered_by_a_test() -> None:
    found = {str(path.parent.relative_to(K8S)) for path in K8S.rglob("kustomization.yaml")}

    assert found == set(RENDERED)


def test_an_overlay_changes_numbers_and_loses_nothing() -> None:
    for overlay in ("overlays/dev", "overlays/prod"):
        assert set(named("base")) <= set(named(overlay))


def test_pods_of_the_platform_pass_the_level_of_their_namespace() -> None:
    deployments = [one for one in rendered("platform/mlflow") if one["kind"] == "Deployment"]

    assert deployments
    assert [fault for one in deployments for fault in not_restricted(one)] == []


def test_the_namespace_admits_only_restricted_pods() -> None:
    labels = of_kind("Namespace")[Site(templates=K8S).namespace]["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_accounts_of_programs_get_no_token_and_no_right() -> None:
    """What quantizes, stages or serves has nothing to ask of the API server."""
    accounts = of_kind("ServiceAccount")
    bound = {
        subject["name"]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for one in of_kind(kind).values()
        for subject in one["subjects"]
    }

    assert set(accounts) == {CONTROLLER_ACCOUNT, STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT}
    assert bound == {CONTROLLER_ACCOUNT}
    for name in (STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT):
        assert accounts[name]["automountServiceAccountToken"] is False


def given(role: Object) -> set[tuple[str, str, str]]:
    """Return what a role gives: group, resource, verb."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def wanted(asked: tuple[rights.Right, ...]) -> set[tuple[str, str, str]]:
    return {(one.kind.group, one.resource, verb) for one in asked for verb in one.verbs}


def test_the_roles_give_what_headway_does_and_nothing_more() -> None:
    """`tests/cluster/test_rights.py` shows that it does no more than that."""
    assert given(of_kind("Role")["headway"]) == wanted(rights.IN_NAMESPACE)
    assert given(of_kind("ClusterRole")["headway"]) == wanted(rights.EVERYWHERE)


def test_no_role_reads_secrets_or_takes_everything() -> None:
    for folder in RENDERED:
        for one in rendered(folder):
            if one["kind"] in ("Role", "ClusterRole"):
                for group, resource, verb in given(one):
                    assert "*" not in (group, resource, verb)
                    assert resource.split("/")[0] not in ("secrets", "roles", "rolebindings", "serviceaccounts/token")
                    assert (resource, verb) not in {("pods", "create"), ("pods/exec", "create"), ("nodes", "patch")}


def test_airflows_account_has_the_rights_of_headway() -> None:
    bindings = [one for one in rendered("platform/airflow") if one["kind"].endswith("Binding")]

    assert {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings} == {
        ("Role", "headway"),
        ("ClusterRole", "headway"),
    }
    assert {(s["namespace"], s["name"]) for one in bindings for s in one["subjects"]} == {("airflow", "headway")}


def test_priorities_are_those_of_the_code_in_their_order() -> None:
    values = {name: one["value"] for name, one in of_kind("PriorityClass").items()}

    assert sorted(values, key=values.__getitem__) == [PAUSE_PRIORITY, BATCH_PRIORITY, SERVING_PRIORITY]
    # Cluster autoscalers bring no node for pods below -10.
    assert -10 <= values[PAUSE_PRIORITY] < 0 < values[BATCH_PRIORITY]
    assert not any(one.get("globalDefault") for one in of_kind("PriorityClass").values())


@pytest.mark.parametrize("folder", ["base", "overlays/dev", "overlays/prod"])
def test_the_gateway_has_both_listeners_and_one_is_not_public(folder: str) -> None:
    """Who may choose a side is inside of the cluster."""
    site = Site(templates=K8S)
    gateway = of_kind("Gateway", folder)[site.gateway]
    ports = {one["name"]: one["port"] for one in gateway["spec"]["listeners"]}
    (public,) = [one for one in rendered("platform/envoy-gateway") if one["kind"] == "Service"]
    (shape,) = of_kind("EnvoyProxy", folder).values()
    service = shape["spec"]["provider"]["kubernetes"]["envoyService"]
    inside = of_kind("Service", folder)["headway-internal"]

    assert list(ports) == list(routes.LISTENERS)
    assert ports["public"] in {one["port"] for one in public["spec"]["ports"]}
    assert ports["internal"] not in {one["targetPort"] % 10_000 for one in public["spec"]["ports"]}
    assert all(one["targetPort"] == one["port"] + 10_000 for one in public["spec"]["ports"])
    assert service["type"] == "ClusterIP"
    assert inside["spec"]["externalName"].split(".")[0] == service["name"]
    assert site.gateway_url == f"http://headway-internal.{site.namespace}.svc:{ports['internal']}"
    assert inside["spec"]["ports"][0]["port"] == ports["internal"]
    (made,) = [one for one in rendered("platform/envoy-gateway") if one["kind"] == GATEWAY_CLASS.name]
    assert gateway["spec"]["gatewayClassName"] == made["metadata"]["name"]


def test_the_gateway_retries_for_users_and_not_for_the_benchmark() -> None:
    policies = {
        one["spec"]["targetRefs"][0]["sectionName"]: one["spec"] for one in of_kind("BackendTrafficPolicy").values()
    }

    assert policies["public"]["retry"]["numRetries"] > 0
    assert policies["internal"]["retry"]["numRetries"] == 0
    for policy in policies.values():
        # Ray Serve's proxy closes idle connections after 90 s (domain.cluster.serve_config).
        assert policy["timeout"]["http"]["connectionIdleTimeout"] == "60s"


def test_the_gateways_buckets_are_those_that_the_live_watch_knows() -> None:
    (shape,) = of_kind("EnvoyProxy").values()
    (setting,) = yaml.safe_load(shape["spec"]["bootstrap"]["value"])["stats_config"]["histogram_bucket_settings"]

    assert setting["buckets"] == [round(edge * 1000) for edge in LADDER_S]


def test_where_no_model_is_served_the_gateway_says_why() -> None:
    """In the form of an error of OpenAI's interface, as clients read it."""
    route, answer = of_kind("HTTPRoute")["nothing"], of_kind("HTTPRouteFilter")["nothing"]["spec"]["directResponse"]
    (rule,) = route["spec"]["rules"]

    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    assert rule["filters"][0]["extensionRef"]["name"] == "nothing"
    assert answer["statusCode"] == json.loads(answer["body"]["inline"])["error"]["code"] == 503
    # Envoy would take a percent sign for one of its own words.
    assert "%" not in answer["body"]["inline"]


def reached(policy: Object, direction: str) -> Iterator[tuple[str, int]]:
    """Yield who is named in a policy, and by which port; 0 for all ports."""
    for rule in policy["spec"].get(direction, []):
        for peer in rule["from" if direction == "ingress" else "to"]:
            selector = peer.get("namespaceSelector", {})
            names = [selector.get("matchLabels", {}).get("kubernetes.io/metadata.name")]
            names += [name for one in selector.get("matchExpressions", []) for name in one["values"]]
            for name in filter(None, names):
                for port in rule.get("ports", [{"port": 0}]):
                    yield name, port["port"]


def test_nothing_is_reached_that_no_policy_names() -> None:
    policies = of_kind("NetworkPolicy")
    deny = policies["deny-all"]["spec"]

    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert set(reached(policies["engines"], "ingress")) == {
        ("envoy-gateway-system", SERVE_PORT),
        ("airflow", SERVE_PORT),
        ("airflow", 8265),
        ("kuberay-system", SERVE_PORT),
        ("kuberay-system", 8265),
        ("monitoring", 8080),
    }
    blocks = [
        peer["ipBlock"] for rule in policies["store"]["spec"]["egress"] for peer in rule["to"] if "ipBlock" in peer
    ]
    # The cloud's metadata service would give the node's own rights to whoever asks.
    assert all("except" in block for block in blocks)
    assert any("169.254.0.0/16" in block["except"] for block in blocks)


def test_policies_select_what_headway_makes() -> None:
    """A label that nobody sets would open nothing, or everything."""
    made = {"job", "stage", "cluster"}
    for folder in ("base", "overlays/dev", "overlays/prod"):
        for policy in of_kind("NetworkPolicy", folder).values():
            selector = policy["spec"]["podSelector"]
            assert set(selector.get("matchLabels", {})) <= {COMPONENT}
            assert set(selector.get("matchLabels", {}).values()) <= made
            for one in selector.get("matchExpressions", []):
                assert one["key"] in (COMPONENT, "ray.io/cluster")
                assert set(one.get("values", [])) <= made


def test_claims_of_local_volumes_have_the_names_that_headway_looks_for() -> None:
    site = Site(templates=K8S)
    volumes, claims = of_kind("PersistentVolume", "overlays/prod"), of_kind("PersistentVolumeClaim", "overlays/prod")

    assert claims
    for volume in volumes.values():
        terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"]
        (product,) = [value for term in terms for value in term["values"]]
        claim = claims[site.claim(product)]
        assert product in ACCELERATORS
        assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
        assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
        assert volume["spec"]["local"]["path"] == site.node_root
        assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]


# --- Monitoring -------------------------------------------------------------------------------------------------------


def recorded() -> dict[str, list[str]]:
    (rules,) = of_kind("PrometheusRule").values()
    found: dict[str, list[str]] = {}
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                found.setdefault(rule["record"], []).append(rule["expr"])
    return found


def test_the_rules_are_those_of_the_table() -> None:
    """`python k8s/rules.py` writes them."""
    script = runpy.run_path(str(K8S / "rules.py"))

    assert (K8S / "base" / "rules.yaml").read_text() == script["content"](), "run `python k8s/rules.py`"


def test_every_series_that_headway_asks_for_has_a_rule_with_all_its_spellings() -> None:
    """Both generations of vLLM's names, and Ray's of each."""
    rules = recorded()
    for series in engine_series.TABLE:
        for name in series.stored:
            (expression,) = rules[f"headway_{name}"]
            for spelling, _ in spellings(name)[1:]:
                assert f'"{spelling}"' in expression
    for name in (REQUESTS, UPTIME, "headway_request_errors_total", "headway_requests_active"):
        assert rules[name]
    assert {"headway_ejections_total", "headway_request_seconds_bucket"} <= set(rules)


def test_rules_read_the_public_route_and_its_sides_by_their_place() -> None:
    (expression,) = recorded()[REQUESTS]

    assert f"httproute/headway/{routes.name_of('x', 'public').removesuffix('x')}" in expression
    assert '"side", "stable", "envoy_cluster_name", ".+/0"' in expression
    assert '"side", "candidate", "envoy_cluster_name", ".+/1"' in expression


def test_monitors_read_ports_and_labels_that_pods_have() -> None:
    (template,) = documents(K8S / "templates" / "rayservice.yaml")
    config = template["spec"]["rayClusterConfig"]
    pods = [config["headGroupSpec"]["template"], *(group["template"] for group in config["workerGroupSpecs"])]
    monitor = of_kind("PodMonitor")["headway-engines"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    for pod in pods:
        ports = {one["name"]: one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == 8080
        assert ports["serve"] == SERVE_PORT
    assert {"__meta_kubernetes_pod_label_headway_cluster"} in [
        set(one["sourceLabels"]) for one in endpoint["relabelings"] if one["targetLabel"] == "ray_io_cluster"
    ]


# --- Charts -----------------------------------------------------------------------------------------------------------


def test_every_chart_is_pinned_and_has_its_values() -> None:
    releases = yaml.safe_load((K8S / "platform" / "helmfile.yaml").read_text())["releases"]
    used = {value for one in releases for value in one["values"]}

    assert {str(path.relative_to(K8S / "platform")) for path in VALUES} == used
    for one in releases:
        assert one["version"].removeprefix("v").replace(".", "").isdigit(), one["name"]
        assert not one["version"].startswith(">")


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.parent.name)
def test_values_are_maps_without_secrets(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    text = json.dumps(values).lower()

    assert isinstance(values, dict)
    assert 'password": "' not in text.replace("passwords", "")
    assert "secretkey" not in text.replace("apisecretkeysecretname", "")


def test_kuberays_values_are_those_of_the_version_that_is_tested() -> None:
    pinned = (K8S.parent / "local" / "rig" / "kuberay" / "go.mod").read_text()
    values = yaml.safe_load((K8S / "platform" / "kuberay" / "values.yaml").read_text())
    releases = yaml.safe_load((K8S / "platform" / "helmfile.yaml").read_text())["releases"]
    version = next(one["version"] for one in releases if one["name"] == "kuberay-operator")

    assert f"ray-operator v{version}" in pinned
    assert values["image"]["tag"] == f"v{version}"


def test_airflow_is_given_settings_that_exist() -> None:
    values = yaml.safe_load((K8S / "platform" / "airflow" / "values.yaml").read_text())
    known = {f"HEADWAY_{name.upper()}" for name in Settings.model_fields}
    given_names = {one["name"] for one in values["env"]}
    mounted = {one["mountPath"] for one in values["volumeMounts"]}
    files = [one["value"] for one in values["env"] if str(one["value"]).startswith("/run/")]

    assert {name for name in given_names if name.startswith("HEADWAY_")} <= known
    assert {"HEADWAY_BACKEND", "HEADWAY_PODS_IMAGE", "HEADWAY_QUANTIZE_IMAGE", "HEADWAY_PROMETHEUS_URL"} <= given_names
    assert all(any(path.startswith(f"{place}/") for place in mounted) for path in files)
    for one in values["env"]:
        if one["name"].startswith("AIRFLOW_CONN_"):
            assert json.loads(one["value"])["conn_type"] in ("kubernetes", "http", "aws")
    for component in ("scheduler", "triggerer", "apiServer"):
        assert values[component]["serviceAccount"] == {"create": False, "name": CONTROLLER_ACCOUNT}
