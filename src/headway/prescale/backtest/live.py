"""The forecast at any bin of a series, made as a tick makes it: from what lies before, cleaned as it was known then."""

from collections.abc import Iterator, Sequence

from headway.domain.series import QuantileForecast, Series
from headway.prescale import clock
from headway.prescale.clean import without_faults
from headway.prescale.forecast import forecast
from headway.prescale.state import State, brought_up


def forecasts(series: Series, origins: Sequence[int], *, steps: int, zone: str = "UTC") -> Iterator[QuantileForecast]:
    """Yield the forecast at the begin of each of some bins.

    Args:
        series: As it was measured.
        origins: The bins, rising.
        steps: Steps ahead.
        zone: Whose clock the days follow.
    """
    state: State | None = None
    for origin in origins:
        at = series.at(origin)
        known = clock.aligned(without_faults(series.before(origin)).series, zone, at)
        state = brought_up(state, known, now=at, offset_s=clock.offset_s(zone, at), anew=False)
        yield clock.realigned(forecast(state.learned, known, steps=steps), zone, at)
