"""A model is served if whoever the profile names has signed every file of it, as model-signing signs."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from headway.adapters.signatures import ModelSignatures
from headway.domain.model import ModelVersion
from headway.domain.profile import Signer, Weights
from headway.domain.release import Validated
from headway.errors import ConfigError, ModelRejected
from headway.release import select, validate
from tests.fakes import FakeRegistry, FakeWeightStore
from tests.signing import authority, key_pair, sign_with_certificate, sign_with_key
from tests.unit.test_validate import model

ROOT = "s3://mlflow/1/run/artifacts/model/"
SIGNED = Weights(signer=Signer(public_key="model.pub"))
WELCOME = Weights(signer=Signer(public_key="model.pub", required=False))
MLMODEL = str(yaml.safe_dump({"flavors": {"transformers": {"model_binary": "model"}}})).encode()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """The key of whoever signs models."""
    return key_pair(tmp_path, "model")


def check(folder: Path, files: Mapping[str, bytes], rules: Weights | None = SIGNED) -> Validated:
    """Select and validate a version with these files, as a release does."""
    registry = FakeRegistry()
    registry.add(ModelVersion(name="tiny", version=1, source_uri=ROOT))
    weights = FakeWeightStore(objects={ROOT + path: body for path, body in files.items()})
    chosen = select.run("tiny", registry, weights, version=1)
    return validate.run(chosen, weights, rules, ModelSignatures(folder))


def findings(folder: Path, files: Mapping[str, bytes], rules: Weights | None = SIGNED) -> list[str]:
    """Return why such a version is refused."""
    with pytest.raises(ModelRejected) as caught:
        check(folder, files, rules)
    report: list[str] = caught.value.facts["report"]
    return report


def test_a_signed_model_passes_and_the_report_says_by_whom(tmp_path: Path, private: Path) -> None:
    """The name of the key is the one that model-signing prints."""
    files = model()
    checked = check(tmp_path, {**files, "model.sig": sign_with_key(files, private, tmp_path / "m")})

    assert checked.signed_by is not None
    assert checked.signed_by.startswith("key ")
    assert f"signed by {checked.signed_by}" in checked.checks


def test_without_a_signer_nobody_looks_and_the_report_says_so(tmp_path: Path) -> None:
    """A signature that nobody verified is no proof of anything."""
    checked = check(tmp_path, {**model(), "model.sig": b"anything"}, Weights())

    assert checked.signed_by is None
    assert validate.NO_SIGNER in checked.checks
    assert validate.NO_SIGNER not in check(tmp_path, model(), Weights()).checks


def test_an_unsigned_model_is_refused_only_where_a_signature_is_required(tmp_path: Path, private: Path) -> None:
    """But a wrong signature always is."""
    assert any("is not signed" in finding for finding in findings(tmp_path, model()))
    assert check(tmp_path, model(), WELCOME).signed_by is None
    assert findings(tmp_path, {**model(), "model.sig": b"{}"}, WELCOME)


def test_one_bit_of_any_file_is_enough(tmp_path: Path, private: Path) -> None:
    """Weights too: their digest was taken when they were selected."""
    files = model()
    signature = sign_with_key(files, private, tmp_path / "m")
    for name, body in files.items():
        flipped = body[:-1] + bytes([body[-1] ^ 1])
        report = findings(tmp_path, {**files, name: flipped, "model.sig": signature})
        assert any(f"`{name}` is not what was signed" in finding for finding in report), (name, report)


def test_wrong_signers_extra_and_missing_files_are_named(tmp_path: Path, private: Path) -> None:
    """Each in a sentence that says what to do."""
    files = model()
    other = sign_with_key(files, key_pair(tmp_path, "other"), tmp_path / "m")
    good = sign_with_key(files, private, tmp_path / "m")
    more = sign_with_key({**files, "generation_config.json": b"{}"}, private, tmp_path / "m")

    assert any("does not verify" in f for f in findings(tmp_path, {**files, "model.sig": other}))
    assert any("`extra.json` is not signed" in f for f in findings(
        tmp_path, {**files, "extra.json": b"{}", "model.sig": good}
    ))  # fmt: skip
    assert any("`generation_config.json` is signed and missing" in f for f in findings(
        tmp_path, {**files, "model.sig": more}
    ))  # fmt: skip


def test_documents_may_be_left_behind(tmp_path: Path, private: Path) -> None:
    """MLflow does not take them along, and no engine reads them."""
    documents = {"README.md": b"# It", "LICENSE": b"free", ".gitattributes": b"*", "plots/loss.png": b"p"}
    signature = sign_with_key({**model(), **documents}, private, tmp_path / "m")

    assert check(tmp_path, {**model(), "model.sig": signature}).signed_by


def test_a_local_folder_s_signature_survives_log_model(tmp_path: Path, private: Path) -> None:
    """MLflow copies it below model/ and writes the tokenizer once more beside it."""
    files = model()
    stored = {
        "MLmodel": MLMODEL,
        **{f"model/{path}": body for path, body in files.items()},
        "components/tokenizer/tokenizer.json": b"rewritten",
        "model.sig": sign_with_key(files, private, tmp_path / "m"),
    }

    assert check(tmp_path, stored).signed_by


def test_a_whole_version_can_be_signed_too(tmp_path: Path, private: Path) -> None:
    """With the paths that MLflow gave it; what no engine reads may be missing, what it reads may not."""
    files = model()
    split = {
        "MLmodel": MLMODEL,
        "conda.yaml": b"c",
        "model/config.json": files["config.json"],
        "model/model.safetensors": files["model.safetensors"],
        "components/tokenizer/config.json": b"another",
        "components/tokenizer/tokenizer.json": files["tokenizer.json"],
        "components/tokenizer/tokenizer_config.json": files["tokenizer_config.json"],
    }
    signature = sign_with_key(split, private, tmp_path / "m")

    assert check(tmp_path, {**split, "model.sig": signature}).signed_by
    without = {path: body for path, body in split.items() if path != "conda.yaml"}
    assert check(tmp_path, {**without, "model.sig": signature}).signed_by
    del without["components/tokenizer/tokenizer_config.json"]
    assert any("signed and missing" in f for f in findings(tmp_path, {**without, "model.sig": signature}))
    moved = {**split, "components/tokenizer/added_tokens.json": b"{}", "model.sig": signature}
    assert any("added_tokens.json` is not signed" in f for f in findings(tmp_path, moved))


def test_a_certificate_that_a_trusted_root_issued_is_as_good_as_a_key(tmp_path: Path) -> None:
    """And the report names whom it was issued to."""
    root, certificate, private = authority(tmp_path, "alice")
    foreign, foreign_certificate, foreign_private = authority(tmp_path, "mallory")
    rules = Weights(signer=Signer(certificate_chain=(root.name,)))
    files = model()

    good = sign_with_certificate(files, private, certificate, [root], tmp_path / "m")
    checked = check(tmp_path, {**files, "model.sig": good}, rules)
    assert checked.signed_by is not None
    assert "CN=alice" in checked.signed_by
    bad = sign_with_certificate(files, foreign_private, foreign_certificate, [foreign], tmp_path / "m")
    assert any("does not verify" in f for f in findings(tmp_path, {**files, "model.sig": bad}, rules))


def test_a_signature_outlives_its_certificate(tmp_path: Path) -> None:
    """As with model-signing itself. Whoever is no longer trusted is taken out by the root."""
    root, certificate, private = authority(tmp_path, "bob", days=-10)
    files = model()
    signature = sign_with_certificate(files, private, certificate, [root], tmp_path / "m")
    rules = Weights(signer=Signer(certificate_chain=(root.name,)))

    assert check(tmp_path, {**files, "model.sig": signature}, rules).signed_by


def test_a_signature_of_the_other_kind_is_refused(tmp_path: Path, private: Path) -> None:
    """A key where certificates are trusted, and the other way round."""
    root, certificate, issued = authority(tmp_path, "alice")
    files = model()
    by_key = sign_with_key(files, private, tmp_path / "m")
    by_certificate = sign_with_certificate(files, issued, certificate, [root], tmp_path / "m")

    assert findings(tmp_path, {**files, "model.sig": by_key}, Weights(signer=Signer(certificate_chain=(root.name,))))
    assert findings(tmp_path, {**files, "model.sig": by_certificate})


@pytest.mark.parametrize(
    ("algorithm", "shard_bytes", "said"), [("blake2", 0, "blake2"), ("sha256", 64, "without shards")]
)
def test_only_whole_files_by_sha256_can_be_compared(
    tmp_path: Path, private: Path, algorithm: str, shard_bytes: int, said: str
) -> None:
    """Anything else would have to be downloaded; it is refused by name."""
    files = model()
    signature = sign_with_key(files, private, tmp_path / "m", algorithm=algorithm, shard_bytes=shard_bytes)

    assert any(said in finding for finding in findings(tmp_path, {**files, "model.sig": signature}))


def test_larger_curves_verify_too(tmp_path: Path) -> None:
    """Those that model-signing knows."""
    private = key_pair(tmp_path, "big", ec.SECP384R1())
    files = model()
    signed = {**files, "model.sig": sign_with_key(files, private, tmp_path / "m")}

    assert check(tmp_path, signed, Weights(signer=Signer(public_key="big.pub"))).signed_by


def test_a_key_that_cannot_be_read_is_a_fault_of_the_profile(tmp_path: Path, private: Path) -> None:
    """It names the file, and no model is blamed for it."""
    files = model()
    signed = {**files, "model.sig": sign_with_key(files, private, tmp_path / "m")}
    (tmp_path / "text.pub").write_text("no key")
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    (tmp_path / "other.pub").write_bytes(
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )

    for name in ("absent.pub", "text.pub", "other.pub"):
        with pytest.raises(ConfigError, match=name):
            check(tmp_path, signed, Weights(signer=Signer(public_key=name)))
    with pytest.raises(ConfigError, match="certificates"):
        check(tmp_path, signed, Weights(signer=Signer(certificate_chain=("text.pub",))))
    registry = FakeRegistry()
    registry.add(ModelVersion(name="tiny", version=1, source_uri=ROOT))
    weights = FakeWeightStore(objects={ROOT + path: body for path, body in signed.items()})
    chosen = select.run("tiny", registry, weights, version=1)
    with pytest.raises(ConfigError, match="nothing here can verify"):
        validate.run(chosen, weights, SIGNED)


def test_a_signature_that_is_replaced_meanwhile_is_refused(tmp_path: Path, private: Path) -> None:
    """What was selected is what counts."""
    files = model()
    registry = FakeRegistry()
    registry.add(ModelVersion(name="tiny", version=1, source_uri=ROOT))
    objects = {ROOT + path: body for path, body in files.items()}
    weights = FakeWeightStore(objects={**objects, ROOT + "model.sig": sign_with_key(files, private, tmp_path / "m")})
    chosen = select.run("tiny", registry, weights, version=1)
    weights.objects[ROOT + "model.sig"] = sign_with_key(files, private, tmp_path / "m")

    with pytest.raises(ModelRejected, match="replaced"):
        validate.run(chosen, weights, SIGNED, ModelSignatures(tmp_path))
