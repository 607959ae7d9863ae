"""A records file that is not whole or not consistent never decides anything."""

from collections.abc import Callable

import pytest

from headway.domain.bench import BlockSummary, RequestRecord
from headway.errors import IntegrityError
from headway.judge.records import block_line, faults, header_line, parse, request_line
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


@pytest.mark.parametrize("content", [b"", b"hello\n", b"{}\n", b'{"run":{"schema_version":99}}\n'])
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
    ],
)
def test_each_inconsistency_is_named(change: Change, word: str) -> None:
    records, summaries = make_run(CANARY, blocks=3)

    found = faults(change(records), summaries, CANARY, paired=True)

    assert any(word in fault for fault in found), found


def test_missing_and_doubled_blocks_are_named() -> None:
    records, summaries = make_run(CANARY, blocks=3)

    assert any("numbered" in f for f in faults(records, [summaries[0], summaries[2]], CANARY, paired=True))
    assert any("numbered" in f for f in faults(records, [*summaries, summaries[2]], CANARY, paired=True))
