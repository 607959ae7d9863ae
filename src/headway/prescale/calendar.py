"""The calendar of known events: a file in iCalendar format (RFC 5545) that people keep, and public holidays.

A calendar is written by others, with tools of all kinds. Whatever is wrong with it, the rest of it counts, what was
left out is said in a sentence, and no rule in it can keep a tick busy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from headway.domain import places, recurrence
from headway.domain.series import Event
from headway.errors import ConfigError

if TYPE_CHECKING:
    from icalendar import Calendar
    from icalendar.cal import Component

HOLIDAY = "public holiday"
"""All public holidays are of one kind, so that one tells about the next."""
MOST_CHARACTERS = 262_144
"""About 1,400 events; more take more than a second to read."""
MOST_OCCURRENCES = 1_000
"""Of all entries together, from the begin of the history on; each takes half a millisecond."""
MOST_COUNTED_DAYS = 200_000
"""Days since the first time of all entries that repeat so many times, together: each is gone through."""
LONGEST = timedelta(days=7)
"""What lasts longer is no event but how things are; and taken out of a history it would leave nothing."""
WITHOUT_END = timedelta(hours=1)
"""How long an entry lasts that has neither an end nor a duration."""
FACTORS = (0.1, 10.0)
"""The least and the largest factor that somebody may mean."""
MOST_NOTES = 5
FACTOR = re.compile(r"^\s*factor\s*[:=]\s*(\S+?)[.,;]?\s*$", re.IGNORECASE | re.MULTILINE)


class Known(NamedTuple):
    """What a calendar says.

    Args:
        events: By their begin.
        notes: What was left out or assumed, one sentence each.
    """

    events: tuple[Event, ...]
    notes: tuple[str, ...]


class _Odd(Exception):
    """Why an entry is left out."""


def events(text: str | None, country: str | None, zone: str, start: datetime, end: datetime) -> Known:
    """Return the events that touch a span of time.

    A line `factor: 2.5` in an entry's description says how its traffic is against a usual day's. An entry that lasts
    whole days, or whose times name no zone, follows the users' clock. What was cancelled is no event.

    Args:
        text: A file in iCalendar format; none: there is no such file.
        country: Whose public holidays are events, `DE` or `DE-BY`; none: they are not.
        zone: IANA name of the users' time zone.
        start: Begin of the span, UTC: that of the history.
        end: Its end: as far as is forecast.

    Raises:
        ConfigError: There is no such zone or country.
    """
    # By whole days, so that all ticks of a day, of all models with this calendar, share the work.
    first, last = start.astimezone(UTC).date(), end.astimezone(UTC).date() + timedelta(days=1)
    known = _events(text, country, zone, first, last)
    inside = tuple(event for event in known.events if event.end_at > start and event.start_at < end)
    return Known(inside, known.notes)


@lru_cache(maxsize=64)
def _events(text: str | None, country: str | None, zone: str, first: date, last: date) -> Known:
    start, end = (datetime.combine(day, time(), UTC) for day in (first, last))
    found = set(_holidays(country, zone, start, end)) if country else set()
    notes: list[str] = []
    if text is not None:
        for calendar in _calendars(text, notes):
            found.update(event for event in _entries(calendar, zone, start, end, notes) if event.end_at > start)
    more = len(notes) - MOST_NOTES
    if more > 0:
        notes = [*notes[:MOST_NOTES], f"{more} more entries of the calendar were left out or assumed about."]
    return Known(tuple(sorted(found, key=lambda event: (event.start_at, event.end_at, event.name))), tuple(notes))


def _holidays(country: str, zone: str, start: datetime, end: datetime) -> Iterator[Event]:
    # Takes a tenth of a second to import, and few profiles name a country.
    from holidays import country_holidays

    place = places.country(country)
    days = country_holidays(place.code, subdiv=place.part, years=range(start.year - 1, end.year + 2))
    for day in days:
        event = Event(HOLIDAY, _instant(day, places.zone(zone)), _instant(day + timedelta(days=1), places.zone(zone)))
        if event.end_at > start and event.start_at < end:
            yield event


def _calendars(text: str, notes: list[str]) -> "Sequence[Calendar]":
    # Takes a fifth of a second to import, and few models have a calendar.
    from icalendar import Calendar
    from x_wr_timezone import to_standard

    if len(text) > MOST_CHARACTERS:
        notes.append(
            f"The calendar has {len(text):,} characters, at most {MOST_CHARACTERS:,} are read; none of its events is "
            "known. Keep only what changes this model's traffic in it."
        )
        return ()
    try:
        parsed = Calendar.from_ical(text, multiple=True)
        # Some tools write all times in UTC, and beside them in which zone their series repeat.
        found = [to_standard(one) for one in parsed if one.name == "VCALENDAR"]
    except Exception as error:  # noqa: BLE001 - a file that others wrote breaks a parser in many ways
        found, why = [], f" ({_short(str(error))})"
    else:
        why = ""
    if not found:
        notes.append(f"The calendar is no whole iCalendar file{why}; none of its events is known. Export it again.")
    return found


def _entries(calendar: "Calendar", zone: str, start: datetime, end: datetime, notes: list[str]) -> list[Event]:
    """Return the events of a calendar; entries of one UID belong together: a series and its exceptions."""
    series: dict[str, list[Component]] = {}
    for number, entry in enumerate(calendar.walk("VEVENT")):
        series.setdefault(str(entry.get("UID") or f"entry {number}"), []).append(entry)
    local, days_left, found, said = places.zone(zone), MOST_COUNTED_DAYS, list[Event](), list[str]()
    for entries in series.values():
        name = _short(str(entries[0].get("SUMMARY") or "event"))
        try:
            for entry in entries:
                days_left -= _unrolled(entry, local, start, end, days_left)
                lost = entry["DTSTART"].params.get("TZID")
                if lost and not _own_zone(_time(entry, "DTSTART")):
                    said.append(
                        f"`{name}` of the calendar names the unknown time zone {_short(lost)}; {zone} is taken."
                    )
            for one in _occurrences(entries, local, start, end):
                found.append(_event(one, local, said))
                if len(found) > MOST_OCCURRENCES:
                    notes.append(f"The calendar has too many events, from `{name}` on none is known; keep fewer in it.")
                    return found
        except (_Odd, ConfigError) as odd:
            said.append(f"`{name}` of the calendar was left out: {_short(str(odd), most=200)}.")
        except Exception as error:  # noqa: BLE001 - what is wrong with one entry, the others count
            said.append(f"`{name}` of the calendar cannot be read and was left out: {_short(str(error))}.")
    notes.extend(dict.fromkeys(said))
    return found


def _unrolled(entry: "Component", zone: tzinfo, start: datetime, end: datetime, days_left: int) -> int:
    """Put the days that an entry's rules name in place of the rules; return how many days a count went through.

    The library would follow a rule from its first time on, and one that never comes true to the year 9999.
    """
    begin = _time(entry, "DTSTART")
    if "DTEND" in entry and _instant(_time(entry, "DTEND"), zone) < _instant(begin, zone):
        raise _Odd("it ends before it begins")
    rules = entry.pop("RRULE", [])
    days, since, own = 0, _day(begin), _own_zone(begin) or zone
    first, last = (start - LONGEST).astimezone(own).date(), (end + timedelta(days=1)).astimezone(own).date()
    times: list[date] = []
    for parts in rules if isinstance(rules, list) else [rules]:
        if not isinstance(parts, Mapping):
            raise _Odd("its rule cannot be read")
        rule = recurrence.parse(parts, since)
        days += (last - since).days if rule.times is not None else 0
        if days > days_left:
            raise _Odd(f"it began {days:,} days ago and is counted, and all such together are too many")
        until = min((_instant(value, own) for value in parts.get("UNTIL", [])), default=end + timedelta(days=2))
        named = (_at(begin, day) for day in recurrence.days(rule, since, first, last))
        times += [one for one in named if _instant(one, own) <= until]
    if times:
        entry.add("RDATE", times)
    return days


def _occurrences(entries: "Sequence[Component]", zone: tzinfo, start: datetime, end: datetime) -> "Iterator[Component]":
    from icalendar import Calendar
    from recurring_ical_events import of

    alone = Calendar()
    for entry in entries:
        alone.add_component(entry)
    for one in of(alone).between(start.astimezone(zone), end.astimezone(zone)):
        if str(one.get("STATUS", "")).upper() != "CANCELLED":
            yield one


def _event(entry: "Component", zone: tzinfo, said: list[str]) -> Event:
    """Return one occurrence as an event."""
    name = _short(str(entry.get("SUMMARY") or "event"))
    begin = _time(entry, "DTSTART")
    start_at, end_at = _instant(begin, zone), _instant(_time(entry, "DTEND"), zone)
    if end_at == start_at:
        end_at += WITHOUT_END
        said.append(f"`{name}` of the calendar has no end; it is taken to last an hour.")
    if end_at - start_at > LONGEST:
        raise _Odd(f"it lasts {(end_at - start_at).days} days; an event is at most {LONGEST.days} days long")
    return Event(name, start_at, end_at, _factor(str(entry.get("DESCRIPTION") or "")))


def _factor(description: str) -> float | None:
    """Return the factor that a description gives."""
    found = FACTOR.search(description)
    if found is None:
        return None
    least, most = FACTORS
    try:
        factor = float(found[1])
    except ValueError:
        factor = float("nan")
    if not least <= factor <= most:
        raise _Odd(f"its factor is {_short(found[1])!r}; expected a number from {least:g} to {most:g}")
    return factor


def _time(entry: "Component", key: str) -> date:
    """Return a day or a time that an entry holds."""
    from icalendar import vDDDTypes

    value = entry.get(key)
    if not isinstance(value, vDDDTypes) or not isinstance(value.dt, date):
        raise _Odd(f"it has no {key} that can be read")
    return value.dt


def _instant(value: date, zone: tzinfo) -> datetime:
    """Return a time in UTC; a day, or a time without a zone, is one of the users' clock."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)


def _day(moment: date) -> date:
    return moment.date() if isinstance(moment, datetime) else moment


def _own_zone(begin: date) -> tzinfo | None:
    """Return the zone that a time names; a day names none."""
    return begin.tzinfo if isinstance(begin, datetime) else None


def _at(begin: date, day: date) -> date:
    """Return a day as an entry's begin spells it: at its time, if it has one."""
    return datetime.combine(day, begin.timetz()) if isinstance(begin, datetime) else day


def _short(text: str, *, most: int = 60) -> str:
    """Return text of others as it may stand in a sentence."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."
