"""Writes the tensors of a directory as shards that depend on the tensors alone.

llm-compressor writes its result in two ways (with the model loaded, or file by file), and transformers changes its
rules of sharding between versions. Here the same tensors give the same files, so that a result has one digest.
"""

import json
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from headway.domain.safetensors import ITEM_BITS, LENGTH_BYTES, HeaderError, Tensor, header_length, parse_header
from headway.errors import IntegrityError
from headway.units import GIB, MIB

SHARD_BYTES = 4 * GIB
"""Tensors of one file; few enough to fetch several files side by side, many enough to keep their number small."""
COPY_BYTES = 16 * MIB
ALIGNMENT = 8
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Placed(NamedTuple):
    """A tensor, and where its bytes are."""

    tensor: Tensor
    path: Path
    body_start: int
    stored: str | None = None
    """The dtype that it gets when it is written; none: its own."""

    @property
    def dtype(self) -> str:
        """Return the dtype as it is written."""
        return self.stored or self.tensor.dtype

    @property
    def size_bytes(self) -> int:
        """Return the size as it is written."""
        return self.tensor.items * ITEM_BITS[self.dtype] // 8


def rewrite(
    source: Path,
    target: Path,
    *,
    drop: Collection[str] = (),
    narrow: Callable[[str], str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write all tensors of one directory to another one, sorted, with an index if there are several files.

    Args:
        source: Directory with safetensors files. Each is deleted after its last tensor was copied.
        target: Directory that gets the files.
        drop: Names of tensors to leave out.
        narrow: Gives the dtype (`BF16` or `F16`) in which an `F32` tensor is stored, none for one that stays.
        shard_bytes: Most bytes of one file, unless a tensor is larger.

    Raises:
        IntegrityError: A file is no whole safetensors file, or a tensor is there twice.
    """
    placed = {
        name: where._replace(stored=narrow(name)) if narrow and where.tensor.dtype == "F32" else where
        for name, where in locate(source).items()
        if name not in drop
    }
    shards = _shards([placed[name] for name in sorted(placed)], shard_bytes)
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    )
    left = Counter(where.path for where in placed.values())
    for name, shard in zip(names, shards, strict=True):
        _write(target / name, shard)
        left.subtract(where.path for where in shard)
        for path in {where.path for where in shard if not left[where.path]}:
            path.unlink()
    if len(shards) > 1:
        total = sum(where.size_bytes for where in placed.values())
        weight_map = {where.tensor.name: name for name, shard in zip(names, shards, strict=True) for where in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def locate(folder: Path) -> dict[str, Placed]:
    """Return every tensor of a directory by name.

    Raises:
        IntegrityError: A file is no whole safetensors file, or two files have a tensor of one name.
    """
    found: dict[str, Placed] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for where in _tensors(path):
            known = found.setdefault(where.tensor.name, where)
            if known is not where:
                raise IntegrityError(f"tensor {where.tensor.name} is in {known.path.name} and in {path.name}")
    return found


def _tensors(path: Path) -> Iterator[Placed]:
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            header = file.read(header_length(file.read(LENGTH_BYTES), size))
            for tensor in parse_header(header, size):
                yield Placed(tensor, path, LENGTH_BYTES + len(header))
    except HeaderError as error:
        raise IntegrityError(f"{path.name} {error}") from error


def _shards(placed: Sequence[Placed], shard_bytes: int) -> list[list[Placed]]:
    shards: list[list[Placed]] = [[]]
    filled = 0
    for where in placed:
        size = where.size_bytes
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(where)
        filled += size
    return shards


def _write(path: Path, shard: Sequence[Placed]) -> None:
    """Write one file; wide items come first, so that every tensor lies on a multiple of its item's size."""
    ordered = sorted(shard, key=lambda where: (-ITEM_BITS[where.dtype], where.tensor.name))
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for where in ordered:
        size = where.size_bytes
        described[where.tensor.name] = {
            "dtype": where.dtype,
            "shape": list(where.tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    header = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        opened: dict[Path, BinaryIO] = {}
        try:
            for where in ordered:
                if where.path not in opened:
                    opened[where.path] = where.path.open("rb")
                _copy(opened[where.path], out, where)
        finally:
            for file in opened.values():
                file.close()


def _copy(file: BinaryIO, out: BinaryIO, where: Placed) -> None:
    file.seek(where.body_start + where.tensor.start)
    left = where.tensor.end - where.tensor.start
    while left:
        piece = file.read(min(left, COPY_BYTES))
        if not piece:
            raise IntegrityError(f"{where.path.name} became shorter while it was read")
        out.write(piece if where.dtype == where.tensor.dtype else _narrowed(piece, where.dtype))
        left -= len(piece)


def _narrowed(piece: bytes, dtype: str) -> bytes:
    """Round float32 to the nearest, of two that are as near to the even one, as torch does."""
    import numpy as np

    if dtype == "F16":
        return bytes(np.frombuffer(piece, np.float32).astype(np.float16).tobytes())
    # numpy has no bfloat16, the upper half of a float32.
    bits = np.frombuffer(piece, np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return bytes(np.where(nan, 0x7FC0, rounded).astype(np.uint16).tobytes())
