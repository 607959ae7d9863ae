"""What it is worth to follow the users' clock: forecasts around both nights of 2026 on which it changes.

The traffic is generated: it follows the clock of Berlin, with a steep morning and evening. Forecasts are made every
eight hours from a day before the change to a day after it, with nine days of history, once by UTC and once by the
users' clock; the error is that of the median over the next day (WAPE), and the cover that of the 90 % quantile.

usage: PYTHONPATH=src:. python -m benchmarks.clock [SEEDS]
"""

import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from headway.domain.series import Floats, QuantileForecast, Series
from headway.prescale import clock
from headway.prescale.forecast import STEP_S, forecast, learn

ZONE = "Europe/Berlin"
DAY = 144
CHANGES = {"spring": datetime(2026, 3, 29, 1, tzinfo=UTC), "autumn": datetime(2026, 10, 25, 1, tzinfo=UTC)}
HOURS = range(-24, 25, 8)


def traffic(start: datetime, bins: int, seed: int) -> Series:
    """Return traffic that follows the users' clock."""
    drawn = np.random.default_rng(seed)
    local = [(start + timedelta(seconds=STEP_S * index)).astimezone(ZoneInfo(ZONE)) for index in range(bins)]
    hour = np.array([one.hour + one.minute / 60 for one in local])
    morning, evening = drawn.uniform(7, 9), drawn.uniform(17, 20)
    shape = 10 + 90 / (1 + np.exp(-(hour - morning) * 3)) / (1 + np.exp((hour - evening) * 3))
    weekend = np.where(np.array([one.weekday() for one in local]) >= 5, drawn.uniform(0.4, 0.9), 1.0)
    return Series(start, STEP_S, shape * weekend * np.exp(0.05 * drawn.standard_normal(bins)))


def scores(said: QuantileForecast, came: Floats) -> tuple[float, float]:
    """Return error and cover over the next day, %."""
    error = np.abs(said.median[: len(came)] - came).sum() / came.sum()
    return 100 * float(error), 100 * float((came <= said.quantile(0.9)[: len(came)]).mean())


def main() -> None:
    """Print the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| change | forecasts | WAPE 24 h by UTC | by the users' clock | cover by UTC | by the users' clock |")
    print("|---|---|---|---|---|---|")
    for name, change in CHANGES.items():
        rows = []
        for seed in range(seeds):
            first = change + timedelta(hours=min(HOURS)) - timedelta(days=9)
            series = traffic(first, 12 * DAY, seed)
            for hour in HOURS:
                bins = (change + timedelta(hours=hour) - first) // timedelta(seconds=STEP_S)
                history, came = series.before(bins), series.values[bins : bins + DAY]
                moved = clock.aligned(history, ZONE, history.end_at)
                followed = clock.realigned(forecast(learn(moved), moved), ZONE, history.end_at)
                rows.append((*scores(forecast(learn(history), history), came), *scores(followed, came)))
        utc_error, utc_cover, error, cover = np.mean(rows, axis=0)
        print(f"| {name} | {len(rows)} | {utc_error:.1f} | {error:.1f} | {utc_cover:.1f} | {cover:.1f} |", flush=True)


if __name__ == "__main__":
    main()
