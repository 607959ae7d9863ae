"""What traffic to expect, and how sure that is.

`learn` once, `roll` at each tick, then `forecast`; known events around it with `without_events` and `with_events`.
"""

from headway.domain.series import Event
from headway.prescale.forecast.ensemble import HORIZON, LEVELS, STEP_S, Learned, forecast, learn, roll
from headway.prescale.forecast.events import learned_factor, with_events, without_events

__all__ = [
    "HORIZON",
    "LEVELS",
    "STEP_S",
    "Event",
    "Learned",
    "forecast",
    "learn",
    "learned_factor",
    "roll",
    "with_events",
    "without_events",
]
