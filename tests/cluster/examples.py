"""Small objects for tests of the rig; a release's own objects come from headway's templates."""

import json
from typing import Any

from .rig.nodes import GPU

Object = dict[str, Any]
GPUS_OF_A_WORKER = 8
TOLERATED = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]


def serve_config(replicas: int) -> str:
    """Return a Serve configuration, as it stands in a RayService."""
    arguments = {"model_id": "example", "min_replicas": replicas}
    application = {"name": "llm", "route_prefix": "/", "import_path": "example:build", "args": arguments}
    return json.dumps({"applications": [application]})


def ray_service(name: str, namespace: str, *, workers: int = 1, product: str = "NVIDIA-H100-80GB-HBM3") -> Object:
    """Return a RayService that keeps its cluster: a head without GPU, and workers with 8."""
    head = {"name": "head", "image": "example.invalid/ray", "resources": _resources(cpu="4", memory="16Gi")}
    ports = {"dashboard": 8265, "serve": 8000, "gcs-server": 6379}
    worker = _resources(cpu="32", memory="256Gi", **{GPU: str(GPUS_OF_A_WORKER)})
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "upgradeStrategy": {"type": "None"},
            "serveConfigV2": serve_config(1),
            "rayClusterConfig": {
                "rayVersion": "2.60.0",
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                    "template": {
                        "spec": {
                            "containers": [
                                {**head, "ports": [{"name": k, "containerPort": v} for k, v in ports.items()]}
                            ]
                        }
                    },
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "gpu",
                        "replicas": workers,
                        "minReplicas": workers,
                        "maxReplicas": workers,
                        "rayStartParams": {},
                        "template": {
                            "spec": {
                                "nodeSelector": {f"{GPU}.product": product},
                                "tolerations": TOLERATED,
                                "containers": [{"name": "worker", "image": "example.invalid/ray", "resources": worker}],
                            }
                        },
                    }
                ],
            },
        },
    }


def pod(name: str, namespace: str, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a pod with one container and one init container."""
    container = {"image": "example.invalid/program"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {
            "initContainers": [{"name": "first", **container}],
            "containers": [{"name": "main", **container}],
            **spec,
        },
    }


def job(name: str, namespace: str, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a Job of one pod that is not repeated."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": annotations or {}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "example.invalid/program"}],
                },
            },
            **spec,
        },
    }


def priority(name: str, value: int) -> Object:
    """Return a PriorityClass."""
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def pause_pods(name: str, namespace: str, count: int, *, product: str, priority_class: str) -> Object:
    """Return a Deployment that holds whole GPU nodes and does nothing."""
    resources = _resources(**{GPU: str(GPUS_OF_A_WORKER)})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "priorityClassName": priority_class,
                    "terminationGracePeriodSeconds": 0,
                    "nodeSelector": {f"{GPU}.product": product},
                    "tolerations": TOLERATED,
                    "containers": [{"name": "pause", "image": "example.invalid/pause", "resources": resources}],
                },
            },
        },
    }


def gateway(name: str, namespace: str, gateway_class: str) -> Object:
    """Return a Gateway with one listener."""
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "gatewayClassName": gateway_class,
            "listeners": [{"name": "http", "protocol": "HTTP", "port": 80}],
        },
    }


def route(name: str, namespace: str, gateway_name: str, **weights: int) -> Object:
    """Return an HTTPRoute that splits traffic between Services."""
    backends = [{"name": service, "port": 8000, "weight": weight} for service, weight in weights.items()]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"parentRefs": [{"name": gateway_name}], "rules": [{"backendRefs": backends}]},
    }


def _resources(**amounts: str) -> Object:
    return {"requests": amounts, "limits": amounts}
