"""Histories from CSV files: whatever is odd in one is said, and nothing that is missing becomes zero."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.prescale.history import History, from_csv

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def lines(rows: list[str], head: str = "ts,rps") -> str:
    return "\n".join([head, *rows])


def regular(values: Sequence[float], step_s: int = 600, begin: datetime = BEGIN) -> list[str]:
    return [f"{begin + timedelta(seconds=step_s * index)},{value}" for index, value in enumerate(values)]


def rates(history: History) -> list[float | None]:
    values = history.columns["requests_per_s"]
    return [None if np.isnan(value) else round(float(value), 6) for value in values]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50), st.randoms())
def test_the_order_of_the_rows_does_not_matter(values: list[float], shuffled: random.Random) -> None:
    """Times that say their zone are sorted, and twice the same row is that row."""
    rows = regular(values)
    mixed = [*rows, rows[-1]]
    shuffled.shuffle(mixed)

    plain, notes = from_csv(lines(rows))
    history, more = from_csv(lines(mixed))

    assert notes == ()
    assert any("time of another" in note for note in more)
    assert (history.start_at, history.step_s) == (plain.start_at, plain.step_s) == (BEGIN, 600)
    assert rates(history) == rates(plain) == [round(value, 6) for value in values]


@pytest.mark.parametrize("bad", ["", "NaN", "inf", "-3", "none", "1e400"])
def test_what_is_no_rate_is_missing_and_said(bad: str) -> None:
    """Read as zero it would be an outage that users had."""
    rows = regular([5, 5, 5, 5])
    rows[2] = f"{BEGIN + timedelta(minutes=20)},{bad}"

    history, notes = from_csv(lines(rows))

    assert rates(history) == [5, 5, None, 5]
    assert notes == ("1 rows have no time, no number, or one below zero; they are missing, not zero.",)


def test_rows_that_are_not_there_are_missing() -> None:
    """A gap in the middle, and a bin of which less than half is there."""
    rows = regular([2.0] * 60, step_s=60)

    history, _ = from_csv(lines([*rows[:10], *rows[20:34], *rows[40:]]))

    assert rates(history) == [2, None, 2, None, 2, 2]


@pytest.mark.parametrize(
    ("name", "divided"), [("requests", 60.0), ("count", 60.0), ("rps", 1.0), ("Requests_per_s", 1.0)]
)
def test_a_count_becomes_a_rate(name: str, divided: float) -> None:
    """A column of counts holds requests since the row before."""
    history, notes = from_csv(lines(regular([120.0] * 30, step_s=60), head=f"timestamp,{name}"))

    assert rates(history) == [120 / divided] * 3
    assert any("read as a count in 60 s" in note for note in notes) == (divided > 1)


def test_a_counter_that_begins_again_does_not_fall() -> None:
    """As Prometheus exports it: the name of the column says that it only grows."""
    states = [1000 + 60 * index if index < 25 else 60 * (index - 25) for index in range(61)]

    history, notes = from_csv(
        lines(regular(states, step_s=60), head="time,headway_requests_total"), column="headway_requests_total"
    )

    assert rates(history)[:2] == [1, 1]
    assert rates(history)[2] == pytest.approx(0.9)
    assert rates(history)[3:] == [1, 1, 1, None]
    assert any("counter that only grows" in note for note in notes)


def test_times_may_be_seconds_or_milliseconds_since_1970() -> None:
    """Separated by whatever a spreadsheet takes."""
    seconds = [round(BEGIN.timestamp()) + 600 * index for index in range(3)]
    text = lines([f"{at};7" for at in seconds], head="\ufefftime;rps")

    assert from_csv(text)[0].start_at == BEGIN
    assert rates(from_csv(text)[0]) == rates(from_csv(lines([f"{at * 1000},7" for at in seconds]))[0]) == [7, 7, 7]


def berlin(start: datetime, hours: int) -> tuple[str, list[float]]:
    """Return a CSV with the times of a clock on the wall, every ten minutes, and the value of each."""
    moments = [start + timedelta(minutes=10 * index) for index in range(6 * hours)]
    rows = [f"{moment.astimezone(BERLIN):%Y-%m-%d %H:%M:%S},{index}" for index, moment in enumerate(moments)]
    return lines(rows), [float(index) for index in range(len(moments))]


def test_the_hour_that_comes_twice_is_told_apart_by_the_order_of_the_rows() -> None:
    """On 25 October 2026 Berlin's clock goes from 3:00 back to 2:00; no row of that night may be lost."""
    start = datetime(2026, 10, 24, 22, tzinfo=UTC)
    text, values = berlin(start, 6)

    history, notes = from_csv(text, timezone="Europe/Berlin")

    assert (history.start_at, rates(history)) == (start, values)
    assert len(notes) == 1
    assert notes[0].startswith("6 times come twice in Europe/Berlin")


