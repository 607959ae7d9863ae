"""Known events from a calendar that others wrote, and public holidays."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.prescale import calendar
from headway.prescale.calendar import Known

BERLIN = "Europe/Berlin"
START = datetime(2026, 3, 20, tzinfo=UTC)
END = datetime(2026, 4, 5, tzinfo=UTC)
"""Summer time begins on 29 March, Easter is on 5 April."""


def ics(*entries: str, head: str = "") -> str:
    """Return a calendar file; in an entry `|` ends a line, and each has a UID of its own unless it names one."""
    body = "".join(
        f"BEGIN:VEVENT\r\n{'' if 'UID' in entry else f'UID:{number}|'}DTSTAMP:20260101T000000Z|{entry}|END:VEVENT|"
        for number, entry in enumerate(entries)
    )
    return f"BEGIN:VCALENDAR|VERSION:2.0|PRODID:test|{head}{body}END:VCALENDAR|".replace("|", "\r\n")


def known(text: str | None, country: str | None = None, zone: str = BERLIN) -> Known:
    return calendar.events(text, country, zone, START, END)


def begins(found: Known) -> list[str]:
    return [f"{event.start_at:%m-%d %H:%M}" for event in found.events]


def test_a_weekly_launch_follows_the_clock_of_its_zone() -> None:
    """At ten o'clock in Berlin it is nine in winter and eight in summer."""
    found = known(ics("SUMMARY:launch|DTSTART;TZID=Europe/Berlin:20250105T100000|DURATION:PT2H|RRULE:FREQ=WEEKLY"))

    assert begins(found) == ["03-22 09:00", "03-29 08:00"]
    assert {(event.name, event.end_at - event.start_at) for event in found.events} == {("launch", timedelta(hours=2))}
    assert found.notes == ()


@pytest.mark.parametrize(
    ("lines", "begin", "lasts_h"),
    [
        ("DTSTART;VALUE=DATE:20260328|DTEND;VALUE=DATE:20260329", "03-27 23:00", 24),
        ("DTSTART;VALUE=DATE:20260329", "03-28 23:00", 23),
        ("DTSTART:20260330T100000|DTEND:20260330T110000", "03-30 08:00", 1),
        ("DTSTART:20260330T100000Z|DTEND:20260330T110000Z", "03-30 10:00", 1),
        ("DTSTART;TZID=America/New_York:20260330T100000|DURATION:PT3H", "03-30 14:00", 3),
        ("DTSTART;TZID=W. Europe Standard Time:20260330T100000|DURATION:PT1H", "03-30 08:00", 1),
    ],
    ids=["a day", "a day of 23 hours", "no zone", "UTC", "another zone", "a zone by its name in Windows"],
)
def test_days_and_times_without_a_zone_are_the_users(lines: str, begin: str, lasts_h: int) -> None:
    found = known(ics(f"SUMMARY:sale|{lines}"))

    assert begins(found) == [begin]
    assert found.events[0].end_at - found.events[0].start_at == timedelta(hours=lasts_h)
    assert found.notes == ()


def test_series_in_utc_repeat_on_the_clock_that_their_calendar_names() -> None:
    entry = "SUMMARY:launch|DTSTART:20260105T090000Z|DURATION:PT1H|RRULE:FREQ=WEEKLY;BYDAY=MO"

    assert begins(known(ics(entry, head="X-WR-TIMEZONE:Europe/Berlin|"))) == ["03-23 09:00", "03-30 08:00"]
    assert begins(known(ics(entry))) == ["03-23 09:00", "03-30 09:00"]


def test_exceptions_of_a_series_count() -> None:
    """What is left out is left out, what was moved is where it is now, and what was called off is no event."""
    found = known(
        ics(
            "UID:s|SUMMARY:s|DTSTART:20260323T100000Z|DURATION:PT1H|RRULE:FREQ=DAILY;COUNT=5|EXDATE:20260324T100000Z",
            "UID:s|SUMMARY:s|RECURRENCE-ID:20260325T100000Z|DTSTART:20260325T150000Z|DURATION:PT1H",
            "UID:s|SUMMARY:s|RECURRENCE-ID:20260326T100000Z|DTSTART:20260326T100000Z|DURATION:PT1H|STATUS:CANCELLED",
            "SUMMARY:t|DTSTART:20260323T120000Z|DURATION:PT1H|RDATE:20260324T120000Z",
        )
    )

    assert begins(found) == ["03-23 10:00", "03-23 12:00", "03-24 12:00", "03-25 15:00", "03-27 10:00"]


