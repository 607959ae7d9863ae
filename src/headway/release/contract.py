"""The metric contract: the candidate's engine reports every series that somebody relies on.

A rule or a dashboard that asks for a series which is not there sees nothing and says nothing: no queue, no alarm. vLLM
renames series, and what carries them renames them again, so this is looked at before anything is measured.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from headway.domain import engine_series
from headway.domain.engine_series import GENERATION_TOKENS, Series
from headway.domain.release import Check
from headway.ports import Metrics

NAME = "metric contract"
RECENT = timedelta(minutes=15)
"""A series that was seen within this time is there."""


def check(metrics: Metrics, *, model: str, cluster: str, now: datetime) -> Check:
    """Tell whether the engine's series are there; `measured` is how many are missing.

    A series that is born with its first event (preemptions) may be absent as long as the others are there, and so may
    the gauges of an engine that has done nothing for a while (see `headway.domain.engine_series`).

    Args:
        metrics: Where the engine's series are kept.
        model: The served name.
        cluster: Whose engine is asked.
        now: UTC.
    """
    engine = _Engine(metrics, {"model": model, "cluster": cluster}, now)
    needed = [series for series in engine_series.TABLE if series.born_with == "start"]
    missing = [s for s in needed if not engine.gives(s) and not (s.kind == "gauge" and engine.idle())]
    if not missing:
        sentence = f"the engine reports all {len(needed)} series that rules, dashboards and guards use"
    elif len(missing) == len(needed):
        sentence = (
            f"the engine of {cluster} reports nothing: none of {len(needed)} series is there; look whether its metrics "
            "are read (`headway doctor`) and whether the engine logs statistics"
        )
    else:
        sought = "; ".join(f"{series.name} (looked for as {', '.join(series.aliases())})" for series in missing)
        sentence = (
            f"the engine of {cluster} does not report {sought}; if this version calls it otherwise, add the name to "
            "headway.domain.engine_series"
        )
    return Check(
        name=NAME, measured=float(len(missing)), limit=0.0, passed=not missing, sentence=sentence, kind="contract"
    )


class _Engine:
    """What an engine gave lately."""

    def __init__(self, metrics: Metrics, labels: Mapping[str, str], now: datetime) -> None:
        self._metrics = metrics
        self._labels = labels
        self._now = now

    def gives(self, series: Series) -> bool:
        """Tell whether all of a series was seen."""
        return all(self._metrics.range(name, self._labels, self._now - RECENT, self._now) for name in series.stored)

    def idle(self) -> bool:
        """Tell whether the engine was read, and made no token all that time."""
        seen = self._metrics.range(GENERATION_TOKENS.name, self._labels, self._now - RECENT, self._now)
        before = self._metrics.instant(GENERATION_TOKENS.name, self._labels, self._now - RECENT)
        return bool(seen) and seen[-1].value == before
