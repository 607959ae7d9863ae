"""The floor of one model: how many replicas must be up, from what is forecast and what is observed.

The forecast only raises and observation lowers. Three needs are compared, in busy replicas, at the time when a replica
that is asked for now would serve (now plus the lead time):

- forecast: a high quantile of the load there;
- growth: the load that is measured now, times the growth that the forecast expects until then, at a target below one;
- margin: the same load with the forecast's own distance from its middle to a high quantile on top. Calm hours need
  less room than wild ones, which no fixed target knows.

The floor is the highest of them, within the limits. It depends on its arguments alone: a tick that runs twice, late or
after another that died makes the same plan. What is missing or nonsense never lowers it.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from headway.domain.series import QuantileForecast
from headway.errors import ConfigError
from headway.prescale.capacity import NO_SPARE, Spare, replicas
from headway.units import format_seconds

By: TypeAlias = Literal["forecast", "growth", "margin", "reactive", "hold", "limits"]
"""What set the floor."""

MAX_GROWTH = 3.0
"""Most by which the load is expected to multiply within a lead time: beyond it a forecast is taken as broken there."""
CLOCK_S = 60.0
"""How far a measurement may lie ahead of the plan's clock."""
MANY = 1e6
"""Busy replicas beyond which a load is counted no further: the limits apply long before."""


@dataclass(frozen=True)
class Rule:
    """How sure the plan wants to be. One setting serves all models.

    Args:
        quantile: Quantile of the forecast that must be covered.
        margin: Quantile of the forecast whose distance from the median is added to the load.
        target: How busy a replica may be under the load that is expected.
        reactive_target: How busy it may be where there is no usable forecast.
        stale_after_s: Age of a forecast from which it is not used.
        load_age_s: Age of a measured load from which it is missing.
    """

    quantile: float = 0.8
    margin: float = 0.9
    target: float = 0.9
    reactive_target: float = 0.8
    stale_after_s: float = 1800
    load_age_s: float = 300

    def __post_init__(self) -> None:
        for name in ("quantile", "margin", "target", "reactive_target"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"the rule's {name} is {getattr(self, name)}; it is above 0 and at most 1")


RULE = Rule()


@dataclass(frozen=True)
class Limits:
    """What the floor may be.

    Args:
        minimum: Least replicas.
        maximum: Most replicas.
        max_step: Most replicas that one plan adds.
        budget: Replicas that may be paid for; none: as many as the maximum.
        spare: What may be lost without the load exceeding the rest.
    """

    minimum: int = 1
    maximum: int = 1
    max_step: int = 2
    budget: int | None = None
    spare: Spare = NO_SPARE

    def __post_init__(self) -> None:
        if self.minimum < 0 or self.maximum < 0 or self.max_step < 1 or (self.budget or 0) < 0:
            raise ConfigError(f"{self} has a negative limit or a step below 1; replicas are counted from 0 up")


@dataclass(frozen=True)
class Observed:
    """What is there now.

    Args:
        at: Now, UTC.
        load: Measured load in busy replicas; none where nothing was measured.
        running: Replicas that serve.
        pending: Replicas that were asked for and do not serve yet.
        load_at: When the load was measured; none: now.
        last_bin: Busy replicas in the last measured bin before the forecast; none where it is missing.
        zero_confirmed: Whether a second source, such as the engine's own counter, says too that nothing is asked.
        floor: What the last plan asked for; a cluster may not have heard of it yet.
    """

    at: datetime
    load: float | None
    running: int
    pending: int = 0
    load_at: datetime | None = None
    last_bin: float | None = None
    zero_confirmed: bool = False
    floor: int = 0

    def __post_init__(self) -> None:
        if self.running < 0 or self.pending < 0:
            raise ConfigError(f"{self.running} running and {self.pending} pending replicas; neither can be negative")

    @property
    def asked(self) -> int:
        """Replicas that were asked for: those that serve and those that will."""
        return self.running + self.pending


@dataclass(frozen=True)
class Plan:
    """What must be up.

    Args:
        at: When it was made, UTC.
        floor: Replicas that must be up or on their way.
        by: What set it.
        wanted: Replicas that the load needs, before any limit.
        growth: By how much the load is expected to multiply within the lead time; 1 without a forecast.
        reasons: Why, one sentence each.
        problems: What was wrong with the input, one sentence each; empty when nothing was.
    """

    at: datetime
    floor: int
    by: By
    wanted: int
    growth: float
    reasons: tuple[str, ...]
    problems: tuple[str, ...] = ()


