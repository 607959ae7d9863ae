"""great-expectations against tables that are right, and against each way of being wrong."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from headway.adapters.expectations import ExpectationChecks
from headway.domain import calibration
from headway.domain.bench import RequestRecord
from headway.errors import ConfigError
from headway.judge.records import rows
from headway.prescale.history import History
from headway.prescale.history import rows as history_rows
from tests.unit.judge.data import failed, make_canary, make_run

pytestmark = pytest.mark.component

CHECKS = ExpectationChecks()
Rows = list[dict[str, Any]]


def table(alter: Any = None) -> Rows:
    return rows(make_run(make_canary(), blocks=2, alter=alter)[0])


def test_good_records_hold_all_expectations() -> None:
    assert CHECKS.check("bench_records", table()) == []


def test_failed_requests_are_data_not_faults() -> None:
    """A candidate that fails must be judged, not excused as a broken table."""
    records = table(lambda r: failed(r) if r.side == "candidate" else r)

    assert CHECKS.check("bench_records", records) == []


def test_gaps_and_injected_delays_of_good_records_hold() -> None:
    """What calibration records, and what a server that sends chunk by chunk looks like."""

    def streamed(r: RequestRecord) -> RequestRecord:
        gap_ms = ((r.ended_s or 0) - (r.first_token_s or 0)) * 1e3 / 15
        return r.model_copy(update={"itl_ms": (gap_ms,) * 15, "injected_ms": 30.0 if r.side == "candidate" else 0.0})

    assert CHECKS.check("bench_records", table(streamed)) == []


def _set(**values: Any) -> Callable[[Rows], Rows]:
    return lambda found: [{**found[0], **values}, *found[1:]]


def _without(column: str) -> Callable[[Rows], Rows]:
    return lambda found: [{k: v for k, v in row.items() if k != column} for row in found]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda found: [*found, found[3]], "unique"),
        (_set(ended_s=-1.0), "ended_s"),
        (_set(sent_s=-9.0), "sent_after_scheduled_s"),
        (_set(first_token_s=None), "first_token_s"),
        (_set(output_tokens=None), "output_tokens"),
        (_set(output_tokens=0), "output_tokens"),
        (_set(side="third"), "side"),
        (_set(served_model="another"), "served_model"),
        (_set(served_release="another"), "served_release"),
        (_without("scheduled_s"), "scheduled_s"),
        (lambda found: [], "no rows"),
        (_without("itl_ms"), "itl_ms"),
        (_set(itl_ms=[-1.0]), "least_itl_ms"),
        (_set(itl_ms=[1e6]), "answer_beyond_itl_s"),
        (_set(itl_ms=[0.0] * 99), "tokens_beyond_itl"),
        (_set(injected_ms=5.0), "injected_ms"),  # the first row is of stable
        (_set(injected_ms=-5.0), "injected_ms"),
        (_set(release="another"), "release"),
        (lambda found: [found[0], {**found[2], "scheduled_s": -9.0, "sent_s": 0.0}, *found[3:]], "due_after_previous"),
    ],
)
def test_each_fault_is_named(change: Callable[[Rows], list[Mapping[str, Any]]], word: str) -> None:
    broken = CHECKS.check("bench_records", change(table()))

    assert any(word in sentence for sentence in broken), broken


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(ConfigError, match="bench_records"):
        CHECKS.check("another", table())


TEXTS = [
    {"text": f"Text number {n} says something of its own, and is long enough to move activations: {n * n}."}
    for n in range(20)
]


def texts(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], languages: Mapping[str, float]) -> Rows:
    return calibration.check_rows(change([dict(row) for row in TEXTS]), languages)


def test_good_calibration_texts_hold_all_expectations() -> None:
    spoken = texts(lambda found: [{**row, "language": "de"} for row in found[:6]] + found[6:], {"de": 0.3})

    assert CHECKS.check("calibration", spoken) == []
    assert (
        CHECKS.check("calibration", calibration.check_rows(calibration.rows(calibration.bundled()), {"en": 0.5})) == []
    )


@pytest.mark.parametrize(
    ("change", "languages", "word"),
    [
        (lambda found: [{"text": "  "}, *found], {}, "characters"),
        (lambda found: [*found[:15], *[{"text": f"short {n}"} for n in range(5)]], {}, "characters"),
        (lambda found: [*found[:15], *[found[0]] * 5], {}, "sha256"),
        (lambda found: [{**row, "language": "en"} for row in found], {"de": 0.1}, "is_de"),
    ],
)
def test_each_fault_of_calibration_texts_is_named(change: Any, languages: dict[str, float], word: str) -> None:
    broken = CHECKS.check("calibration", texts(change, languages))

    assert any(word in sentence for sentence in broken), broken


def traffic() -> Rows:
    """Return the rows of two models, one of which nobody measured."""
    start = datetime(2026, 3, 2, tzinfo=UTC)
    known = {"requests_per_s": np.array([3.0, 0.0, np.nan]), "cached_share": np.array([0.0, 1.0, 0.5])}
    histories = {"busy": History(start, 600, known), "silent": History(start, 600, {"busy": np.full(3, np.nan)})}
    return [row for model, history in histories.items() for row in history_rows(history, 3, model=model)]


def test_good_traffic_holds_all_expectations() -> None:
    """A gap is none of its faults."""
    assert CHECKS.check("traffic", traffic()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(requests_per_s=-1.0), ("traffic of busy: ", "requests_per_s")),
        (_set(requests_per_s=1e12), ("traffic of busy: ", "requests_per_s")),
        (_set(asked=float("inf")), ("traffic of busy: ", "asked")),
        (_set(cached_share=1.5), ("traffic of busy: ", "cached_share")),
        (lambda found: [*found, found[-1]], ("traffic of silent: ", "unique")),
        (_set(at_s=None), ("traffic of busy: ", "at_s")),
        (_without("prompt_tokens"), ("traffic: ", "prompt_tokens")),
    ],
)
def test_each_fault_of_traffic_names_the_model(change: Callable[[Rows], Rows], words: tuple[str, str]) -> None:
    """The rows of all models are one table, so a sentence has to say whose they are."""
    broken = CHECKS.check("traffic", change(traffic()))

    assert broken
    assert all(sentence.startswith(words[0]) and words[1] in sentence for sentence in broken), broken
