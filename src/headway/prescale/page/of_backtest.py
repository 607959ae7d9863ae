"""The page of a backtest: how good the forecast was, and what each policy came to."""

import math
from datetime import datetime

import numpy as np

from headway.domain.series import Series
from headway.pages.html import bullets, esc, figure, section, table, whole
from headway.prescale import figures
from headway.prescale.backtest import OURS, Backtest, Score, Served, frontier
from headway.prescale.replay import HEADWAY


def render_backtest(found: Backtest) -> bytes:
    """Return the page of a backtest.

    Args:
        found: What it found.
    """
    body = "".join((_head(found), _accuracy(found), *(_served(found, lead_min) for lead_min in found.leads_min)))
    if found.notes:
        body += section("What was done to the series", bullets(found.notes))
    return whole(esc(f"Backtest of {found.name}"), body)


def _head(found: Backtest) -> str:
    first, start, end = (datetime.fromisoformat(at) for at in (found.first_at, found.start_at, found.end_at))
    ours = [one for one in found.served if one.policy == HEADWAY]
    lead = "; ".join(
        f"at a lead time of {one.lead_min} min {one.cost:.2f} x the oracle's cost and {one.bad_min_a_day:.1f} minutes "
        "short a day"
        for one in ours
    )
    return (
        f"<header><h1>{esc(found.name)} <span>backtest</span></h1>"
        f'<p class="lead">headway, planned every minute: {esc(lead)}.</p>'
        f'<p class="meta">{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, tested from {first:%Y-%m-%d %H:%M} on, '
        f"clock of {esc(found.timezone)}, {found.missing_pct:.1f} % of the bins missing</p></header>"
    )


def _accuracy(found: Backtest) -> str:
    head = ["method"]
    for hours in found.aheads_h:
        head += [f"{name}, {hours} h" for name in ("WAPE %", "MASE", "wQL90", "cover %")]
    rows = []
    for method in dict.fromkeys(one.method for one in found.scores):
        cells = [cell for one in found.scores if one.method == method for cell in _score(one)]
        name = f"<strong>{esc(method)}</strong>" if method == OURS else esc(method)
        rows.append((name, *cells))
    shown = found.trace
    values = np.array([math.nan if value is None else value for value in shown.measured])
    measured = Series(datetime.fromisoformat(shown.start_at), shown.step_s, values)
    drawn = figures.said(measured, np.array(shown.median), np.array(shown.high), ahead_s=shown.ahead_s)
    words = (
        "<p>WAPE: sum of absolute errors over the sum of what came. MASE: against the error of &quot;same as "
        "yesterday&quot;. wQL90: twice the pinball loss of the 90 % quantile over the sum of what came. Cover: share "
        "of bins at or below that quantile; 90 is right.</p>"
    )
    pictures = f'<div class="figures">{figure("The series, and what was said of it.", drawn)}</div>'
    return section("How good the forecast was", words + table(head, rows, "numbers") + pictures)


def _score(one: Score) -> tuple[str, ...]:
    mase = "-" if one.mase is None else f"{one.mase:.2f}"
    return f"{one.wape_pct:.1f}", mase, f"{one.wql90:.3f}", f"{one.cover_pct:.1f}"


def _served(found: Backtest, lead_min: int) -> str:
    served = [one for one in found.served if one.lead_min == lead_min]
    best = {one.policy for one in frontier(served)}
    rows = [
        (
            str(number),
            f"<strong>{esc(one.policy)}</strong>" if one.policy == HEADWAY else esc(one.policy),
            f"{one.cost:.3f}",
            f"{one.bad_min_a_day:.1f}",
            f"{one.replica_hours:.0f}",
            "yes" if one.policy in best else "",
        )
        for number, one in enumerate(served, 1)
    ]
    points = [_point(number, one, best) for number, one in enumerate(served, 1)]
    drawn = figures.tradeoff(points, lead_min=lead_min)
    words = (
        f"<p>About {found.peak_replicas} replicas at the peak, paid from the minute they are asked for, serving "
        f"{lead_min} min later. A policy is on the frontier if no other is cheaper and calmer at once.</p>"
    )
    head = ("", "policy", "x oracle", "minutes short a day", "replica hours", "frontier")
    pictures = f'<div class="figures">{figure("Lower left is better.", drawn)}</div>'
    return section(f"Served at a lead time of {lead_min} min", words + table(head, rows, "numbers") + pictures)


def _point(number: int, one: Served, best: set[str]) -> figures.Point:
    kind = figures.OURS if one.policy == HEADWAY else figures.BEST if one.policy in best else figures.OTHERS
    return figures.Point(number, one.policy, one.cost, one.bad_min_a_day, kind)
