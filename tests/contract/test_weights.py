"""What every `WeightStore` adapter promises."""

import hashlib

import pytest

from headway.domain.weights import Manifest, WeightFile
from headway.errors import NotFound
from tests.contract.conftest import WeightsCase

DIGEST = "d" * 64
MANIFEST = Manifest(
    artifact_digest=DIGEST, files=(WeightFile(path="a", size_bytes=1, sha256="a" * 64, parts=("b" * 64,)),)
)


def test_objects_below_a_folder_come_sorted_with_their_sizes(weights: WeightsCase) -> None:
    """A folder whose name only begins alike is another folder."""
    for name in ("m/one/b", "m/one/a/c", "m/one-more/x"):
        weights.put(f"s3://mlflow/{name}", name.encode())

    found = weights.port.list("s3://mlflow/m/one/")

    assert [item.uri for item in found] == ["s3://mlflow/m/one/a/c", "s3://mlflow/m/one/b"]
    assert [item.size_bytes for item in found] == [9, 7]
    assert weights.port.list("s3://mlflow/none/") == []


def test_a_stretch_is_read_exactly(weights: WeightsCase) -> None:
    """Also when it reaches beyond the end."""
    weights.put("s3://mlflow/x", b"0123456789")

    assert weights.port.read("s3://mlflow/x") == b"0123456789"
    assert weights.port.read("s3://mlflow/x", start=3, length=4) == b"3456"
    assert weights.port.read("s3://mlflow/x", start=8, length=40) == b"89"
    with pytest.raises(NotFound):
        weights.port.read("s3://mlflow/none")


def test_what_was_put_is_read_and_replaced(weights: WeightsCase) -> None:
    """Twice is fine."""
    for body in (b"one", b"two", b"two"):
        weights.port.put("s3://headway/bench/r/basis.json", body)
        assert weights.port.read("s3://headway/bench/r/basis.json") == body


def test_a_digest_is_of_the_bytes_and_of_these_bytes(weights: WeightsCase) -> None:
    """A replaced object has another one."""
    for body in (b"one", b"two"):
        weights.put("s3://mlflow/h/x", body)
        [item] = weights.port.list("s3://mlflow/h/")
        assert weights.port.sha256(item) == weights.port.sha256(item) == hashlib.sha256(body).hexdigest()


def test_an_artifact_is_there_with_its_manifest_and_gone_without(weights: WeightsCase) -> None:
    """Deleting twice is fine."""
    assert weights.port.manifest(DIGEST) is None
    weights.publish(MANIFEST)
    assert weights.port.manifest(DIGEST) == MANIFEST

    weights.port.delete(DIGEST)
    weights.port.delete(DIGEST)
    assert weights.port.manifest(DIGEST) is None


def test_addresses_are_those_that_programs_use(weights: WeightsCase) -> None:
    """Below headway's bucket, with a slash at the end; absent documents are none."""
    assert weights.port.artifact_uri(DIGEST) == f"s3://headway/artifacts/{DIGEST}/"
    assert weights.port.json("references/none.json") is None
    weights.put("s3://headway/x", b"1")
    assert weights.port.get_url("s3://headway/x").startswith("http")
