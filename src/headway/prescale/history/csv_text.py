"""A history from a CSV file, as a metrics store or a spreadsheet exports it."""

import csv
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from headway.domain.counters import growth
from headway.domain.series import DAY_S, Floats
from headway.errors import ConfigError
from headway.prescale.history.table import STEP_S, History

Numbers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

TIMES = ("ts", "timestamp", "time", "datetime", "date", "at")
RATES = ("requests_per_s", "rps", "qps", "rate")
"""Columns that hold requests a second."""
COUNTS = ("requests", "count")
"""Columns that hold requests since the row before."""
COUNTER = "_total"
"""How the name of a column ends that holds all requests since the beginning."""
MOST_GAP = 5
"""Usual distances of two rows after which a counter has a gap."""
OTHERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("prompt_tokens", "mean_prompt_tokens", "mean_in_tok", "input_tokens"),
    "output_tokens": ("output_tokens", "mean_output_tokens", "mean_out_tok", "completion_tokens"),
    "cached_share": ("cached_share", "cache_hit_share"),
}
"""What else is read, by our column: means of a request."""
MOST_SECONDS = 1e11
"""More seconds since 1970 lie thousands of years ahead: it is milliseconds."""
FIRST_YEAR, LAST_YEAR = 1900, 2200
NOTHING = timedelta(0)
MOST_BINS = 2_000_000
"""A history of 60 s bins over three and a half years; more is a wrong time in the file."""


class _Times(NamedTuple):
    """Seconds since 1970 of each row, NaN where there is no time."""

    at_s: Floats
    notes: tuple[str, ...]


def from_csv(
    text: str, *, column: str | None = None, timezone: str = "UTC", step_s: int | None = None
) -> tuple[History, tuple[str, ...]]:
    """Return the history of a CSV text, and what was done to read it, one sentence each.

    Args:
        text: With a line of names; a column of times (ISO 8601, or seconds or milliseconds since 1970), one of requests
            (a rate, a count since the row before, or a counter), and perhaps mean tokens of a request.
        column: The column of requests; none to take the first of the usual names. One of another name is a rate.
        timezone: Of times that do not say theirs. In the night in which the clock is set back the order of the rows
            tells the two hours apart.
        step_s: Bins of the result; none for ten minutes, or the file's own step if that is longer.

    Raises:
        ConfigError: There is no such column or zone, or no row can be used.
    """
    names, body = _table(text)
    notes: list[str] = []
    place = _place(names, column, "requests", (*RATES, *COUNTS, "requests_total"))
    time_place = _place(names, None, "times", TIMES)
    times = _times([_cell(row, time_place) for row in body], _zone(timezone))
    notes += times.notes
    values = np.array([_number(_cell(row, place)) for row in body])
    timed = np.abs(times.at_s) < MOST_SECONDS / 10
    usable = timed & np.isfinite(values) & (values >= 0)
    if not usable.any():
        raise ConfigError(_unusable(body, names, (time_place, timed), (place, np.isfinite(values) & (values >= 0))))
    if not usable.all():
        notes.append(f"{(~usable).sum()} rows have no time, no number, or one below zero; they are missing, not zero.")
    if (np.diff(times.at_s[usable]) < 0).any():
        notes.append("The rows were not in order of time; they were sorted.")
    at, row_time = np.unique(times.at_s[usable], return_inverse=True)
    if len(at) < len(row_time):
        notes.append(f"{len(row_time) - len(at)} rows have the time of another; the mean of each time was taken.")
    native_s = _native(np.unique(times.at_s[timed]))
    step_s = _step(native_s, step_s)
    bins, first = _bins(at, step_s)
    begin = datetime.fromtimestamp(first * step_s, UTC)
    rate = _mean(row_time, values[usable], len(at))
    if names[place] in COUNTS:
        notes.append(f"Column {names[place]} was read as a count in {native_s:.0f} s and divided by that.")
        rate = rate / native_s
    columns = {"requests_per_s": _binned(bins, rate, step_s, native_s)}
    if names[place].endswith(COUNTER):
        notes.append(f"Column {names[place]} was read as a counter that only grows; where it falls it began again.")
        columns = {"requests_per_s": _grown(at, rate, begin, step_s, native_s)}
    for ours, known in OTHERS.items():
        if found := [names.index(name) for name in known if name in names]:
            cells = np.array([_number(_cell(row, found[0])) for row in body])[usable]
            means = _mean(row_time, np.where(cells >= 0, cells, np.nan), len(at))
            columns[ours] = _binned(bins, means, step_s, native_s)
    return History(begin, step_s, columns), tuple(notes)


