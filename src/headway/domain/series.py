"""Values over time: what was measured at a regular step, and what is expected.

A bin holds the mean rate over its step; NaN says that nothing was measured, which is not the same as no traffic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
DAY_S = 86_400


@dataclass(frozen=True, eq=False)
class Series:
    """A regular series.

    Args:
        start_at: Begin of the first bin, UTC, on a multiple of the step since 1970.
        step_s: Length of a bin; a day is a whole number of bins.
        values: One value for each bin, NaN where it is missing.
    """

    start_at: datetime
    step_s: int
    values: Floats

    def __post_init__(self) -> None:
        if self.step_s <= 0 or DAY_S % self.step_s:
            raise ConfigError(f"a step of {self.step_s} s does not divide a day; take 60, 300, 600 or 3600")
        if self.start_at.tzinfo is None:
            raise ConfigError(f"the series starts at {self.start_at} without a time zone; times are UTC")
        if self.start_at.timestamp() % self.step_s:
            raise ConfigError(f"the series starts at {self.start_at}, between two bins of {self.step_s} s")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end_at(self) -> datetime:
        """End of the last bin."""
        return self.at(len(self.values))

    @property
    def day_bins(self) -> int:
        """Bins in a day."""
        return DAY_S // self.step_s

    @property
    def first_bin(self) -> int:
        """Number of the first bin since 1970."""
        return round(self.start_at.timestamp()) // self.step_s

    @property
    def missing_share(self) -> float:
        """Share (0 to 1) of the bins without a value."""
        return float(np.isnan(self.values).mean()) if len(self.values) else 1.0

    def at(self, index: int) -> datetime:
        """Return when bin `index` begins."""
        return self.start_at + timedelta(seconds=index * self.step_s)

    def before(self, index: int) -> "Series":
        """Return what was known when bin `index` began."""
        return Series(self.start_at, self.step_s, self.values[:index])

    def last(self, bins: int) -> "Series":
        """Return the newest bins."""
        skip = max(len(self.values) - bins, 0)
        return Series(self.at(skip), self.step_s, self.values[skip:])

    def resampled(self, step_s: int) -> "Series":
        """Return means over longer steps; a step is missing where more than half of it is, or it has not ended.

        Raises:
            ConfigError: The new step is not a multiple of the old one.
        """
        if step_s == self.step_s:
            return self
        if step_s % self.step_s:
            raise ConfigError(f"bins of {self.step_s} s do not add up to {step_s} s")
        many = step_s // self.step_s
        lead = self.first_bin % many
        values = np.concatenate([np.full(lead, np.nan), self.values])
        rows = values[: len(values) // many * many].reshape(-1, many)
        known = np.isfinite(rows)
        total = np.where(known, rows, 0.0).sum(axis=1)
        count = known.sum(axis=1)
        mean = np.where(count * 2 >= many, total / np.maximum(count, 1), np.nan)
        return Series(self.at(-lead), step_s, mean)


@dataclass(frozen=True, eq=False)
class QuantileForecast:
    """What is expected from a time on, with how sure it is.

    Args:
        start_at: Begin of the first step, UTC.
        step_s: Length of a step.
        levels: Rising levels of the quantiles (0 to 1).
        values: One row for each level, one column for each step; never negative, rising with the level.
        members: Share of each member in the median, at the first and at the last step.
        notes: What a reader has to know, one sentence each.
    """

    start_at: datetime
    step_s: int
    levels: tuple[float, ...]
    values: Floats
    members: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps ahead."""
        return int(self.values.shape[1])

    @property
    def median(self) -> Floats:
        """The middle: as often above as below."""
        return self.quantile(0.5)

    def quantile(self, level: float) -> Floats:
        """Return one quantile for all steps; between two levels, interpolated; beyond them, the outermost."""
        return np.array([np.interp(level, self.levels, column) for column in self.values.T])

    def highest(self, start: datetime, end: datetime, level: float) -> float:
        """Return the highest value of one quantile between two times; NaN if there is one among them.

        Args:
            start: Begin of the stretch.
            end: Its end; what lies beyond the last step is as the last step.
            level: Level of the quantile (0 to 1).
        """
        # Between the middles of steps the quantile is a straight line, so it is highest at one of them or at an end.
        middles = self.start_at.timestamp() + self.step_s * (np.arange(self.steps) + 0.5)
        inside = (middles > start.timestamp()) & (middles < end.timestamp())
        ends = [self.value_at(at, level) for at in (start, end)]
        return float(np.max([*ends, *self.quantile(level)[inside]]))

    def value_at(self, at: datetime, level: float) -> float:
        """Return one quantile of the rate at a time, interpolated between the middles of the steps."""
        step = (at.astimezone(UTC) - self.start_at).total_seconds() / self.step_s - 0.5
        low = min(max(math.floor(step), 0), self.steps - 1)
        high = min(low + 1, self.steps - 1)
        first, second = (float(np.interp(level, self.levels, self.values[:, column])) for column in (low, high))
        return first + (second - first) * min(max(step - low, 0.0), 1.0)


class Event(NamedTuple):
    """A time that is not like the others, and that somebody knew of before.

    Args:
        name: Events of one name are of one kind: `public holiday`, `launch`.
        start_at: Begin, UTC.
        end_at: End, UTC.
        factor: Traffic against a usual day, where somebody knows; otherwise it is learned from earlier events.
    """

    name: str
    start_at: datetime
    end_at: datetime
    factor: float | None = None
