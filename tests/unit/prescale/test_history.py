"""The kept history: what is read, what is read again, and that nothing that is missing becomes zero."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.domain import engine_series
from headway.domain.series import Floats
from headway.errors import BackendUnavailable, ConfigError, IntegrityError
from headway.ports import REQUESTS, Sample
from headway.prescale.history import (
    COLUMNS,
    STEP_S,
    History,
    checked,
    collect,
    from_parquet,
    observe,
    rows,
    to_parquet,
)
from tests.fakes import FakeMetrics

NOW = datetime(2026, 3, 16, 12, 5, tzinfo=UTC)
"""In the middle of a bin."""
ENDED = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
"""End of the last whole one."""
SIDES = [{"side": "stable"}, {"side": "candidate"}]


def bin_at(index: int) -> datetime:
    """Return the begin of the bin that many before (negative) the one that has not ended."""
    return ENDED + timedelta(seconds=STEP_S * index)


@dataclass
class Recorded(FakeMetrics):
    """Metrics that know what they were asked for, and can be away."""

    asked: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    down: bool = False

    def rate(
        self, name: str, labels: Mapping[str, str], start: datetime, end: datetime, step_s: int
    ) -> Sequence[Sample]:
        if self.down:
            raise BackendUnavailable("Prometheus does not answer")
        self.asked.append((name, start, end))
        return super().rate(name, labels, start, end, step_s)

    def grow(
        self, name: str, per_s: float, since: datetime, until: datetime, every_s: float = 300, **labels: str
    ) -> "Recorded":
        """Put a counter of the model."""
        for index in range(round((until - since).total_seconds() / every_s) + 1):
            self.put(
                name, {"model": "m", **labels}, since + timedelta(seconds=every_s * index), per_s * every_s * index
            )
        return self


def busy(since: datetime, until: datetime, per_s: float = 5.0) -> Recorded:
    """Return the metrics of a model that serves as much as it is asked for."""
    metrics = Recorded().grow(REQUESTS, per_s, since, until, side="stable")
    metrics.grow(engine_series.REQUESTS.name, per_s, since, until)
    metrics.grow(engine_series.PROMPT_TOKENS.name, per_s * 300, since, until)
    metrics.grow(engine_series.GENERATION_TOKENS.name, per_s * 40, since, until)
    metrics.grow(engine_series.PREFIX_QUERIES.name, per_s * 300, since, until)
    return metrics.grow(engine_series.PREFIX_HITS.name, per_s * 60, since, until)


def column(history: History, name: str = "requests_per_s") -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 6) for value in history.columns[name]]


values = st.one_of(st.floats(0, 1e9), st.just(float("nan")))
histories = st.integers(0, 8).flatmap(
    lambda bins: st.builds(
        lambda given: History(ENDED, STEP_S, {name: np.array(column) for name, column in given.items()}),
        st.fixed_dictionaries({}, optional={name: st.lists(values, min_size=bins, max_size=bins) for name in COLUMNS}),
    )
)


def same(one: History, other: History) -> bool:
    return (one.start_at, one.step_s) == (other.start_at, other.step_s) and all(
        np.array_equal(one.columns[name], other.columns[name], equal_nan=True) for name in COLUMNS
    )


@given(histories)
def test_a_history_comes_back_from_its_file(history: History) -> None:
    """Value by value, and what is missing stays missing."""
    assert same(from_parquet(to_parquet(history)), history)


SOUND = History(ENDED, STEP_S, {"requests_per_s": np.linspace(1, 9, 20)})
GOOD = to_parquet(SOUND)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.booleans())
def test_a_damaged_file_is_refused_or_whole(place: int, change: int, cut: bool) -> None:
    """Nothing is ever forecast from half a file, and the words say what to do."""
    damaged = GOOD[:place] if cut else GOOD[:place] + bytes([GOOD[place] ^ change]) + GOOD[place + 1 :]

    try:
        found = from_parquet(damaged)
    except IntegrityError as error:
        said = error.message
    else:
        said = "delete it" if same(found, SOUND) else "another history"
    assert "delete it" in said


@given(histories, st.integers(-12, 12), st.integers(0, 20))
def test_a_stretch_of_a_history_keeps_each_bin_in_its_place(history: History, shift: int, bins: int) -> None:
    """Bins that are not in it are missing."""
    start = history.at(shift)
    found = history.between(start, start + timedelta(seconds=bins * STEP_S)).columns["busy"]

    for index in range(bins):
        known = 0 <= index + shift < len(history)
        expected = history.columns["busy"][index + shift] if known else np.nan
        assert np.array_equal(found[index], expected, equal_nan=True)


def test_what_a_tick_notes_is_in_its_bin() -> None:
    """Also in the bin that is not over, which has no traffic yet; the history before is not touched."""
    kept = History(bin_at(-2), STEP_S, {"requests_per_s": np.array([3.0, 4.0])})

    noted = kept.noted(bin_at(-2) + timedelta(seconds=5), busy=2.0).noted(NOW, busy=1.5, asked=4)

    assert column(noted, "busy") == [2.0, None, 1.5]
    assert column(noted, "asked") == [None, None, 4.0]
    assert column(noted) == [3.0, 4.0, None]
    assert np.isnan(kept.columns["busy"]).all()
    with pytest.raises(ConfigError, match="before the history"):
        kept.noted(bin_at(-3), busy=1.0)
    with pytest.raises(ConfigError, match="no column mood"):
        kept.noted(NOW, mood=1.0)


@pytest.mark.parametrize(
    ("columns", "word"),
    [({"mood": np.zeros(3)}, "no column mood"), ({"busy": np.zeros(3), "asked": np.zeros(2)}, "differ in length")],
)
def test_a_history_that_does_not_fit_is_refused(columns: Mapping[str, Floats], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        History(ENDED, STEP_S, columns)


def test_a_first_collection_reads_whole_bins_alone() -> None:
    """The bin of now is not over: read as it stands it would be far too low."""
    found = collect("m", busy(bin_at(-18), NOW), None, now=NOW)

    assert (found.history.start_at, found.history.end_at) == (bin_at(-18), ENDED)
    assert column(found.history) == [5.0] * 18
    assert column(found.history, "prompt_tokens") == [300.0] * 18
    assert column(found.history, "output_tokens") == [40.0] * 18
    assert column(found.history, "cached_share") == [0.2] * 18
    assert (found.notes, found.faults) == ((), ())


def test_both_sides_and_this_model_alone_are_the_demand() -> None:
    """During a release a part of the traffic is with the candidate."""
    metrics = busy(bin_at(-3), NOW).grow(REQUESTS, 2.0, bin_at(-3), NOW, side="candidate")
    metrics.grow(REQUESTS, 70.0, bin_at(-3), NOW, side="stable", model="another")

    assert column(collect("m", metrics, None, now=NOW).history) == [7.0] * 3


def test_only_new_bins_are_read_and_the_last_two_again() -> None:
    """A thousand models share one Prometheus."""
    metrics = busy(bin_at(-400), NOW)
    kept = collect("m", metrics, None, now=bin_at(-1)).history.noted(bin_at(-1), busy=3.0, asked=2)
    metrics.asked.clear()

    found = collect("m", metrics, kept, now=NOW).history

    assert {(start, end) for _, start, end in metrics.asked} == {(bin_at(-3), ENDED)}
    assert column(found) == [5.0] * 400
    assert column(found, "busy")[-1] == 3.0


def test_samples_that_come_late_are_taken() -> None:
    """A bin that was missing or not whole when it was read is filled by a later tick, up to a day back."""
    early, late = busy(bin_at(-60), bin_at(-50)), busy(bin_at(-60), NOW)
    kept = collect("m", early, None, now=bin_at(-30)).history
    assert column(kept) == [5.0] * 10 + [None] * 20

    assert column(collect("m", late, kept, now=NOW).history) == [5.0] * 60


def test_what_was_measured_once_is_not_lost_with_the_store() -> None:
    """Prometheus that was set up anew knows nothing of before; the kept history does."""
    kept = collect("m", busy(bin_at(-60), NOW), None, now=NOW).history

    found = collect("m", busy(bin_at(1), bin_at(4)), kept, now=bin_at(4))

    assert column(found.history) == [5.0] * 60 + [None] + [5.0] * 3


def test_a_day_without_a_tick_is_read_when_the_next_one_comes() -> None:
    """A dead DAG leaves no hole in the history."""
    metrics = busy(bin_at(-300), NOW)
    kept = collect("m", metrics, None, now=bin_at(-150)).history

    assert column(collect("m", metrics, kept, now=NOW).history) == [5.0] * 300


def test_a_bin_missing_at_the_end_is_missing_and_a_fault() -> None:
    """Never zero: that would lower the floor while users wait."""
    found = collect("m", busy(bin_at(-20), bin_at(-4)), None, now=NOW)
    assert column(found.history) == [5.0] * 16 + [None] * 4

    later = collect("m", FakeMetrics(), found.history, now=bin_at(3))
    assert column(later.history)[-7:] == [None] * 7
    assert len(later.faults) == 1
    assert "has no sample of m" in later.faults[0]
    assert "not zero traffic" in later.faults[0]


def test_an_empty_answer_is_a_fault_and_no_history() -> None:
    """A model that nobody measured, or a name that nobody gives."""
    found = collect("m", FakeMetrics(), None, now=NOW)

    assert len(found.history) == 0
    assert found.history.end_at == ENDED
    assert len(found.faults) == 1


def test_a_renamed_metric_of_the_gateway_is_told_by_what_engines_serve() -> None:
    """They serve, so somebody asks: the gateway's figure is lost, not the traffic."""
    metrics = Recorded().grow(engine_series.REQUESTS.name, 3.0, bin_at(-20), NOW)
    metrics.grow(REQUESTS, 3.0, bin_at(-20), bin_at(-10))

    found = collect("m", metrics, None, now=NOW)

    assert column(found.history) == [3.0] * 10 + [None] * 10
    assert len(found.faults) == 1
    assert "engines of m serve 3 requests a second" in found.faults[0]