class _Ahead(NamedTuple):
    """What the forecast says about the time at which a replica asked for now would serve."""

    high: float
    highest: float
    """The highest high quantile from now until then."""
    margin: float
    growth: float


class _Need(NamedTuple):
    by: By
    floor: int
    reason: str


def plan(
    observed: Observed, forecast: QuantileForecast | None, *, lead_s: float, limits: Limits, rule: Rule = RULE
) -> Plan:
    """Return the floor.

    Args:
        observed: What is there now.
        forecast: Forecast of busy replicas; none where there is none.
        lead_s: Seconds from asking for a replica to its first token, plus those until the next plan: until the replicas
            of that one serve, those of this one have to do.
        limits: What the floor may be.
        rule: How sure the plan wants to be.

    Raises:
        ConfigError: The lead time is no number of seconds.
    """
    if not (math.isfinite(lead_s) and lead_s >= 0):
        raise ConfigError(
            f"a lead time of {lead_s} s; it must be zero or more: take the default while none is measured"
        )
    problems: list[str] = []
    load = _load(observed, rule, problems)
    ahead, broken = _ahead(observed, forecast, lead_s, rule, problems)
    needs = _needs(load, ahead, lead_s, rule, limits.spare)
    if ahead:
        # What is given back now cannot be there again before the lead time is over.
        kept = min(replicas(ahead.highest, spare=limits.spare), observed.asked)
        words = f"Within {format_seconds(lead_s)} the {rule.quantile:.0%} quantile of the load reaches "
        needs.append(_Need("forecast", kept, f"{words}{ahead.highest:.2f} busy replicas; what is there for it stays."))
    before = observed.asked
    if load is None or broken:
        lacking = "a load" if load is None else "a forecast that can be read"
        before = max(before, observed.floor)
        needs.append(_Need("hold", before, f"Without {lacking} the floor holds at {before}."))
    need = max(needs, key=lambda one: one.floor)
    floor, limiting = _limited(need.floor, before, limits, problems)
    return Plan(
        at=observed.at,
        floor=floor,
        by=need.by if floor == need.floor else "limits",
        wanted=need.floor,
        growth=ahead.growth if ahead else 1.0,
        reasons=(need.reason, *_spared(need, limits.spare), *limiting),
        problems=tuple(problems),
    )


def _load(observed: Observed, rule: Rule, problems: list[str]) -> float | None:
    """Return the load, or none where there is none that can be believed."""
    load = observed.load
    if load is None:
        problems.append("No load was measured; missing is not zero.")
        return None
    if not math.isfinite(load) or load < 0:
        problems.append(f"The measured load is {load}, which is no load; it is taken as missing.")
        return None
    age_s = (observed.at - (observed.load_at or observed.at)).total_seconds()
    if age_s > rule.load_age_s:
        problems.append(f"The load was measured {format_seconds(age_s)} ago; it is taken as missing.")
        return None
    if age_s < -CLOCK_S:
        problems.append(f"The load was measured {format_seconds(-age_s)} in the future; a clock is wrong.")
        return None
    if load == 0 and not observed.zero_confirmed:
        problems.append("The load is exactly zero, and no second source says so: it is taken as missing.")
        return None
    return min(load, MANY)


