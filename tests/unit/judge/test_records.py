"""A records file that is not whole or not consistent never decides anything."""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.bench import BlockSummary, RequestRecord
from headway.errors import IntegrityError
from headway.judge.records import block_line, faults, header_line, parse, request_line, write
from tests.unit.judge.data import make_canary, make_run

CANARY = make_canary(requests_per_block=4)
Change = Callable[[list[RequestRecord]], list[RequestRecord]]


def _file(records: list[RequestRecord], summaries: list[BlockSummary]) -> bytes:
    lines = [header_line("d" * 64)]
    for summary in summaries:
        lines += [request_line(r) for r in records if r.block == summary.block]
        lines.append(block_line(summary))
    return ("\n".join(lines) + "\n").encode()


def test_a_file_comes_back_as_it_was_written() -> None:
    records, summaries = make_run(CANARY, blocks=3)
    content = _file(records, summaries)

    run = parse(content)

    assert (list(run.records), list(run.summaries), run.whole_bytes) == (records, summaries, len(content))


@pytest.mark.parametrize("lost", [1, 40, 400, 1200])
def test_a_cut_block_is_left_out(lost: int) -> None:
    """A process that dies in the middle of a write leaves whole blocks only."""
    content = _file(*make_run(CANARY, blocks=3))

    run = parse(content[:-lost])

    assert [s.block for s in run.summaries] == [0, 1]
    assert {r.block for r in run.records} == {0, 1}
    assert content[: run.whole_bytes].count(b'{"block":{') == 2


def test_damage_in_the_middle_is_an_error_with_its_line() -> None:
    lines = _file(*make_run(CANARY, blocks=3)).split(b"\n")
    lines[5] = lines[5][:30]

    with pytest.raises(IntegrityError, match="line 6 "):
        parse(b"\n".join(lines))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"hello\n", b"{}\n", b"[]\n", b'{"run":7}\n', b'{"run":{"schema_version":99}}\n'),
        *(b'{"run":{"schema_version":2}}\n', b'{"run":{"schema_version":2,"job_digest":7}}\n'),
    ],
)
def test_a_foreign_file_is_refused(content: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse(content)


def test_good_records_have_no_faults() -> None:
    records, summaries = make_run(CANARY, blocks=3)

    assert faults(records, summaries, CANARY, paired=True) == []


def _doubled(records: list[RequestRecord]) -> list[RequestRecord]:
    return [*records, records[3]]


def _lost(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r for r in records if (r.block, r.side, r.index) != (1, "candidate", 2)]


def _clock_step(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"ended_s": r.sent_s - 5}) if r.index == 1 else r for r in records]


def _other_release(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"served_release": "another"}) if r.side == "candidate" else r for r in records]


def _mixed(records: list[RequestRecord]) -> list[RequestRecord]:
    return [
        r.model_copy(update={"release": "another", "served_release": "another"}) if r.block == 2 else r for r in records
    ]


def _two_models(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"served_model": "n"}) if r.side == "candidate" else r for r in records]


def _other_prompt(records: list[RequestRecord]) -> list[RequestRecord]:
    return [
        r.model_copy(update={"prompt_sha256": "x"}) if r.side == "candidate" and r.index == 0 else r for r in records
    ]


def _gaps(*gaps_ms: float) -> Change:
    return lambda records: [r.model_copy(update={"itl_ms": gaps_ms}) if r.index == 1 else r for r in records]


def _no_tokens(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"output_tokens": 0}) if r.index == 1 else r for r in records]


def _no_first_token(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"first_token_s": None}) if r.index == 1 else r for r in records]


def _shorter(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"output_tokens": 2}) if r.side == "candidate" else r for r in records]


def _delayed_stable(records: list[RequestRecord]) -> list[RequestRecord]:
    return [r.model_copy(update={"injected_ms": 5.0}) for r in records]


def _out_of_block(records: list[RequestRecord]) -> list[RequestRecord]:
    """Both sides of one pair, so that nothing but the time is odd."""
    late = {"scheduled_s": 1e4, "sent_s": 1e4, "first_token_s": 1e4 + 1, "ended_s": 1e4 + 2}
    return [r.model_copy(update=late) if (r.block, r.index) == (1, 1) else r for r in records]


