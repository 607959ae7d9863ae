"""The same records and basis give the same verdict, byte for byte; other records none."""

import hashlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.domain.bench import RequestRecord
from headway.domain.profile import Goodput
from headway.domain.release import Basis, Check
from headway.domain.value import canonical_json
from headway.errors import IntegrityError
from headway.judge import records as record_rules
from headway.judge.metrics import summary
from headway.judge.records import Run
from headway.judge.replay import basis_of, decide
from tests.unit.judge.data import make_canary, make_run

CANARY = make_canary(blocks=4, requests_per_block=15)
RECORDS, SUMMARIES = make_run(CANARY, seed=3)
RUN = Run("d" * 64, tuple(RECORDS), tuple(s.model_copy(update={"sent_first": "stable"}) for s in SUMMARIES))
CONTENT = record_rules.write(RUN)


GOODPUT = CANARY.model_copy(update={"goodput": Goodput(ttft_ms=900, margin_pct=10)})


def _words(annotation: object) -> list[str]:
    return re.findall(r"\w+", str(annotation))


def make_basis(**changes: Any) -> Basis:
    data: dict[str, Any] = {
        "release": "r",
        "model": "m",
        "version": 1,
        "canary": CANARY,
        "paired": True,
        "records_sha256": hashlib.sha256(CONTENT).hexdigest(),
        **changes,
    }
    return Basis(**data)


def test_equal_sides_are_promoted_again_and_again() -> None:
    """What is compared with below is a promotion."""
    first = decide(RUN, make_basis(), content=CONTENT)
    again = decide(record_rules.parse(CONTENT), make_basis(), content=CONTENT)

    assert first.decision == "PROMOTE", first.sentence
    assert canonical_json(first) == canonical_json(again)


