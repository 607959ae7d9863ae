"""What headway's namespace and nodes lack: accelerators, claims, accounts, secrets, rights. Each part yields lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from headway.adapters.kubernetes import rights
from headway.adapters.kubernetes.client import Client, Object
from headway.adapters.kubernetes.doctor_platform import BASE, PLATFORM
from headway.adapters.kubernetes.kinds import (
    CLAIM,
    CONFIG_MAP,
    NAMESPACE,
    NODE,
    PRIORITY_CLASS,
    QUOTA,
    SECRET,
    SERVICE_ACCOUNT,
)
from headway.adapters.kubernetes.objects import condition
from headway.adapters.kubernetes.site import (
    ARTIFACT_KEYS,
    BATCH_ACCOUNT,
    BATCH_PRIORITY,
    GPU,
    PAUSE_PRIORITY,
    PRODUCT,
    S3_SECRETS,
    SERVING_ACCOUNT,
    SERVING_PRIORITY,
    SIGNING_SECRET,
    STAGE_ACCOUNT,
    Site,
)
from headway.domain.finding import Finding, Level

ENFORCE = "pod-security.kubernetes.io/enforce"


def namespace(client: Client, site: Site) -> Iterator[Finding]:
    """Yield headway's namespace and its Pod Security level."""
    what, found = f"namespace {site.namespace}", client.get(NAMESPACE, site.namespace)
    if found is None:
        yield Finding(what, "missing", "not there", BASE)
        return
    level = (found["metadata"].get("labels") or {}).get(ENFORCE, "privileged")
    if level == "restricted":
        yield Finding(what, "ok", "Pod Security level restricted")
    else:
        yield Finding(what, "note", f"Pod Security level {level}", f"label it {ENFORCE}=restricted: all pods keep it")


def accelerators(client: Client, wanted: Mapping[str, int]) -> Iterator[Finding]:
    """Yield for each accelerator the nodes that have it and what they offer."""
    nodes = client.list(NODE)
    products = sorted({_label(one, PRODUCT) for one in nodes if _label(one, PRODUCT)})
    for name, per_replica in sorted(wanted.items()):
        if name == "cpu":
            continue
        theirs = [one for one in nodes if _label(one, PRODUCT) == name]
        ready = [one for one in theirs if (condition(one, "Ready") or {}).get("status") == "True"]
        counts = [int((one["status"].get("allocatable") or {}).get(GPU, 0)) for one in ready]
        text = f"{len(ready)} of {len(theirs)} nodes ready, {sum(counts)} accelerators"
        if not theirs:
            there = f"there are {', '.join(products)}" if products else f"no node has the label {PRODUCT}"
            remedy = "add such nodes, or change the profile" if products else f"NVIDIA's GPU Operator: {PLATFORM}"
            yield Finding(name, "missing", f"no node; {there}", remedy)
        elif not ready:
            yield Finding(name, "missing", text, "look at these nodes: `kubectl describe nodes` says why they are not")
        elif not any(counts):
            yield Finding(
                name, "missing", f"{text}: no node offers {GPU}", f"the device plugin does not run: {PLATFORM}"
            )
        elif max(counts, default=0) < per_replica:
            remedy = "lower hardware.per_replica, or add larger nodes"
            yield Finding(name, "missing", f"{text}; a replica takes {per_replica} on one node", remedy)
        else:
            yield Finding(name, "ok", text)


def claim(client: Client, site: Site, accelerator: str) -> Iterator[Finding]:
    """Yield the claim of the local volumes on nodes with an accelerator."""
    name = site.claim(accelerator)
    what, found = f"claim {name}", client.get(CLAIM, name, site.namespace)
    remedy = "make a local volume and its claim as in k8s/overlays/prod/volumes.yaml"
    if found is None:
        # A cluster of accelerators has no use for the profile of a demonstration on processors.
        level: Level = "note" if accelerator == "cpu" else "missing"
        yield Finding(what, level, f"not there; nodes with {accelerator} keep weights by it", remedy)
        return
    phase, modes = (found.get("status") or {}).get("phase"), found["spec"].get("accessModes") or []
    if phase != "Bound":
        yield Finding(what, "missing", f"{phase}, not bound to a volume", remedy)
    elif "ReadWriteMany" not in modes:
        yield Finding(what, "missing", f"access modes {', '.join(modes)}; pods of many nodes share it", remedy)
    else:
        yield Finding(what, "ok", f"bound to {found['spec'].get('volumeName')}")


