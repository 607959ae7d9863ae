"""What headway makes is signed, with where it comes from; a node takes nothing that is not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import headway
from headway.domain.model import SourceFile
from headway.domain.profile import Quality
from headway.domain.provenance import payload, provenance
from headway.domain.value import canonical_json
from headway.domain.weight_jobs import QuantizeJob
from headway.domain.weights import SCHEMA, Manifest, Recipe
from headway.errors import ConfigError, IntegrityError, Refused
from headway.pods import attest, publish
from tests.signing import key_pair

RECIPE = Recipe(scheme="w4a16-gptq", calibration_digest="c" * 64, group_size=64)
JOB = QuantizeJob(
    source_digest="a" * 64,
    files=(SourceFile(path="model.safetensors", uri="s3://mlflow/1/model.safetensors", size_bytes=1, sha256="b" * 64),),
    recipe=RECIPE,
    artifact_digest="d" * 64,
    artifact_uri="s3://headway/artifacts/d/",
    reference_uri="s3://headway/references/a.json",
    texts=("x",),
    prompt_set_digest="e" * 64,
    quality=Quality(),
)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The directory of an artifact."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def made(artifact: Path, key: Path | None) -> Manifest:
    """Make the manifest as the quantize program does."""
    environment = {attest.SIGNING_KEY: str(key)} if key else {}
    return attest.manifest_of(JOB, publish.list_files(artifact), {"torch": "2.13.0"}, environment)


def node(key: Path) -> dict[str, str]:
    """The environment of the stage program on a node that knows this key's public half."""
    return {attest.ARTIFACT_KEY: str(key.with_suffix(".pub"))}


def read_back(manifest: Manifest, **changes: Any) -> Manifest:
    """Store and read a manifest, with fields changed by somebody."""
    return Manifest.model_validate({**json.loads(canonical_json(manifest)), **changes})


def test_a_signed_artifact_is_taken_and_named_by_its_key(artifact: Path, tmp_path: Path) -> None:
    """Also after a trip through the store."""
    key = key_pair(tmp_path, "model")
    manifest = made(artifact, key)

    assert attest.require_signed(read_back(manifest), node(key)) == attest.require_signed(manifest, node(key))
    assert manifest.content_digest == made(artifact, None).content_digest, "a signature changes no name"


def test_model_signing_itself_accepts_the_artifact(artifact: Path, tmp_path: Path) -> None:
    """Anybody can verify with the standard tool what lies on a node, and no change gets through."""
    key = key_pair(tmp_path, "model")
    signature = tmp_path / "model.sig"
    signature.write_text(json.dumps(made(artifact, key).statement))
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(artifact)]
    command += ["--signature", str(signature), "--public_key", str(key.with_suffix(".pub"))]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (artifact / "config.json").write_bytes(b"other")
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode != 0


def test_the_provenance_names_everything_that_went_in(artifact: Path, tmp_path: Path) -> None:
    """Source, each of its files, recipe, calibration texts, tools: under the signature."""
    manifest = made(artifact, key_pair(tmp_path, "model"))
    build, run = manifest.provenance["buildDefinition"], manifest.provenance["runDetails"]
    inputs = {item["name"]: item for item in build["resolvedDependencies"]}

    assert inputs["source"]["digest"]["sha256"] == JOB.source_digest
    assert inputs["model.safetensors"]["uri"] == JOB.files[0].uri
    assert inputs["calibration"]["digest"]["sha256"] == RECIPE.calibration_digest
    assert Recipe.model_validate(build["externalParameters"]["recipe"]) == RECIPE
    assert run["builder"]["version"] == {"headway": headway.__version__, "torch": "2.13.0"}
    signed = json.loads(payload(manifest))
    assert signed["predicate"]["provenance"] == manifest.provenance
    assert payload(manifest) == payload(made(artifact, None)), "the same input gives the same statement"


