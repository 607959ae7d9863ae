"""A backtest of two made days, run once for all tests of a process that look at what it found."""

from functools import cache

from headway.prescale.backtest import Backtest, run
from tests.unit.prescale.data import daily, series

LEADS_MIN = (2, 10)


@cache
def two_days() -> Backtest:
    """Return what a day of traffic after a day of history comes to."""
    return run(series(daily(2, noise=0.1)), name="made.csv", leads_min=LEADS_MIN, notes=("Read <as> it was.",))
