"""Pictures: what is expected, what was asked for, what was said of a series, and what each policy came to."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headway.domain.series import DAY_S, Floats, QuantileForecast, Series
from headway.pages.drawing import BAD, CANDIDATE, INK, MUTED, STABLE, WAIT, legend, one, scale, svg
from headway.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOUR_S = 3600
SHOWN = timedelta(days=2)
"""How much of the past is shown beside the two days ahead."""
AHEAD_H = 48
ROOM = 1.2
"""Height of the axes over the highest value, so that the names of the lines stand above them."""
BANDS = ((0.1, 0.95, 0.18), (0.5, 0.8, 0.32))
"""Quantiles between which the fan is filled, and how dense."""
HIGHEST_COST = 1.6
"""What costs more stands at the edge: static peaks would press all others together."""
LEAST_BAD_MIN = 0.5
"""Where a policy without a bad minute stands on a logarithmic axis."""
OURS, OTHERS, BEST = "ours", "others", "frontier"
STEPS = ((CANDIDATE, "-", 1.6), (STABLE, "--", 1.1), (WAIT, ":", 1.1))
"""Colour, dashes and width of what was asked for, ours first."""


def expected(past: Series, fan: QuantileForecast | None, *, now: datetime, floor: int, lead_s: float) -> str:
    """Draw the load of the last two days, what is expected of the next, and the floor.

    Args:
        past: Busy replicas, as far as they are known.
        fan: Forecast of busy replicas.
        now: When the plan was made, UTC.
        floor: Replicas that must be up.
        lead_s: Seconds from asking for a replica to its first token.
    """
    figure, axes = one(2.9)
    seen = _since(past, now - SHOWN)
    axes.plot(_hours(seen.start_at, seen.step_s, len(seen), now), seen.values, color=INK, linewidth=1.1, label="load")
    told = f"A load of up to {_highest(seen.values)} busy replicas in the last two days"
    if fan is not None:
        at = _hours(fan.start_at, fan.step_s, fan.steps, now)
        for low, high, dense in BANDS:
            axes.fill_between(at, fan.quantile(low), fan.quantile(high), color=STABLE, alpha=dense, linewidth=0)
        axes.plot(at, fan.median, color=STABLE, linewidth=1.2, label="expected")
        told += f", {_highest(fan.median)} expected in the next ({_highest(fan.quantile(0.8))} at 80 %)"
    axes.hlines(floor, 0, AHEAD_H, color=CANDIDATE, linewidth=1.1, linestyle="--", label="floor now")
    axes.plot([0], [floor], "D", color=CANDIDATE, markersize=5)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    _with_room(axes)
    axes.set_xlabel("hours from now; bands: 10 to 95 %, 50 to 80 %")
    axes.set_ylabel("busy replicas")
    legend(axes, columns=3)
    told += f"; the floor is {floor}, and a replica serves {format_seconds(lead_s)} after it was asked for."
    return svg(figure, "expected", "Load, forecast and floor", told)


def asked(load: Series, policies: Mapping[str, Series], *, now: datetime) -> str:
    """Draw what was asked for in the last two days against the load; empty if nothing was.

    Args:
        load: Busy replicas that the ticks saw.
        policies: What was asked for or would have been, ours first.
        now: When the plan was made, UTC.
    """
    cut = {name: _since(series, now - SHOWN) for name, series in policies.items()}
    if not any(np.isfinite(series.values).any() for series in cut.values()):
        return ""
    figure, axes = one(2.6)
    seen = _since(load, now - SHOWN)
    axes.plot(_hours(seen.start_at, seen.step_s, len(seen), now), seen.values, color=INK, linewidth=1.1, label="load")
    for (colour, dashes, width), (name, series) in zip(STEPS, cut.items(), strict=False):
        at = _hours(series.start_at, series.step_s, len(series), now) - series.step_s / 2 / HOUR_S
        axes.step(at, series.values, dashes, where="post", color=colour, linewidth=width, label=name)
    _with_room(axes)
    axes.set_xlabel("hours from now")
    axes.set_ylabel("replicas")
    legend(axes, columns=4)
    words = "; ".join(f"{name} up to {_highest(series.values)}" for name, series in cut.items())
    return svg(figure, "asked", "What was asked for, and what others would have", f"Replicas asked for: {words}.")


def said(measured: Series, median: Floats, high: Floats, *, ahead_s: int) -> str:
    """Draw a series with what was said of it some time before.

    Args:
        measured: What came; NaN where missing.
        median: The middle of what was said.
        high: Its 90 % quantile.
        ahead_s: How long before it was said.
    """
    figure, axes = one(2.6)
    days = (np.arange(len(measured)) + 0.5) * measured.step_s / DAY_S
    axes.plot(days, measured.values, color=INK, linewidth=0.9, label="came")
    axes.fill_between(days, median, high, color=STABLE, alpha=0.3, linewidth=0)
    axes.plot(days, median, color=STABLE, linewidth=0.9, label=f"said {format_seconds(ahead_s)} before")
    _with_room(axes)
    axes.set_xlabel("days of the test; band: up to the 90 % quantile")
    axes.set_ylabel("requests/s")
    legend(axes, columns=2)
    known = np.isfinite(measured.values)
    under = float((measured.values[known] <= high[known]).mean()) if known.any() else 0.0
    told = f"{len(days) * measured.step_s / DAY_S:.1f} days; {under:.0%} of the bins are at or below the 90 % quantile."
    return svg(figure, "said", "What came, and what had been said of it", told)


class Point(NamedTuple):
    """A policy in the picture of all of them.

    Args:
        number: As the table beside the picture numbers it.
        name: What it is called.
        cost: Against the oracle.
        bad_min_a_day: Minutes a day with too few replicas.
        kind: `ours`, `frontier` if no other beats it on both, or `others`.
    """

    number: int
    name: str
    cost: float
    bad_min_a_day: float
    kind: str


def tradeoff(points: Sequence[Point], *, lead_min: int) -> str:
    """Draw cost against bad minutes, one numbered point a policy: nearer to the lower left is better.

    Args:
        points: The policies.
        lead_min: Lead time at which they served.
    """
    figure, axes = one(3.2)
    colours = {OURS: CANDIDATE, BEST: STABLE, OTHERS: MUTED}
    places = [(min(p.cost, HIGHEST_COST), max(p.bad_min_a_day, LEAST_BAD_MIN)) for p in points]
    for point, place in zip(points, places, strict=True):
        mark = ">" if point.cost > HIGHEST_COST else "D" if point.kind == OURS else "o"
        inside = "none" if point.kind == OTHERS else colours[point.kind]
        axes.plot(*place, mark, color=colours[point.kind], markerfacecolor=inside, markersize=5, clip_on=False)
        mine = point.kind == OURS
        axes.annotate(
            point.name if mine else str(point.number),
            place,
            # Ours to the left, where it covers no number.
            (-5, -2) if mine else (5, 2),
            ha="right" if mine else "left",
            textcoords="offset points",
            fontsize=7,
            color=INK,
        )
    bad = [place[1] for place in places]
    scale(axes.yaxis, min(bad), max(bad))
    axes.margins(x=0.08, y=0.1)
    axes.axvline(1, color=BAD, linewidth=0.7, linestyle=":")
    axes.set_xlabel("cost against the oracle; numbers as in the table, filled: the frontier")
    axes.set_ylabel("minutes short a day")
    told = "; ".join(f"{p.number} {p.name}: {p.cost:.2f} x oracle, {p.bad_min_a_day:.1f} min" for p in points)
    return svg(figure, f"tradeoff-{lead_min}", f"Cost and bad minutes at a lead time of {lead_min} min", told)


def _with_room(axes: "Axes") -> None:
    """Let the axis begin at zero, and leave room for the names of the lines."""
    axes.set_ylim(0, axes.get_ylim()[1] * ROOM)


def _since(series: Series, begin: datetime) -> Series:
    return series.last(len(series) - max(round((begin - series.start_at).total_seconds()) // series.step_s, 0))


def _hours(start_at: datetime, step_s: int, bins: int, now: datetime) -> Floats:
    """Return the middle of each bin, in hours from now."""
    return np.asarray(((start_at - now).total_seconds() + (np.arange(bins) + 0.5) * step_s) / HOUR_S)


def _highest(values: Floats) -> str:
    known = values[np.isfinite(values)]
    return f"{known.max():.2f}" if len(known) else "unknown"
