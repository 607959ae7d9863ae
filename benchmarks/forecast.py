"""How good the forecast is, against every baseline, in one run.

    PYTHONPATH=src:. python -m benchmarks.forecast --series DIR [--only NAME ...] [--keep DIR] [--json FILE]

Reads the ten-minute series of LLM traffic in DIR (`*llm_sg_*.csv`) and, apart, the last 14 days of the web series
(`web_*.csv`, in ten-minute bins). Origins lie every two hours in the last seven days; each method sees what lies before
its origin, with one setting for all series. Scored are all measured bins of the next hour and of the next day:

- WAPE: sum of absolute errors over the sum of what came, in percent.
- MASE: mean absolute error over that of "the same as yesterday" in the history before the first origin.
- wQL90: twice the pinball loss of the 90 % quantile over the sum of what came.
- cover: share of bins at or below the 90 % quantile.

The second table leaves out, for all methods alike, the bins that the cleaning calls cut off: an outage is no demand.
"""

# ruff: noqa: PD011 - the series here are not those of pandas

import argparse
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from benchmarks import forecast_peers as peers
from headway.domain.series import Floats, Series
from headway.prescale.backtest.baselines import filled
from headway.prescale.clean import clean, without_faults
from headway.prescale.forecast import STEP_S, Learned, forecast, learn, roll

DAY = 144
STEPS = DAY
EVERY = 12
TEST_DAYS, WARM_DAYS = 7, 1
HORIZONS = {"1 h": 6, "24 h": STEPS}
OURS = "headway"
METRICS = ("WAPE", "MASE", "wQL90", "cover")
WEB_DAYS = 14


class Said(NamedTuple):
    """What a method said at the origins: medians and 90 % quantiles, one row each, and CPU seconds for an origin."""

    median: Floats
    high: Floats
    took_s: float


def load(path: Path) -> Series:
    """Return the measured ten-minute series of a file, as it is: gaps are NaN, nothing is masked."""
    frame = pd.read_csv(path, parse_dates=["ts"])
    column = frame.columns[1]
    regular = frame.set_index("ts")[column].resample(f"{STEP_S}s").mean()
    if path.name.startswith("web_"):
        regular = regular.iloc[-(WEB_DAYS * DAY + 1) : -1]
    return Series(regular.index[0].to_pydatetime().replace(tzinfo=UTC), STEP_S, regular.to_numpy(dtype=float))


def ours(series: Series, origins: np.ndarray) -> Said:
    """Return what headway says; at each origin the history is cleaned as it was known then."""
    medians, highs = [], []
    learned: Learned | None = None
    started = time.process_time()
    for origin in origins:
        known = without_faults(series.before(int(origin))).series
        learned = learn(known) if learned is None else roll(learned, known)
        said = forecast(learned, known, steps=STEPS)
        medians.append(said.median)
        highs.append(said.quantile(0.9))
    return Said(np.array(medians), np.array(highs), (time.process_time() - started) / len(origins))


def all_said(series: Series, origins: np.ndarray, kept: Path | None, only: list[str]) -> dict[str, Said]:
    """Return what every method says; peers that were asked before are read from `kept`."""
    history = filled(series.values, DAY)
    points: dict[str, tuple[Floats, Floats | None, float]] = {}
    for name in (*peers.PEERS, peers.LIGHTGBM):
        if only and name not in only:
            continue
        file = kept / f"{name.replace(' ', '_').replace('/', '_')}.npz" if kept else None
        if file and file.exists():
            with np.load(file) as found:
                high = found["high"] if found["high"].size else None
                points[name] = (found["point"], high, float(found["took_s"]))
            continue
        started = time.process_time()
        high = None
        if name == peers.LIGHTGBM:
            point, high = peers.boosted(history, origins, STEPS, DAY)
        else:
            ask = peers.PEERS[name]
            point = np.clip(np.array([ask(history[:origin], STEPS, DAY) for origin in origins]), 0, None)
        points[name] = (point, high, (time.process_time() - started) / len(origins))
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, point=point, high=np.empty(0) if high is None else high, took_s=points[name][2])
    for name, parts in peers.ENSEMBLES.items():
        if all(part in points for part in parts):
            median = np.median([points[part][0] for part in parts], axis=0)
            points[name] = (median, None, sum(points[part][2] for part in parts))
    said = {
        name: Said(point, peers.conformal(point, series.values, origins, high), took_s)
        for name, (point, high, took_s) in points.items()
    }
    return said | {OURS: ours(series, origins)}


def scored(said: Said, truth: Floats, scale: float) -> list[float]:
    """Return WAPE, MASE, wQL90 and cover for each horizon."""
    row: list[float] = []
    for steps in HORIZONS.values():
        came = truth[:, :steps]
        known = np.isfinite(came)
        error = np.abs(came - said.median[:, :steps])[known]
        over = (came - said.high[:, :steps])[known]
        total = came[known].sum()
        pinball = np.maximum(0.9 * over, -0.1 * over).sum()
        row += [100 * error.sum() / total, error.mean() / scale, 2 * pinball / total, 100 * float((over <= 0).mean())]
    return row


