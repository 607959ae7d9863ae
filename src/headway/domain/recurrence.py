"""On which days something repeats (the rules of RFC 5545, section 3.3.10, as far as they name whole days).

Each day is asked by itself whether a rule names it. So what a rule costs depends on how many days are asked, and never
on the rule: one that never comes true, or began a thousand years ago, costs no more than others.
"""

from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from headway.errors import ConfigError

WEEK = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
PARTS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYMONTH", "BYMONTHDAY", "BYDAY", "BYSETPOS"}


class Rule(NamedTuple):
    """A rule by which something repeats.

    Args:
        frequency: `DAILY`, `WEEKLY`, `MONTHLY` or `YEARLY`: its periods.
        interval: Every so many periods.
        times: How often in all; none: without end.
        week_start: The first day of a week, 0 is Monday.
        months: Only these; empty: all.
        month_days: Only these; negative ones count from the month's end.
        week_days: Only these, each with which of the period it is; 0: each of them.
        positions: Which of the days that a period has so; negative ones count from its end; empty: all.
    """

    frequency: str
    interval: int = 1
    times: int | None = None
    week_start: int = 0
    months: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    week_days: tuple[tuple[int, int], ...] = ()
    positions: tuple[int, ...] = ()


def parse(parts: Mapping[str, Sequence[Any]], begin: date) -> Rule:
    """Return the rule that parts give; what they leave open is as at the first time.

    Args:
        parts: Values of each part by its name; `UNTIL` is not looked at.
        begin: The first day.

    Raises:
        ConfigError: It is no such rule; the text says why, as an end of a sentence.
    """
    unknown = sorted(set(parts) - PARTS)
    if unknown:
        raise ConfigError(f"its rule has {', '.join(unknown)}, which no rule of whole days has")
    frequency = str(next(iter(parts.get("FREQ", [])), "")).upper()
    if frequency not in FREQUENCIES:
        raise ConfigError(f"it repeats {frequency or 'never'}; expected one of {', '.join(FREQUENCIES)}")
    rule = Rule(
        frequency=frequency,
        interval=next(iter(_numbers(parts, "INTERVAL", 1, 10**6)), 1),
        times=next(iter(_numbers(parts, "COUNT", 1, 10**9)), None),
        week_start=_week_day(next(iter(parts.get("WKST", [])), "MO"))[1],
        months=_numbers(parts, "BYMONTH", 1, 12),
        month_days=_numbers(parts, "BYMONTHDAY", -31, 31),
        week_days=tuple(_week_day(day) for day in parts.get("BYDAY", [])),
        positions=_numbers(parts, "BYSETPOS", -366, 366),
    )
    if rule.month_days or rule.week_days or frequency == "DAILY":
        return rule
    if frequency == "WEEKLY":
        return rule._replace(week_days=((0, begin.weekday()),))
    months = (begin.month,) if frequency == "YEARLY" and not rule.months else rule.months
    return rule._replace(months=months, month_days=(begin.day,))


def days(rule: Rule, begin: date, first: date, last: date) -> Iterator[date]:
    """Yield the days that a rule names.

    Args:
        rule: The rule.
        begin: Its first day.
        first: From when on.
        last: The last day that is asked; without a count, one day costs about a microsecond from `first` on, with
            one from `begin` on.
    """
    chosen: dict[date, set[date]] = {}
    met = 0
    # What went before matters to a count alone.
    start = begin if rule.times is not None else max(begin, first)
    for number in range(start.toordinal(), last.toordinal() + 1):
        day = date.fromordinal(number)
        if not _in_interval(rule, begin, day) or not _named(rule, day):
            continue
        if rule.positions:
            period = _period(rule, day)
            if period[0] not in chosen:
                chosen[period[0]] = _chosen(rule, *period)
            if day not in chosen[period[0]]:
                continue
        met += 1
        if rule.times is not None and met > rule.times:
            return
        if day >= first:
            yield day


def _in_interval(rule: Rule, begin: date, day: date) -> bool:
    if rule.frequency == "DAILY":
        apart = (day - begin).days
    elif rule.frequency == "WEEKLY":
        apart = (_period(rule, day)[0] - _period(rule, begin)[0]).days // 7
    elif rule.frequency == "MONTHLY":
        apart = (day.year - begin.year) * 12 + day.month - begin.month
    else:
        apart = day.year - begin.year
    return apart % rule.interval == 0


def _named(rule: Rule, day: date) -> bool:
    """Return whether the rule's parts hold for a day, its place among such days not counted."""
    if rule.months and day.month not in rule.months:
        return False
    if rule.month_days:
        last = monthrange(day.year, day.month)[1]
        if day.day not in rule.month_days and day.day - last - 1 not in rule.month_days:
            return False
    return not rule.week_days or any(
        day.weekday() == week_day and (which == 0 or which in _which(rule, day)) for which, week_day in rule.week_days
    )


def _which(rule: Rule, day: date) -> tuple[int, ...]:
    """Return the how manieth of its day of the week a day is, from the begin and from the end of the month or year.

    In a week, or among days, there is but one: then every number holds.
    """
    if rule.frequency in ("DAILY", "WEEKLY"):
        return tuple(number for number, _ in rule.week_days)
    if rule.frequency == "YEARLY" and not rule.months:
        number, last = day.timetuple().tm_yday, 365 + (monthrange(day.year, 2)[1] == 29)
    else:
        number, last = day.day, monthrange(day.year, day.month)[1]
    return (number - 1) // 7 + 1, -((last - number) // 7 + 1)


def _chosen(rule: Rule, first: date, last: date) -> set[date]:
    """Return the days of a period that its positions choose."""
    named = [day for n in range(first.toordinal(), last.toordinal() + 1) if _named(rule, day := date.fromordinal(n))]
    at = (place - 1 if place > 0 else len(named) + place for place in rule.positions)
    return {named[index] for index in at if 0 <= index < len(named)}


def _period(rule: Rule, day: date) -> tuple[date, date]:
    """Return the first and the last day of a day's period."""
    if rule.frequency == "DAILY":
        return day, day
    if rule.frequency == "WEEKLY":
        into = (day.weekday() - rule.week_start) % 7
        return _shifted(day, -into), _shifted(day, 6 - into)
    if rule.frequency == "MONTHLY":
        return day.replace(day=1), day.replace(day=monthrange(day.year, day.month)[1])
    return date(day.year, 1, 1), date(day.year, 12, 31)


def _shifted(day: date, by_days: int) -> date:
    return date.fromordinal(min(max(day.toordinal() + by_days, 1), date.max.toordinal()))


def _numbers(parts: Mapping[str, Sequence[Any]], name: str, least: int, most: int) -> tuple[int, ...]:
    """Return the numbers of a part."""
    try:
        numbers = tuple(int(value) for value in parts.get(name, []))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} of its rule is no number") from error
    odd = [number for number in numbers if not least <= number <= most or number == 0]
    if odd:
        raise ConfigError(f"{name} of its rule is {odd[0]}; expected {least} to {most}, but for 0")
    return numbers


def _week_day(text: object) -> tuple[int, int]:
    """Return a day of the week, such as `-1SU`: which one, and its number from Monday on."""
    plain = str(text).upper()
    number, name = plain[:-2], plain[-2:]
    try:
        return int(number or 0), WEEK.index(name)
    except ValueError as error:
        raise ConfigError(f"its rule names the day {plain[:10]!r}; expected such as MO or -1SU") from error