@given(st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_order_of_lines_does_not_matter(rng: random.Random) -> None:
    """Lines that were reordered inside their blocks say the same; the digest still tells that they were touched."""
    shuffled = list(RECORDS)
    rng.shuffle(shuffled)
    run = RUN._replace(records=tuple(shuffled))

    assert canonical_json(decide(run, make_basis())) == canonical_json(decide(RUN, make_basis()))


def test_other_margins_ask_what_would_have_been() -> None:
    narrow = CANARY.model_copy(update={"p50_margin": 0.001, "p95_margin": 0.001})

    assert decide(RUN, make_basis(), narrow).decision != "PROMOTE"


def test_checks_and_faults_of_the_basis_count() -> None:
    """Latency alone never promotes what failed elsewhere."""
    bad = Check(name="q", measured=2.0, limit=1.0, passed=False, sentence="it answers badly")

    assert decide(RUN, make_basis(checks=(bad,))).decision == "ROLLBACK"
    assert decide(RUN, make_basis(faults=("a row is odd",))).decision == "HOLD"


def test_records_of_another_release_are_refused() -> None:
    other = record_rules.write(RUN._replace(job_digest="e" * 64))

    with pytest.raises(IntegrityError, match="another release"):
        decide(record_rules.parse(other), make_basis(), content=other)


def test_a_basis_can_be_made_for_records_that_have_none() -> None:
    basis = basis_of(RUN, CANARY)

    assert (basis.release, basis.model, basis.paired) == ("candidate-1", "m", True)
    assert decide(RUN, basis, content=CONTENT).decision == "PROMOTE"


def test_a_file_that_lost_stable_is_no_first_release() -> None:
    """Without a side to compare with only absolute limits would count."""
    alone = RUN._replace(records=tuple(r for r in RECORDS if r.side == "candidate"))
    easy = CANARY.model_copy(update={"first_ttft_p95_ms": 1e6, "first_tpot_p95_ms": 1e6})

    assert decide(alone, basis_of(alone, easy)).decision == "HOLD"


Change = Callable[[list[bytes], random.Random], list[bytes]]


def _cut(lines: list[bytes], rng: random.Random) -> list[bytes]:
    whole = b"\n".join(lines)
    return whole[: rng.randrange(len(whole) - len(lines[-2]))].split(b"\n")


def _lose_lines(lines: list[bytes], rng: random.Random) -> list[bytes]:
    start = rng.randrange(len(lines) - 2)
    return lines[:start] + lines[start + rng.randint(1, 40) :]


def _double(lines: list[bytes], rng: random.Random) -> list[bytes]:
    at = rng.randrange(len(lines) - 1)
    return [*lines[:at], lines[at], *lines[at:]]


def _swap_trailers(lines: list[bytes], rng: random.Random) -> list[bytes]:
    trailers = [i for i, line in enumerate(lines) if line.startswith(b'{"block"')]
    first, second = rng.sample(trailers, 2)
    lines[first], lines[second] = lines[second], lines[first]
    return lines


def _mix_runs(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """Take one block from the records of another release."""
    other = record_rules.write(
        RUN._replace(
            records=tuple(
                r.model_copy(update={"release": f"{r.side}-2", "served_release": f"{r.side}-2"}) for r in RECORDS
            )
        )
    ).split(b"\n")
    block = f'{{"request":{{"block":{rng.randrange(4)},'.encode()
    return [new if old.startswith(block) else old for old, new in zip(lines, other, strict=True)]


@pytest.mark.parametrize("change", [_cut, _lose_lines, _double, _swap_trailers, _mix_runs])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_damaged_records_are_never_promoted(change: Change, seed: int) -> None:
    """With a basis beside them they are refused; without one they hold, or are refused with the line."""
    content = b"\n".join(change(CONTENT.split(b"\n"), random.Random(seed)))  # noqa: S311
    try:
        run = record_rules.parse(content)
    except IntegrityError:
        return

    assert decide(run, basis_of(run, CANARY)).decision != "PROMOTE"
    with pytest.raises(IntegrityError):
        decide(run, make_basis(), content=content)


EXTREMES = (-1e9, 1e9, -1e12, 1e12, 1e308, 5e-324, -0.0, 0, 1, 10_000_000, 2**63, None)


@given(
    side=st.sampled_from(["stable", "candidate"]),
    blocks=st.sets(st.integers(0, 3), min_size=1),
    name=st.sampled_from(
        [name for name, info in RequestRecord.model_fields.items() if {"int", "float"} & set(_words(info.annotation))]
    ),
    value=st.sampled_from(EXTREMES) | st.floats(-1e12, 1e12),
)
@settings(max_examples=150, deadline=None)
def test_no_figure_that_is_let_in_breaks_the_arithmetic(
    side: str, blocks: set[int], name: str, value: float | None
) -> None:
    """Whole columns at the ends of what a record may hold: a verdict with finite numbers, or no records."""
    changed = [value] * 3 if name == "itl_ms" else value
    lines = []
    for line in CONTENT.splitlines():
        item = json.loads(line)
        request = item.get("request")
        if request and request["side"] == side and request["block"] in blocks:
            request[name] = changed
        lines.append(json.dumps(item, separators=(",", ":")))
    try:
        run = record_rules.parse(("\n".join(lines) + "\n").encode())
    except IntegrityError:
        return

    # What is too small to be told from zero may become zero; nothing else may happen.
    with np.errstate(all="raise", under="ignore"):
        verdict = decide(run, basis_of(run, GOODPUT))
        figures = summary(run.records, GOODPUT.goodput)
    json.dumps([verdict.to_json(), figures.to_json()], allow_nan=False)


@given(step_s=st.floats(-3600, 3600).filter(lambda s: abs(s) > 60), block=st.integers(1, 3), in_block=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_clock_that_steps_is_never_promoted(step_s: float, block: int, in_block: bool) -> None:
    """Backwards or forwards, within a block or between two."""

    def stepped(at_s: float | None, now: bool) -> float | None:
        return at_s if at_s is None or not now else at_s + step_s

    records = []
    for r in RECORDS:
        later = r.block > block or (r.block == block and (not in_block or r.index >= 7))
        # Arrivals are counted from the start of their block; only what was read from the clock steps.
        whole = r.block > block or (r.block == block and not in_block)
        changes = {
            "scheduled_s": stepped(r.scheduled_s, whole),
            "sent_s": stepped(r.sent_s, later),
            "first_token_s": stepped(r.first_token_s, later),
            "ended_s": stepped(r.ended_s, later),
        }
        records.append(r.model_copy(update=changes))
    summaries = [
        s.model_copy(
            update={
                "started_s": stepped(s.started_s, s.block > block or (s.block == block and not in_block)),
                "ended_s": stepped(s.ended_s, s.block >= block),
                "void": in_block and s.block == block and step_s > 0,
            }
        )
        for s in RUN.summaries
    ]
    run = RUN._replace(records=tuple(records), summaries=tuple(summaries))
    if not in_block and step_s > 0:
        # A pause between two blocks, as after a restart: nothing is wrong with what was measured.
        assert decide(run, make_basis()).decision == "PROMOTE"
    else:
        assert decide(run, make_basis()).decision == "HOLD"
