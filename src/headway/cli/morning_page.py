"""The picture that `headway demo-prescale` leaves: forecast, floor, replicas and load of the replayed morning."""

from datetime import datetime

from headway.cli.morning import SPEED, Outcome, Replayed, Script, clock
from headway.domain.prescaling import EVERY_S
from headway.pages.drawing import BAD, CANDIDATE, GOOD, INK, MUTED, STABLE, legend, one, svg
from headway.pages.html import esc, figure, note, section, table, whole

HOUR_S = 3600
SHOWN_LEVEL = 0.8


def page(script: Script, replayed: Replayed, outcome: Outcome) -> bytes:
    """Return one self-contained page.

    Args:
        script: What was replayed.
        replayed: What came of it.
        outcome: What that showed.
    """
    told = (
        f"The floor asked for a second replica at {clock(outcome.asked_at)}, it served at {clock(outcome.up_at)}, and "
        f"the load exceeded one replica at {clock(script.needed_at)}."
    )
    rows = [
        [
            esc(clock(tick.made_at)),
            "" if tick.load is None else f"{tick.load:.2f}",
            f"x{tick.growth:.2f}",
            str(tick.floor),
            f"{tick.running} + {tick.pending}",
            esc(tick.by),
            esc(" ".join((*tick.reasons, *tick.problems))),
        ]
        for tick in replayed.ticks
    ]
    body = (
        f"<header><h1>Capacity before the peak <span>{esc(script.profile.model)}</span></h1>"
        f'<p class="lead">{esc(told)}</p></header>'
        + note(
            "A demonstration.",
            f"The fortnight before is made up; the requests, the engines and the plans are real. Traffic and clock run "
            f"{SPEED} times faster than life, so a start of vLLM counts {SPEED} times as long.",
        )
        + section("What happened", figure(CAPTION, _drawn(script, replayed, told)))
        + section("Plans", table(["at", "load", "growth", "floor", "replicas", "by", "why"], rows))
        + section("Figures", table(["", ""], [[esc(name), esc(value)] for name, value in outcome.facts]))
    )
    return whole(f"Capacity before the peak: {esc(script.profile.model)}", body)


CAPTION = (
    "Load in busy replicas (what one replica sustains is 1): as measured, and as forecast when the replay began, with "
    "its 80 % quantile. Steps: the floor that each tick set, and the replicas that Serve had running."
)


def _drawn(script: Script, replayed: Replayed, told: str) -> str:
    drawing, axes = one(3.2)
    first, last = replayed.ticks[0], replayed.ticks[-1]
    end = _hours(last.made_at) + EVERY_S / HOUR_S
    if first.fan is not None:
        said = first.fan.forecast()
        middles = [_hours(said.start_at) + (step + 0.5) * said.step_s / HOUR_S for step in range(said.steps)]
        shown = [number for number, hour in enumerate(middles) if hour <= end]
        hours = [middles[number] for number in shown]
        median, high = said.quantile(0.5)[shown], said.quantile(SHOWN_LEVEL)[shown]
        axes.fill_between(hours, median, high, color=MUTED, alpha=0.25, linewidth=0)
        axes.plot(hours, median, color=MUTED, linewidth=1.2, linestyle="--", label="forecast, with its 80 % quantile")
    axes.plot(
        [_hours(at) + EVERY_S / 2 / HOUR_S for at, _ in replayed.load],
        [value for _, value in replayed.load],
        color=CANDIDATE,
        linewidth=1.4,
        marker=".",
        markersize=4,
        label="load, measured",
    )
    axes.step(
        [_hours(tick.made_at) for tick in replayed.ticks] + [end],
        [tick.floor for tick in replayed.ticks] + [last.floor],
        where="post",
        color=STABLE,
        linewidth=1.6,
        label="floor",
    )
    axes.step(
        [_hours(seen.at) for seen in replayed.seen],
        [seen.ready + 0.03 for seen in replayed.seen],
        where="post",
        color=GOOD,
        linewidth=1.6,
        label="replicas that serve",
    )
    axes.axvline(_hours(script.needed_at), color=BAD, linewidth=1, linestyle=":")
    axes.annotate(
        "one is not enough",
        (_hours(script.needed_at), 0.05),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=7,
        color=INK,
    )
    axes.set_ylim(0, 2.6)
    axes.set_ylabel("replicas")
    axes.set_xlabel("time of day by the fast clock, hours")
    legend(axes, columns=2)
    return svg(drawing, "prescale-demo", "Forecast, floor, replicas and load", told)


def _hours(at: datetime) -> float:
    return at.hour + at.minute / 60 + at.second / HOUR_S