def priorities(client: Client) -> Iterator[Finding]:
    """Yield the priority classes and their order."""
    names = (SERVING_PRIORITY, BATCH_PRIORITY, PAUSE_PRIORITY)
    found = {name: client.get(PRIORITY_CLASS, name) for name in names}
    lacking = [name for name, one in found.items() if one is None]
    values = [one["value"] for one in found.values() if one is not None]
    if lacking:
        yield Finding("priorities", "missing", f"not there: {', '.join(lacking)}", BASE)
    elif not values[0] >= values[1] > values[2]:
        text = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        yield Finding("priorities", "missing", text, "pause pods must be the lowest, engines the highest; see k8s/base")
    else:
        yield Finding("priorities", "ok", " > ".join(names))


def accounts(client: Client, site: Site) -> Iterator[Finding]:
    """Yield the accounts of programs and engines."""
    names = (STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT)
    lacking = [name for name in names if client.get(SERVICE_ACCOUNT, name, site.namespace) is None]
    if lacking:
        yield Finding("accounts", "missing", f"not there: {', '.join(lacking)}", BASE)
    else:
        yield Finding("accounts", "ok", ", ".join(names))


def secrets(client: Client, site: Site) -> Iterator[Finding]:
    """Yield whether the Secrets are there; none is read."""
    names = [*S3_SECRETS.values(), SIGNING_SECRET, *([site.pull_secret] if site.pull_secret else [])]
    lacking = [name for name in names if not client.exists(SECRET, name, site.namespace)]
    if lacking:
        yield Finding(
            "secrets", "missing", f"not there: {', '.join(lacking)}", "docs/kubernetes.md has a line for each"
        )
    else:
        yield Finding("secrets", "ok", ", ".join(names))
    if client.get(CONFIG_MAP, ARTIFACT_KEYS, site.namespace) is None:
        yield Finding("public keys", "missing", f"no ConfigMap {ARTIFACT_KEYS}", "docs/kubernetes.md has a line for it")


def quota(client: Client, site: Site) -> Iterator[Finding]:
    """Yield what the namespace's quotas leave of accelerators."""
    for one in client.list(QUOTA, site.namespace):
        status = one.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        key = f"requests.{GPU}"
        if key in hard:
            text = f"{used.get(key, 0)} of {hard[key]} accelerators are taken"
            full = int(used.get(key, 0)) >= int(hard[key])
            level: Level = "note" if full else "ok"
            yield Finding(f"quota {one['metadata']['name']}", level, text, "raise it for a candidate" if full else "")


def account_rights(client: Client, site: Site) -> Iterator[Finding]:
    """Yield what this account may not do of what headway does, by the API server's own word."""
    lacking = [
        f"{verb} {right.resource}{'' if namespace else ' of all namespaces'}"
        for namespace, wanted in ((site.namespace, rights.IN_NAMESPACE), (None, rights.EVERYWHERE))
        for right in wanted
        for verb in right.verbs
        if not client.allowed(verb, right.kind, namespace, subresource=right.subresource)
    ]
    if lacking:
        yield Finding("rights", "missing", f"this account may not {', '.join(lacking)}", f"{BASE}: it has the Roles")
    else:
        count = sum(len(right.verbs) for right in (*rights.IN_NAMESPACE, *rights.EVERYWHERE))
        yield Finding("rights", "ok", f"all {count} that headway uses")


def _label(found: Object, key: str) -> str:
    labels: Mapping[str, Any] = found["metadata"].get("labels") or {}
    return str(labels.get(key, ""))
