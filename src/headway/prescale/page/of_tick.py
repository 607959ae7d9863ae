"""The page of one model: what is expected, what is planned for it, and what others would have come to."""

from collections.abc import Sequence

import numpy as np

from headway.domain.prescaling import Mode, Standing, Tick
from headway.domain.series import Series
from headway.pages.html import badge, bullets, esc, figure, note, section, table, whole
from headway.prescale import figures
from headway.prescale.history import History
from headway.prescale.shadow import ASKED_BY, HEADWAY
from headway.units import format_seconds

MODES: dict[Mode, tuple[str, str]] = {
    "forecast": ("good", "the plan is in force"),
    "reactive": ("wait", "the plan is in force, without a forecast"),
    "shadow": ("wait", "all is planned and priced, and nothing is changed"),
    "paused": ("wait", "a person paused the model, so nothing is changed"),
    "off": ("wait", "nothing is planned ahead"),
}
"""Kind of the badge and meaning of each mode."""
LEAST_SEEN = 12
"""Bins that ticks must have seen of the last two days before their loads are drawn in place of the measured rates."""
LEAD_TIMES = 10


def render(tick: Tick, history: History | None, *, late: str = "") -> bytes:
    """Return the page of a model.

    Args:
        tick: Its last tick.
        history: What was measured, and what ticks saw and asked for; none if it cannot be read.
        late: A sentence if ticks were missed; empty otherwise.
    """
    notes = [one for one in tick.notes if one != tick.demoted]
    body = "".join(
        (
            _head(tick),
            note("Late.", f"{esc(late)}.") if late else "",
            note("Stepped back.", esc(tick.demoted)) if tick.demoted else "",
            note("Input.", bullets(tick.problems)) if tick.problems else "",
            _expected(tick, history),
            _plan(tick),
            _ladder(tick),
            _others(tick, history),
            section("What was done to the input", bullets(notes)) if notes else "",
        )
    )
    return whole(esc(f"{tick.model}: {_up(tick)}"), body)


def busy(tick: Tick, history: History) -> Series:
    """Return the load in busy replicas: as ticks saw it, or where they hardly did, from the rate.

    Args:
        tick: The last tick.
        history: What was measured.
    """
    seen = history.series("busy")
    shown = round(figures.SHOWN.total_seconds()) // seen.step_s
    if np.isfinite(seen.values[-shown:]).sum() >= LEAST_SEEN or not tick.requests_per_s:
        return seen
    rate = history.series()
    return Series(rate.start_at, rate.step_s, rate.values / tick.requests_per_s)


def _up(tick: Tick) -> str:
    return f"{tick.floor} {'replica' if tick.floor == 1 else 'replicas'} must be up"


def _head(tick: Tick) -> str:
    kind, meaning = MODES[tick.mode]
    return (
        f"<header>{badge(kind, tick.mode)}<h1>{esc(tick.model)} <span>pre-scaling</span></h1>"
        f'<p class="lead">{_up(tick)}; {meaning}.</p>{bullets(tick.reasons)}'
        f'<p class="meta">tick of {tick.made_at:%Y-%m-%d %H:%M} UTC</p></header>'
    )


def _expected(tick: Tick, history: History | None) -> str:
    if history is None or tick.mode == "off":
        return ""
    fan = tick.fan.forecast() if tick.fan else None
    drawn = figures.expected(busy(tick, history), fan, now=tick.made_at, floor=tick.floor, lead_s=tick.lead_s)
    caption = "Load and forecast in busy replicas: the load that one replica sustains is 1."
    return section("What is expected", f'<div class="figures">{figure(caption, drawn)}</div>')


def _plan(tick: Tick) -> str:
    if tick.mode == "off":
        return ""
    taken = [format_seconds(took_s) for took_s in tick.lead_times_s[-LEAD_TIMES:]]
    rows = [
        ("floor", f"{tick.floor}, set by {tick.by}"),
        ("wanted, before limits", str(tick.wanted)),
        ("replicas", f"{tick.running} serve, {tick.pending} are starting"),
        ("load", "not measured" if tick.load is None else f"{tick.load:.2f} busy replicas"),
        ("growth within the lead time", f"x{tick.growth:.2f}"),
        ("lead time", format_seconds(tick.lead_s) + (f" (last: {', '.join(taken)})" if taken else " (default)")),
        ("a replica sustains", f"{tick.requests_per_s:.3g} requests/s" if tick.requests_per_s else "unknown"),
        ("headroom", tick.headroom or "unknown"),
    ]
    return section("Plan", table(("", ""), [(esc(name), esc(value)) for name, value in rows]))


def _ladder(tick: Tick) -> str:
    if not tick.ladder:
        return ""
    rows = [(esc(rung.name), str(rung.count), esc(rung.reason)) for rung in tick.ladder]
    return section("What has to be ready, first rung first", table(("", "for", "why"), rows))


def _others(tick: Tick, history: History | None) -> str:
    drawn = ""
    if history is not None:
        policies = {policy: history.series(column) for policy, column in ASKED_BY.items()}
        drawn = figures.asked(history.series("busy"), policies, now=tick.made_at)
    rows = _standing_rows(tick.standings)
    if not rows and not drawn:
        return ""
    words = "<p>Cost against an oracle that knew the load, and minutes with too few replicas, by whole days (UTC).</p>"
    head = ("day", *(ASKED_BY))
    priced = words + table(head, rows, "numbers") if rows else "<p>No whole day of ticks is over yet.</p>"
    caption = "At each tick: the load that was seen, what was asked for, and what others would have."
    return section("What it would have cost", f'{priced}<div class="figures">{figure(caption, drawn)}</div>')


def _standing_rows(standings: Sequence[Standing]) -> list[tuple[str, ...]]:
    by_day: dict[str, dict[str, Standing]] = {}
    for one in standings:
        by_day.setdefault(one.day, {})[one.policy] = one
    return [
        (esc(day), *(_standing(by_policy.get(policy), mine=policy == HEADWAY) for policy in ASKED_BY))
        for day, by_policy in by_day.items()
    ]


def _standing(one: Standing | None, *, mine: bool) -> str:
    if one is None:
        return "-"
    cost = "too little seen" if one.cost is None else f"x{one.cost:.2f}"
    words = esc(f"{cost}, {one.bad_min:.0f} min short")
    return f"<strong>{words}</strong>" if mine else words
