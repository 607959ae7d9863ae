"""What has to be prepared, and how early: each rung of the ladder takes longer than the next, and must be surer.

Weights lie on the nodes before pause pods hold room there, and these before replicas start: each rung prepares for the
highest load within its own lead time, at its own level. A lead time is what real scale-ups took, not what someone
assumed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

import numpy as np

from headway.domain.series import QuantileForecast
from headway.errors import ConfigError
from headway.prescale.capacity import NO_SPARE, Spare, replicas
from headway.units import format_seconds

KEPT = 50
"""Scale-ups that are remembered: what a cold start took a hundred ago says little of today's."""
LEAST = 5
"""Scale-ups before their distribution counts."""
LONGEST_S = 86_400.0
"""A scale-up that took longer did not take place: something was waited for."""


@dataclass(frozen=True)
class LeadTimes:
    """What scale-ups took, newest last.

    Args:
        default_s: Taken while few are measured; measured ones can only raise it until then.
        measured_s: Seconds from asking to being ready.
    """

    default_s: float
    measured_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for took_s in (self.default_s, *self.measured_s):
            if not 0 < took_s <= LONGEST_S:
                raise ConfigError(f"a lead time of {took_s} s; it lies above 0 and at most at {LONGEST_S:.0f} s")

    def append(self, took_s: float) -> "LeadTimes":
        """Return the lead times with one more scale-up.

        Args:
            took_s: Seconds from asking to being ready.

        Raises:
            ConfigError: That is no time a scale-up can take.
        """
        return LeadTimes(self.default_s, (*self.measured_s, took_s)[-KEPT:])

    def quantile(self, level: float) -> float:
        """Return the time within which a share of the scale-ups was ready: one that was measured, never one between.

        Args:
            level: The share (0 to 1).
        """
        if len(self.measured_s) < LEAST:
            return max(self.default_s, *self.measured_s, 0.0)
        return float(np.quantile(self.measured_s, level, method="higher"))


@dataclass(frozen=True)
class Rung:
    """A step of the ladder.

    Args:
        name: What is prepared.
        level: How sure it must be: the quantile of the load and that of the lead time.
        default_s: Its lead time until scale-ups were measured.
    """

    name: str
    level: float
    default_s: float


RUNGS = (Rung("weights on nodes", 0.99, 3600), Rung("pause pods", 0.95, 1800), Rung("replicas", 0.8, 600))
"""From the first that has to begin to the last.

The first needs no act of its own: an artifact is staged on every node of its kind as long as a cluster serves it, and
on Kubernetes nodes that join get it by themselves (a DaemonSet). So the nodes that pause pods bring have it in time.
"""
HELD = RUNGS[1]
"""The rung for which room is held."""


@dataclass(frozen=True)
class Prepared:
    """What one rung has to be ready for.

    Args:
        name: What is prepared.
        count: For how many replicas.
        lead_s: How early it begins.
        reason: Why, for a person.
    """

    name: str
    count: int
    lead_s: float
    reason: str


def ladder(
    forecast: QuantileForecast,
    at: datetime,
    *,
    floor: int,
    maximum: int,
    lead_times: Mapping[str, LeadTimes] = MappingProxyType({}),
    rungs: Sequence[Rung] = RUNGS,
    spare: Spare = NO_SPARE,
) -> tuple[Prepared, ...]:
    """Return what each rung prepares, first rung first. No rung prepares for less than the next, nor than the floor.

    Args:
        forecast: Forecast of busy replicas.
        at: Now, UTC.
        floor: Replicas that the plan asks for.
        maximum: Most replicas there may be.
        lead_times: What scale-ups took, by the rung's name; the rung's default where there are none.
        rungs: The ladder.
        spare: What may be lost without the load exceeding the rest.
    """
    found: list[Prepared] = []
    least = floor
    for rung in reversed(rungs):
        lead_s = lead_times.get(rung.name, LeadTimes(rung.default_s)).quantile(rung.level)
        highest = _highest(forecast, at, lead_s, rung.level)
        count = least if highest is None else max(min(replicas(highest, spare=spare), maximum), least)
        words = "the forecast has no number there" if highest is None else f"up to {highest:.2f} busy replicas"
        reason = f"Within {format_seconds(lead_s)}, at {rung.level:.0%}: {words}; ready for {count}."
        found.append(Prepared(rung.name, count, lead_s, reason))
        least = count
    return tuple(reversed(found))


def _highest(forecast: QuantileForecast, at: datetime, lead_s: float, level: float) -> float | None:
    """Return the highest load from now to the lead time; none where the forecast has no number."""
    highest = forecast.highest(at, at + timedelta(seconds=lead_s), level)
    return highest if math.isfinite(highest) and highest >= 0 else None