def backtest(path: Path, kept: Path | None, only: list[str]) -> dict[str, dict[str, list[float]]]:
    """Return the scores of every method on one series, over all measured bins and without those cut off."""
    series = load(path)
    first = len(series) - TEST_DAYS * DAY
    origins = np.arange(first - WARM_DAYS * DAY, len(series) - min(HORIZONS.values()) + 1, EVERY)
    said = all_said(series, origins, kept / path.stem if kept else None, only)
    at = origins[:, None] + np.arange(STEPS)[None, :]
    test = origins >= first
    before = series.values[:first]
    scale = float(np.nanmean(np.abs(before[DAY:] - before[:-DAY])))
    result: dict[str, dict[str, list[float]]] = {}
    for kind, values in (("all bins", series.values), ("without cut-off bins", without_faults(series).series.values)):
        truth = np.where(at < len(values), values[np.minimum(at, len(values) - 1)], np.nan)[test]
        result[kind] = {
            name: scored(Said(one.median[test], one.high[test], 0), truth, scale) for name, one in said.items()
        }
    result["CPU s"] = {name: [one.took_s] for name, one in said.items()}
    return result


def after_outage(path: Path) -> str:
    """Return the bias of the day after the longest outage of a file, with the outage masked and kept as zeros."""
    frame = pd.read_csv(path, parse_dates=["ts"])
    at_s = (frame["ts"] - pd.Timestamp(0)).dt.total_seconds().to_numpy()
    rates = frame[frame.columns[1]].to_numpy(dtype=float)
    until = datetime.fromtimestamp(float(at_s[-1]), UTC)
    masked = clean(at_s, rates, step_s=STEP_S, until=until).series
    raw = pd.Series(rates, index=frame["ts"]).resample(f"{STEP_S}s").mean().to_numpy()[: len(masked)]
    gone = np.isnan(masked.values) & (np.nan_to_num(raw) < 0.01) & np.isfinite(raw)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], gone.astype(int), [0]]))).reshape(-1, 2)
    first, last = max(edges, key=lambda edge: edge[1] - edge[0])
    came = masked.values[last : last + DAY]
    words = []
    for name, history in (("masked", without_faults), ("kept as zeros", None)):
        known = Series(masked.start_at, STEP_S, raw).before(int(last)).last(WEB_DAYS * DAY)
        known = history(known).series if history else known
        said = forecast(learn(known), known, steps=DAY).median
        usable = np.isfinite(came)
        words.append(f"{name} {100 * (said[usable].sum() / came[usable].sum() - 1):+.1f} %")
    return f"{path.stem}: outage of {(last - first) / 6:.1f} h; bias of the next day: {', '.join(words)}"


def table(found: dict[str, dict[str, dict[str, list[float]]]], kind: str) -> list[str]:
    """Return the means over the series and the WAPE of each."""
    names = list(next(iter(found.values()))[kind])
    means = {name: np.mean([found[series][kind][name] for series in found], axis=0) for name in names}
    short = [series.replace("llm_sg_", "").replace("_total", "") for series in found]
    lines = [f"{kind}; mean of {len(found)} series" + " " * 4 + "WAPE per series: " + ", ".join(short)]
    head = "  ".join(f"{metric:>6} {name:>4}" for name in HORIZONS for metric in METRICS)
    lines.append(f"{'':26}{head}   CPU s")
    for name in names:
        row = "  ".join(
            f"{value:11.3f}" if i % 4 in {1, 2} else f"{value:11.2f}" for i, value in enumerate(means[name])
        )
        each = " ".join(f"{found[s][kind][name][0]:5.1f}/{found[s][kind][name][4]:5.1f}" for s in found)
        cost = np.mean([found[s]["CPU s"][name][0] for s in found])
        lines.append(f"{name:26}{row}  {cost:6.3f}   {each}")
    singles = [name for name in names if name != OURS and name not in peers.ENSEMBLES]
    for title, group in (("best single baseline", singles), ("best of all baselines", [n for n in names if n != OURS])):
        if not group:
            continue
        words = []
        for i, horizon in enumerate(HORIZONS):
            for metric in (0, 2):
                best = min(group, key=lambda n: means[n][4 * i + metric])
                ratio = means[OURS][4 * i + metric] / means[best][4 * i + metric]
                words.append(f"{METRICS[metric]} {horizon} {ratio:.3f} of {best}")
        lines.append(f"  against the {title}: " + "; ".join(words))
    worst = []
    for i, horizon in enumerate(HORIZONS):
        for series in found:
            best = min(singles, key=lambda n: found[series][kind][n][4 * i])
            worst.append((found[series][kind][OURS][4 * i] / found[series][kind][best][4 * i], horizon, series, best))
    ratio, horizon, series, best = max(worst)
    lines.append(f"  worst against a series' own best single: {ratio:.3f} ({horizon}, {series}, {best})")
    return lines


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--series", type=Path, required=True, help="folder with the CSV files")
    arguments.add_argument("--only", nargs="*", default=[], help="baselines to ask; all if none is named")
    arguments.add_argument("--keep", type=Path, help="folder in which what baselines said is kept for the next run")
    arguments.add_argument("--json", type=Path, help="file for all scores")
    given = arguments.parse_args()
    everything = {}
    for title, pattern in (("LLM traffic", "*llm_sg_*.csv"), ("Web traffic", "web_*.csv")):
        found = {path.stem: backtest(path, given.keep, given.only) for path in sorted(given.series.glob(pattern))}
        if not found:
            continue
        for kind in ("all bins", "without cut-off bins"):
            print(f"\n{title}, {chr(10).join(table(found, kind))}", flush=True)
        everything |= found
    for path in sorted(given.series.glob("web_nasa*.csv")):
        print(f"\n{after_outage(path)}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