def test_no_traffic_is_zero_where_it_was_measured() -> None:
    """Constant zero is a history like any other; nothing is divided by it."""
    found = collect("m", busy(bin_at(-20), NOW, per_s=0.0), None, now=NOW)

    assert column(found.history) == [0.0] * 20
    assert column(found.history, "prompt_tokens") == [None] * 20
    assert found.faults == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0])
def test_an_impossible_rate_is_missing(value: float) -> None:
    """Whatever a store answers, what cannot be was not measured."""

    class Odd(FakeMetrics):
        def rate(self, name: str, labels: Any, start: datetime, end: datetime, step_s: int) -> Sequence[Sample]:
            steps = round((end - start).total_seconds() / step_s)
            return [Sample(start + timedelta(seconds=step_s * index), value) for index in range(steps)]

    found = collect("m", Odd(), None, now=NOW)
    assert len(found.history) == 0
    assert found.faults
    load = observe("m", Odd(), now=NOW)
    assert (load.requests_per_s, load.prompt_tokens, load.cached_share) == (None, None, None)


def test_metrics_that_are_down_are_no_empty_history() -> None:
    """Whoever asked keeps what it has."""
    kept = collect("m", busy(bin_at(-9), NOW), None, now=NOW).history

    with pytest.raises(BackendUnavailable):
        collect("m", Recorded(down=True), kept, now=NOW)
    with pytest.raises(BackendUnavailable):
        observe("m", Recorded(down=True), now=NOW)


