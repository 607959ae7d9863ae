"""Which backend is built from which settings, and what is said where one is missing."""

import json
from pathlib import Path

import pytest

from headway.adapters.kubernetes import programs
from headway.adapters.local import services
from headway.errors import ConfigError
from headway.settings import PREFIX, Settings
from headway.wiring import KubernetesBackend, LocalBackend, connect
from tests.factories import make_profile

CLUSTER = {
    "backend": "kubernetes",
    "pods_image": "registry.example/headway-pods:1",
    "quantize_image": "registry.example/headway-quantize:1",
    "s3_endpoint": "https://s3.example",
}
IMAGE = f"registry.example/ray-llm@sha256:{'a1' * 32}"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"{PREFIX}{name.upper()}", raising=False)


def backend(**changes: str | None) -> KubernetesBackend:
    return KubernetesBackend(Settings.model_validate({**CLUSTER, **changes}))


def test_without_a_setting_it_is_this_machine() -> None:
    """A clone without any setting never touches a cluster that some kubeconfig happens to name."""
    assert isinstance(connect(Settings()), LocalBackend)
    assert isinstance(connect(Settings.model_validate(CLUSTER)), KubernetesBackend)


def test_a_cluster_is_described_by_the_settings() -> None:
    """What is set arrives; what is not set is as k8s/base has it."""
    plain = backend().site
    assert (plain.namespace, plain.gateway, plain.gateway_namespace) == ("headway", "headway", "")
    assert plain.s3_endpoint == "https://s3.example"
    assert (plain.templates.name, plain.templates.parent.name) == ("templates", "k8s")

    own = backend(
        namespace="models",
        gateway="edge/llm",
        pod_s3_endpoint="http://store.models.svc:8333/",
        pod_gateway_url="http://llm.edge.svc:81",
        pull_secret="registry",
        s3_region="eu-central-1",
    )
    assert (own.site.namespace, own.site.gateway_namespace, own.site.gateway) == ("models", "edge", "llm")
    assert (own.site.s3_endpoint, own.site.region) == ("http://store.models.svc:8333", "eu-central-1")
    assert (own.gateway_url, own.site.pull_secret) == ("http://llm.edge.svc:81", "registry")


def test_everything_that_a_cluster_lacks_is_named_at_once() -> None:
    """Nobody finds the third missing setting in the third try."""
    bare = KubernetesBackend(Settings(backend="kubernetes"))

    with pytest.raises(ConfigError) as error:
        _ = bare.jobs

    for name in ("HEADWAY_PODS_IMAGE", "HEADWAY_QUANTIZE_IMAGE", "HEADWAY_POD_S3_ENDPOINT"):
        assert name in error.value.message


def test_a_way_back_needs_a_kubeconfig_alone(tmp_path: Path) -> None:
    """Whoever is on call at night has that; images and stores are for programs."""
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    lists = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", **lists}))
    bare = KubernetesBackend(Settings(backend="kubernetes", kubeconfig=kubeconfig))

    assert bare.traffic
    assert bare.lease
    assert bare.clusters
    with pytest.raises(ConfigError, match="HEADWAY_PODS_IMAGE"):
        programs.container(bare.site, "stage", job="j")


def test_without_prometheus_nothing_is_judged() -> None:
    """A cluster has no scraper of the embedded stack, and no data must not look like no faults."""
    with pytest.raises(ConfigError, match="HEADWAY_PROMETHEUS_URL"):
        _ = backend().metrics
    assert backend(prometheus_url="http://prometheus.monitoring.svc:9090").metrics is not None


@pytest.mark.parametrize(
    ("image", "said"),
    [(None, "is not set"), ("ray-llm:2.60", "`ray-llm:2.60`"), (f"ray-llm@sha256:{'0' * 64}", "000")],
)
def test_a_serving_image_is_one_by_digest(image: str | None, said: str) -> None:
    """A tag can move, and then one digest of a plan would name two clusters; a placeholder names none."""
    with pytest.raises(ConfigError, match="serving_image") as error:
        backend().serving_image(make_profile(serving_image=image))
    assert said in error.value.message

    assert backend().serving_image(make_profile(serving_image=IMAGE)) == IMAGE