@pytest.mark.parametrize(
    "change",
    [
        {"artifact_digest": "f" * 64},
        {"files": []},
        {"files": [{"path": "config.json", "size_bytes": 1, "sha256": "0" * 64, "parts": []}]},
        {"provenance": {}},
        {"provenance": provenance(source_digest="0" * 64, files=(), recipe=RECIPE, tools={}, headway="1")},
    ],
)
def test_a_good_signature_is_good_for_its_own_artifact_only(
    artifact: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Neither for another name, nor for other files, nor for another story of where they come from."""
    key = key_pair(tmp_path, "model")

    with pytest.raises(IntegrityError, match="not for what the manifest says"):
        attest.require_signed(read_back(made(artifact, key), **change), node(key))


def test_the_unsigned_and_the_wrongly_signed_are_refused(artifact: Path, tmp_path: Path) -> None:
    """Nothing of them gets to the node."""
    key, other = key_pair(tmp_path, "model"), key_pair(tmp_path, "other")

    with pytest.raises(Refused, match="not signed"):
        attest.require_signed(made(artifact, None), node(key))
    with pytest.raises(Refused, match="does not verify"):
        attest.require_signed(made(artifact, other), node(key))
    manifest = made(artifact, key)
    assert manifest.statement is not None
    for broken in (
        {},
        {"dsseEnvelope": 3},
        {"dsseEnvelope": {**manifest.statement["dsseEnvelope"], "signatures": []}},
        {"dsseEnvelope": {**manifest.statement["dsseEnvelope"], "payload": "%"}},
    ):
        with pytest.raises(IntegrityError, match="no signature bundle"):
            attest.require_signed(read_back(manifest, statement=broken), node(key))
    for field, value in (("payloadType", "text/plain"), ("payload", "e30=")):
        changed = {"dsseEnvelope": {**manifest.statement["dsseEnvelope"], field: value}}
        with pytest.raises(Refused, match="does not verify"):
            attest.require_signed(read_back(manifest, statement=changed), node(key))


def test_without_a_key_nobody_signs_and_nobody_looks(artifact: Path, tmp_path: Path) -> None:
    """A deployment that has no keys works as before."""
    assert made(artifact, None).statement is None
    assert attest.require_signed(made(artifact, None), {}) is None
    assert attest.require_signed(made(artifact, key_pair(tmp_path, "model")), {}) is None


def test_keys_can_be_changed(artifact: Path, tmp_path: Path) -> None:
    """Nodes know the old and the new one for a while."""
    old, new = key_pair(tmp_path, "old"), key_pair(tmp_path, "new")
    both = tmp_path / "both.pub"
    both.write_bytes(old.with_suffix(".pub").read_bytes() + new.with_suffix(".pub").read_bytes())

    used = {attest.require_signed(made(artifact, key), {attest.ARTIFACT_KEY: str(both)}) for key in (old, new)}
    assert len(used) == 2


def test_keys_that_cannot_be_used_are_named_and_never_shown(artifact: Path, tmp_path: Path) -> None:
    """A deployment that wants signatures makes no unsigned artifact by mistake."""
    text, large = tmp_path / "text.pem", key_pair(tmp_path, "large", ec.SECP384R1())
    text.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")

    for path in (tmp_path / "absent.pem", text, large):
        with pytest.raises(ConfigError, match=path.name) as caught:
            made(artifact, path)
        assert "c2VjcmV0" not in str(caught.value)
    for path in (tmp_path / "absent.pub", text, large.with_suffix(".pub")):
        with pytest.raises(ConfigError, match=path.name):
            attest.require_signed(made(artifact, None), {attest.ARTIFACT_KEY: str(path)})


def test_older_manifests_are_read_and_newer_ones_are_named() -> None:
    """Version N reads N-1."""
    older = {"schema_version": 1, "artifact_digest": "d" * 64, "files": [], "provenance": {"scheme": "none"}}
    assert Manifest.model_validate(older).statement is None

    with pytest.raises(ValueError, match=f"schema {SCHEMA + 1}.*a newer headway wrote it"):
        Manifest.model_validate({**older, "schema_version": SCHEMA + 1, "invented": 1})
