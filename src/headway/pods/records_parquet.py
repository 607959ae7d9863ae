"""The records as one Parquet table, for whoever looks at them with pandas, DuckDB or the like.

A row is a request, a column is a field of `RequestRecord`; the header and the summaries of the blocks are in the
schema's metadata. Nothing is lost: `judge.records.write(read(write(content)))` is `content`, so the digest of the
JSON lines names this file's content too, and a decision replayed from either is the same.
"""

import json
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import ValidationError
from pydantic_core import from_json

from headway.domain.bench import BlockSummary, RequestRecord
from headway.errors import IntegrityError
from headway.judge import records as record_rules
from headway.judge.records import SCHEMA, Run

MAGIC = b"PAR1"
"""First bytes of every Parquet file."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
"""What reading may end in where bytes are damaged: Arrow checks little of what a file says of itself."""
RUN_KEY, BLOCKS_KEY = b"headway.run", b"headway.blocks"
TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
}


def schema() -> pa.Schema:
    """Return the table's schema, which follows from the fields of `RequestRecord`."""
    return pa.schema([_field(name, info.annotation) for name, info in RequestRecord.model_fields.items()])


def write(content: bytes) -> bytes:
    """Return the Parquet file of a records file in JSON lines.

    Raises:
        IntegrityError: `content` is no records file.
    """
    run = record_rules.parse(content)
    header = {"schema_version": SCHEMA, "job_digest": run.job_digest}
    metadata = {
        RUN_KEY: json.dumps(header).encode(),
        BLOCKS_KEY: json.dumps([summary.to_json() for summary in run.summaries], ensure_ascii=False).encode(),
    }
    try:
        table = pa.Table.from_pylist(record_rules.rows(run.records), schema=schema().with_metadata(metadata))
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise IntegrityError(f"the records hold a value that no Parquet column can: {error}") from error
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def read(content: bytes) -> Run:
    """Return the run of a Parquet file.

    Raises:
        IntegrityError: It is cut, damaged, or no table of records.
    """
    try:
        table = pq.read_table(BytesIO(content), page_checksum_verification=True)
        metadata = table.schema.metadata or {}
        odd = _odd(table.schema)
    except UNREADABLE as error:
        raise IntegrityError(f"the records are not a whole Parquet file ({_line(error)}); copy them again") from error
    if RUN_KEY not in metadata or BLOCKS_KEY not in metadata:
        raise IntegrityError(
            f"the Parquet file has the columns {', '.join(table.schema.names)[:200]} and no header of headway's; it is "
            "no table of records"
        )
    if odd:
        raise IntegrityError(
            f"the table of records differs from schema {SCHEMA} in {odd[:200]}; it was changed, or written by another "
            "version"
        )
    try:
        job_digest = record_rules.digest_of(from_json(metadata[RUN_KEY]))
        summaries = tuple(BlockSummary.model_validate(item) for item in from_json(metadata[BLOCKS_KEY]))
        records = tuple(RequestRecord.model_validate(row) for row in table.to_pylist())
    except ValidationError as error:
        raise IntegrityError(
            f"the table of records does not hold valid records: {record_rules.fault(error)}"
        ) from error
    except UNREADABLE as error:
        raise IntegrityError(f"the table of records does not hold valid records: {_line(error)}") from error
    if not _rises([r.block for r in records]) or not _rises([s.block for s in summaries]):
        raise IntegrityError("the table of records does not go block by block; its rows were reordered: copy it again")
    return Run(job_digest, records, summaries)


def read_any(content: bytes) -> Run:
    """Return the run of a records file in either form.

    Raises:
        IntegrityError: It is neither, or damaged.
    """
    return read(content) if content.startswith(MAGIC) else record_rules.parse(content)


def _field(name: str, annotation: Any) -> pa.Field:
    inner, optional = annotation, False
    if get_origin(annotation) in {Union, UnionType}:
        parts = [part for part in get_args(annotation) if part is not NoneType]
        inner, optional = parts[0], len(parts) < len(get_args(annotation))
    if get_origin(inner) is Literal:
        inner = str
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        element = get_args(element)[0] if get_origin(element) is Annotated else element
        kind: pa.DataType = pa.list_(pa.field("element", TYPES[element], nullable=False))
    else:
        kind = TYPES[inner]
    return pa.field(name, kind, nullable=optional)


def _odd(found: pa.Schema) -> str:
    """Name what differs from the schema that is written; empty if nothing does."""
    wanted = schema()
    if found.equals(wanted):
        return ""
    columns = [set(zip(one.names, map(str, one), strict=True)) for one in (found, wanted)]
    names = sorted({name for name, _ in columns[0] ^ columns[1]})
    return ", ".join(names) or "the order of columns"


def _rises(blocks: Sequence[int]) -> bool:
    return all(before <= after for before, after in pairwise(blocks))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
