"""What a safetensors header says, and whether it tells the truth about its file.

Format: 8 bytes little-endian length, a JSON header, then the tensors without gaps
(https://github.com/huggingface/safetensors, "Format").
"""

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.domain import strict_json
from headway.units import MIB

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * MIB
"""The limit of the reference implementation."""

MAX_NUMBER = 2**64 - 1
MAX_DIMENSIONS = 64

ITEM_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class Tensor(NamedTuple):
    """One tensor as a header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def items(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


class HeaderError(ValueError):
    """The header is not what the format asks for; the text says why."""


def header_length(first: bytes, file_bytes: int) -> int:
    """Return the length of the JSON header from the first eight bytes of a file.

    Raises:
        HeaderError: It is not a safetensors file, or it is cut.
    """
    if len(first) < LENGTH_BYTES:
        raise HeaderError(f"is {file_bytes} bytes long, too short for a safetensors file")
    length: int = struct.unpack("<Q", first[:LENGTH_BYTES])[0]
    # Only a length that cannot be true is looked at again: 640 bytes, say, begins like a pickle of protocol 2.
    looks_pickled = first[:2] == b"PK" or (first[0] == 0x80 and first[1] in range(2, 6))
    if looks_pickled and (length > MAX_HEADER_BYTES or LENGTH_BYTES + length > file_bytes):
        raise HeaderError("is a pickle with the name of a safetensors file; loading it would run its code")
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"claims a header of {length} bytes; it is no safetensors file")
    if LENGTH_BYTES + length > file_bytes:
        raise HeaderError(f"claims a header of {length} bytes and is {file_bytes} bytes long; it was cut off")
    return length


def parse_header(header: bytes, file_bytes: int) -> list[Tensor]:
    """Return the tensors of a header, in the order of their offsets.

    Args:
        header: The JSON header.
        file_bytes: Size of the whole file.

    Raises:
        HeaderError: It contradicts the format or the file.
    """
    if header[:1] != b"{":
        raise HeaderError("has a header that does not begin with `{`")
    try:
        described = strict_json.parse(header)
    except ValueError as error:
        raise HeaderError(f"has a header that is no JSON ({error})") from error
    metadata = described.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("has `__metadata__` that is no mapping of texts")
    tensors = [_tensor(name, value) for name, value in described.items() if name != "__metadata__"]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    position = 0
    for tensor in tensors:
        if tensor.start != position:
            where = f"byte {tensor.start}, expected {position}"
            raise HeaderError(f"has a gap or an overlap before tensor {tensor.name} ({where})")
        position = tensor.end
    body = file_bytes - LENGTH_BYTES - len(header)
    if position != body:
        raise HeaderError(f"describes {position} bytes of tensors and holds {body}; it was cut off or has bytes added")
    return tensors


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, Mapping) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"describes tensor {name} without dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise HeaderError(f"has tensor {name} of the unknown dtype {dtype!r}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise HeaderError(f"describes tensor {name} with a shape or offsets that are no natural numbers")
    # Beyond 64 bits the reference implementation overflows, and no file is that large.
    if len(shape) > MAX_DIMENSIONS:
        raise HeaderError(f"describes tensor {name} with {len(shape)} dimensions; at most {MAX_DIMENSIONS} are read")
    if max([*shape, *offsets], default=0) > MAX_NUMBER or math.prod(shape) > MAX_NUMBER:
        raise HeaderError(f"describes tensor {name} with a shape or offsets beyond 64 bits")
    tensor = Tensor(name, dtype, tuple(shape), offsets[0], offsets[1])
    bits = tensor.items * ITEM_BITS[dtype]
    if bits % 8 or tensor.end - tensor.start != bits // 8:
        raise HeaderError(
            f"has tensor {name} of {dtype}{list(shape)}, which is {bits // 8} bytes, in {tensor.end - tensor.start}"
        )
    return tensor


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