def _ahead(
    observed: Observed, forecast: QuantileForecast | None, lead_s: float, rule: Rule, problems: list[str]
) -> tuple[_Ahead | None, bool]:
    """Return what the forecast says, or none where it cannot be used; and whether that is because it is broken.

    Without a forecast the load alone decides, as before there was one. A broken one may have been all that kept the
    floor up, so it must not let go of it: until it is repaired, or stale, the floor holds.
    """
    if forecast is None:
        problems.append("There is no forecast; the plan reacts to the load alone.")
        return None, False
    age_s = (observed.at - forecast.start_at).total_seconds()
    if age_s > rule.stale_after_s:
        problems.append(f"The forecast began {format_seconds(age_s)} ago; the plan reacts to the load alone.")
        return None, False
    if age_s < -CLOCK_S:
        problems.append(f"The forecast begins {format_seconds(-age_s)} in the future; a clock is wrong.")
        return None, True
    if age_s + lead_s > forecast.steps * forecast.step_s:
        problems.append(
            f"The forecast ends before the lead time ({format_seconds(lead_s)}); the plan reacts to the load alone."
        )
        return None, False
    then = observed.at + timedelta(seconds=lead_s)
    middle, high, wide = (forecast.value_at(then, level) for level in (0.5, rule.quantile, rule.margin))
    now = _now(observed, forecast)
    highest = forecast.highest(observed.at, then, rule.quantile)
    if not all(math.isfinite(value) and value >= 0 for value in (middle, high, highest, wide, now)):
        problems.append("The forecast has values that no load can have; it is not used.")
        return None, True
    growth = 1.0
    if middle > now:
        growth = min(middle / now, MAX_GROWTH) if now > 0 else MAX_GROWTH
    # The load is known until it was measured. What it may do from then on grows with the root of the time, as a random
    # walk does, up to the whole distance in the middle of a step, for which the forecast states it.
    since_s = (then - (observed.load_at or observed.at)).total_seconds()
    share = math.sqrt(min(max(since_s, 0.0) / (forecast.step_s / 2), 1.0))
    return _Ahead(min(high, MANY), min(highest, MANY), share * min(max(wide - middle, 0.0), MANY), growth), False


def _now(observed: Observed, forecast: QuantileForecast) -> float:
    """Return the median when the load was measured; before the middle of the first step it comes from the last bin."""
    at = observed.load_at or observed.at
    median = forecast.value_at(at, 0.5)
    last, step_s = observed.last_bin, forecast.step_s
    # From the middle of the last bin to that of the first step.
    share = (at - forecast.start_at).total_seconds() / step_s + 0.5
    if last is None or not math.isfinite(last) or last <= 0 or share >= 1:
        return median
    return last + (median - last) * max(share, 0.0)


def _needs(load: float | None, ahead: _Ahead | None, lead_s: float, rule: Rule, spare: Spare) -> list[_Need]:
    needs = []
    lead = format_seconds(lead_s)
    if ahead:
        words = f"In {lead} the {rule.quantile:.0%} quantile of the load is {ahead.high:.2f} busy replicas."
        needs.append(_Need("forecast", replicas(ahead.high, spare=spare), words))
    if load is not None and ahead:
        grown = min(load * ahead.growth, MANY)
        words = f"A load of {load:.2f} busy replicas grows by x{ahead.growth:.2f} in {lead}"
        needs.append(
            _Need(
                "growth",
                replicas(grown, target=rule.target, spare=spare),
                f"{words}; each is to be {rule.target:.0%} busy.",
            )
        )
        needs.append(
            _Need(
                "margin",
                replicas(grown + ahead.margin, spare=spare),
                f"{words}, and may exceed that by {ahead.margin:.2f}.",
            )
        )
    elif load is not None:
        words = (
            f"A load of {load:.2f} busy replicas, without a forecast; each is to be {rule.reactive_target:.0%} busy."
        )
        needs.append(_Need("reactive", replicas(load, target=rule.reactive_target, spare=spare), words))
    return needs


def _spared(need: _Need, spare: Spare) -> list[str]:
    lost = spare.lost(need.floor)
    return [f"Of {need.floor} replicas {lost} may be lost (spare: {spare.kind})."] if lost and need.by != "hold" else []


def _limited(wanted: int, asked: int, limits: Limits, problems: list[str]) -> tuple[int, list[str]]:
    """Return what of the wanted replicas the limits allow, and a sentence for each that applied."""
    words: list[str] = []
    floor, low, high = wanted, limits.minimum, limits.maximum
    if low > high:
        problems.append(
            f"The minimum of {low} is above the maximum of {high}; the floor does not fall until one is set."
        )
        low, high = high, max(low, asked)
        floor = max(floor, asked)
    if floor > asked + limits.max_step:
        floor = asked + limits.max_step
        words.append(f"{wanted} are wanted; one plan adds at most {limits.max_step} to the {asked} asked for.")
    if limits.budget is not None and floor > limits.budget:
        allowed = max(limits.budget, min(floor, asked))
        if limits.budget < asked:
            problems.append(
                f"The budget of {limits.budget} is below the {min(floor, asked)} replicas that are needed and there; "
                "none is taken away for it, and none is added."
            )
        else:
            words.append(f"The budget allows {limits.budget}.")
        floor = min(floor, allowed)
    if floor > high:
        words.append(f"The maximum is {high}.")
    elif floor < low:
        words.append(f"The minimum is {low}.")
    return min(max(floor, low), high), words
