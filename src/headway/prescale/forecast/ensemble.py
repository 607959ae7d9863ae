"""The forecast of one model: learned once from its history, rolled forward bin by bin, asked at each tick.

`learn` replays the history as if it came in live; `roll` takes in the bins since; `forecast` says what comes. All three
are functions of their arguments, so the same history gives the same forecast, and what `learn` would have found in a
longer history is what `roll` finds (but for how early the history begins).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.domain.series import Floats, QuantileForecast, Series
from headway.errors import ConfigError
from headway.prescale.forecast import conformal, members
from headway.prescale.forecast.blend import HIGH, HIGH_POWER, HOURLY_UP_TO, HOURS, Scores, mean, pooled, powers, shares
from headway.prescale.forecast.members import Ints
from headway.units import format_seconds

STEP_S = 600
"""The step of all forecasts: finer bins are noise to a plan made every ten minutes."""
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99)
HORIZON = 288
"""Steps ahead: 48 hours."""
KNOTS = (1, 2, 3, 4, 6, 9, 12, 18, 24, 36, 48, 72, 96, 120, 144, 192, 240, 288)
"""Steps ahead at which members are scored; between two of them weights and errors are interpolated."""
DAY = 144
NEAR = np.array(KNOTS) <= HOURLY_UP_TO * DAY
POWERS = powers(np.array(KNOTS) / DAY)[:, None]
KEPT_BINS = conformal.KEPT_DAYS * DAY + HORIZON
LEARNED_DAYS = 7
"""How much of the history is replayed: what is older weighs nothing in any score."""
BEYOND = 1.1
"""How far a quantile may lie above all that was measured in eight days, unless the median does too."""
MEMBERS = members.standard()
PARTS = tuple(min(max((level - 0.5) / (HIGH - 0.5), 0.0), 1.0) for level in LEVELS)
"""How much of the high base, against the median, each level starts from: none below the median, above it ever more."""
BASES = {part: tuple(i for i, one in enumerate(PARTS) if one == part) for part in dict.fromkeys(PARTS)}
"""The levels that start from each base: their errors are the same, so they are sorted once."""


@dataclass(frozen=True, eq=False)
class Learned:
    """What is kept of one model between two ticks.

    Args:
        until: Number of the first bin (since 1970) that was not taken in yet.
        scores: How the members did.
        said: Medians by origin (its bin number modulo the rows) and knot; NaN where none was made.
        high: The high quantile of what the members said, before their errors are on top, likewise.
        failed: Members that raised, with what they said.
    """

    until: int
    scores: Scores
    said: Floats
    high: Floats
    failed: tuple[str, ...] = ()


def learn(series: Series, *, among: Sequence[members.Member] = MEMBERS) -> Learned:
    """Return what the history teaches.

    Args:
        series: The cleaned history.
        among: The members of the ensemble.
    """
    series = series.resampled(STEP_S)
    first = max(len(series) - LEARNED_DAYS * DAY, 1)
    empty = Learned(
        until=series.first_bin + min(first, len(series)),
        scores=Scores.empty(len(KNOTS), len(among)),
        said=np.full((KEPT_BINS, len(KNOTS)), np.nan),
        high=np.full((KEPT_BINS, len(KNOTS)), np.nan),
    )
    return roll(empty, series, among=among)


def roll(learned: Learned, series: Series, *, among: Sequence[members.Member] = MEMBERS) -> Learned:
    """Take in the bins that came since.

    Args:
        learned: What was known before.
        series: The cleaned history, with at least ten days before the new bins where they exist.
        among: The same members as before.

    Raises:
        ConfigError: The members are others than those that were scored.
    """
    series = series.resampled(STEP_S)
    if learned.scores.loss.shape != (len(KNOTS), len(among)):
        raise ConfigError(f"scores of {learned.scores.loss.shape[1]} members, {len(among)} are given; learn again")
    seen, start = _past(series), learned.until - series.first_bin
    if start >= len(series) or seen is None:
        return learned
    if start < 1:
        # Nothing connects what was learned with this history.
        return learn(series, among=among)
    knots = np.array(KNOTS)
    lowest = max(start - HORIZON + 1, 1)
    origins = _needed(lowest, start, len(series), knots)
    row_of = np.full(len(series) + 1, -1)
    row_of[origins] = np.arange(len(origins))
    said, failed = members.predictions(among, seen, origins, KNOTS)
    scores, medians, highs = learned.scores.copy(), learned.said.copy(), learned.high.copy()
    first, each = series.first_bin, np.arange(len(KNOTS))
    for index in range(start, len(series)):
        value = series.values[index]
        if np.isfinite(value):
            from_ = index + 1 - knots
            rows = row_of[np.maximum(from_, 0)]
            told = np.where((rows >= 0)[:, None], said[rows, each], np.nan)
            scores.add(value - told, _hour(first + from_), knots / DAY, DAY)
        now = said[row_of[index + 1]]
        row = (first + index + 1) % KEPT_BINS
        errors = scores.errors(int(_hour(np.array(first + index + 1))), near=NEAR)
        speaks = np.isfinite(now)
        medians[row] = mean(now, shares(errors, speaks, power=POWERS))
        highs[row] = pooled(now, shares(scores.high_errors(), speaks, power=HIGH_POWER))
    words = tuple(f"{name} ({why})" for name, why in failed.items())
    return Learned(until=series.first_bin + len(series), scores=scores, said=medians, high=highs, failed=words)


def forecast(
    learned: Learned,
    series: Series,
    *,
    steps: int = HORIZON,
    among: Sequence[members.Member] = MEMBERS,
) -> QuantileForecast:
    """Return what comes after the series.

    Args:
        learned: What was learned from exactly this history.
        series: The cleaned history.
        steps: Steps ahead, at most 48 hours.
        among: The members that were scored.

    Raises:
        ConfigError: The history has bins that were not taken in, or more steps are asked than 48 hours.
    """
    series = series.resampled(STEP_S)
    if not 1 <= steps <= HORIZON:
        raise ConfigError(f"asked for {steps} steps ahead; 1 to {HORIZON} can be said")
    seen = _past(series)
    if seen is None:
        raise ConfigError("no bin of the history has a value; there is nothing to forecast from")
    origin = series.first_bin + len(series)
    if learned.until != origin:
        raise ConfigError(f"learned up to bin {learned.until}, the history ends at {origin}; roll it forward first")
    ahead = tuple(range(1, HORIZON + 1))
    said, _ = members.predictions(among, seen, np.array([len(series)]), ahead)
    now = said[0]
    speaks = np.isfinite(now[np.array(KNOTS) - 1])
    errors = learned.scores.errors(int(_hour(np.array(origin))), near=NEAR)
    share = _between_knots(shares(errors, speaks, power=POWERS))
    high = _between_knots(shares(learned.scores.high_errors(), speaks, power=HIGH_POWER))
    median = mean(now, share)
    offset = _between_knots(_offsets(learned, series, seen.scale))
    base = median[:, None] * (1 - np.array(PARTS)) + pooled(now, high)[:, None] * np.array(PARTS)
    values = base + offset * conformal.spread(base, seen.scale)
    # Errors made in a valley say nothing about a peak that nobody has seen.
    highest = float(seen.values[-8 * DAY :].max())
    values = np.minimum(values, np.maximum(median, BEYOND * highest)[:, None])
    # The median stays the median; quantiles rise from it to either side.
    middle = LEVELS.index(0.5)
    values[:, middle] = median
    values[:, : middle + 1] = np.minimum.accumulate(values[:, middle::-1], axis=1)[:, ::-1]
    values[:, middle:] = np.maximum.accumulate(values[:, middle:], axis=1)
    total = {member.name: (float(share[0, i]), float(share[steps - 1, i])) for i, member in enumerate(among)}
    return QuantileForecast(
        start_at=series.end_at,
        step_s=STEP_S,
        levels=LEVELS,
        values=np.clip(values[:steps].T, 0.0, None),
        members={name: shares for name, shares in total.items() if max(shares) >= 0.01},
        notes=_notes(series, learned),
    )


def filled(values: Floats, day: int) -> Floats:
    """Return the history without gaps, each filled from what came before it: yesterday at this level, which fades.

    What lies before the first value is that value.
    """
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values))
    result = values.copy()
    first = int(np.argmax(known))
    result[:first] = values[first]
    gaps: Ints = np.flatnonzero(~known[first:]) + first
    hour = max(day // 24, 1)
    last = -2
    for at in gaps:
        if at != last + 1:
            before, over, age = max(at - hour, 0), 1.0, 0
            held = float(np.mean(result[before:at]))
            if before >= day:
                usual = float(np.mean(result[before - day : at - day]))
                over = float(np.clip(held / usual, 0.2, 5.0)) if usual > 0 else 1.0
        fade = np.exp(-age / (3.0 * hour))
        result[at] = result[at - day] * over**fade if at >= day else held
        last, age = at, age + 1
    return result


def _past(series: Series) -> members.Past | None:
    if not np.isfinite(series.values).any():
        return None
    values = filled(series.values, DAY)
    recent = values[-8 * DAY :]
    scale = float(np.median(recent)) or float(recent.mean()) or 1.0
    return members.past(values, DAY, scale)


def _needed(lowest: int, start: int, end: int, knots: Ints) -> Ints:
    """Return the origins whose predictions reach a new bin at a knot, or that follow a new bin."""
    if end - start > 2:
        return np.asarray(np.arange(lowest, end + 1))
    new = np.arange(start, end)
    reach = (new[:, None] + 1 - knots[None, :]).ravel()
    return np.asarray(np.unique(np.concatenate([reach[reach >= lowest], new + 1])))


def _hour(bins: Ints) -> Ints:
    return np.asarray(bins % DAY * HOURS // DAY)


def _between_knots(rows: Floats) -> Floats:
    """Return rows for all steps from those at the knots, interpolated over the logarithm of the steps."""
    at = np.log(np.arange(1, HORIZON + 1))
    knots = np.log(np.array(KNOTS))
    upper = np.clip(np.searchsorted(knots, at), 1, len(knots) - 1)
    part = ((at - knots[upper - 1]) / (knots[upper] - knots[upper - 1]))[:, None]
    return np.asarray(rows[upper - 1] * (1 - part) + rows[upper] * part)


def _offsets(learned: Learned, series: Series, scale: float) -> Floats:
    """Return the quantiles of the errors, knots x levels, in units of the spread."""
    origin = series.first_bin + len(series)
    result = np.zeros((len(KNOTS), len(LEVELS)))
    targets = np.arange(max(origin - conformal.KEPT_DAYS * DAY, series.first_bin), origin)
    value = series.values[targets - series.first_bin]
    for row, knot in enumerate(KNOTS):
        made: Ints = targets - knot + 1
        at: tuple[Ints, int] = (made % KEPT_BINS, row)
        usable = np.isfinite(learned.said[at]) & np.isfinite(value)
        if usable.sum() < DAY // 24 and row:
            # Not known yet so far ahead: as for fewer steps, growing like the root of the time.
            result[row] = result[row - 1] * np.sqrt(knot / KNOTS[row - 1])
            continue
        apart = np.abs(made[usable] - origin) % DAY * 24 / DAY
        weight = conformal.weights((origin - targets[usable]) / DAY, np.minimum(apart, 24 - apart), steps=knot, day=DAY)
        median, high, came = learned.said[at][usable], learned.high[at][usable], value[usable]
        for part, columns in BASES.items():
            base = median * (1 - part) + high * part
            errors = (came - base) / conformal.spread(base, scale)
            levels = tuple(LEVELS[column] for column in columns)
            result[row, list(columns)] = conformal.offsets(errors, weight, levels, own=knot**0.5)
    return result


def _notes(series: Series, learned: Learned) -> tuple[str, ...]:
    known = int(np.isfinite(series.values).sum())
    lasts = format_seconds(len(series) * STEP_S)
    notes = []
    if len(series) < DAY:
        notes.append(f"{lasts} of history: no day is known yet; the forecast is the recent level.")
    elif len(series) < 2 * DAY:
        notes.append(f"{lasts} of history: one day is known; whether it repeats is not.")
    elif len(series) < 8 * DAY:
        notes.append(f"{lasts} of history: the day is known, the week is not.")
    if known * 2 < len(series):
        notes.append(f"Only {known} of {len(series)} bins have a value.")
    notes += [f"A member of the ensemble failed and was left out: {name}." for name in learned.failed]
    return tuple(notes)