def test_a_history_has_the_days_that_are_asked_for() -> None:
    """Older bins are forgotten."""
    kept = collect("m", busy(bin_at(-500), NOW), None, now=NOW).history

    assert collect("m", busy(bin_at(-500), NOW), kept, now=NOW, days=2).history.start_at == bin_at(-288)


def test_a_history_from_a_clock_that_was_ahead_is_cut() -> None:
    """Bins of tomorrow cannot have been measured."""
    kept = History(bin_at(-4), STEP_S, {"requests_per_s": np.full(100, 9.0)})

    found = collect("m", busy(bin_at(-4), NOW), kept, now=NOW)

    assert column(found.history)[-2:] == [5.0, 5.0]
    assert found.history.end_at == ENDED
    assert "after now" in found.notes[0]


def test_a_history_of_another_step_is_read_anew() -> None:
    kept = History(ENDED - timedelta(hours=2), 3600, {"requests_per_s": np.array([9.0, 9.0])})

    found = collect("m", busy(bin_at(-4), NOW), kept, now=NOW)

    assert column(found.history) == [5.0] * 4
    assert "bins of 3600 s" in found.notes[0]


def test_the_load_is_that_of_the_last_two_minutes() -> None:
    """With its age, so that an old one is told."""
    metrics = Recorded()
    for name, per_s in ((REQUESTS, 4.0), (engine_series.REQUESTS.name, 2.0), (engine_series.PROMPT_TOKENS.name, 500.0)):
        metrics.grow(name, per_s, NOW - timedelta(seconds=240), NOW, every_s=10)

    load = observe("m", metrics, now=NOW)

    assert load.requests_per_s == pytest.approx(4.0)
    assert load.prompt_tokens == pytest.approx(250.0)
    assert (load.output_tokens, load.cached_share, load.zero_confirmed) == (None, None, False)
    assert load.at == NOW - timedelta(seconds=60)


