"""Envoy Gateway on the node: the objects of upstream's chart that it needs, with the images of `stock.py`.

Its control plane and its Envoys are ordinary pods. Autoscaling, budgets and webhooks of the chart are left out, and it
has all rights, as nothing is proved about these.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.rig.api import DEPLOYMENT, GATEWAY_CLASS, JOB, SERVICE_ACCOUNT, Api, Kind, condition, wait_until
from tests.cluster.rig.build import run_go
from tests.cluster.rig.programs import RigNotBuiltError, build_folder

from .programs import ENVOY_GATEWAY
from .stock import Stock

Object = dict[str, Any]

NAMESPACE, NAME, CLASS_NAME = "envoy-gateway-system", "envoy-gateway", "envoy"
CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
DEFINITIONS = "charts/gateway-helm/charts/crds/crds/generated/*.yaml"
DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
PORTS = {"grpc": 18000, "ratelimit": 18001, "wasm": 18002, "metrics": 19001}
UP_WITHIN_S = 120
LABELS = {"control-plane": NAME}


def collect() -> None:
    """Keep the gateway's definitions beside its program, where they are not kept yet."""
    target = _definitions_file()
    if target.exists():
        return
    folder = Path(run_go(ENVOY_GATEWAY, "list", "-m", "-f", "{{.Dir}}", ENVOY_GATEWAY.path).strip())
    found = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob(DEFINITIONS))]
    part = target.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(target)


def _definitions_file() -> Path:
    return build_folder(ENVOY_GATEWAY) / "definitions.json"


def install(api: Api, stock: Stock) -> None:
    """Install the gateway and return when its class is accepted.

    Args:
        api: The administrator's client.
        stock: The images.

    Raises:
        RigNotBuiltError: Its definitions are not collected.
    """
    path = _definitions_file()
    if not path.exists():
        raise RigNotBuiltError("the definitions of Envoy Gateway are not collected; run `make node`")
    definitions: list[Object] = json.loads(path.read_text())
    for one in (*definitions, *_objects(stock)):
        api.create(one)
    for one in definitions:
        name = one["metadata"]["name"]
        wait_until(lambda name=name: _is(api, DEFINITION, name, "Established"), f"{name} is established", UP_WITHIN_S)  # type: ignore[misc]
    wait_until(lambda: api.get(SERVICE_ACCOUNT, "default", NAMESPACE), "the gateway's namespace has its account")
    api.create(_certificates(stock))
    wait_until(lambda: _is(api, JOB, f"{NAME}-certgen", "Complete", NAMESPACE), "certificates", UP_WITHIN_S)
    api.create(_deployment(stock))
    wait_until(lambda: _is(api, DEPLOYMENT, NAME, "Available", NAMESPACE), "the gateway is up", UP_WITHIN_S)
    wait_until(lambda: _is(api, GATEWAY_CLASS, CLASS_NAME, "Accepted"), "its class is accepted", UP_WITHIN_S)


def _is(api: Api, kind: Kind, name: str, state: str, namespace: str | None = None) -> bool:
    return condition(api.get(kind, name, namespace), state) == "True"


def _objects(stock: Stock) -> list[Object]:
    metadata = {"name": NAME, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{NAME}-config", "namespace": NAMESPACE},
            "data": {"envoy-gateway.yaml": json.dumps(_configuration(stock))},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": LABELS, "ports": [{"name": name, "port": port} for name, port in PORTS.items()]},
        },
        {
            "apiVersion": GATEWAY_CLASS.api_version,
            "kind": GATEWAY_CLASS.name,
            "metadata": {"name": CLASS_NAME},
            "spec": {"controllerName": CONTROLLER},
        },
    ]


def _configuration(stock: Stock) -> Object:
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyGateway",
        "gateway": {"controllerName": CONTROLLER},
        "provider": {
            "type": "Kubernetes",
            "kubernetes": {
                "shutdownManager": {"image": stock.envoy_gateway.name},
                # It is alone, and one that has lost an election on a slow machine stands still for ever.
                "leaderElection": {"disable": True},
            },
        },
        "logging": {"level": {"default": "info"}},
    }


def _pod(stock: Stock, container: Object, **rest: Any) -> Object:
    own = {"name": "ENVOY_GATEWAY_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    whole = {
        "image": stock.envoy_gateway.name,
        "imagePullPolicy": "IfNotPresent",
        "env": [own, {"name": "KUBERNETES_CLUSTER_DOMAIN", "value": "cluster.local"}],
        **container,
    }
    return {"serviceAccountName": NAME, "containers": [whole], **rest}


def _certificates(stock: Stock) -> Object:
    command = ["envoy-gateway", "certgen", "--disable-topology-injector"]
    pod = _pod(stock, {"name": "certgen", "command": command}, restartPolicy="Never")
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {"name": f"{NAME}-certgen", "namespace": NAMESPACE},
        "spec": {"backoffLimit": 2, "template": {"spec": pod}},
    }


def _deployment(stock: Stock) -> Object:
    container = {
        "name": NAME,
        "command": ["envoy-gateway", "server", "--config-path=/config/envoy-gateway.yaml"],
        # As the chart has it: without a request it would get no processor beside Ray's start.
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8081}, "periodSeconds": 20, "timeoutSeconds": 5},
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            {"name": "certs", "mountPath": "/certs", "readOnly": True},
            {"name": "cache", "mountPath": "/var/lib/eg/wasm"},
        ],
    }
    volumes = [
        {"name": "config", "configMap": {"name": f"{NAME}-config"}},
        {"name": "certs", "secret": {"secretName": NAME}},
        {"name": "cache", "emptyDir": {}},
    ]
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.name,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": _pod(stock, container, volumes=volumes)},
        },
    }
