"""`headway doctor --kubernetes` on a real control plane: what lacks, one line each, whatever is wrong with it."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.adapters.kubernetes.client import Client
from headway.adapters.kubernetes.doctor import Needs, examine
from headway.adapters.kubernetes.site import ARTIFACT_KEYS, CONTROLLER_ACCOUNT, S3_SECRETS, SIGNING_SECRET
from headway.cli import main
from headway.domain.finding import Finding
from tests.fakes import FakeMetrics

from .platform import MANAGER, Platform, volumes
from .rig.api import DEPLOYMENT, Kind, condition, wait_until
from .rig.manifests import OPERATOR_NAMESPACE
from .rig.rig import Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

H100 = "NVIDIA-H100-80GB-HBM3"
NOW = datetime(2026, 12, 1, tzinfo=UTC)
LISTENERS = [
    {"name": name, "protocol": "HTTP", "port": port, "allowedRoutes": {"namespaces": {"from": "Same"}}}
    for name, port in (("public", 80), ("internal", 8081))
]
"""With another port, so that there is something to take."""
NEEDS = Needs({H100: 2}, FakeMetrics(), NOW)


@pytest.fixture
def complete(platform: Platform) -> Iterator[Platform]:
    """With all that an engineer adds by hand, and a Deployment in place of the rig's operator, which is a process."""
    api, namespace = platform.rig.api, platform.site.namespace
    secrets = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
        for name in (*S3_SECRETS.values(), SIGNING_SECRET)
    ]
    metadata = {"name": ARTIFACT_KEYS, "namespace": namespace}
    keys = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"artifact.pem": ""}}
    with ExitStack() as stack:
        stack.enter_context(volumes(platform, H100))
        for one in (*secrets, keys, operator()):
            api.create(one)
            about = one["metadata"]
            kind = Kind(one["apiVersion"], one["kind"])
            stack.callback(api.delete, kind, about["name"], about.get("namespace"))
        name = (DEPLOYMENT, "kuberay-operator", OPERATOR_NAMESPACE)
        wait_until(lambda: condition(api.get(*name), "Available") == "True", "the operator is available", 90)
        wait_until(lambda: line(platform, f"claim {platform.site.claim(H100)}").level == "ok", "the claim is bound")
        yield platform


def operator() -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "kuberay-operator"}
    container = {"name": "operator", "image": "quay.io/kuberay/operator:v1.6.0"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kuberay-operator", "namespace": OPERATOR_NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def examined(platform: Platform, kubeconfig: Path | None = None) -> list[Finding]:
    client = Client.connect(kubeconfig or platform.rig.kubeconfig)
    try:
        return examine(client, platform.site, NEEDS)
    finally:
        client.close()


def line(platform: Platform, what: str) -> Finding:
    return next(one for one in examined(platform) if one.what == what)


def test_what_an_engineer_has_still_to_do_is_named(platform: Platform) -> None:
    """After an overlay: operator, claims, Secrets and keys; a line and a remedy for each, and no other."""
    missing = [one for one in examined(platform) if one.level == "missing"]

    claim = f"claim {platform.site.claim(H100)}"
    assert {one.what for one in missing} == {"KubeRay operator", claim, "secrets", "public keys"}
    assert all(one.remedy for one in missing)


def test_a_cluster_that_has_all_is_told_so(complete: Platform) -> None:
    """Only Prometheus' CRDs are not there, which is a note: another Prometheus does as well."""
    findings = examined(complete)

    assert {one.what for one in findings if one.level != "ok"} == {"CRDs of Prometheus"}
    assert next(one.found for one in findings if one.what == H100) == "4 of 4 nodes ready, 32 accelerators"
    assert "bundle" not in str(findings)


def test_headways_own_account_sees_all_but_the_secrets(complete: Platform) -> None:
    """It has the rights that it needs, by the API server's word."""
    findings = examined(complete, complete.rig.account_kubeconfig(CONTROLLER_ACCOUNT, complete.site.namespace))

    assert {one.what: one.level for one in findings if one.level != "ok"} == {
        "CRDs of Prometheus": "note",
        "secrets": "note",
    }
    assert next(one for one in findings if one.what == "account").found == "system:serviceaccount:headway:headway"


def test_an_account_without_rights_gets_a_table_too(platform: Platform) -> None:
    findings = examined(platform, platform.rig.account_kubeconfig("default", platform.site.namespace))

    told = {one.what: one for one in findings}
    assert told["API server"].level == "ok"
    assert told["rights"].level == "missing"
    assert "create rayservices" in told["rights"].found
    assert {one.level for one in findings if one.what not in ("API server", "account", "rights", "metrics")} == {"note"}


def test_a_wrong_token_is_one_line(platform: Platform) -> None:
    (finding,) = examined(platform, platform.rig.user_kubeconfig("nobody", "not-a-token"))

    assert (finding.what, finding.level) == ("API server", "missing")
    assert "the token of the kubeconfig is wrong or has expired" in finding.found


def test_a_server_that_is_away_is_one_line(rig: Rig, platform: Platform) -> None:
    rig.kill("api")
    try:
        (finding,) = examined(platform)
    finally:
        rig.restart("api")

    assert (finding.what, finding.level) == ("API server", "missing")
    assert "does not answer" in finding.found


def test_a_gateway_that_nobody_took_is_told(rig: Rig, platform: Platform) -> None:
    """As the gateway's controller says it."""
    gateway = Kind("gateway.networking.k8s.io/v1", "Gateway")
    rig.fault("headway", "refused", namespace=platform.site.namespace, kind=gateway)
    rig.api.patch(gateway, "headway", {"spec": {"listeners": LISTENERS}}, platform.site.namespace)
    try:
        wait_until(lambda: line(platform, "gateway headway/headway").level == "missing", "the refusal shows")
        assert "not programmed: Invalid" in line(platform, "gateway headway/headway").found
    finally:
        rig.fault("headway", None, namespace=platform.site.namespace, kind=gateway)
        (applied,) = [one for one in platform.objects if one["kind"] == "Gateway"]
        rig.api.apply(applied, MANAGER)
        wait_until(lambda: line(platform, "gateway headway/headway").level == "ok", "it is taken again")


def test_the_command_prints_the_table_and_ends_with_1(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_KUBECONFIG", str(platform.rig.kubeconfig))
    monkeypatch.setenv("COLUMNS", "200")

    assert main(["doctor", "--kubernetes"]) == 1

    told = capsys.readouterr().out
    assert "HEADWAY_PODS_IMAGE" in told
    assert "KubeRay operator" in told
    assert "run `headway doctor --kubernetes` again" in told


def test_the_command_with_a_broken_kubeconfig_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "kubeconfig"
    broken.write_text("users: [")
    monkeypatch.setenv("HEADWAY_KUBECONFIG", str(broken))
    monkeypatch.setenv("COLUMNS", "200")

    assert main(["doctor", "--kubernetes"]) == 1

    assert "set HEADWAY_KUBECONFIG to a valid one" in " ".join(capsys.readouterr().out.replace("\u2502", "").split())
