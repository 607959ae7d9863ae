"""What each policy would have cost over a series, and how long there would have been too little."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headway.domain.series import QuantileForecast, Series
from headway.errors import ConfigError
from headway.prescale.backtest import live
from headway.prescale.backtest.result import Served, Trace
from headway.prescale.backtest.window import Window
from headway.prescale.forecast import HORIZON, STEP_S
from headway.prescale.replay import MINUTE_S, POLICIES, TICK_MIN, Policy, scene, serve

STEPS = 6
"""Steps ahead that are asked for at least; the last of them is what is drawn."""
LEVEL = 0.9
LONGEST_MIN = (HORIZON * STEP_S) // MINUTE_S - 2 * TICK_MIN
"""Beyond it the forecast ends before a replica serves."""
DIGITS = 5
"""Significant digits of what is drawn."""


def forecasts(
    window: Window, leads_min: Sequence[int], *, zone: str = "UTC", told: Callable[[float], None] = lambda _: None
) -> list[QuantileForecast]:
    """Return the forecast at each tick of the test, far enough ahead for all lead times.

    Args:
        window: What to test on.
        leads_min: Minutes from asking for a replica until it serves.
        zone: Whose clock the days follow.
        told: Is told the share that is done (0 to 1) after each.

    Raises:
        ConfigError: A lead time is negative, or longer than the forecast.
    """
    if not leads_min or min(leads_min) < 0 or max(leads_min) > LONGEST_MIN:
        raise ConfigError(f"lead times of {list(leads_min)} min; give one or more from 0 to {LONGEST_MIN}")
    steps = max(STEPS, math.ceil((max(leads_min) + 2 * TICK_MIN) / TICK_MIN))
    origins = range(window.first, len(window.series))
    said = []
    for one in live.forecasts(window.series, origins, steps=steps, zone=zone):
        said.append(one)
        told(len(said) / len(origins))
    return said


def served(
    window: Window, said: Sequence[QuantileForecast], lead_min: int, policies: Mapping[str, Policy] = POLICIES
) -> tuple[Served, ...]:
    """Return what each policy came to at one lead time.

    Args:
        window: What to test on.
        said: The forecast at each tick of the test.
        lead_min: Minutes from asking for a replica until it serves.
        policies: Which to serve by.
    """
    stage = scene(window.series, said, first=window.first, lead_min=lead_min)
    found = []
    for name, policy in policies.items():
        one = serve(stage, policy(stage))
        found.append(
            Served(
                policy=name,
                lead_min=lead_min,
                cost=one.cost,
                bad_min_a_day=one.bad_min_a_day,
                replica_hours=one.replica_hours,
            )
        )
    return tuple(found)


def trace(window: Window, said: Sequence[QuantileForecast]) -> Trace:
    """Return what came in the test, and what was said of it an hour before.

    Args:
        window: What to test on.
        said: The forecast at each tick of the test.
    """
    series: Series = window.series
    # The forecast at a tick says in its last drawn step what comes in the bin so many minus one later.
    late = STEPS - 1
    made = said[: len(said) - late]
    measured = series.values[window.first + late :]
    return Trace(
        start_at=series.at(window.first + late).isoformat(),
        step_s=series.step_s,
        ahead_s=STEPS * series.step_s,
        measured=tuple(_short(value) if math.isfinite(value) else None for value in measured),
        median=tuple(_short(one.quantile(0.5)[late]) for one in made),
        high=tuple(_short(one.quantile(LEVEL)[late]) for one in made),
    )


def _short(value: float | np.float64) -> float:
    return float(f"{value:.{DIGITS}g}")
