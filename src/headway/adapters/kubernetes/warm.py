"""The `Warm` port: a Deployment of pause pods for each model, which hold accelerators until a serving pod needs them.

The pods have the lowest priority (`headway-pause`), so the scheduler lets a serving pod take their place at once; their
Deployment makes new ones, which wait for room and, where a cluster autoscaler runs, let it bring nodes.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from headway.adapters.kubernetes import objects
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.kinds import DEPLOYMENT
from headway.adapters.kubernetes.site import GPU, PAUSE_PRIORITY, Site
from headway.domain.value import canonical_json, slug
from headway.errors import ConfigError, Conflict, IntegrityError
from headway.ports import Held

COMPONENT = "pause"


class KubernetesWarm:
    """Room that is held by pause pods.

    Args:
        client: Access to the cluster.
        site: Where they are.
    """

    def __init__(self, client: Client, site: Site) -> None:
        self._client = client
        self._site = site

    def hold(self, model: str, accelerator: str, per_replica: int, replicas: int) -> Held:
        """Hold room for so many replicas of a model, in place of what was held for it; 0 gives all back.

        Args:
            model: Whose replicas.
            accelerator: Which nodes.
            per_replica: Accelerators of one replica.
            replicas: How many.

        Raises:
            ConfigError: The model needs no accelerator, so that there is nothing to hold.
            Conflict: Somebody else's object has the name, or somebody changed how many there are.
        """
        if accelerator in ("", "cpu") or per_replica < 1 or replicas < 0:
            raise ConfigError(
                f"no room is held for {replicas} replicas of {model} with {per_replica} x {accelerator or 'nothing'}: "
                "pause pods hold accelerators, one or more for each of 0 or more replicas; correct `hardware`"
            )
        found = self._get(model)
        wanted = Held(model, accelerator, per_replica, replicas, 0)
        if replicas:
            return _held(self._client.apply(DEPLOYMENT, manifest(self._site, self._template, wanted)))
        if found is not None:
            self._client.delete(DEPLOYMENT, _name(model), self._site.namespace, uid=found["metadata"]["uid"])
        return wanted

    def held(self) -> Sequence[Held]:
        """Return what is held, sorted by model."""
        found = self._client.list(DEPLOYMENT, self._site.namespace, labelSelector=objects.selector(COMPONENT))
        return sorted(_held(one) for one in found)

    @cached_property
    def _template(self) -> Object:
        return objects.template(self._site.templates, "pause")

    def _get(self, model: str) -> Object | None:
        found = self._client.get(DEPLOYMENT, _name(model), self._site.namespace)
        if found is not None and (not objects.is_ours(found) or _asked(found)["model"] != model):
            raise Conflict(
                f"Deployment {self._site.namespace}/{_name(model)} is not the one that holds room for {model}; it was "
                "left as it is: rename it, or the model",
                deployment=_name(model),
            )
        return found


def manifest(site: Site, template: Object, wanted: Held) -> Object:
    """Return the Deployment that holds room for replicas of a model.

    Args:
        site: Where it is.
        template: `k8s/templates/pause.yaml`.
        wanted: What to hold.
    """
    own = objects.labels(COMPONENT, model=wanted.model)
    pod = template["spec"]["template"]["spec"]
    room = {GPU: str(wanted.per_replica)}
    container = objects.patched(
        pod["containers"][0],
        {"imagePullPolicy": site.image_pull_policy, "resources": {"requests": room, "limits": room}},
    )
    asked = {key: value for key, value in wanted._asdict().items() if key != "ready"}
    return objects.patched(
        template,
        {
            "metadata": {
                "name": _name(wanted.model),
                "namespace": site.namespace,
                "labels": own,
                "annotations": {objects.ASKED: canonical_json(asked).decode()},
            },
            "spec": {
                "replicas": wanted.replicas,
                "selector": {"matchLabels": own},
                "template": {
                    "metadata": {"labels": own},
                    "spec": {
                        "priorityClassName": PAUSE_PRIORITY,
                        "nodeSelector": site.node_selector(wanted.accelerator),
                        "containers": [container, *pod["containers"][1:]],
                        **({"imagePullSecrets": [{"name": site.pull_secret}]} if site.pull_secret else {}),
                    },
                },
            },
        },
    )


def _name(model: str) -> str:
    return f"pause-{slug(model)}"


def _asked(found: Object) -> dict[str, Any]:
    """Return what a Deployment was made from. Raises IntegrityError."""
    try:
        asked = json.loads(objects.annotation(found, objects.ASKED) or "")
        return {
            "model": str(asked["model"]),
            "accelerator": str(asked["accelerator"]),
            "per_replica": int(asked["per_replica"]),
            "replicas": int(asked["replicas"]),
        }
    except (ValueError, TypeError, KeyError) as error:
        name = found["metadata"]["name"]
        raise IntegrityError(
            f"annotation {objects.ASKED} of Deployment {name} is not what headway wrote there; delete the Deployment, "
            "and the next tick of the pre-scaling makes it anew",
            deployment=name,
        ) from error


def _held(found: Object) -> Held:
    asked = _asked(found)
    ready = (found.get("status") or {}).get("availableReplicas") or 0
    return Held(**asked, ready=min(ready, asked["replicas"]))
