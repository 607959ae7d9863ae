"""What every `Objects` adapter promises."""

import pytest

from headway.adapters.s3 import S3Objects
from headway.errors import ConfigError
from headway.ports import Objects


def test_an_absent_document_is_none(objects: Objects) -> None:
    """Not an error: the first tick of a model finds none."""
    assert objects.read("prescale/m/plan.json") is None


def test_a_document_is_replaced_whole(objects: Objects) -> None:
    """What a later run reads is the last that was written, byte for byte, also where it is shorter."""
    objects.write("prescale/m/history.parquet", bytes(range(256)) * 500)
    objects.write("prescale/m/history.parquet", b"\x00short")
    objects.write("prescale/n/history.parquet", b"")

    assert objects.read("prescale/m/history.parquet") == b"\x00short"
    assert objects.read("prescale/n/history.parquet") == b""


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/../b", "a/."])
def test_a_key_that_leads_elsewhere_is_refused(key: str, request: pytest.FixtureRequest) -> None:
    """A model's name must not reach another model's documents."""
    objects = S3Objects(request.getfixturevalue("empty_s3").connection())

    with pytest.raises(ConfigError, match="no key of a document"):
        objects.write(key, b"x")