def _stray(records: list[RequestRecord]) -> list[RequestRecord]:
    return [*records, *(records[k].model_copy(update={"block": 9}) for k in (0, 1))]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_doubled, "twice"),
        (_lost, "sample ratio mismatch"),
        (_clock_step, "backwards"),
        (_other_release, "another release"),
        (_mixed, "several releases"),
        (_two_models, "several models"),
        (_other_prompt, "differ in prompt"),
        (_stray, "was not run"),
        (_gaps(-1.0), "negative gap"),
        (_gaps(1e5), "add up to more"),
        (_gaps(*(0.0,) * 99), "more chunks"),
        (_no_tokens, "less than one output token"),
        (_no_first_token, "no first token"),
        (_delayed_stable, "injected delay"),
        (
            _shorter,
            "12 pairs were answered at different lengths (first: block 0, index 0: stable 16, candidate 2 tokens)",
        ),
        (_out_of_block, "outside the time of their block"),
    ],
)
def test_each_inconsistency_is_named(change: Change, word: str) -> None:
    records, summaries = make_run(CANARY, blocks=3)

    found = faults(change(records), summaries, CANARY, paired=True)

    assert any(word in fault for fault in found), found


def test_only_answers_are_compared_in_length() -> None:
    """A failure and an answer without a count have no length, and a first release has nothing beside it."""
    records, summaries = make_run(CANARY, blocks=3)
    shorter = _shorter(records)

    def found(update: dict[str, Any]) -> list[str]:
        changed = [r.model_copy(update=update) if r.side == "candidate" else r for r in shorter]
        return [f for f in faults(changed, summaries, CANARY, paired=True) if "lengths" in f]

    assert found({})
    assert not found({"error": "cut"})
    assert not found({"output_tokens": None})
    alone = [r for r in shorter if r.side == "candidate"]
    assert not faults(alone, summaries, CANARY, paired=False)


def test_missing_and_doubled_blocks_are_named() -> None:
    records, summaries = make_run(CANARY, blocks=3)

    assert any("numbered" in f for f in faults(records, [summaries[0], summaries[2]], CANARY, paired=True))
    assert any("numbered" in f for f in faults(records, [*summaries, summaries[2]], CANARY, paired=True))


def test_blocks_that_overlap_in_time_are_named() -> None:
    """The clock stepped between two blocks, or they are of several runs."""
    records, summaries = make_run(CANARY, blocks=3)
    stepped = summaries[1].model_copy(update={"started_s": summaries[1].started_s - 100})

    assert any(
        "clock stepped" in f for f in faults(records, [summaries[0], stepped, summaries[2]], CANARY, paired=True)
    )


def test_records_of_schema_1_are_read() -> None:
    """Decisions that were made before the schema grew can still be replayed."""
    records, summaries = make_run(CANARY, blocks=2)
    lines = _file(records, summaries).replace(b'"schema_version":2', b'"schema_version":1').split(b"\n")
    old = []
    for line in lines[:-1]:
        kind, value = next(iter(json.loads(line).items()))
        grown = ("itl_ms", "injected_ms", "placement", "started_at", "dropped", "processes")
        old.append(json.dumps({kind: {k: v for k, v in value.items() if k not in grown}}).encode())

    run = parse(b"\n".join([*old, b""]).replace(b'{"block": {', b'{"block":{'))

    assert (list(run.records), list(run.summaries)) == (records, summaries)


def test_the_file_is_written_with_schema_2() -> None:
    assert json.loads(header_line("d" * 64))["run"]["schema_version"] == 2


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_time_that_is_no_number_is_damage(value: bytes) -> None:
    """JSON has no such numbers, Python's reader takes them, and no comparison with them is ever true."""
    content = _file(*make_run(CANARY, blocks=2))
    where = content.index(b'"ended_s":') + len(b'"ended_s":')
    damaged = content[:where] + value + content[content.index(b",", where) :]

    with pytest.raises(IntegrityError, match="line 2 "):
        parse(damaged)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (0, 0, 1)])
def test_blocks_out_of_order_are_refused(order: tuple[int, ...]) -> None:
    """The file was put together from pieces: whoever did it may have left some out."""
    records, summaries = make_run(CANARY, blocks=3)
    lines = [header_line("d" * 64)]
    for block in order:
        lines += [*(request_line(r) for r in records if r.block == block), block_line(summaries[block])]

    with pytest.raises(IntegrityError, match="not that block"):
        parse(("\n".join(lines) + "\n").encode())


