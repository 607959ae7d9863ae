"""The members of the ensemble: each says, from the filled history alone, what comes so many steps later.

They are many, cheap and of different kinds, because the average of methods that fail differently beats each of them.
None of them iterates until something converges, so none can hang; one that raises or returns nonsense is left out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import Floats
from headway.prescale.forecast import kernels

Ints: TypeAlias = NDArray[np.int64]
LOG_OFFSET = 0.1
"""Share of the usual level that is added before a logarithm: below it, differences stop to count."""
EXPLODED = 20.0
"""A prediction so many times above all that was ever measured is a failure, not a forecast."""


class Past(NamedTuple):
    """What a member may see.

    Args:
        values: History without gaps, from its first bin on.
        day: Bins in a day.
        scale: The usual level.
        views: The history under each transform.
    """

    values: Floats
    day: int
    scale: float
    views: dict[str, Floats]


Predict: TypeAlias = Callable[[Past, Ints, tuple[int, ...]], Floats]
"""From the past, origins (indices of the first bin not yet known) and steps ahead to one row for each origin."""


class Member(NamedTuple):
    """One member by its name."""

    name: str
    predict: Predict


TRANSFORMS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    # How the spread grows with the level differs from series to series: not at all, like counts, in proportion.
    "plain": (lambda y: y, lambda z: z),
    "root": (np.sqrt, lambda z: np.clip(z, 0, None) ** 2),
    "log": (lambda y: np.log(y + LOG_OFFSET), lambda z: np.exp(z) - LOG_OFFSET),
}


def past(values: Floats, day: int, scale: float) -> Past:
    """Return what members see of a history without gaps."""
    return Past(values, day, scale, {name: to(values / scale) for name, (to, _) in TRANSFORMS.items()})


def kriged(seen: Past, origins: Ints, steps: tuple[int, ...], *, kernel: kernels.Kernel, transform: str) -> Floats:
    """Return the best linear prediction for a covariance, under a transform."""
    z, back = seen.views[transform], TRANSFORMS[transform][1]
    result = np.full((len(origins), len(steps)), np.nan)
    windows = np.array([kernels.window_bins(int(origin), seen.day) for origin in origins])
    for window in np.unique(windows[windows > 0]):
        rows = np.flatnonzero(windows == window)
        table = kernels.weights(kernel, int(window), seen.day, steps)
        slides = np.lib.stride_tricks.sliding_window_view(z, int(window))[origins[rows] - window]
        result[rows] = back(slides @ table.T) * seen.scale
    return result


def hold(seen: Past, origins: Ints, steps: tuple[int, ...]) -> Floats:
    """Return the last value."""
    return np.repeat(seen.values[origins - 1][:, None], len(steps), axis=1)


def repeat(seen: Past, origins: Ints, steps: tuple[int, ...], *, days: int) -> Floats:
    """Return what was measured whole periods of `days` ago."""
    period = days * seen.day
    at = origins[:, None] + np.asarray(steps)[None, :] - 1
    at = at - period * ((at - origins[:, None]) // period + 1)
    return np.where((at >= 0) & (origins[:, None] >= period), seen.values[np.maximum(at, 0)], np.nan)


def profile_level(seen: Past, origins: Ints, steps: tuple[int, ...]) -> Floats:
    """Return the mean of the same time over the last days, smoothed, times how the last hour was to it; that fades."""
    hour = max(seen.day // 24, 1)
    ahead = np.asarray(steps)
    result = np.full((len(origins), len(steps)), np.nan)
    total = np.concatenate([[0.0], np.cumsum(seen.values)])
    for row, origin in enumerate(origins):
        days = min(int(origin) // seen.day, 7)
        if days < 1 or origin < seen.day + hour:
            continue
        shape = seen.values[origin - days * seen.day : origin].reshape(days, seen.day).mean(axis=0)
        wide = np.concatenate([shape[-hour:], shape, shape[:hour]])
        sums = np.cumsum(np.concatenate([[0.0], wide]))
        # Three bins to either side, in a circle.
        reach = hour // 2
        smooth = (
            sums[hour + reach + 1 : hour + reach + 1 + seen.day] - sums[hour - reach : hour - reach + seen.day]
        ) / (2 * reach + 1)
        over = (total[origin] - total[origin - hour]) / max(float(smooth[-hour:].sum()), 1e-9 * seen.scale)
        day_over = (total[origin] - total[origin - seen.day]) / max(float(smooth.sum()), 1e-9 * seen.scale)
        fade = np.exp(-ahead / (3.0 * hour))
        result[row] = smooth[(ahead - 1) % seen.day] * np.clip(day_over + (over - day_over) * fade, 0, 5)
    return result


def standard() -> tuple[Member, ...]:
    """Return the members that headway forecasts with."""
    linear = [
        Member(f"{name}, {transform}", partial(kriged, kernel=kernel, transform=transform))
        for name, kernel in kernels.KERNELS.items()
        for transform in TRANSFORMS
    ]
    simple = [
        Member("last value", hold),
        Member("day before", partial(repeat, days=1)),
        Member("week before", partial(repeat, days=7)),
        Member("profile x level", profile_level),
    ]
    return (*linear, *simple)


def predictions(
    members: Sequence[Member], seen: Past, origins: Ints, steps: tuple[int, ...]
) -> tuple[Floats, dict[str, str]]:
    """Return what each member says, as origins x steps x members, and why some said nothing.

    Nonsense is NaN: what is not finite, or many times above all that was measured.
    """
    said = np.full((len(origins), len(steps), len(members)), np.nan)
    failed: dict[str, str] = {}
    highest = np.maximum.accumulate(seen.values)[origins - 1] if len(origins) else np.empty(0)
    for index, member in enumerate(members):
        try:
            rows = np.asarray(member.predict(seen, origins, steps), dtype=float)
            said[:, :, index] = rows
        except Exception as error:  # noqa: BLE001 - whatever breaks in one member, the others go on
            failed[member.name] = f"{type(error).__name__}: {error}"
    limit = EXPLODED * np.maximum(highest, 1e-12)[:, None, None]
    with np.errstate(invalid="ignore"):
        wild = ~np.isfinite(said) | (said > limit)
    return np.where(wild, np.nan, np.clip(np.where(wild, 0.0, said), 0.0, None)), failed
