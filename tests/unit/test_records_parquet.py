"""The Parquet table of records says what the JSON lines say, and damage is told."""

import contextlib
import io
import json
from collections.abc import Callable

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.bench import BlockSummary, RequestRecord
from headway.errors import IntegrityError
from headway.judge import records as record_rules
from headway.judge.records import Run
from headway.judge.replay import basis_of, decide
from headway.pods.records_parquet import read, read_any, schema, write
from tests.unit.judge.data import make_canary, make_run

RECORDS, SUMMARIES = make_run(make_canary(requests_per_block=4), blocks=3)
CONTENT = record_rules.write(Run("d" * 64, tuple(RECORDS), tuple(SUMMARIES)))
PARQUET = write(CONTENT)
BASIS = basis_of(record_rules.parse(CONTENT), make_canary())

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.floats(-1e9, 1e9)
milliseconds = st.floats(-1e12, 1e12)
count = st.integers(0, 10_000_000)
requests = st.builds(
    RequestRecord,
    side=st.sampled_from(["stable", "candidate"]),
    block=st.just(0),
    index=count,
    prompt_sha256=text,
    scheduled_s=number,
    sent_s=number,
    release=text,
    sampled=st.booleans(),
    first_token_s=st.none() | number,
    ended_s=st.none() | number,
    prompt_tokens=st.none() | count,
    output_tokens=st.none() | count,
    status=st.none() | count,
    served_model=st.none() | text,
    served_release=st.none() | text,
    error=st.none() | text,
    itl_ms=st.lists(milliseconds, max_size=5).map(tuple),
    injected_ms=st.floats(0, 1e12),
    timed_out=st.booleans(),
)
summaries = st.builds(
    BlockSummary, block=st.just(0), lag_p99_ms=number, reason=text, started_s=number, void=st.booleans()
)


@given(st.lists(requests, max_size=8), summaries, text)
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_on_the_way_there_and_back(
    records: list[RequestRecord], summary: BlockSummary, job_digest: str
) -> None:
    """Any values, to the last bit: the JSON lines that come back are the same bytes."""
    content = record_rules.write(Run(job_digest, tuple(records), (summary,)))

    run = read(write(content))

    assert record_rules.write(run) == content
    assert (run.records, run.summaries, run.job_digest) == (tuple(records), (summary,), job_digest)


def test_both_forms_are_told_apart_by_their_content() -> None:
    from_lines, from_table = read_any(CONTENT), read_any(PARQUET)

    assert from_lines.records == from_table.records
    assert from_lines.summaries == from_table.summaries


def test_each_field_of_a_request_is_a_column() -> None:
    """A field that is added to the records must not be left out of the table."""
    assert schema().names == list(RequestRecord.model_fields)


def test_the_table_is_what_other_tools_read() -> None:
    table = pq.read_table(io.BytesIO(PARQUET))

    assert table.num_rows == len(RECORDS)
    assert table.column("scheduled_s").to_pylist() == [r.scheduled_s for r in RECORDS]


def _table(change: Callable[[pa.Table], pa.Table]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(PARQUET))), sink)
    return sink.getvalue()


def _as_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


def _reversed(table: pa.Table) -> pa.Table:
    return table.take(list(reversed(range(table.num_rows))))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda table: table.replace_schema_metadata({}), "no table of records"),
        (lambda table: table.drop_columns(["ended_s"]), "ended_s"),
        (_reversed, "block by block"),
        (
            lambda table: table.replace_schema_metadata(
                {**table.schema.metadata, b"headway.run": b'{"schema_version": 9, "job_digest": "d"}'}
            ),
            "schema 9",
        ),
        (
            lambda table: table.replace_schema_metadata({**table.schema.metadata, b"headway.blocks": b"[{}]"}),
            "valid records",
        ),
        (
            lambda table: table.replace_schema_metadata({**table.schema.metadata, b"headway.run": b"oops"}),
            "valid records",
        ),
    ],
)
def test_a_foreign_table_is_refused(change: Callable[[pa.Table], pa.Table], word: str) -> None:
    with pytest.raises(IntegrityError, match=word):
        read(_table(change))


@given(st.integers(1, len(PARQUET) - 1))
@settings(max_examples=30, deadline=None)
def test_a_cut_file_is_refused(kept: int) -> None:
    with pytest.raises(IntegrityError):
        read_any(PARQUET[:kept])


@given(st.integers(4, len(PARQUET) - 9), st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_a_flipped_byte_decides_nothing(where: int, mask: int) -> None:
    """Pages carry checksums; what they do not cover the digest in the basis tells."""
    damaged = bytearray(PARQUET)
    damaged[where] ^= mask
    try:
        run = read(bytes(damaged))
    except IntegrityError:
        return
    if record_rules.write(run) != CONTENT:
        with pytest.raises(IntegrityError, match="another release"):
            decide(run, BASIS, content=bytes(damaged))


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_a_run_or_the_one_error(content: bytes) -> None:
    for any_file in (content, b"PAR1" + content, PARQUET + content, b"PAR1" + content + PARQUET[-4:]):
        for function in (read, read_any):
            with contextlib.suppress(IntegrityError):
                function(any_file)


metadata_values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from([b"headway.run", b"headway.blocks"]), st.binary(max_size=50) | metadata_values.map(_as_bytes))
@settings(max_examples=60, deadline=None)
def test_any_header_is_a_run_or_the_one_error(key: bytes, value: bytes) -> None:
    damaged = _table(lambda table: table.replace_schema_metadata({**table.schema.metadata, key: value}))

    with contextlib.suppress(IntegrityError):
        read(damaged)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [("output_tokens", 10**12, "`output_tokens` Input"), ("ended_s", 1e300, "`ended_s` Input")],
)
def test_figures_that_cannot_be_are_damage(column: str, value: float, reason: str) -> None:
    def change(table: pa.Table) -> pa.Table:
        where = table.schema.get_field_index(column)
        field = table.schema.field(column)
        return table.set_column(where, field, pa.array([value] * table.num_rows, field.type))

    with pytest.raises(IntegrityError, match=reason):
        read(_table(change))


def test_columns_with_one_name_are_refused() -> None:
    with pytest.raises(IntegrityError, match="Multiple matches"):
        read(_table(lambda table: table.append_column(table.schema.field("block"), table.column("block"))))
