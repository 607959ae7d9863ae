"""Made traffic of a demonstration: working days with one high peak in the morning, and the requests of such a day."""

from datetime import datetime, timedelta

import numpy as np

from headway.domain.series import DAY_S, Floats

HOUR_S = 3600
BASE, PEAK = 0.25, 0.95
"""Busy replicas: at night, and what the peak adds."""
PEAK_HOUR, FLANK_H = 10.5, 0.45
"""When the peak is reached, and how steep its flanks are (standard deviation of a bell)."""
WEEKEND = 0.5
DAY_SPREAD = 0.05
"""How much days differ (standard deviation of the logarithm)."""
FINE_S = 60


def busy(at: datetime, seconds: Floats, peak_h: float) -> Floats:
    """Return the load of a usual working day in busy replicas, so many seconds after a time.

    Args:
        at: The time, UTC.
        seconds: After it.
        peak_h: For how many hours the peak lasts.
    """
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    hours = ((at - midnight).total_seconds() + seconds) % DAY_S / HOUR_S
    outside = np.maximum(PEAK_HOUR - hours, 0) + np.maximum(hours - PEAK_HOUR - peak_h, 0)
    return np.asarray(BASE + PEAK * np.exp(-0.5 * (outside / FLANK_H) ** 2))


def history(
    end: datetime, *, days: int, step_s: int, peak_h: float, requests_per_s: float, counted_s: float, seed: int
) -> Floats:
    """Return measured rates of whole days that end there, with the noise of arrivals that come by chance.

    Args:
        end: End of the last bin.
        days: How many days.
        step_s: Length of a bin.
        peak_h: For how many hours the peak lasts.
        requests_per_s: What one replica sustains.
        counted_s: Real seconds over which the requests of a bin are counted.
        seed: Of what is drawn.
    """
    rng = np.random.default_rng(seed)
    bins = days * DAY_S // step_s
    start = end - timedelta(days=days)
    seconds = step_s * (np.arange(bins) + 0.5)
    day = ((start.hour * HOUR_S + start.minute * 60 + seconds) // DAY_S).astype(int)
    factors = np.exp(DAY_SPREAD * rng.standard_normal(days + 1))
    factors *= [WEEKEND if (start + timedelta(days=one)).weekday() > 4 else 1.0 for one in range(days + 1)]
    rate = busy(start, seconds, peak_h) * factors[day] * requests_per_s
    return np.asarray(rng.poisson(rate * counted_s) / counted_s)


def crossing(day: datetime, peak_h: float, level: float = 1.0) -> datetime:
    """Return when the load of a usual working day first exceeds a level.

    Args:
        day: Its midnight, UTC.
        peak_h: For how many hours the peak lasts.
        level: In busy replicas, below that of the peak.
    """
    seconds = np.arange(0.0, DAY_S, FINE_S)
    return day + timedelta(seconds=float(seconds[np.argmax(busy(day, seconds, peak_h) > level)]))


def arrivals_s(
    start: datetime, end: datetime, *, peak_h: float, requests_per_s: float, speed: int, seed: int
) -> list[float]:
    """Return when requests of a usual working day arrive, in real seconds from `start` on: a Poisson process.

    Args:
        start: Begin of the stretch that is replayed.
        end: Its end.
        peak_h: For how many hours the peak lasts.
        requests_per_s: What one replica sustains.
        speed: How many seconds of the day pass in a real one.
        seed: Of what is drawn.
    """
    seconds = np.arange(0, (end - start).total_seconds() + FINE_S, FINE_S)
    rate = busy(start, seconds, peak_h) * requests_per_s
    real = seconds / speed
    expected = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(real))])
    # Unit exponential gaps in the count that is expected are those of the process in time.
    rng = np.random.default_rng(seed)
    counts = np.cumsum(rng.exponential(size=int(expected[-1] * 1.5) + 100))
    return [float(at) for at in np.interp(counts[counts < expected[-1]], expected, real)]
