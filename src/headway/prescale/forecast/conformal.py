"""How far off it may be: quantiles from the ensemble's own errors, as they came in.

Online split conformal prediction with weights: a quantile is the median forecast plus that quantile of the errors made
at the same number of steps ahead, each measured in units of the expected spread. New errors, and those made at about
this hour of the day, weigh more (R. Barber, E. Candes, A. Ramdas, R. Tibshirani, "Conformal prediction beyond
exchangeability", Annals of Statistics 51, 2023), and the next error itself holds a share at the far end. Nothing is
assumed about the distribution, and an ensemble that gets worse gets wider quantiles within the day.
"""

import numpy as np

from headway.domain.series import Floats

KEPT_DAYS = 7
HALF_LIFE_DAYS = (1.0, 4.0)
"""Of an error one step ahead, and of one a day ahead or more: of those there are few that are not the same."""
HOUR_WIDTH = 2.0
"""Hours: how near an hour of the day has to be to tell about this one."""
ANY_HOUR = 0.3
"""Weight of an error made at another hour, against one made at this hour."""
SPREAD_POWER = 0.5
"""How the spread grows with the level: 0 not at all, 0.5 like counts, 1 in proportion."""
LEAST_LEVEL = 0.05
"""Share of the usual level below which the spread does not shrink."""


def spread(median: Floats, scale: float) -> Floats:
    """Return the unit of errors at a level, up to a factor."""
    return np.asarray((np.maximum(median, 0.0) / scale + LEAST_LEVEL) ** SPREAD_POWER * scale)


def weights(age_days: Floats, hours_apart: Floats, *, steps: int, day: int) -> Floats:
    """Return how much each error tells about the next one.

    Args:
        age_days: How long ago each was made.
        hours_apart: Distance of its hour of the day from the present one, 0 to 12.
        steps: How many steps ahead the errors were made.
        day: Steps in a day.
    """
    near = ANY_HOUR + (1 - ANY_HOUR) * np.exp(-0.5 * (hours_apart / HOUR_WIDTH) ** 2)
    first, last = HALF_LIFE_DAYS
    return np.asarray(0.5 ** (age_days / min(first + (last - first) * steps / day, last)) * near)


def offsets(errors: Floats, weight: Floats, levels: tuple[float, ...], *, own: float) -> Floats:
    """Return weighted quantiles of errors.

    Args:
        errors: In units of the spread, without NaN.
        weight: Of each.
        levels: Which quantiles.
        own: Weight of the error to come, in heaviest ones: errors of forecasts far ahead overlap, so there are fewer of
            them than it seems, and the next one is worth more than one.

    Returns:
        One offset for each level; zeros without any error.
    """
    if len(errors) == 0:
        return np.zeros(len(levels))
    order = np.argsort(errors, kind="stable")
    weighed = weight[order]
    # The error to come may lie beyond all others: on either side half of its weight.
    extra = float(weight.max()) * own
    position = (np.cumsum(weighed) - weighed / 2 + extra / 2) / (weight.sum() + extra)
    return np.asarray(np.interp(levels, position, errors[order]))
