"""Which members to believe: weights from how each did lately, and at this hour of the day.

The weight of a member falls with a high power of its mean absolute error, so losers are dropped and equals share. The
error is that of about the last day; a few hours ahead it is the mean of that one and the one at about this hour on the
days before (at the edge of a ramp other members are good than on a plateau). Every number of steps ahead has its own.

The median is the members' weighted mean. A high quantile starts from a weighted quantile of what they say (a linear
pool of opinions; M. Stone, "The opinion pool", Annals of Mathematical Statistics 32, 1961): where one believable member
sees a peak that the others do not, the mean lies between the two, where the load will hardly be.
"""

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import Floats

Flags: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

HALF_LIFE_DAYS = 0.25
"""Of all half-lives tried the shortest was best a day ahead: what is known of it is a day old when it comes in."""
HIGH = 0.9
"""The level of the high base: to say too much costs a ninth of saying too little."""
HIGH_HALF_LIFE_DAYS = (0.25, 4.0)
"""At the next bin, and a day ahead or more: a surge that one member alone foresaw last week must not be forgotten."""
HIGH_POWER = 4.0
POOLED = 0.8
"""Which quantile of the members the high base is: below the level that it stands for, since errors come on top."""
HOURLY_HALF_LIFE_DAYS = 3.0
HOURLY_WIDTH = 1.33
"""Hours: how near an hour of the day has to be to tell about this one."""
POWERS = (20.0, 8.0)
"""At the next bin, and a day ahead or more: there the few errors that are known tell less of who is better."""
LEAST_SCORED = 6.0
"""Errors (decayed) before a member's score counts."""
HOURS = 24
HOURLY_UP_TO = 0.25
"""Days ahead up to which the hour of the day tells who is good; farther ahead it is no more the same hour."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Decayed sums of absolute errors and their counts, as knots x members; and the same for each hour of the day."""

    loss: Floats
    count: Floats
    hourly_loss: Floats
    hourly_count: Floats
    pinball: Floats
    pinball_count: Floats

    @classmethod
    def empty(cls, knots: int, members: int) -> "Scores":
        """Return the scores of members of which nothing is known."""
        flat, hourly = (knots, members), (HOURS, knots, members)
        return cls(*(np.zeros(shape) for shape in (flat, flat, hourly, hourly, flat, flat)))

    def copy(self) -> "Scores":
        """Return scores that can be added to."""
        return Scores(*(getattr(self, one.name).copy() for one in fields(self)))

    def add(self, errors: Floats, hours: Ints, ahead_days: Floats, day: int) -> None:
        """Take in the errors of one bin, in place.

        Args:
            errors: What came less what a member said, knots x members; NaN where it said nothing.
            hours: Hour of the day of the origin, for each knot.
            ahead_days: How far ahead each knot is.
            day: Bins in a day.
        """
        known = np.isfinite(errors)
        error = np.where(known, errors, 0.0)
        plain = np.abs(error)
        keep = 0.5 ** (1 / (HALF_LIFE_DAYS * day))
        self.loss[...] = self.loss * keep + plain
        self.count[...] = self.count * keep + known
        first, last = HIGH_HALF_LIFE_DAYS
        half_life = np.minimum(first + (last - first) * ahead_days, last)
        slowly = 0.5 ** (1 / (half_life * day))[:, None]
        self.pinball[...] = self.pinball * slowly + np.maximum(HIGH * error, (HIGH - 1) * error)
        self.pinball_count[...] = self.pinball_count * slowly + known
        # An hour of the day is met by a 24th of the bins.
        keep = 0.5 ** (HOURS / (HOURLY_HALF_LIFE_DAYS * day))
        at = (hours, np.arange(len(hours)))
        self.hourly_loss[at] = self.hourly_loss[at] * keep + plain
        self.hourly_count[at] = self.hourly_count[at] * keep + known

    def errors(self, hour: int, *, near: Flags) -> Floats:
        """Return each member's error over that of the best, knots x members; NaN for those hardly scored.

        Args:
            hour: Hour of the day of the origin.
            near: For each knot, whether the score at this hour of the day counts.
        """
        lately = _relative(self.loss, self.count)
        about = NEAR_HOURS[hour]
        hourly = _relative(np.tensordot(about, self.hourly_loss, 1), np.tensordot(about, self.hourly_count, 1))
        return np.asarray(np.where(np.isfinite(hourly) & near[:, None], (lately + hourly) / 2, lately))

    def high_errors(self) -> Floats:
        """Return each member's loss as if it were the high quantile, over that of the best, knots x members."""
        return _relative(self.pinball, self.pinball_count)


