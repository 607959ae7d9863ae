"""When something is due for a model: what is costly comes once a day or an hour, and not for all models at once."""

from datetime import datetime, timedelta
from hashlib import sha256

from headway.domain.prescaling import EVERY_S, LATE_AFTER_S, Tick
from headway.units import format_seconds

DAILY = timedelta(days=1)
HOURLY = timedelta(hours=1)


def due(model: str, last: datetime | None, now: datetime, period: timedelta) -> bool:
    """Return whether the model's own moment of a period has come since the last time.

    The moments of a thousand models are spread evenly by their names, so a tick that was missed or came late is made
    up for by the next one, and no tick has to do all of them.

    Args:
        model: Whose.
        last: When it was last done; none: never.
        now: Now, UTC.
        period: How often it is done.
    """
    if last is None:
        return True
    return _number(model, last, period) != _number(model, now, period)


def _number(model: str, at: datetime, period: timedelta) -> int:
    """Return the number of the period that a time lies in, counted from the model's own moment."""
    share = int.from_bytes(sha256(model.encode()).digest()[:4]) / 2**32
    return int((at.timestamp() / period.total_seconds() - share) // 1)


def overdue(tick: Tick, now: datetime) -> str | None:
    """Return a sentence if two ticks of a model were missed, none otherwise.

    Args:
        tick: Its last tick.
        now: Now, UTC.
    """
    late_s = (now - tick.made_at).total_seconds()
    if late_s <= LATE_AFTER_S:
        return None
    return (
        f"{tick.model} has had no tick of its pre-scaling for {format_seconds(late_s)} (one is due every "
        f"{EVERY_S // 60} min): its floor stays at {tick.floor} and nothing lowers it. Look at the last runs of the "
        "DAG `prescale`, and unpause it if it is paused; the next tick sets the floor right"
    )
