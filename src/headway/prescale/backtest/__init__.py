"""A series forecast and served again as if it were live: the code of the tick, over a file.

`run` does all of it; its parts can be asked alone.
"""

from collections.abc import Callable, Sequence

from headway.domain.series import Series
from headway.prescale.backtest.accuracy import scores
from headway.prescale.backtest.result import OURS, Backtest, Score, Served, Trace, frontier
from headway.prescale.backtest.serving import forecasts, served, trace
from headway.prescale.backtest.window import Window, window
from headway.prescale.clean import without_faults
from headway.prescale.replay import LEADS_MIN, PEAK_REPLICAS

__all__ = [
    "OURS",
    "Backtest",
    "Score",
    "Served",
    "Trace",
    "Window",
    "forecasts",
    "frontier",
    "run",
    "scores",
    "served",
    "trace",
    "window",
]


def run(
    series: Series,
    *,
    name: str,
    zone: str = "UTC",
    leads_min: Sequence[int] = LEADS_MIN,
    notes: Sequence[str] = (),
    told: Callable[[str, float], None] = lambda _what, _share: None,
) -> Backtest:
    """Return how good the forecast is on a series, and what each policy would have come to.

    Args:
        series: As it was measured.
        name: What it is called.
        zone: Whose clock the days follow (IANA name).
        leads_min: Minutes from asking for a replica until it serves.
        notes: What reading it had to change, one sentence each.
        told: Is told what is done, and how much of it (0 to 1).

    Raises:
        ConfigError: The series is too short or has only zeros, or a lead time is too long.
    """
    chosen = window(series)
    said = forecasts(chosen, leads_min, zone=zone, told=lambda share: told("forecasts", share))
    found: list[Served] = []
    for index, lead_min in enumerate(leads_min):
        told("policies", index / len(leads_min))
        found += served(chosen, said, lead_min)
    told("accuracy", 0.0)
    used, first, changed = chosen
    cleaned = without_faults(used).notes
    return Backtest(
        name=name,
        timezone=zone,
        start_at=used.start_at.isoformat(),
        first_at=used.at(first).isoformat(),
        end_at=used.end_at.isoformat(),
        step_s=used.step_s,
        missing_pct=100 * used.missing_share,
        peak_replicas=PEAK_REPLICAS,
        notes=(*notes, *changed, *cleaned),
        scores=scores(chosen, zone=zone),
        served=tuple(found),
        trace=trace(chosen, said),
    )
