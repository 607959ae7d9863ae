"""The registry adapter against a real MLflow with artifacts in a real S3."""

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from headway.adapters.mlflow import CODES, RELEASE_TAG, MlflowRegistry
from headway.adapters.s3 import S3WeightStore
from headway.errors import BackendUnavailable, ModelRejected, NotFound, Refused
from headway.release import select, validate
from tests.component.servers import S3Server, free_ports, mlflow_server, s3_server
from tests.unit.test_validate import model

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 for this module."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[str]:
    """One MLflow for this module; its client finds S3 in this process's environment, as a training program would."""
    wanted = s3.environment("mlflow")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    with mlflow_server(tmp_path_factory.mktemp("mlflow"), s3) as address:
        yield address
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def registry(url: str, s3: S3Server) -> MlflowRegistry:
    """The adapter as it is wired."""
    return MlflowRegistry(url, upload=s3.client("mlflow").put)


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    """MLflow's own client."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=url, registry_uri=url)


def register(client: Any, name: str, files: dict[str, bytes], folder: Path) -> int:
    """Register a plain directory as a new version; return its number."""
    for path, body in files.items():
        (folder / path).write_bytes(body)
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    run = client.create_run("0")
    client.log_artifacts(run.info.run_id, str(folder), "model")
    return int(client.create_model_version(name, f"{run.info.artifact_uri}/model", run.info.run_id).version)


def test_an_alias_and_a_number_lead_to_the_same_version(registry: MlflowRegistry, client: Any, tmp_path: Path) -> None:
    """With aliases and tags, which MLflow's lists leave out."""
    number = register(client, "both-ways", model(), tmp_path)
    client.set_registered_model_alias("both-ways", "champion", number)
    registry.tag("both-ways", number, "headway.release", "r1")

    by_alias = registry.resolve("both-ways", alias="champion")
    by_number = registry.resolve("both-ways", version=number)

    assert by_alias == by_number
    assert by_alias.aliases == ("champion",)
    assert by_alias.tags == {"headway.release": "r1"}
    assert by_alias.source_uri.startswith("s3://mlflow/")


def test_a_real_version_is_selected_and_validated(
    registry: MlflowRegistry, client: Any, s3: S3Server, tmp_path: Path
) -> None:
    """From MLflow through S3 to a shape, with nothing in between faked."""
    register(client, "whole-way", model(), tmp_path)
    weights = S3WeightStore(s3.connection("headway"))

    chosen = select.run("whole-way", registry, weights, version=1)

    assert chosen.layout == "plain"
    assert validate.run(chosen, weights).shape.parameters == 360


def test_a_model_that_was_logged_is_found_at_its_real_address(registry: MlflowRegistry, url: str, s3: S3Server) -> None:
    """MLflow 3 gives `models:/m-...` as the source of what `log_model` registers; the files are in S3 all the same."""
    import mlflow

    class Echo(mlflow.pyfunc.PythonModel):  # type: ignore[misc, unused-ignore]
        def predict(self, context: Any, model_input: list[str]) -> list[str]:
            return model_input

    mlflow.set_tracking_uri(url)
    mlflow.pyfunc.log_model(name="model", python_model=Echo(), registered_model_name="logged", pip_requirements=["pip"])

    assert registry.resolve("logged", version=1).source_uri.startswith("s3://mlflow/")
    with pytest.raises(ModelRejected, match="flavours python_function"):
        select.run("logged", registry, S3WeightStore(s3.connection("headway")), version=1)


def test_a_version_whose_files_are_gone_is_refused(
    registry: MlflowRegistry, client: Any, s3: S3Server, tmp_path: Path
) -> None:
    """The registry still lists it."""
    register(client, "emptied", model(), tmp_path)
    source = registry.resolve("emptied", version=1).source_uri
    admin = s3.client()
    for item in list(admin.list(source + "/")):
        admin.delete(item.uri)

    with pytest.raises(ModelRejected, match="no file"):
        select.run("emptied", registry, S3WeightStore(s3.connection("headway")), version=1)


