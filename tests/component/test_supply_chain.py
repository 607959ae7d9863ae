"""Signed sources and signed artifacts with a real S3, real signatures and the programs' own roles."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.adapters.s3 import S3WeightStore
from headway.adapters.signatures import ModelSignatures
from headway.domain.model import ModelVersion
from headway.domain.profile import Quality, Signer, Weights
from headway.domain.value import canonical_json
from headway.domain.weight_jobs import QuantizeJob, StageJob
from headway.domain.weights import Manifest, Recipe, artifact_digest
from headway.errors import HeadwayError, IntegrityError, ModelRejected, Refused
from headway.pods import attest, publish, stage
from headway.release import select, validate
from tests.component.servers import S3Server, s3_server
from tests.fakes import FakeRegistry
from tests.signing import key_pair, sign_with_key
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.component, pytest.mark.timeout(180)]

ROOT = "s3://mlflow/7/run/artifacts/model/"
RULES = Weights(signer=Signer(public_key="model.pub"))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that vLLM serves."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def quiet(percent: float, message: str) -> None:
    """Progress that nobody watches."""


def test_a_signed_source_is_released_and_a_changed_one_is_not(s3: S3Server, tiny: Path, tmp_path: Path) -> None:
    """From the store's bytes to the report, without a download of the weights."""
    private = key_pair(tmp_path, "model")
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    for name, body in {**files, "model.sig": sign_with_key(files, private, tmp_path / "signed")}.items():
        s3.client().put(ROOT + name, body)
    registry = FakeRegistry()
    registry.add(ModelVersion(name="tiny", version=1, source_uri=ROOT.rstrip("/")))
    store, signatures = S3WeightStore(s3.connection("headway")), ModelSignatures(tmp_path)

    chosen = select.run("tiny", registry, store, version=1)
    checked = validate.run(chosen, store, RULES, signatures)
    assert checked.signed_by is not None

    weights = files["model.safetensors"]
    s3.client().put(ROOT + "model.safetensors", weights[:-1] + bytes([weights[-1] ^ 1]))
    chosen = select.run("tiny", registry, store, version=1)
    with pytest.raises(ModelRejected, match=r"`model\.safetensors` is not what was signed"):
        validate.run(chosen, store, RULES, signatures)


def test_a_node_takes_only_what_the_deployment_signed(
    s3: S3Server, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is refused before the first byte is fetched, whoever wrote it."""
    key, stranger = key_pair(tmp_path, "own"), key_pair(tmp_path, "stranger")
    monkeypatch.setenv(attest.ARTIFACT_KEY, str(key.with_suffix(".pub")))
    files = publish.list_files(tiny)

    def stage_one(mark: str, signed_by: Path | None, **changes: object) -> Path:
        recipe = Recipe(scheme="none")
        digest = artifact_digest(mark * 64, recipe)
        uri = f"s3://headway/artifacts/{digest}/"
        job = QuantizeJob(
            source_digest=mark * 64,
            files=(),
            recipe=recipe,
            artifact_digest=digest,
            artifact_uri=uri,
            reference_uri="s3://headway/references/x.json",
            texts=("x",),
            prompt_set_digest="p",
            quality=Quality(),
        )
        writer = s3.client("quantize")
        publish.upload(writer, tiny, files, uri, quiet)
        manifest = attest.manifest_of(job, files, {}, {attest.SIGNING_KEY: str(signed_by)} if signed_by else {})
        told = {**json.loads(canonical_json(manifest)), **changes}
        writer.put(uri + "manifest.json", canonical_json(Manifest.model_validate(told)))
        folder = tmp_path / mark
        stage.run(
            StageJob(artifact_digest=digest, artifact_uri=uri, dest_root=str(folder)),
            lambda: s3.client("stage"),
            quiet,
        )
        return folder / digest

    assert {path.name for path in stage_one("a", key).iterdir()} == {path.name for path in tiny.iterdir()}
    refusals: list[tuple[str, Path | None, dict[str, object], type[HeadwayError]]] = [
        ("b", None, {}, Refused),
        ("c", stranger, {}, Refused),
        ("d", key, {"provenance": {"source": "elsewhere"}}, IntegrityError),
    ]
    for mark, signer, changes, kind in refusals:
        with pytest.raises(kind):
            stage_one(mark, signer, **changes)
        assert not list((tmp_path / mark).rglob("*.safetensors"))