def test_a_request_in_the_part_of_another_block_is_refused() -> None:
    lines = _file(*make_run(CANARY, blocks=3)).split(b"\n")
    lines[2], lines[12] = lines[12], lines[2]

    with pytest.raises(IntegrityError, match="not that block"):
        parse(b"\n".join(lines))


def test_a_whole_file_is_written_again_byte_for_byte() -> None:
    """So the digest of the JSON lines names the run in any form that it is kept in."""
    content = _file(*make_run(CANARY, blocks=3))

    assert write(parse(content)) == content


WHOLE = _file(*make_run(CANARY, blocks=2))
LINES = WHOLE.split(b"\n")[:-1]


def _lines(number: int, line: bytes) -> bytes:
    """Return the file with another line in one place (counted from 1)."""
    return b"\n".join([*LINES[: number - 1], line, *LINES[number:], b""])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 200_000, "recursion limit"),
        (b'{"request":' * 100_000, "recursion limit"),
        (LINES[2].replace(b'"release":"candidate-1"', b'"release":"\\ud800"'), "hex escape"),
        (LINES[2].replace(b'"release":"candidate-1"', b'"release":"\xed\xa0\x80"'), "unicode"),
        (LINES[2].replace(b'"output_tokens":16', b'"output_tokens":1' + b"0" * 400), "`output_tokens` Input should be"),
        (LINES[2].replace(b'"output_tokens":16', b'"output_tokens":1' + b"0" * 9000), "out of range"),
        (LINES[2].replace(b'"status":200', b'"status":-' + b"9" * 400), "`status` Input should be greater"),
        (LINES[2].replace(b'"injected_ms":0.0', b'"injected_ms":1e308'), "`injected_ms` Input should be less"),
        (LINES[2].replace(b'"itl_ms":[]', b'"itl_ms":[1,-1e308]'), "`itl_ms.1` Input should be greater"),
        (LINES[2].replace(b'"side":"candidate",', b""), "`side` is missing"),
    ],
)
def test_a_line_that_cannot_be_is_one_error_with_its_number_and_reason(line: bytes, reason: str) -> None:
    """One short sentence; what stands in the line may be long, or no text at all, and is not repeated."""
    assert line not in LINES

    with pytest.raises(IntegrityError) as caught:
        parse(_lines(3, line))

    assert caught.value.message.startswith("line 3 of the records ")
    assert reason in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(WHOLE), "compressed by gzip"),
        (random.Random(1).randbytes(5000), "not JSON"),  # noqa: S311
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not JSON"),
        (b"[" * 200_000 + b"\n", "not JSON"),
        (WHOLE.decode().encode("utf-16"), "not JSON"),
        (b"", "empty"),
        (b'{"run":{"schema_version":2,"job_digest":7}}\n', "header"),
        (b'{"run":{"schema_version":{},"job_digest":"d"}}\n', "header"),
        (b'{"run":{"schema_version":true,"job_digest":"d"}}\n', "header"),
    ],
)
def test_another_kind_of_file_is_named_in_one_sentence(content: bytes, reason: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(content)

    assert caught.value.message.startswith("this is not a records file: ")
    assert reason in caught.value.message
    assert len(caught.value.message) < 120
    assert caught.value.message.isascii()


def _says(content: bytes) -> None:
    """A run, which can be written and looked at, or the one error."""
    try:
        run = parse(content)
    except IntegrityError:
        return
    assert parse(write(run)) == run._replace(whole_bytes=len(write(run)))
    faults(run.records, run.summaries, CANARY, paired=True)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.sampled_from([10**400, -(10**400), 1.7e308, -1.7e308, float("nan"), float("inf"), 5e-324, "\ud800", "[/bold]"])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_run_or_the_one_error(content: bytes) -> None:
    _says(content)
    _says(content + WHOLE)
    _says(WHOLE + content)
    _says(_lines(4, content))


@given(st.integers(0, len(LINES) - 1), st.data())
@settings(deadline=None, max_examples=200)
def test_any_line_with_any_value_is_a_run_or_the_one_error(number: int, data: st.DataObject) -> None:
    kind, value = next(iter(json.loads(LINES[number]).items()))
    value[data.draw(st.sampled_from(sorted(value)))] = data.draw(json_values)
    line = json.dumps({kind: value}, separators=(",", ":")).encode()

    _says(b"\n".join([*LINES[:number], line, *LINES[number + 1 :], b""]))
