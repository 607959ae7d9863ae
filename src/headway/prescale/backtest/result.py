"""What a backtest found, as it is printed, drawn and kept."""

from collections.abc import Sequence

from headway.domain.value import Value

SCHEMA_NUMBER = 1
OURS = "headway"
"""Our forecast among the methods; the policy of the plan is `replay.HEADWAY`."""
ORACLE = "oracle"


class Score(Value):
    """How good one method's forecasts were, at one distance."""

    method: str
    ahead_h: int
    """All steps up to so many hours ahead."""
    wape_pct: float
    """Sum of absolute errors over the sum of what came."""
    mase: float | None
    """Mean absolute error over that of "same as yesterday" in the days before; none where that has no error."""
    wql90: float
    """Twice the pinball loss of the 90 % quantile over the sum of what came."""
    cover_pct: float
    """Share of bins at or below the 90 % quantile."""


class Served(Value):
    """What serving by one policy came to, at one lead time."""

    policy: str
    lead_min: int
    cost: float
    """Paid replica minutes against those of the oracle."""
    bad_min_a_day: float
    """Minutes a day with too few replicas."""
    replica_hours: float


class Trace(Value):
    """What came, and what had been said of it some time before."""

    start_at: str
    step_s: int
    ahead_s: int
    measured: tuple[float | None, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]
    """The 90 % quantile."""


class Backtest(Value):
    """A series, served and forecast again as if it were live."""

    schema_number: int = SCHEMA_NUMBER
    name: str
    timezone: str
    start_at: str
    first_at: str
    """From here on forecasts are scored and the load is served."""
    end_at: str
    step_s: int
    missing_pct: float
    peak_replicas: int
    """Busy replicas at the highest load: replicas are taken to be so large."""
    notes: tuple[str, ...]
    scores: tuple[Score, ...]
    served: tuple[Served, ...]
    trace: Trace

    @property
    def leads_min(self) -> tuple[int, ...]:
        """Lead times, as they were asked for."""
        return tuple(dict.fromkeys(one.lead_min for one in self.served))

    @property
    def aheads_h(self) -> tuple[int, ...]:
        """Distances at which the forecasts were scored."""
        return tuple(dict.fromkeys(one.ahead_h for one in self.scores))


def frontier(served: Sequence[Served]) -> tuple[Served, ...]:
    """Return the policies that no other beats on cost and on bad minutes at once, cheapest first.

    The oracle is no policy: nobody knows what comes.

    Args:
        served: Of one lead time.
    """
    best: list[Served] = []
    followed = (one for one in served if one.policy != ORACLE)
    for one in sorted(followed, key=lambda each: (each.cost, each.bad_min_a_day)):
        if not best or one.bad_min_a_day < best[-1].bad_min_a_day:
            best.append(one)
    return tuple(best)
