"""Simulated serving: what a policy would have cost over a series, and how long there would have been too little.

Minute by minute. A replica is paid from the minute in which it is asked for and serves a lead time later; the newest
goes first when fewer are asked for. A minute is bad when the load needs more replicas than serve. The load comes from
bins, drawn as a line between their middles, so a burst within a bin is not seen; there is no queue. Policies know at
the begin of a minute the load of the one before, and the forecast of the last tick.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.domain.series import DAY_S, Floats, QuantileForecast, Series
from headway.errors import ConfigError
from headway.prescale.capacity import EPSILON, scaled_forecast
from headway.prescale.plan import RULE, Limits, Observed, Rule, plan

MINUTE_S = 60
DAY_MINUTES = DAY_S // MINUTE_S
PEAK_REPLICAS = 20
"""Busy replicas at the peak: so large that rounding to whole ones does not rule the result."""
TICK_MIN = 10
"""Minutes between two forecasts."""
LEADS_MIN = (2, 5, 10)
UNBOUND = 1000
"""A maximum that no load reaches: a limit of replicas is no part of the comparison."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A series as it is served, and what is known of it at each minute.

    Args:
        start_at: Begin of the first minute, UTC.
        load: Busy replicas in each minute; drawn through where nothing was measured.
        known: Which minutes were measured.
        seen: The newest load that was measured before each minute.
        forecasts: Forecast of busy replicas at each tick.
        last_bins: Busy replicas in the last bin before each tick; NaN where it is missing.
        week_ago: Highest load of the hour one week earlier, for each minute and the lead time after the last.
        lead_min: Minutes from asking for a replica until it serves.
    """

    start_at: datetime
    load: Floats
    known: NDArray[np.bool_]
    seen: Floats
    forecasts: tuple[QuantileForecast, ...]
    last_bins: Floats
    week_ago: Floats
    lead_min: int

    @property
    def need(self) -> Floats:
        """Replicas that the load of each minute needs."""
        return np.asarray(np.maximum(np.ceil(self.load - EPSILON), 1))

    def ahead(self, level: float, minutes: int) -> Floats:
        """Return what the newest forecast says of the load some minutes after each minute, at a level.

        Before the middle of its first step a forecast goes over into the last measured bin.
        """
        values = np.array([one.quantile(level) for one in self.forecasts])
        last = np.where(np.isfinite(self.last_bins), self.last_bins, values[:, 0])
        values = np.concatenate([last[:, None], values], axis=1)
        minute = np.arange(len(self.load))
        tick: NDArray[np.int64] = minute // TICK_MIN
        place = (minute % TICK_MIN + minutes) * MINUTE_S / self.forecasts[0].step_s + 0.5
        place = np.minimum(place, values.shape[1] - 1)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, values.shape[1] - 1)
        return np.asarray(values[tick, low] * (1 - place + low) + values[tick, high] * (place - low))

    def growth(self) -> Floats:
        """Return by how much the load is expected to multiply within the lead time; never below one."""
        now, then = self.ahead(0.5, 0), self.ahead(0.5, self.lead_min)
        return np.asarray(np.maximum(1.0, then / np.maximum(now, EPSILON)))


Policy: TypeAlias = Callable[[Scene], Floats]
"""From a scene to the replicas that are asked for in each minute; fractions are rounded up."""


@dataclass(frozen=True)
class Outcome:
    """What serving by a policy came to.

    Args:
        cost: Paid replica minutes against those of the oracle.
        bad_min_a_day: Minutes a day with too few replicas.
        replica_hours: Paid replica hours.
    """

    cost: float
    bad_min_a_day: float
    replica_hours: float


def scene(
    series: Series,
    forecasts: Sequence[QuantileForecast],
    *,
    first: int,
    lead_min: int,
    peak: float = PEAK_REPLICAS,
) -> Scene:
    """Return a series as it is served from a bin on.

    Args:
        series: Measured rates in bins of one tick; NaN where missing.
        forecasts: One for each bin from `first` on, made at its begin, of the same rates.
        first: The bin with which serving begins.
        lead_min: Minutes from asking for a replica until it serves.
        peak: Busy replicas at the highest load.

    Raises:
        ConfigError: The bins are not as long as a tick, the forecasts are not one for each, or nothing was measured.
    """
    bins = len(series) - first
    if series.step_s != TICK_MIN * MINUTE_S or len(forecasts) != bins or bins < 1 or lead_min < 0:
        raise ConfigError(
            f"{len(forecasts)} forecasts for {bins} bins of {series.step_s} s and a lead time of {lead_min} min; "
            f"expected one for each bin of {TICK_MIN * MINUTE_S} s"
        )
    measured = np.isfinite(series.values)
    middles = (np.arange(len(series)) - first + 0.5) * TICK_MIN
    minute = np.arange(bins * TICK_MIN)
    if not measured[first:].any() or not np.nanmax(series.values[first:]) > 0:
        raise ConfigError("nothing was measured but zeros from the first bin on; there is no load to serve")
    rate = np.interp(minute + 0.5, middles[measured], series.values[measured])
    a_replica = float(rate.max()) / peak
    known = measured[first + minute // TICK_MIN]
    # The load before the first minute: that of the bin before it, or of the first minute itself.
    before = series.values[first - 1] if first and measured[first - 1] else rate[0]
    newest = np.maximum.accumulate(np.where(np.concatenate([[True], known[:-1]]), minute, 0))
    return Scene(
        start_at=series.at(first),
        load=rate / a_replica,
        known=known,
        seen=np.concatenate([[before], rate[:-1]])[newest] / a_replica,
        forecasts=tuple(scaled_forecast(one, a_replica) for one in forecasts),
        last_bins=np.concatenate([[np.nan], series.values])[first : first + bins] / a_replica,
        week_ago=_week_ago(series, first, len(minute) + lead_min) / a_replica,
        lead_min=lead_min,
    )


def _week_ago(series: Series, first: int, minutes: int) -> Floats:
    """Return the highest bin of the hour a week before each minute; zero where none was measured."""
    hour = DAY_S // 24 // series.step_s
    begin = (series.first_bin + first) % hour
    # Whole hours of the clock, from the one in which serving begins.
    hours: NDArray[np.int64] = (np.arange(minutes) // TICK_MIN + begin) // hour
    found = np.zeros(int(hours[-1]) + 1)
    for index in range(len(found)):
        start = first - begin + index * hour - 7 * series.day_bins
        values = series.values[max(start, 0) : max(start + hour, 0)]
        found[index] = np.nanmax(values) if np.isfinite(values).any() else 0.0
    return np.asarray(found[hours])


def serve(scene: Scene, asked: Floats) -> Outcome:
    """Return what it comes to when so many replicas are asked for; minutes without a measurement do not count.

    Args:
        scene: The load.
        asked: Replicas in each minute; fractions are rounded up, at least one.
    """
    paid = np.maximum(np.ceil(asked - EPSILON), 1)
    up = _lowest(paid, scene.lead_min)
    known = scene.known
    best = oracle(scene)[known].sum()
    return Outcome(
        cost=float(paid[known].sum() / best),
        bad_min_a_day=float((up < scene.need)[known].sum() * DAY_MINUTES / known.sum()),
        replica_hours=float(paid[known].sum() * MINUTE_S / 3600),
    )


def _lowest(paid: Floats, minutes: int) -> Floats:
    """Return what serves: the lowest number within the lead time, for a replica has to be asked for all through it."""
    wide = np.concatenate([np.full(minutes, paid[0]), paid])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(wide, minutes + 1).min(axis=1))


def oracle(scene: Scene) -> Floats:
    """Return the least that serves every minute: the highest need within the lead time from each minute on."""
    need = scene.need
    wide = np.concatenate([need, np.full(scene.lead_min, need[-1])])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(wide, scene.lead_min + 1).max(axis=1))


def static_peak(scene: Scene) -> Floats:
    """Return the peak of the whole series, all the time."""
    return np.full(len(scene.load), scene.need.max())


def reactive(scene: Scene, *, target: float) -> Floats:
    """Return the measured load at a target."""
    return scene.seen / target


def predictive(scene: Scene, *, level: float) -> Floats:
    """Return a quantile of the forecast at the lead time, whatever is measured."""
    return scene.ahead(level, scene.lead_min)


def anchored(scene: Scene, *, target: float) -> Floats:
    """Return the measured load times the growth that the forecast expects, at a target."""
    return scene.seen * scene.growth() / target


def both(scene: Scene, *, one: Policy, other: Policy) -> Floats:
    """Return the higher of two policies."""
    return np.asarray(np.maximum(one(scene), other(scene)))


def cron(scene: Scene) -> Floats:
    """Return the highest load of the same hour last week, up by the begin of the hour."""
    return scene.week_ago[scene.lead_min :]


def headway(scene: Scene, *, rule: Rule = RULE, every_min: int = 1, max_step: int = 2) -> Floats:
    """Return what headway's own plan asks for, with its own past replicas as what is observed.

    Args:
        scene: The load.
        rule: How sure the plan is.
        every_min: Minutes between two plans. Between them the floor stands, and above it a reactive autoscaler follows
            the load at the rule's reactive target.
        max_step: Most replicas that one plan adds.
    """
    limits = Limits(minimum=1, maximum=UNBOUND, max_step=max_step)
    lead = scene.lead_min
    first = max(math.ceil(scene.seen[0] / rule.reactive_target - EPSILON), 1)
    # The lead time before the first minute is filled, so that the slice below is what was asked for within it.
    asked = [first] * max(lead, 1)
    before = len(asked)
    floor = first
    for minute in range(len(scene.load)):
        if minute % every_min == 0:
            running = min(asked[-max(lead, 1) :])
            tick = minute // TICK_MIN
            measured = minute == 0 or bool(scene.known[minute - 1])
            last = float(scene.last_bins[tick])
            observed = Observed(
                at=scene.start_at + timedelta(minutes=minute),
                load=float(scene.seen[minute]) if measured else None,
                # The middle of the minute that was measured.
                load_at=scene.start_at + timedelta(minutes=minute - 0.5),
                running=running,
                pending=asked[-1] - running,
                last_bin=last if math.isfinite(last) else None,
                # What is measured as zero in a series is zero.
                zero_confirmed=True,
            )
            floor = plan(
                observed, scene.forecasts[tick], lead_s=(lead + every_min) * MINUTE_S, limits=limits, rule=rule
            ).floor
        followed = 0 if every_min == 1 else math.ceil(scene.seen[minute] / rule.reactive_target - EPSILON)
        asked.append(max(floor, followed))
    return np.array(asked[before:], dtype=float)


HEADWAY = "headway"
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "oracle": oracle,
        "static peak": static_peak,
        "reactive 0.8": partial(reactive, target=0.8),
        "reactive 0.7": partial(reactive, target=0.7),
        "predictive p50": partial(predictive, level=0.5),
        "predictive p90": partial(predictive, level=0.9),
        "predictive p95": partial(predictive, level=0.95),
        "max(p90, reactive 0.9)": partial(
            both, one=partial(predictive, level=0.9), other=partial(reactive, target=0.9)
        ),
        "growth-anchored 0.85": partial(anchored, target=0.85),
        "max(p80, growth-anchored 0.85)": partial(
            both, one=partial(predictive, level=0.8), other=partial(anchored, target=0.85)
        ),
        "cron of last week + reactive 0.9": partial(both, one=cron, other=partial(reactive, target=0.9)),
        "headway, every 10 minutes": partial(headway, every_min=TICK_MIN, max_step=UNBOUND),
        HEADWAY: headway,
    }
)


def compare(scene: Scene, policies: Mapping[str, Policy] = POLICIES) -> dict[str, Outcome]:
    """Return what every policy comes to on one scene."""
    return {name: serve(scene, policy(scene)) for name, policy in policies.items()}