def _table(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the names and the rows of a CSV text, whatever separates its columns."""
    lines = text.lstrip("\ufeff").splitlines()
    try:
        # Strict: a quote without its other half would take all that follows for one cell.
        table = list(csv.reader(lines, delimiter=max(",;\t", key=lines[0].count) if lines else ",", strict=True))
    except csv.Error as error:
        raise ConfigError(f"the CSV cannot be read: {error}; is a quotation mark without its other half?") from error
    body = [row for row in table[1:] if row]
    if not body:
        raise ConfigError("the CSV has no rows; expected a line of names, then one row for each time")
    return [name.strip().lower() for name in table[0]], body


def _unusable(
    body: Sequence[Sequence[str]], names: Sequence[str], times: tuple[int, Flags], numbers: tuple[int, Flags]
) -> str:
    """Say what is wrong where no row can be used: which column, and what stands in it."""
    found = []
    for (place, good), expected in (
        (times, "a time (ISO 8601, or seconds or milliseconds since 1970)"),
        (numbers, "a number of zero or more (with a point, nothing else in the cell)"),
    ):
        lacking = np.flatnonzero(~good)
        example = f", such as {_cell(body[int(lacking[0])], place)[:40]!r}" if len(lacking) else ""
        found.append(f"{len(lacking)} of {len(body)} rows have no {expected[2:]} in column {names[place]}{example}")
    return f"no row of the CSV can be used: {'; '.join(found)}"


def _place(names: Sequence[str], wanted: str | None, what: str, known: Sequence[str]) -> int:
    """Return which column it is."""
    looked = [wanted.strip().lower()] if wanted else known
    found = [names.index(name) for name in looked if name in names]
    if not found:
        usual = f"no column {wanted}" if wanted else f"no column of {what}, such as {', '.join(known[:3])}"
        raise ConfigError(f"the CSV has {usual}; it has {', '.join(names)[:200]}")
    return found[0]


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(f"there is no time zone {name!r}; expected an IANA name such as Europe/Berlin") from error


def _cell(row: Sequence[str], place: int) -> str:
    return row[place].strip() if place < len(row) else ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _times(cells: Sequence[str], zone: ZoneInfo) -> _Times:
    """Return the times in UTC; a naive one that goes back within the doubled hour is the second of the two."""
    found = np.full(len(cells), np.nan)
    second, repeated, absent = False, 0, 0
    before = datetime.min  # noqa: DTZ901 - compared with times that have no zone either
    for index, cell in enumerate(cells):
        number = _number(cell)
        if math.isfinite(number):
            found[index] = number / 1000 if abs(number) > MOST_SECONDS else number
            continue
        try:
            moment = datetime.fromisoformat(cell)
        except ValueError:
            continue
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            continue
        if moment.tzinfo is None:
            early, late = (moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
            earlier = (early.utcoffset() or NOTHING) - (late.utcoffset() or NOTHING)
            # Two readings: an hour that comes twice, or one that the clock leaves out.
            absent += earlier < NOTHING
            second = earlier > NOTHING and (second or moment <= before)
            repeated += second
            before, moment = moment, late if second else early
        found[index] = moment.timestamp()
    notes = []
    if repeated:
        notes.append(
            f"{repeated} times come twice in {zone.key} (the clock is set back there) and were taken as the second of "
            "the two, by their order."
        )
    if absent:
        notes.append(
            f"{absent} times do not exist in {zone.key} (the clock is set forward there); they were read as if it were "
            "not. Are the times of another zone?"
        )
    return _Times(found, tuple(notes))


def _native(at: Floats) -> float:
    """Return the usual distance of two rows."""
    if len(at) < 2:
        raise ConfigError("the CSV has one time; a history needs two or more")
    usual_s = float(np.quantile(np.diff(at), 0.5, method="lower"))
    if usual_s > DAY_S:
        raise ConfigError(
            f"the rows of the CSV lie {usual_s / DAY_S:.1f} days apart; a history needs several a day, such as one "
            "every ten minutes"
        )
    return usual_s


def _step(native_s: float, wanted: int | None) -> int:
    """Return the length of a bin."""
    if wanted is not None:
        if wanted <= 0 or DAY_S % wanted:
            raise ConfigError(f"a step of {wanted} s does not divide a day; take 60, 300, 600 or 3600")
        if wanted < native_s:
            raise ConfigError(f"the rows of the CSV lie {native_s:.0f} s apart; a step of {wanted} s is shorter")
        return wanted
    # The next longer one of whole bins of ten minutes that divides a day.
    least = max(math.ceil(native_s / STEP_S), 1) * STEP_S
    return next(step for step in range(least, DAY_S + 1, STEP_S) if DAY_S % step == 0)


def _bins(at: Floats, step_s: int) -> tuple[Numbers, int]:
    """Return the bin of each row, and the number of the first since 1970."""
    numbers: Numbers = np.floor(at / step_s).astype(np.int64)
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first >= MOST_BINS:
        begin, end = (datetime.fromtimestamp(number * step_s, UTC) for number in (first, last))
        raise ConfigError(
            f"the times of the CSV go from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, which is more than {MOST_BINS} bins of "
            f"{step_s} s; is a time wrong?"
        )
    return numbers - first, first


def _mean(place: Numbers, values: Floats, length: int) -> Floats:
    """Return the mean of the values at each place, missing where there is none."""
    known = np.isfinite(values)
    count = np.bincount(place[known], minlength=length)
    total = np.bincount(place[known], weights=values[known], minlength=length)
    return np.divide(total, count, out=np.full(length, np.nan), where=count > 0)


def _binned(bins: Numbers, values: Floats, step_s: int, native_s: float) -> Floats:
    """Return the mean of each bin, missing where fewer than half of its rows are there."""
    length = int(bins[-1]) + 1
    count = np.bincount(bins[np.isfinite(values)], minlength=length)
    return np.where(count * 2 * native_s >= step_s, _mean(bins, values, length), np.nan)


def _grown(at: Floats, states: Floats, begin: datetime, step_s: int, native_s: float) -> Floats:
    """Return by how much a counter grew a second in each bin; over a gap nobody knows when it did."""
    length = math.floor(at[-1] / step_s) - math.floor(at[0] / step_s) + 1
    counter = [
        (datetime.fromtimestamp(float(second), UTC), float(state)) for second, state in zip(at, states, strict=True)
    ]
    values = np.full(length, np.nan)
    end = begin + timedelta(seconds=length * step_s)
    for step in growth([counter], begin, end, step_s, gap_s=MOST_GAP * native_s):
        values[round((step.at - begin).total_seconds() / step_s)] = step.per_s
    return values