def test_what_does_not_exist_is_answered_with_what_does(registry: MlflowRegistry, client: Any, tmp_path: Path) -> None:
    """A typing mistake is corrected at once."""
    number = register(client, "llama-tiny", model(), tmp_path)
    client.set_registered_model_alias("llama-tiny", "champion", number)

    with pytest.raises(NotFound, match="did you mean `llama-tiny`"):
        registry.resolve("lama-tiny", alias="champion")
    with pytest.raises(NotFound, match=r"aliases: champion \(version 1\)"):
        registry.resolve("llama-tiny", alias="champ")
    with pytest.raises(NotFound, match="versions: 1"):
        registry.resolve("llama-tiny", version=7)


def test_a_deleted_version_is_not_found(registry: MlflowRegistry, client: Any, tmp_path: Path) -> None:
    """By number and by the alias that it had."""
    number = register(client, "deleted", model(), tmp_path)
    client.set_registered_model_alias("deleted", "champion", number)
    client.delete_model_version("deleted", str(number))

    with pytest.raises(NotFound, match="all were deleted"):
        registry.resolve("deleted", version=number)
    with pytest.raises(NotFound):
        registry.resolve("deleted", alias="champion")


def test_tags_are_set_replaced_and_removed(registry: MlflowRegistry, client: Any, tmp_path: Path) -> None:
    """The state of a version is kept in them."""
    number = register(client, "tagged", model(), tmp_path)
    registry.tag("tagged", number, "headway.state", "a" * 4000)
    registry.tag("tagged", number, "headway.state", "b")
    assert dict(registry.tags("tagged", number)) == {"headway.state": "b"}

    registry.untag("tagged", number, "headway.state")
    registry.untag("tagged", number, "headway.state")
    assert dict(registry.tags("tagged", number)) == {}


def test_tags_of_an_unknown_version_are_not_found(registry: MlflowRegistry) -> None:
    """One of headway's errors, not MLflow's."""
    with pytest.raises(NotFound):
        registry.tags("no-such-model", 1)
    with pytest.raises(NotFound):
        registry.tag("no-such-model", 1, "a", "b")


def test_a_release_has_one_run_however_often_it_is_recorded(
    registry: MlflowRegistry, client: Any, s3: S3Server, url: str
) -> None:
    """A retried step finds the first try's run; the report is there to be opened."""
    numbers = {"ttft_p50_ms": 12.5, "check_stable's_ppl": 1.0}
    first = registry.log_report("m", 1, "rel-1", numbers, {"report.html": b"<p>one</p>"})
    files = {"report.html": b"<p>two</p>", "a/b.txt": b"x"}
    second = registry.log_report("m", 1, "rel-1", {"ttft_p50_ms": 12.5}, files)
    other = registry.log_report("m", 1, "rel-2", {}, {})

    assert first == second != other
    run_id = first.rsplit("/", 1)[1]
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags[RELEASE_TAG]) == ("FINISHED", "rel-1")
    assert run.data.metrics == {"ttft_p50_ms": 12.5, "check_stables_ppl": 1.0}, "names in MLflow's characters"
    assert len(client.get_metric_history(run_id, "ttft_p50_ms")) == 1
    assert s3.client("mlflow").read(f"{run.info.artifact_uri}/report.html") == b"<p>two</p>"
    assert {item.path for item in client.list_artifacts(run_id)} == {"a", "report.html"}
    with urllib.request.urlopen(f"{url}/get-artifact?run_uuid={run_id}&path=report.html") as answer:  # noqa: S310 - loopback
        assert answer.read() == b"<p>two</p>", "the page in MLflow shows it"


def test_a_dead_server_is_unavailable_within_ten_seconds() -> None:
    """A step's retry does the waiting; MLflow's own would be minutes."""
    [port] = free_ports(1)
    registry = MlflowRegistry(f"http://127.0.0.1:{port}")
    started = monotonic()

    with pytest.raises(BackendUnavailable):
        registry.resolve("m", alias="champion")
    assert monotonic() - started < 10


def test_a_server_that_is_no_mlflow_is_refused_or_unavailable(s3: S3Server) -> None:
    """A wrong address is one of headway's errors too."""
    with pytest.raises((BackendUnavailable, NotFound, Refused)):
        MlflowRegistry(s3.endpoint).tags("m", 1)


def test_every_code_of_mlflow_that_its_registry_gives_is_mapped() -> None:
    """Those that are missing here belong to other parts of MLflow."""
    from mlflow.protos.databricks_pb2 import ErrorCode

    assert CODES.keys() <= {*ErrorCode.keys()}