def test_the_hour_that_is_left_out_leaves_no_gap() -> None:
    """On 29 March 2026 it goes from 2:00 to 3:00."""
    start = datetime(2026, 3, 28, 23, tzinfo=UTC)
    text, values = berlin(start, 6)

    assert from_csv(text, timezone="Europe/Berlin")[1] == ()
    assert rates(from_csv(text, timezone="Europe/Berlin")[0]) == values
    assert None in rates(from_csv(text, timezone="UTC")[0])


def test_times_that_do_not_exist_are_said() -> None:
    """UTC that was taken for local time shows itself in the night in which an hour is left out."""
    rows = [f"2026-03-29 0{hour}:{minute}0:00,1" for hour in range(5) for minute in range(6)]

    _, notes = from_csv(lines(rows), timezone="Europe/Berlin")

    assert any("6 times do not exist in Europe/Berlin" in note for note in notes)


def test_means_of_a_request_come_along() -> None:
    """Under the names that exports have; what is missing in them is missing in their column alone."""
    rows = [f"{BEGIN + timedelta(minutes=10 * index)},5,{tokens},0.5" for index, tokens in enumerate(("800", "", "-1"))]

    history, _ = from_csv(lines(rows, head="ts,rps,mean_in_tok,cached_share"))

    assert rates(history) == [5, 5, 5]
    assert np.array_equal(history.columns["prompt_tokens"], [800, np.nan, np.nan], equal_nan=True)
    assert history.columns["cached_share"].tolist() == [0.5] * 3
    assert np.isnan(history.columns["output_tokens"]).all()


@pytest.mark.parametrize(
    ("text", "arguments", "word"),
    [
        ("", {}, "no rows"),
        ("ts,rps\n", {}, "no rows"),
        (
            lines(regular([1, 2]), head="ts,load"),
            {},
            "no column of requests, such as requests_per_s, .*it has ts, load",
        ),
        (lines(regular([1, 2]), head="when,rps"), {}, "no column of times"),
        (lines(regular([1, 2])), {"column": "qps"}, "no column qps; it has ts, rps"),
        (lines(regular([1, 2])), {"timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        (lines(regular([1, 2])), {"timezone": ""}, "no time zone ''"),
        (lines(regular([1, 2])), {"step_s": 7}, "does not divide a day"),
        (lines(regular([1, 2], step_s=3600)), {"step_s": 600}, "3600 s apart; a step of 600 s is shorter"),
        (lines(regular([1, 2])[:1]), {}, "one time"),
        (lines(["yesterday,3", "9999-01-01,4", "1e300,5"]), {}, "3 of 3 rows have no time .*such as 'yesterday'"),
        (
            lines(["2026-03-02T00:00,1 req/s"]),
            {},
            "0 of 1 rows have no time .*no number .*column rps, such as '1 req/s'",
        ),
        (lines(['2026-03-02T00:00,"1', *regular([1, 2])]), {}, "quotation mark without its other half"),
        (lines(["", ""]), {}, "no rows"),
        (
            lines([*regular([1, 2, 3, 4]), "1970-01-01,3", "2199-01-01,3"]),
            {},
            "from 1970-01-01 to 2199-01-01, .*is a time wrong",
        ),
        (lines(regular([1, 2], step_s=90_000)), {}, "1.0 days apart"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, arguments: dict[str, object], word: str) -> None:
    """With what was found and what was expected."""
    with pytest.raises(ConfigError, match=word):
        from_csv(text, **arguments)  # type: ignore[arg-type]


def test_longer_steps_stay_as_they_are() -> None:
    """Nothing is known between the rows of an hour; shorter ones come to ten minutes, or as asked."""
    assert from_csv(lines(regular([1, 2, 3], step_s=3600)))[0].step_s == 3600
    assert from_csv(lines(regular([1, 2, 3], step_s=1500)))[0].step_s == 1800
    assert from_csv(lines(regular([1.0] * 40, step_s=60)))[0].step_s == 600
    assert from_csv(lines(regular([1.0] * 40, step_s=60)), step_s=300)[0].step_s == 300
