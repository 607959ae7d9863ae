"""What a tick of the pre-scaling leaves behind: the plan of one model, as everything after it reads it.

Times are ISO texts with UTC's offset. Loads and forecasts are in busy replicas: the load that one replica sustains.
"""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import numpy as np
from pydantic import ValidationError

from headway.domain.series import DAY_S, QuantileForecast
from headway.domain.value import Value, slug
from headway.errors import IntegrityError
from headway.units import format_seconds

SCHEMA_NUMBER = 1
EVERY_S = 600
"""Seconds between two ticks."""
LATE_AFTER_S = 2 * EVERY_S
"""After so long without a tick two were missed."""
PEAK_LEVEL = 0.8
"""Quantile of the forecast that a peak is told by."""
PEAK_GROWTH = 1.2
"""A load that is expected to grow by less is no peak."""

Mode = Literal["forecast", "reactive", "shadow", "paused", "off"]
"""forecast: the plan is in force; reactive: it is, without a forecast; shadow: it changes nothing; paused: a person
paused the model, so nothing changes; off: the profile plans nothing ahead."""


class Fan(Value):
    """A forecast of busy replicas, thinned to what is shown."""

    start_at: str
    step_s: int
    levels: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    """One row a level, one value a step."""

    def forecast(self) -> QuantileForecast:
        """Return the fan as a forecast that can be asked for any time and level."""
        start_at = datetime.fromisoformat(self.start_at)
        return QuantileForecast(start_at, self.step_s, self.levels, np.array(self.values, dtype=float))


class Rung(Value):
    """What one step of the ladder has to be ready for."""

    name: str
    count: int
    lead_s: float
    reason: str


class Standing(Value):
    """What one policy came to on one whole day."""

    day: str
    """ISO date, UTC."""
    policy: str
    cost: float | None
    """Against the oracle; none where the day has too few measurements."""
    bad_min: float
    """Minutes with too few replicas."""


class Tick(Value):
    """What was seen, decided and done for one model at one tick."""

    schema_number: int = SCHEMA_NUMBER
    model: str
    at: str
    mode: Mode
    floor: int
    by: str
    wanted: int
    growth: float
    running: int
    pending: int
    load: float | None
    """Busy replicas; none where nothing was measured."""
    load_at: str | None
    lead_s: float
    requests_per_s: float | None
    """What one replica sustains; none where nobody knows."""
    reasons: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What was wrong with the input."""
    notes: tuple[str, ...] = ()
    """What the cleaning and the forecast say."""
    ladder: tuple[Rung, ...] = ()
    fan: Fan | None = None
    lead_times_s: tuple[float, ...] = ()
    """What the last scale-ups took, newest last."""
    headroom: str = ""
    standings: tuple[Standing, ...] = ()
    demoted: str = ""
    """Why the model is on reactive; empty if it is not."""

    @classmethod
    def off(cls, model: str, at: datetime, floor: int, why: str) -> "Tick":
        """Return a tick that plans nothing.

        Args:
            model: Whose.
            at: When, UTC.
            floor: The floor that stands.
            why: In a sentence.
        """
        return cls(
            model=model,
            at=at.isoformat(),
            mode="off",
            floor=floor,
            by="limits",
            wanted=floor,
            growth=1.0,
            running=0,
            pending=0,
            load=None,
            load_at=None,
            lead_s=0.0,
            requests_per_s=None,
            reasons=(why,),
        )

    @property
    def made_at(self) -> datetime:
        """When the tick was made."""
        return datetime.fromisoformat(self.at)


def plan_key(model: str) -> str:
    """Return where the last tick of a model is kept."""
    return f"prescale/{slug(model)}/plan.json"


def history_key(model: str) -> str:
    """Return where the history of a model is kept."""
    return f"prescale/{slug(model)}/history.parquet"


def learned_key(model: str) -> str:
    """Return where it is kept what a model's forecast has learned."""
    return f"prescale/{slug(model)}/learned.npz"


def read_tick(content: bytes | None, model: str) -> Tick | None:
    """Return the tick that a document holds, none if there is no document.

    Args:
        content: The document.
        model: Whose it must be.

    Raises:
        IntegrityError: It cannot be read, or is of another model or a later release of headway.
    """
    if content is None:
        return None
    try:
        tick = Tick.model_validate_json(content)
        _check(tick)
    except ValidationError as error:
        raise IntegrityError(
            f"{plan_key(model)} cannot be read: {error.error_count()} faults, first: {error.errors()[0]['msg']}; "
            "delete it, and the next tick writes a new one"
        ) from error
    except (ValueError, TypeError) as error:
        raise IntegrityError(
            f"{plan_key(model)} cannot be read: {error}; delete it, and the next tick writes a new one"
        ) from error
    if tick.schema_number != SCHEMA_NUMBER or tick.model != model:
        raise IntegrityError(
            f"{plan_key(model)} is of model {tick.model}, schema {tick.schema_number}; expected {model}, schema "
            f"{SCHEMA_NUMBER}: delete it, and the next tick writes a new one"
        )
    return tick


def _check(tick: Tick) -> None:
    """Raise ValueError where a tick was damaged in what later ticks calculate with."""
    moments = [tick.at, *([tick.load_at] if tick.load_at else []), *([tick.fan.start_at] if tick.fan else [])]
    if naive := [text for text in moments if datetime.fromisoformat(text).tzinfo is None]:
        raise ValueError(f"the time {naive[0]} has no zone")
    for one in tick.standings:
        date.fromisoformat(one.day)
    if wrong := [took_s for took_s in tick.lead_times_s if not 0 < took_s <= DAY_S]:
        raise ValueError(f"a scale-up took {wrong[0]} s; it takes above 0 and at most {DAY_S}")
    if tick.fan is None:
        return
    rows, lengths = tick.fan.values, {len(row) for row in tick.fan.values}
    if tick.fan.step_s < 1 or len(rows) != len(tick.fan.levels) or len(lengths) != 1 or 0 in lengths:
        raise ValueError("its forecast is not one row of values for each level")


def peak_within(tick: Tick, now: datetime, lead_s: float) -> str | None:
    """Return a sentence if the load is expected to rise clearly within the lead time, none otherwise.

    What is expected then has to be clearly more than the load, and than what was expected for now: of a wild traffic a
    high quantile is far above the load all day, which is no rise. A plan that is too old, or has no forecast, tells no
    peak.

    Args:
        tick: The last tick of the model.
        now: Now, UTC.
        lead_s: How far to look.
    """
    if tick.fan is None or (now - tick.made_at).total_seconds() > LATE_AFTER_S:
        return None
    said = tick.fan.forecast()
    # Not the median: a forecast that is unsure of the next hour is unsure of now as well, and that is no rise.
    load = max(said.value_at(now, PEAK_LEVEL), tick.load or 0.0)
    steps = int(lead_s // said.step_s) + 1
    moments = [now + timedelta(seconds=min(step * said.step_s, lead_s)) for step in range(steps + 1)]
    expected = [(said.value_at(moment, PEAK_LEVEL), moment) for moment in moments]
    finite = [one for one in expected if math.isfinite(one[0])]
    highest, at = max(finite, key=lambda one: one[0], default=(math.nan, now))
    if not highest > PEAK_GROWTH * load:
        return None
    return (
        f"within {format_seconds(lead_s)} the load of {tick.model} is expected to rise from {load:.2f} to "
        f"{highest:.2f} busy replicas ({PEAK_LEVEL:.0%} quantile, at {at.astimezone(UTC):%H:%M} UTC)"
    )
