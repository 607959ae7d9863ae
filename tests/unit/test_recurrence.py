"""On which days something repeats."""

import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.domain.recurrence import WEEK, days, parse
from headway.errors import ConfigError

BEGIN = st.dates(date(2024, 1, 1), date(2027, 12, 31))


def some(values: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=most, unique=True)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draw a rule that the standard library of calendars and the RFC read alike."""
    frequency = draw(st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]))
    parts: dict[str, list[Any]] = {"FREQ": [frequency], "INTERVAL": [draw(st.integers(1, 4))]}
    if draw(st.booleans()):
        parts["BYMONTH"] = draw(some(st.integers(1, 12), 12))
    if frequency != "WEEKLY" and draw(st.booleans()):
        parts["BYMONTHDAY"] = draw(some(st.sampled_from([*range(-31, 0), *range(1, 32)]), 12))
    if draw(st.booleans()):
        ordinals = frequency in ("MONTHLY", "YEARLY") and draw(st.booleans())
        number = st.sampled_from([-2, -1, 1, 2, 3]) if ordinals else st.just("")
        parts["BYDAY"] = draw(some(st.builds("{}{}".format, number, st.sampled_from(WEEK)), 5))
    if frequency in ("MONTHLY", "YEARLY") and {"BYDAY", "BYMONTHDAY"} & set(parts) and draw(st.booleans()):
        parts["BYSETPOS"] = draw(some(st.sampled_from([-2, -1, 1, 2]), 2))
    if frequency == "WEEKLY":
        parts["WKST"] = [draw(st.sampled_from(WEEK))]
    if draw(st.booleans()):
        parts["COUNT"] = [draw(st.integers(1, 30))]
    return parts


@given(parts=rules(), begin=BEGIN, skip=st.integers(0, 400), asked=st.integers(0, 90))
def test_days_are_those_that_the_common_library_finds(
    parts: dict[str, list[Any]], begin: date, skip: int, asked: int
) -> None:
    first = begin + timedelta(days=skip)
    last = first + timedelta(days=asked)
    rule = parse(parts, begin)

    found = list(days(rule, begin, first, last))

    # What never comes true keeps the library busy; days far beyond tell whether it does.
    assume(any(True for _ in days(rule._replace(times=None), begin, last, last + timedelta(days=1_500))))
    text = ";".join(f"{name}={','.join(str(value) for value in values)}" for name, values in parts.items())
    midnights = [datetime.combine(day, datetime.min.time(), UTC) for day in (begin, first, last)]
    expected = rrulestr(text, dtstart=midnights[0]).between(midnights[1], midnights[2], inc=True)
    assert found == [moment.date() for moment in expected]


@pytest.mark.parametrize(
    "parts",
    [
        {"FREQ": ["DAILY"], "BYMONTH": [2], "BYMONTHDAY": [30]},
        {"FREQ": ["MONTHLY"], "BYDAY": ["MO"], "BYSETPOS": [6]},
        {"FREQ": ["YEARLY"], "BYMONTHDAY": [31], "BYMONTH": [4], "INTERVAL": [3]},
        {"FREQ": ["DAILY"], "INTERVAL": [7], "BYDAY": ["TU"]},
    ],
)
def test_a_rule_that_never_comes_true_ends(parts: dict[str, list[Any]]) -> None:
    began = time.process_time()

    found = list(days(parse(parts, date(1000, 1, 6)), date(1000, 1, 6), date(2026, 3, 1), date(2026, 3, 20)))

    assert found == []
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"FREQ": ["SECONDLY"]}, "repeats SECONDLY"),
        ({}, "repeats never"),
        ({"FREQ": ["DAILY"], "INTERVAL": [0]}, "INTERVAL of its rule is 0"),
        ({"FREQ": ["DAILY"], "COUNT": ["many"]}, "COUNT of its rule is no number"),
        ({"FREQ": ["DAILY"], "BYMONTH": [13]}, "BYMONTH of its rule is 13"),
        ({"FREQ": ["DAILY"], "BYHOUR": [1, 2]}, "BYHOUR"),
        ({"FREQ": ["WEEKLY"], "BYDAY": ["MONDAY"]}, "MONDAY"),
        ({"FREQ": ["WEEKLY"], "BYDAY": [""]}, "names the day ''"),
    ],
)
def test_what_is_no_rule_of_days_is_said(parts: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(parts, date(2026, 3, 2))