def test_addresses_are_the_embedded_stacks_until_others_are_named(tmp_path: Path) -> None:
    """A desk releases to a remote cluster with its own MLflow and Airflow; in the cluster they are Services."""
    desk = backend(home=str(tmp_path), base_port="31000")
    assert (desk.mlflow_url, desk.airflow_url) == ("http://127.0.0.1:31004", "http://127.0.0.1:31003")
    assert desk.airflow_passwords == tmp_path / "secrets" / "airflow-passwords.json"

    inside = backend(
        mlflow_url="http://mlflow:5000/", airflow_url="http://airflow:8080", airflow_passwords="/run/secrets/airflow"
    )
    assert inside.model_url("m", 3) == "http://mlflow:5000/#/models/m/versions/3"
    assert (inside.airflow_url, str(inside.airflow_passwords)) == ("http://airflow:8080", "/run/secrets/airflow")


def test_a_named_store_is_used_with_one_identity(tmp_path: Path) -> None:
    """In a cluster each pod has the identity that it needs; on a desk the stack's own store has one a role."""
    named = backend(s3_credentials=str(tmp_path / "credentials.ini"), s3_region="eu-west-1").s3("mlflow")
    assert (named.endpoint, named.region) == ("https://s3.example", "eu-west-1")
    assert named.credentials_file == tmp_path / "credentials.ini"

    with pytest.raises(ConfigError, match="no S3 credentials"):
        backend(s3_endpoint=None, pod_s3_endpoint="http://desk:9000", home=str(tmp_path)).s3("headway")


def test_airflows_tasks_find_the_same_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task inherits nothing, and has a home of its own: what names the cluster is handed to it."""
    monkeypatch.setenv("KUBECONFIG", "/home/person/.kube/work")
    settings = Settings.model_validate({**CLUSTER, "home": str(tmp_path), "namespace": "models"})

    told = services.airflow_env(settings.layout())

    assert told["HEADWAY_BACKEND"] == "kubernetes"
    assert (told["HEADWAY_NAMESPACE"], told["HEADWAY_S3_ENDPOINT"]) == ("models", "https://s3.example")
    assert told["KUBECONFIG"] == "/home/person/.kube/work"
    again = Settings.model_validate({k.removeprefix(PREFIX).lower(): v for k, v in told.items() if PREFIX in k})
    assert again.handed_on() == settings.handed_on()

    assert not [name for name in services.airflow_env(Settings(home=tmp_path).layout()) if "KUBE" in name]


def test_a_kubeconfig_of_its_own_needs_no_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is relative to the folder of `headway up` is good for its children too."""
    monkeypatch.chdir(tmp_path)
    told = Settings.model_validate({**CLUSTER, "kubeconfig": "cluster.yaml"}).handed_on()

    assert told["HEADWAY_KUBECONFIG"] == str(tmp_path / "cluster.yaml")
    assert "KUBECONFIG" not in told


@pytest.mark.parametrize("name", ["s3_endpoint", "pod_s3_endpoint", "pod_gateway_url", "mlflow_url", "airflow_url"])
def test_what_is_no_address_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten scheme is told where it stands, not by a library in the middle of a release."""
    monkeypatch.setenv(f"{PREFIX}{name.upper()}", "store.models.svc:8333")

    with pytest.raises(ConfigError, match=rf"{PREFIX}{name.upper()}: .*http://"):
        Settings.load()


def test_an_unknown_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt backend must not fall back to another one."""
    monkeypatch.setenv("HEADWAY_BACKEND", "k8s")

    with pytest.raises(ConfigError, match=r"HEADWAY_BACKEND: .*embedded.*kubernetes"):
        Settings.load()
