"""An alias becomes one version and a frozen list of files, or a sentence that says what is wrong."""

from typing import Any

import pytest
import yaml

from headway.domain.model import ModelVersion
from headway.errors import ConfigError, ModelRejected, NotFound
from headway.release import select
from tests.fakes import FakeRegistry, FakeWeightStore

ROOT = "s3://mlflow/1/run/artifacts/model/"
PLAIN = {"config.json": b"{}", "model.safetensors": b"w", "tokenizer.json": b"{}"}
FLAVOR = {"model_binary": "model", "source_model_name": "org/name"}


def world(files: dict[str, bytes], source: str = ROOT) -> tuple[FakeRegistry, FakeWeightStore]:
    """A registry with version 3 as champion, whose source has these files."""
    registry = FakeRegistry()
    registry.add(ModelVersion(name="tiny", version=3, source_uri=source.rstrip("/")), "champion")
    return registry, FakeWeightStore(objects={source + path: body for path, body in files.items()})


def mlmodel(flavor: dict[str, Any] | None, **others: Any) -> bytes:
    """An MLmodel file."""
    flavors = {**({"transformers": flavor} if flavor is not None else {}), **others}
    return str(yaml.safe_dump({"flavors": flavors})).encode()


def test_an_alias_is_resolved_once_and_the_files_are_frozen() -> None:
    """Everything after this step speaks of version 3, whatever the alias does."""
    registry, weights = world(PLAIN)

    chosen = select.run("tiny", registry, weights, alias="champion")

    assert (chosen.model.version, chosen.layout, chosen.selected_by) == (3, "plain", "alias champion")
    assert [file.path for file in chosen.files] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert all(file.uri == ROOT + file.path for file in chosen.files)


def test_the_digest_is_of_the_content_not_of_the_address() -> None:
    """The same bytes registered twice are one source."""
    digests = []
    for root in (ROOT, "s3://mlflow/9/other/"):
        registry, weights = world(PLAIN, root)
        digests.append(select.run("tiny", registry, weights, version=3).source_digest)
    registry, weights = world({**PLAIN, "model.safetensors": b"v"})
    digests.append(select.run("tiny", registry, weights, version=3).source_digest)

    assert digests[0] == digests[1] != digests[2]


def test_a_logged_pipeline_is_merged_from_its_two_folders() -> None:
    """MLflow keeps weights and tokenizer apart."""
    registry, weights = world(
        {
            "MLmodel": mlmodel(FLAVOR),
            "conda.yaml": b"x",
            "model/config.json": b"{}",
            "model/model.safetensors": b"w",
            "components/tokenizer/tokenizer.json": b"{}",
            "components/tokenizer/tokenizer_config.json": b"{}",
        }
    )

    chosen = select.run("tiny", registry, weights, alias="champion")

    assert chosen.layout == "transformers"
    assert {file.path: file.uri.removeprefix(ROOT) for file in chosen.files} == {
        "config.json": "model/config.json",
        "model.safetensors": "model/model.safetensors",
        "tokenizer.json": "components/tokenizer/tokenizer.json",
        "tokenizer_config.json": "components/tokenizer/tokenizer_config.json",
    }


def test_a_logged_path_is_complete_by_itself() -> None:
    """MLflow's copy of its tokenizer is written anew and differs; the person's own file counts."""
    registry, weights = world(
        {
            "MLmodel": mlmodel(FLAVOR),
            **{f"model/{path}": body for path, body in PLAIN.items()},
            "components/tokenizer/tokenizer.json": b"rewritten",
        }
    )

    chosen = select.run("tiny", registry, weights, alias="champion")

    assert chosen.layout == "transformers-path"
    assert {file.uri.removeprefix(ROOT) for file in chosen.files} == {f"model/{path}" for path in PLAIN}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no file"),
        ({"README.md": b"x"}, "neither an MLmodel"),
        ({"sub/config.json": b"{}"}, "neither an MLmodel"),
        ({"MLmodel": mlmodel({"source_model_name": "org/name"})}, "reference to `org/name`"),
        ({"MLmodel": mlmodel(None, sklearn={})}, "flavours sklearn"),
        ({"MLmodel": mlmodel(FLAVOR)}, "there is nothing"),
        ({"MLmodel": b"\x00{"}, "cannot be read"),
        ({"MLmodel": b"[]"}, "cannot be read"),
        ({"MLmodel": b"flavors: 3"}, "cannot be read"),
    ],
)
def test_what_is_no_model_is_refused_with_a_reason(files: dict[str, bytes], said: str) -> None:
    """A person reads this in MLflow."""
    registry, weights = world(files)

    with pytest.raises(ModelRejected, match=said) as caught:
        select.run("tiny", registry, weights, alias="champion")
    assert "tiny version 3" in caught.value.message
    assert caught.value.facts["report"]


@pytest.mark.parametrize("source", ["file:///models/a", "dbfs:/a", "mlflow-artifacts:/1/a", "/models/a"])
def test_a_source_that_is_not_in_s3_is_refused(source: str) -> None:
    """Nothing on a node could fetch it."""
    registry, weights = world({}, source)

    with pytest.raises(ModelRejected, match=r"s3://"):
        select.run("tiny", registry, weights, version=3)


def test_what_does_not_exist_is_not_found() -> None:
    """The registry says what there is."""
    registry, weights = world(PLAIN)

    with pytest.raises(NotFound):
        select.run("tiny", registry, weights, alias="challenger")
    with pytest.raises(NotFound):
        select.run("tiny", registry, weights, version=9)


def test_alias_and_version_exclude_each_other() -> None:
    """One of them decides."""
    registry, weights = world(PLAIN)

    with pytest.raises(ConfigError):
        select.run("tiny", registry, weights)
    with pytest.raises(ConfigError):
        select.run("tiny", registry, weights, alias="champion", version=3)


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({**PLAIN, "model.sig": b"s"}, "model.sig"),
        ({"MLmodel": mlmodel(FLAVOR), **{f"model/{p}": b for p, b in PLAIN.items()}, "model.sig": b"s"}, "model.sig"),
        (
            {"MLmodel": mlmodel(FLAVOR), **{f"model/{p}": b for p, b in PLAIN.items()}, "model/model.sig": b"s"},
            "model/model.sig",
        ),
    ],
)
def test_a_signature_is_taken_aside(files: dict[str, bytes], place: str) -> None:
    """It names no content: signing a model makes no other model of it."""
    registry, weights = world(files)
    chosen = select.run("tiny", registry, weights, version=3)

    assert chosen.signature is not None
    assert chosen.signature.uri == ROOT + place
    assert {file.path for file in chosen.files} == set(PLAIN)
    registry, weights = world({path: body for path, body in files.items() if not path.endswith("model.sig")})
    unsigned = select.run("tiny", registry, weights, version=3)
    assert unsigned.signature is None
    assert unsigned.source_digest == chosen.source_digest


def test_two_signatures_that_differ_are_one_too_many() -> None:
    """Nobody could say which of them counts."""
    files = {"MLmodel": mlmodel(FLAVOR), **{f"model/{p}": b for p, b in PLAIN.items()}, "model/model.sig": b"s"}
    registry, weights = world({**files, "model.sig": b"s"})
    assert select.run("tiny", registry, weights, version=3).signature is not None

    registry, weights = world({**files, "model.sig": b"t"})
    with pytest.raises(ModelRejected, match="two different signatures"):
        select.run("tiny", registry, weights, version=3)
