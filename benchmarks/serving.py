"""What pre-scaling costs and what it leaves short, against every peer, in one run.

    PYTHONPATH=src:. python -m benchmarks.serving --series DIR [--match PATTERN] [--json FILE]

Reads the ten-minute series of LLM traffic in DIR (`*llm_sg_*.csv`; another pattern with `--match`) and serves their
last seven days, minute by minute, by each policy of `headway.prescale.replay`, with one setting for all series. At each
tick a forecast sees what lies before it; it is made once and serves all policies and lead times. Printed for each lead
time: cost against the oracle and under-provisioned minutes a day, medians over the series and each series; then what
the targets say.
"""

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.forecast import DAY, TEST_DAYS, load
from headway.domain.series import QuantileForecast, Series
from headway.prescale.clean import without_faults
from headway.prescale.forecast import Learned, forecast, learn, roll
from headway.prescale.replay import HEADWAY, LEADS_MIN, Outcome, compare, scene

STEPS = 6
"""Steps ahead that any lead time here needs."""
TARGETS = {5: ((1.17, 11.5, "no worse than"), (1.15, 7.0, "goal")), 10: ((1.15, 10.0, "goal"),)}
AGAINST = "reactive 0.8"

Found: TypeAlias = dict[str, dict[int, dict[str, Outcome]]]


def forecasts(series: Series, first: int) -> list[QuantileForecast]:
    """Return the forecast at the begin of each bin; the history is cleaned as it was known then."""
    said = []
    learned: Learned | None = None
    for origin in range(first, len(series)):
        known = without_faults(series.before(origin)).series
        learned = learn(known) if learned is None else roll(learned, known)
        said.append(forecast(learned, known, steps=STEPS))
    return said


def table(found: Found, lead_min: int) -> list[str]:
    """Return cost and bad minutes of each policy."""
    short = [name.replace("llm_sg_", "").replace("_total", "") for name in found]
    lines = [
        f"lead time {lead_min} min; medians of {len(found)} series" + " " * 4 + "each: " + ", ".join(short),
        f"{'':34}x oracle  bad min/day",
    ]
    for policy in next(iter(found.values()))[lead_min]:
        outcomes = [leads[lead_min][policy] for leads in found.values()]
        cost = np.median([one.cost for one in outcomes])
        bad = np.median([one.bad_min_a_day for one in outcomes])
        each = " ".join(f"{one.cost:5.2f}/{one.bad_min_a_day:5.1f}" for one in outcomes)
        lines.append(f"{policy:34}{cost:8.3f}  {bad:11.1f}    {each}")
    return lines


def against_targets(found: Found) -> list[str]:
    """Return a line for each target."""
    lines = []
    for lead_min, limits in TARGETS.items():
        outcomes = [leads[lead_min][HEADWAY] for leads in found.values()]
        cost = float(np.median([one.cost for one in outcomes]))
        bad = float(np.median([one.bad_min_a_day for one in outcomes]))
        for most, most_bad, kind in limits:
            met = "met" if cost <= most and bad <= most_bad else "missed"
            lines.append(f"lead {lead_min}: {cost:.3f} and {bad:.1f}; {kind} {most} and {most_bad}: {met}")
    for lead_min in LEADS_MIN:
        worse = [
            name
            for name, leads in found.items()
            if leads[lead_min][HEADWAY].cost > leads[lead_min][AGAINST].cost
            and leads[lead_min][HEADWAY].bad_min_a_day > leads[lead_min][AGAINST].bad_min_a_day
        ]
        lines.append(f"lead {lead_min}: costlier and worse at once than {AGAINST} on: {', '.join(worse) or 'none'}")
    return lines


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--series", type=Path, required=True, help="folder with the CSV files")
    arguments.add_argument("--match", default="*llm_sg_*.csv", help="which files of it")
    arguments.add_argument("--json", type=Path, help="file for all outcomes")
    given = arguments.parse_args()
    found: Found = {}
    for path in sorted(given.series.glob(given.match)):
        started = time.process_time()
        series = load(path)
        first = len(series) - TEST_DAYS * DAY
        said = forecasts(series, first)
        told_s = time.process_time() - started
        found[path.stem] = {
            lead_min: compare(scene(series, said, first=first, lead_min=lead_min)) for lead_min in LEADS_MIN
        }
        print(
            f"{path.stem}: forecasts {told_s:.0f} s, policies {time.process_time() - started - told_s:.0f} s",
            flush=True,
        )
    for lead_min in LEADS_MIN:
        print("\n" + "\n".join(table(found, lead_min)))
    print("\n" + "\n".join(against_targets(found)))
    if given.json:
        plain = {
            name: {str(lead): {policy: asdict(one) for policy, one in by.items()} for lead, by in leads.items()}
            for name, leads in found.items()
        }
        given.json.write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