@pytest.mark.parametrize("until", ["20260323T090000Z", "20260323T100000", "20260323"])
def test_a_series_ends_when_it_says(until: str) -> None:
    """However its end is spelled; a day ends it at the day's begin."""
    found = known(
        ics(f"SUMMARY:s|DTSTART;TZID=Europe/Berlin:20260321T100000|DURATION:PT1H|RRULE:FREQ=DAILY;UNTIL={until}")
    )

    assert begins(found) == ["03-21 09:00", "03-22 09:00", "03-23 09:00"][: 2 if len(until) == 8 else 3]


@pytest.mark.parametrize(("line", "factor"), [("factor: 2.5", 2.5), ("What\\nFactor=0.3\\nmore", 0.3), ("no", None)])
def test_an_entry_may_say_its_factor(line: str, factor: float | None) -> None:
    found = known(ics(f"SUMMARY:s|DTSTART:20260325T100000Z|DURATION:PT1H|DESCRIPTION:{line}"))

    assert [event.factor for event in found.events] == [factor]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("DTSTART:nonsense", "no DTSTART that can be read"),
        ("DTEND:20260325T100000Z", "no DTSTART that can be read"),
        ("DTSTART:20260325T100000Z|DTEND:20260324T100000Z", "ends before it begins"),
        ("DTSTART:20260301T100000Z|DTEND:20270301T100000Z", "at most 7 days"),
        ("DTSTART:20260325T100000Z|DURATION:PT1H|DESCRIPTION:factor: 1e9", "expected a number from 0.1 to 10"),
        ("DTSTART:20260325T100000Z|DURATION:PT1H|DESCRIPTION:factor: nan", "expected a number from 0.1 to 10"),
        ("DTSTART:20260325T100000Z|DURATION:PT1H|RRULE:FREQ=SECONDLY", "it repeats SECONDLY"),
        ("DTSTART:20260325T100000Z|DURATION:PT1H|RRULE:FREQ=DAILY;INTERVAL=0", "INTERVAL of its rule is 0"),
        ("DTSTART:20260325T100000Z|DURATION:PT1H|RRULE:nonsense", "it repeats never"),
        ("DTSTART:00010101T000000Z|DURATION:PT1H|RRULE:FREQ=DAILY;COUNT=999999", "is counted"),
    ],
)
def test_an_entry_that_makes_no_sense_is_said_and_the_others_count(lines: str, words: str) -> None:
    found = known(ics(f"SUMMARY:odd|{lines}", "SUMMARY:good|DTSTART:20260325T100000Z|DURATION:PT1H"))

    assert [event.name for event in found.events] == ["good"]
    assert len(found.notes) == 1
    assert "`odd`" in found.notes[0]
    assert words in found.notes[0]


def test_an_entry_without_an_end_lasts_an_hour_and_that_is_said() -> None:
    found = known(ics("SUMMARY:s|DTSTART:20260325T100000Z|RRULE:FREQ=DAILY"))

    assert {event.end_at - event.start_at for event in found.events} == {timedelta(hours=1)}
    assert found.notes == ("`s` of the calendar has no end; it is taken to last an hour.",)


def test_a_zone_that_nobody_knows_is_said() -> None:
    found = known(ics("SUMMARY:s|DTSTART;TZID=Mars/Olympus:20260330T100000|DURATION:PT1H"))

    assert begins(found) == ["03-30 08:00"]
    assert "Mars/Olympus" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no whole iCalendar file"),
        ("hello", "no whole iCalendar file"),
        (ics("SUMMARY:s|DTSTART:20260325T100000Z")[:-30], "no whole iCalendar file"),
        ("<html>sign in</html>", "no whole iCalendar file"),
        ("x" * 300_000, "300,000 characters"),
    ],
)
def test_a_file_that_is_no_calendar_is_said(text: str, words: str) -> None:
    """A forecast without events is better than none."""
    found = known(text, "DE")

    assert [event.name for event in found.events] == ["public holiday"]
    assert len(found.notes) == 1
    assert words in found.notes[0]