@pytest.mark.parametrize(
    ("served", "running", "confirmed"),
    [(0.0, None, True), (0.0, 0.0, True), (0.0, 1.0, False), (2.0, None, False), (None, None, False)],
)
def test_zero_needs_a_second_witness(served: float | None, running: float | None, confirmed: bool) -> None:
    """The engines' counter stands still and nothing is running there; silence is no witness."""
    since = NOW - timedelta(seconds=240)
    metrics = Recorded().grow(REQUESTS, 0.0, since, NOW, every_s=10)
    if served is not None:
        metrics.grow(engine_series.REQUESTS.name, served, since, NOW, every_s=10)
    if running is not None:
        metrics.put(engine_series.RUNNING.name, {"model": "m"}, NOW, running)

    load = observe("m", metrics, now=NOW)

    assert (load.requests_per_s, load.zero_confirmed) == (0.0, confirmed)


def test_rows_for_the_checks_say_none_where_nothing_is_known() -> None:
    found = rows(History(bin_at(-2), STEP_S, {"requests_per_s": np.array([1.0, np.nan])}), 9, model="m")

    assert [row["requests_per_s"] for row in found] == [1.0, None]
    assert [row["at_s"] for row in found] == [bin_at(-2).timestamp(), bin_at(-1).timestamp()]
    assert {row["model"] for row in found} == {"m"}
    assert len(rows(History(bin_at(-2), STEP_S, {"busy": np.zeros(2)}), 1)) == 1


def test_faults_of_a_table_of_many_models_find_their_model() -> None:
    """One check for all; what concerns the table concerns each of them."""

    class Checks:
        said: Sequence[str] = ()
        seen: Sequence[Mapping[str, Any]] = ()

        def check(self, suite: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
            assert suite == "traffic"
            self.seen = rows
            return self.said

    checks = Checks()
    known = {name: History(bin_at(-3), STEP_S, {"requests_per_s": np.ones(3)}) for name in ("m", "m: x", "n")}

    assert checked(known, checks, 2) == {}
    assert len(checks.seen) == 6
    checks.said = ["traffic of m: x: odd", "traffic of n: odd"]
    assert set(checked(known, checks, 2)) == {"m: x", "n"}
    checks.said = ["traffic: no such column"]
    assert set(checked(known, checks, 2)) == set(known)
    assert checked({}, checks, 2) == {}