def powers(ahead_days: Floats) -> Floats:
    """Return how much a larger error costs so many days ahead, between the two over the logarithm."""
    near, far = POWERS
    part = 1 - np.log(np.minimum(ahead_days, 1.0)) / np.log(ahead_days.min())
    return np.asarray(near + (far - near) * part)


def shares(errors: Floats, said: Flags, *, power: Floats | float) -> Floats:
    """Return the share of each member, knots x members; each row sums to one, or to zero where nobody speaks.

    Args:
        errors: Relative errors; NaN where unknown.
        said: Whether the member says anything.
        power: How much a larger error costs; one for all, or one a row.
    """
    share = np.where(np.isfinite(errors) & said, np.maximum(errors, 1e-6) ** -power, 0.0)
    # Before anything is scored all that speak are alike.
    share = np.where(share.sum(axis=1, keepdims=True) > 0, share, said.astype(float))
    total = share.sum(axis=1, keepdims=True)
    return np.asarray(share / np.where(total > 0, total, 1.0))


def mean(said: Floats, share: Floats) -> Floats:
    """Return the members' mean by their share; where nobody speaks, NaN."""
    speaks = np.isfinite(said)
    weight = np.where(speaks, share, 0.0)
    total = weight.sum(axis=-1)
    found = (np.where(speaks, said, 0.0) * weight).sum(axis=-1) / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(total > 0, found, np.nan))


def pooled(said: Floats, share: Floats, *, level: float = POOLED) -> Floats:
    """Return a quantile of what the members say, each counted by its share; where nobody speaks, NaN.

    Between the middles of two members' shares it is interpolated.
    """
    weight = np.where(np.isfinite(said), share, 0.0)
    # Who has no share is set to the end, behind all that may be chosen.
    order = np.argsort(np.where(weight > 0, said, np.inf), axis=-1)
    said, weight = np.take_along_axis(said, order, axis=-1), np.take_along_axis(weight, order, axis=-1)
    total = weight.sum(axis=-1, keepdims=True)
    middle = (np.cumsum(weight, axis=-1) - weight / 2) / np.where(total > 0, total, 1.0)
    speakers = (weight > 0).sum(axis=-1, keepdims=True)
    upper = np.minimum((middle < level).sum(axis=-1, keepdims=True), np.maximum(speakers - 1, 0))
    lower = np.maximum(upper - 1, 0)
    low, high = (np.take_along_axis(middle, at, axis=-1) for at in (lower, upper))
    part = np.clip((level - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    least, most = (np.take_along_axis(said, at, axis=-1) for at in (lower, upper))
    return np.asarray(np.where(total > 0, least * (1 - part) + most * part, np.nan)[..., 0])


def _relative(loss: Floats, count: Floats) -> Floats:
    """Return each member's mean error over the best one's; NaN for those hardly scored."""
    mean = np.where(count > LEAST_SCORED, loss / np.maximum(count, 1e-9), np.inf)
    best = mean.min(axis=1, keepdims=True)
    # Where the best makes no error (a constant series) a vanishing one is as good.
    floor = np.maximum(best, 1e-9 * np.where(np.isfinite(mean), mean, 0.0).max(axis=1, keepdims=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(floor > 0, mean / floor, np.where(np.isfinite(mean), 1.0, np.inf))
    return np.asarray(np.where(np.isfinite(relative), np.maximum(relative, 1.0), np.nan))


def _near_hours() -> Floats:
    apart = np.abs(np.arange(HOURS)[:, None] - np.arange(HOURS)[None, :])
    apart = np.minimum(apart, HOURS - apart)
    return np.asarray(np.exp(-0.5 * (apart / HOURLY_WIDTH) ** 2))


NEAR_HOURS = _near_hours()