@pytest.mark.parametrize(
    "entries",
    [
        ["SUMMARY:s|DTSTART:19700101T000000Z|DURATION:PT1H|RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"] * 50,
        ["SUMMARY:s|DTSTART:00010101T000000Z|DURATION:PT1H|RRULE:FREQ=DAILY"] * 50,
        ["SUMMARY:s|DTSTART:19000101T000000Z|DURATION:PT1H|RRULE:FREQ=YEARLY;COUNT=9999;BYMONTHDAY=31;BYMONTH=2"] * 50,
        ["SUMMARY:s|DTSTART:20260101T000000Z|DURATION:PT1M|RRULE:FREQ=DAILY"] * 1_300,
    ],
    ids=["never", "forever", "never so many", "many"],
)
def test_no_calendar_keeps_a_tick_busy(entries: list[str]) -> None:
    text = ics(*entries)
    assert len(text) < calendar.MOST_CHARACTERS
    began = time.process_time()

    found = known(text)

    assert time.process_time() - began < 10
    assert len(found.events) <= calendar.MOST_OCCURRENCES + 1
    assert len(found.notes) <= calendar.MOST_NOTES + 1


WHOLE = ics(
    "SUMMARY:launch|DTSTART;TZID=Europe/Berlin:20260105T100000|DURATION:PT2H|RRULE:FREQ=WEEKLY;BYDAY=MO,TH",
    "SUMMARY:sale|DTSTART;VALUE=DATE:20260329|DTEND;VALUE=DATE:20260330|DESCRIPTION:factor: 2",
)


@settings(max_examples=60)
@given(
    at=st.integers(0, len(WHOLE)),
    gone=st.integers(0, 40),
    put=st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(["\r\n", "RRULE:", ";", "=", "-1", "9" * 20]),
)
def test_whatever_is_wrong_in_a_calendar_the_tick_goes_on(at: int, gone: int, put: str) -> None:
    """A file that was cut, joined or edited by hand gives events or sentences, and never an error."""
    found = known(WHOLE[:at] + put + WHOLE[at + gone :])

    assert all(event.start_at < event.end_at for event in found.events)
    assert all(event.end_at > START and event.start_at < END for event in found.events)
    assert all(note.endswith(".") and note.isprintable() for note in found.notes)


def test_public_holidays_are_days_of_the_users_clock() -> None:
    found = known(None, "DE")

    assert [(event.start_at.isoformat(), event.end_at.isoformat()) for event in found.events] == [
        ("2026-04-02T22:00:00+00:00", "2026-04-03T22:00:00+00:00")
    ]
    assert known(None, "US", "America/New_York").events == ()


def test_a_part_of_a_country_has_its_own_holidays() -> None:
    epiphany = datetime(2026, 1, 6, tzinfo=UTC)
    span = (epiphany, epiphany + timedelta(hours=12))

    assert len(calendar.events(None, "DE-BY", "UTC", *span).events) == 1
    assert calendar.events(None, "DE", "UTC", *span).events == ()


def test_where_midnight_is_left_out_the_day_begins_an_hour_later() -> None:
    """In Santiago the clock goes from 24:00 to 01:00 on 5 September 2026."""
    text = ics("SUMMARY:s|DTSTART;VALUE=DATE:20260906|DTEND;VALUE=DATE:20260907")
    moment = datetime(2026, 9, 6, tzinfo=UTC)

    found = calendar.events(text, None, "America/Santiago", moment, moment + timedelta(days=1)).events[0]

    assert (found.start_at, found.end_at) == (moment + timedelta(hours=4), moment + timedelta(hours=27))


def test_without_anything_nothing_is_known() -> None:
    assert known(None) == ((), ())


def test_a_place_that_there_is_not_is_said() -> None:
    with pytest.raises(ConfigError, match="did you mean `DE`"):
        known(None, "Germany")
