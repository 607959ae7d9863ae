"""A header is believed only if it describes its whole file."""

import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain.safetensors import ITEM_BITS, LENGTH_BYTES, HeaderError, header_length, parse_header

NAMES = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=8)
KINDS = st.tuples(st.sampled_from(["F32", "BF16", "F8_E4M3", "I64"]), st.lists(st.integers(0, 5), max_size=3))
TENSORS = st.dictionaries(NAMES, KINDS, max_size=6)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
JSON = st.recursive(LEAVES, lambda x: st.lists(x) | st.dictionaries(st.text(max_size=3), x), max_leaves=8)


def header_of(tensors: dict[str, tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    """Return a true header and the size of its body."""
    described: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        items = 1
        for size in shape:
            items *= size
        end = position + items * ITEM_BITS[dtype] // 8
        described[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    return described, position


def file_of(described: Any, body: int) -> bytes:
    """Return a whole file."""
    header = json.dumps(described).encode()
    return struct.pack("<Q", len(header)) + header + bytes(body)


def parse(content: bytes) -> list[str]:
    """Parse as `validate` does; return the names."""
    length = header_length(content[:LENGTH_BYTES], len(content))
    return [t.name for t in parse_header(content[LENGTH_BYTES : LENGTH_BYTES + length], len(content))]


@given(TENSORS)
def test_every_true_header_is_read(tensors: dict[str, tuple[str, list[int]]]) -> None:
    """No false alarm, empty tensors and empty files included."""
    described, body = header_of(tensors)

    assert sorted(parse(file_of(described, body))) == sorted(tensors)


@given(TENSORS, st.integers(-3, 3).filter(bool))
def test_a_cut_or_a_longer_file_is_found(tensors: dict[str, tuple[str, list[int]]], change: int) -> None:
    """One byte is enough."""
    described, body = header_of(tensors)
    content = file_of(described, body)
    changed = content[:change] if change < 0 else content + bytes(change)

    with pytest.raises(HeaderError):
        parse(changed)


@given(TENSORS, st.integers(1, 9), st.data())
def test_a_moved_tensor_is_found(tensors: dict[str, tuple[str, list[int]]], by: int, data: st.DataObject) -> None:
    """Gaps and overlaps hide bytes."""
    described, body = header_of({**tensors, "full": ("F32", [2])})
    name = data.draw(st.sampled_from(sorted(n for n, t in described.items() if len(set(t["data_offsets"])) == 2)))
    described[name]["data_offsets"] = [offset + by for offset in described[name]["data_offsets"]]

    with pytest.raises(HeaderError):
        parse(file_of(described, body))


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(content: bytes) -> None:
    """Whatever somebody uploads is an answer, not a stack trace."""
    with suppress(HeaderError):
        parse(content)


@given(JSON)
def test_no_json_crashes_the_reader(described: Any) -> None:
    """Nor does any JSON in place of a header."""
    with suppress(HeaderError):
        parse(file_of(described, 0))


@pytest.mark.parametrize(
    "content", [b"\x80\x04\x95" + b"p" * 40, b"PK\x03\x04" + b"x" * 60, b"\x80\x02}q\x00." + b"k" * 20]
)
def test_a_pickle_in_disguise_is_called_one(content: bytes) -> None:
    """A scanner that goes by the name skips it."""
    with pytest.raises(HeaderError, match="pickle"):
        parse(content)


def test_a_header_whose_length_begins_like_a_pickle_is_fine() -> None:
    """640 bytes is 0x0280: the first bytes of a pickle of protocol 2."""
    described, body = header_of({"a": ("F32", [1])})
    header = json.dumps(described).encode().ljust(640)

    assert parse(struct.pack("<Q", 640) + header + bytes(body)) == ["a"]


def test_a_key_that_is_there_twice_is_found() -> None:
    """Two readers might take different ones."""
    one = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    header = f"{{{one},{one}}}".encode()

    with pytest.raises(HeaderError, match="twice"):
        parse(struct.pack("<Q", len(header)) + header + bytes(1))


def test_a_huge_claim_is_not_read() -> None:
    """Eight bytes must not make anybody allocate an exabyte."""
    with pytest.raises(HeaderError):
        header_length(struct.pack("<Q", 2**62), 2**63)
