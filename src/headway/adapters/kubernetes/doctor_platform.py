"""What the platform of a cluster lacks for headway: server, CRDs, operator, gateway. Each part yields lines."""

import re
from collections.abc import Iterator, Mapping, Sequence

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.kinds import (
    CRD,
    DEPLOYMENT,
    GATEWAY,
    GATEWAY_CLASS,
    HTTP_ROUTE,
    RAY_CLUSTER,
    RAY_SERVICE,
    Kind,
)
from headway.adapters.kubernetes.objects import annotation, condition
from headway.adapters.kubernetes.site import Site
from headway.domain.finding import Finding

WHO_AM_I = Kind("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
BASE = "apply an overlay of k8s/overlays (docs/kubernetes.md)"
PLATFORM = "install it as k8s/platform/helmfile.yaml has it"
SERVER = "API server"
OLDEST_KUBERNETES, TRIED_KUBERNETES = (1, 31), (1, 35)
OLDEST_KUBERAY, TRIED_KUBERAY = (1, 6), (1, 6)
OPERATOR = "app.kubernetes.io/name=kuberay-operator"
UPGRADE_GATE = "RayServiceIncrementalUpgrade"
DEFINITIONS: Mapping[str, tuple[tuple[Kind, ...], str]] = {
    "CRDs of KubeRay": ((RAY_SERVICE, RAY_CLUSTER), "install KubeRay's operator 1.6.0, whose chart brings them"),
    "CRDs of the Gateway API": (
        (GATEWAY_CLASS, GATEWAY, HTTP_ROUTE),
        "install Envoy Gateway 1.9, whose chart brings them, or the standard channel of the Gateway API",
    ),
}
MONITORS = ("podmonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com")
LISTENERS = ("public", "internal")
BUNDLE = "gateway.networking.k8s.io/bundle-version"


def server(client: Client) -> Iterator[Finding]:
    """Yield which server answers, and to whom."""
    found = client.request("GET", "/version", what="read the version")
    version = _version(str(found.get("gitVersion", "")))
    text = f"{found.get('gitVersion')} at {client.host}"
    if version < OLDEST_KUBERNETES:
        yield Finding(SERVER, "missing", text, f"headway needs Kubernetes {_text(OLDEST_KUBERNETES)} or newer")
        return
    if version[:2] > TRIED_KUBERNETES:
        yield Finding(SERVER, "note", text, f"tried with {_text(TRIED_KUBERNETES)} and older")
    else:
        yield Finding(SERVER, "ok", text)
    me = client.request(
        "POST", WHO_AM_I.path(), {"apiVersion": WHO_AM_I.api_version, "kind": WHO_AM_I.name}, what="ask who this is"
    )
    yield Finding("account", "ok", str(me["status"]["userInfo"]["username"]))


def definitions(client: Client, what: str) -> Iterator[Finding]:
    """Yield whether the kinds of a group are there, in the version that headway speaks."""
    kinds, remedy = DEFINITIONS[what]
    found, lacking = [], []
    for kind in kinds:
        definition = client.get(CRD, f"{kind.plural}.{kind.group}")
        served = [one["name"] for one in definition["spec"]["versions"] if one["served"]] if definition else []
        wanted = kind.api_version.rpartition("/")[2]
        if wanted not in served:
            there = f" (there: {', '.join(served)})" if served else ""
            lacking.append(f"{kind.name} {wanted}{there}")
        elif definition and (bundle := annotation(definition, BUNDLE)):
            found.append(bundle)
    if lacking:
        yield Finding(what, "missing", f"not there: {', '.join(lacking)}", remedy)
    else:
        yield Finding(what, "ok", ", ".join(sorted(set(found))) or ", ".join(kind.name for kind in kinds))


def monitors(client: Client) -> Iterator[Finding]:
    """Yield whether Prometheus' operator is there; headway can do with another Prometheus."""
    lacking = [name for name in MONITORS if client.get(CRD, name) is None]
    if lacking:
        yield Finding(
            "CRDs of Prometheus",
            "note",
            f"not there: {', '.join(lacking)}",
            "install its operator, or give your Prometheus what monitors.yaml and rules.yaml of k8s/base say",
        )
    else:
        yield Finding("CRDs of Prometheus", "ok", ", ".join(MONITORS))


def operator(client: Client) -> Iterator[Finding]:
    """Yield KubeRay's operator, its version and gates, by the image and arguments of its Deployment."""
    found = client.list(DEPLOYMENT, labelSelector=OPERATOR)
    if not found:
        yield Finding("KubeRay operator", "missing", f"no Deployment with {OPERATOR}", f"KubeRay 1.6.0: {PLATFORM}")
    for one in found:
        container = one["spec"]["template"]["spec"]["containers"][0]
        image, place = str(container["image"]), f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        version = _version(image.partition("@")[0].rpartition(":")[2])
        gates = _gates([*(container.get("command") or []), *(container.get("args") or [])])
        text = f"{place}: {image}{f', gates {gates}' if gates else ''}"
        if not (one.get("status") or {}).get("availableReplicas"):
            yield Finding("KubeRay operator", "missing", f"{text}, not available", "look at its pod's events and log")
        elif not version:
            yield Finding("KubeRay operator", "note", text, "its image tells no version; 1.6 was tried")
        elif version < OLDEST_KUBERAY:
            yield Finding("KubeRay operator", "missing", text, f"too old: update it to 1.6.0, {PLATFORM}")
        elif version[:2] > TRIED_KUBERAY:
            yield Finding("KubeRay operator", "note", text, "1.6 was tried; read what this version changed")
        elif f"{UPGRADE_GATE}=true" in gates:
            yield Finding("KubeRay operator", "note", text, f"headway has no use for {UPGRADE_GATE}; leave it off")
        else:
            yield Finding("KubeRay operator", "ok", text)


def _gates(words: Sequence[str]) -> str:
    text = " ".join(words)
    found = re.search(r"--feature-gates[= ]([^\s]+)", text)
    return found[1] if found else ""


def gateway(client: Client, site: Site) -> Iterator[Finding]:
    """Yield the Gateway, its class, and whether a controller has taken both."""
    place = site.gateway_namespace or site.namespace
    what = f"gateway {place}/{site.gateway}"
    found = client.get(GATEWAY, site.gateway, place)
    if found is None:
        yield Finding(what, "missing", "not there", f"{BASE}, or name yours in HEADWAY_GATEWAY")
        return
    chosen = found["spec"]["gatewayClassName"]
    yield from _gateway_class(client, chosen)
    listeners = [one["name"] for one in found["spec"]["listeners"]]
    lacking = [name for name in LISTENERS if name not in listeners]
    said = condition(found, "Programmed")
    if lacking:
        yield Finding(what, "missing", f"no listener {', '.join(lacking)}", BASE)
    elif said is None or said["status"] != "True":
        words = (
            f"{said['reason']} {said['message']}".strip() if said else f"no controller of class {chosen} has seen it"
        )
        yield Finding(what, "missing", f"not programmed: {words}", "look at the gateway's controller and its log")
    else:
        addresses = [one["value"] for one in (found.get("status") or {}).get("addresses") or []]
        yield Finding(what, "ok", f"programmed, {', '.join(addresses) or 'no address'}")


def _gateway_class(client: Client, name: str) -> Iterator[Finding]:
    what, found = f"GatewayClass {name}", client.get(GATEWAY_CLASS, name)
    if found is None:
        yield Finding(what, "missing", "not there", "kubectl apply --server-side -k k8s/platform/envoy-gateway")
        return
    said = condition(found, "Accepted")
    if said and said["status"] == "True":
        yield Finding(what, "ok", f"accepted by {found['spec']['controllerName']}")
    else:
        words = f"{said['reason']} {said['message']}".strip() if said else "nobody has accepted it"
        yield Finding(what, "missing", words, f"install the controller {found['spec']['controllerName']}: {PLATFORM}")


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `v1.35.4`, empty if it is none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
