"""What every `Signatures` adapter promises."""

import hashlib
import json
from pathlib import Path

import pytest

from headway.domain.profile import Signer
from headway.errors import ConfigError, ModelRejected
from tests.contract.conftest import SignaturesCase

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]"}


def test_a_good_signature_names_its_signer_and_every_file(signatures: SignaturesCase) -> None:
    """The digests are compared by whoever knows the files; here nothing but the signature is read."""
    signed = signatures.port.verify(signatures.sign(FILES, "model"), Signer(public_key="model.pub"))

    assert signed.by.startswith("key ")
    assert signed.files == {name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()}


def test_another_key_is_refused(signatures: SignaturesCase) -> None:
    """A signature by somebody else is as good as none."""
    with pytest.raises(ModelRejected, match=r"does not verify with `model\.pub`") as caught:
        signatures.port.verify(signatures.sign(FILES, "other"), Signer(public_key="model.pub"))
    assert caught.value.facts["report"]


@pytest.mark.parametrize("bundle", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"verificationMaterial": {}}'])
def test_what_is_no_bundle_is_refused(signatures: SignaturesCase, bundle: bytes) -> None:
    """Whatever somebody uploads as model.sig is an answer, not a stack trace."""
    with pytest.raises(ModelRejected, match="no signature bundle"):
        signatures.port.verify(bundle, Signer(public_key="model.pub"))


def test_a_changed_bundle_is_refused(signatures: SignaturesCase) -> None:
    """One letter of what was signed is enough."""
    bundle = signatures.sign(FILES, "model")
    document = json.loads(bundle)
    envelope = document.get("dsseEnvelope", document)
    field = "payload" if "payload" in envelope else "told"
    envelope[field] = envelope[field].replace("a", "b", 1)

    with pytest.raises(ModelRejected):
        signatures.port.verify(json.dumps(document).encode(), Signer(public_key="model.pub"))


def test_a_key_that_is_not_there_is_the_profile_s_fault(signatures: SignaturesCase) -> None:
    """And nothing that the model's owner could correct."""
    with pytest.raises(ConfigError, match=r"absent\.pub"):
        signatures.port.verify(signatures.sign(FILES, "model"), Signer(public_key="absent.pub"))


def test_paths_of_keys_belong_to_the_folder(signatures: SignaturesCase, tmp_path: Path) -> None:
    """Wherever the process runs."""
    assert signatures.port.verify(signatures.sign(FILES, "other"), Signer(public_key="other.pub")).files
