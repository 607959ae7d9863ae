"""Pictures of the report as SVG text that takes its colours from the page, so that they suit light and dark alike."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headway.domain.bench import RequestRecord
from headway.domain.release import MetricEffect
from headway.judge.quantiles import LATENCIES
from headway.judge.verdict import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Stand-ins that matplotlib writes into the SVG and that are replaced by the page's own colours afterwards.
INK, MUTED, STABLE, CANDIDATE, BAD = "#010101", "#020202", "#030303", "#040404", "#050505"
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    STABLE: "var(--stable)",
    CANDIDATE: "var(--candidate)",
    BAD: "var(--bad)",
}
WIDTH_IN = 5.0
"""As wide as a phone shows without shrinking the text below 8 pixels."""
NARROW = 4
"""Ratio of largest to smallest value below which a linear axis shows more than a logarithmic one."""
LABELS = {
    "ttft_p50": "TTFT median",
    "ttft_p95": "TTFT p95",
    "tpot_p50": "TPOT median",
    "tpot_p95": "TPOT p95",
    "error_rate": "errors",
}


def effects(items: Sequence[MetricEffect]) -> str:
    """Draw each ratio with its interval and its margin; empty if there is none."""
    shown = [e for e in items if e.ratio and e.ratio_low and e.ratio_high]
    if not shown:
        return ""
    figure, axes = _figure(0.5 + 0.42 * len(shown))
    for row, effect in enumerate(reversed(shown)):
        low, mean, high = (_pct(v) for v in (effect.ratio_low, effect.ratio, effect.ratio_high))
        colour = BAD if effect.verdict == "fail" else CANDIDATE
        axes.plot([low, high], [row, row], color=colour, linewidth=2.5, solid_capstyle="round")
        axes.plot([mean], [row], "o", color=colour, markersize=6)
        if effect.margin:
            axes.plot([effect.margin * 100] * 2, [row - 0.32, row + 0.32], color=BAD, linewidth=2)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [LABELS[e.metric] for e in reversed(shown)])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlabel("candidate slower than stable by (%); red line: margin")
    return _svg(figure)


def blocks(ratios: Sequence[Mapping[str, float | None]]) -> str:
    """Draw candidate over stable block by block; empty if no block has both."""
    if not any(value for ratio in ratios for value in ratio.values()):
        return ""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(2.5)
    styles = {"ttft_p50": ("-", "o"), "ttft_p95": (":", "o"), "tpot_p50": ("-", "s"), "tpot_p95": (":", "s")}
    for name, (line, marker) in styles.items():
        points = [(k + 1, ratio[name]) for k, ratio in enumerate(ratios) if ratio.get(name)]
        colour = CANDIDATE if name.startswith("ttft") else STABLE
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            line,
            marker=marker,
            color=colour,
            markersize=3,
            label=LABELS[name],
        )
    axes.axhline(1, color=MUTED, linewidth=0.8)
    present = [value for ratio in ratios for value in ratio.values() if value]
    low, high = min(0.9, *present), max(1.1, *present)
    _scale(axes.yaxis, low, high)
    axes.set_ylim(low * 0.95, high * 1.15)
    axes.set_xlabel("block")
    axes.set_ylabel("candidate / stable")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, columns=4)
    return _svg(figure)


def distributions(records: Sequence[RequestRecord]) -> str:
    """Draw which share of each side's requests was faster than what; empty if nothing ended well."""
    good = [r for r in records if r.error is None]
    if not good:
        return ""
    figure, axes_list = _figures(1, 2, 2.5)
    for axes, attribute, name in zip(axes_list, ("ttft_ms", "tpot_ms"), ("TTFT (ms)", "TPOT (ms)"), strict=True):
        for side, colour in (("stable", STABLE), ("candidate", CANDIDATE)):
            values = sorted(v for r in good if r.side == side and (v := getattr(r, attribute)) is not None)
            if values:
                shares = [(k + 1) / len(values) * 100 for k in range(len(values))]
                axes.step(values, shares, where="post", color=colour, linewidth=1.5, label=side)
        axes.set_xlabel(name)
        shown = [v for r in good if (v := getattr(r, attribute)) is not None and v > 0]
        if shown:
            _scale(axes.xaxis, min(shown), max(shown))
    axes_list[0].set_ylabel("requests at most this slow (%)")
    _legend(axes_list[0], columns=1)
    return _svg(figure)


def path(looks: Sequence[Look], planned: int) -> str:
    """Draw mean and bounds of every latency metric at each look against its margin; empty without a look."""
    if not looks or not any(e.ratio for e in looks[0].effects):
        return ""
    figure, axes_list = _figures(2, 2, 3.6)
    for axes, (name, _, _) in zip(axes_list, LATENCIES, strict=True):
        seen = [(look.block, next(e for e in look.effects if e.metric == name)) for look in looks]
        xs = [block for block, _ in seen]
        # A bound from very few blocks reaches the moon; it is cut so that the margin stays visible.
        top = 3 * (seen[-1][1].margin or 1.0) * 100
        rows = [[max(-top, min(top, _pct(v))) for v in (e.ratio_low, e.ratio, e.ratio_high)] for _, e in seen]
        lows, means, highs = zip(*rows, strict=True)
        axes.errorbar(
            xs,
            means,
            yerr=[
                [m - lo for m, lo in zip(means, lows, strict=True)],
                [h - m for m, h in zip(means, highs, strict=True)],
            ],
            fmt="o-",
            color=CANDIDATE,
            markersize=3,
            capsize=3,
            linewidth=1.2,
        )
        margin = (seen[-1][1].margin or 0.0) * 100
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.axhline(margin, color=BAD, linewidth=1.2)
        axes.axhline(_pct(math.sqrt(1 + margin / 100)), color=BAD, linewidth=0.8, linestyle=":")
        axes.set_xlim(0, planned + 0.5)
        axes.set_title(f"{LABELS[name]} (%)", color=INK, fontsize=8)
    for axes in axes_list[2:]:
        axes.set_xlabel("blocks")
    return _svg(figure)


def divergences(rows: Sequence[tuple[str, float, float | None]], limit: float) -> str:
    """Draw each text's divergence from the source, the limit of their mean and the noise; empty without texts.

    Args:
        rows: Name of a text, nats a token as served, and of the source served as it is where that is known.
        limit: Nats a token.
    """
    if not rows:
        return ""
    figure, axes = _figure(0.6 + 0.24 * len(rows))
    # A log axis has no 0, which a served source may well have.
    least = 1e-6
    for row, (_, value, noise) in enumerate(reversed(rows)):
        colour = BAD if value > limit else CANDIDATE
        axes.plot([least, max(least, value)], [row, row], color=colour, linewidth=1)
        axes.plot([max(least, value)], [row], "o", color=colour, markersize=5)
        if noise is not None:
            axes.plot([max(least, noise)], [row], "|", color=MUTED, markersize=8, markeredgewidth=2)
    axes.axvline(limit, color=BAD, linewidth=1.2)
    seen = [v for _, value, noise in rows for v in (value, noise) if v is not None and v > least]
    low, high = min([limit, *seen]) / 2, max([limit, *seen]) * 1.5
    _scale(axes.xaxis, low, high)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("nats a token; red line: limit of the mean; grey: noise of the engine")
    return _svg(figure)


def layers(errors: Sequence[tuple[str, float]]) -> str:
    """Draw the relative error of each layer in its order; empty without layers."""
    if not errors:
        return ""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(2.2)
    values = [value for _, value in errors]
    axes.plot(range(len(values)), values, "o-", color=CANDIDATE, markersize=3, linewidth=1)
    worst = max(range(len(values)), key=values.__getitem__)
    axes.annotate(
        errors[worst][0],
        (worst, values[worst]),
        xytext=(0, 5),
        textcoords="offset points",
        ha="right" if worst > len(values) / 2 else "left",
        color=INK,
        fontsize=7,
    )
    axes.plot([worst], [values[worst]], "o", color=BAD, markersize=5)
    axes.set_ylim(0, max(values) * 1.2 or 1.0)
    axes.set_xlabel("layer, in the order of the model")
    axes.set_ylabel("relative error")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _svg(figure)


def durations(steps: Sequence[tuple[str, float]]) -> str:
    """Draw how long each step took; empty without steps."""
    if not steps:
        return ""
    figure, axes = _figure(0.6 + 0.26 * len(steps))
    names, seconds = zip(*reversed(steps), strict=True)
    longest = max(seconds) or 1.0
    axes.barh(range(len(names)), seconds, color=[MUTED if n == "between steps" else STABLE for n in names], height=0.6)
    for row, value in enumerate(seconds):
        axes.text(value + longest * 0.01, row, f"{value:.0f}", va="center", color=INK, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, longest * 1.12)
    axes.set_xlabel("seconds")
    return _svg(figure)


def _figure(height_in: float) -> "tuple[Figure, Axes]":
    figure, axes = _figures(1, 1, height_in)
    return figure, axes[0]


def _figures(rows: int, columns: int, height_in: float) -> "tuple[Figure, list[Axes]]":
    # Slow to import (about a second); only the last step of a release draws.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = [a for row in grid for a in row]
    for a in axes:
        a.set_facecolor("none")
        a.tick_params(colors=INK, labelsize=8)
        a.xaxis.label.set(color=INK, fontsize=8)
        a.yaxis.label.set(color=INK, fontsize=8)
        for side, spine in a.spines.items():
            spine.set_color(MUTED)
            spine.set_visible(side in ("left", "bottom"))
    return figure, axes


def _svg(figure: "Figure") -> str:
    import matplotlib as mpl

    buffer = io.StringIO()
    # A fixed salt and no date: the same records draw the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "headway"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, variable)
    return text


def _legend(axes: "Axes", *, columns: int) -> None:
    legend = axes.legend(fontsize=7, frameon=False, ncols=columns, loc="best")
    for label in legend.get_texts():
        label.set_color(INK)


def _scale(axis: "Axis", low: float, high: float) -> None:
    """Choose a linear scale for a narrow range, else a logarithmic one with plain numbers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    if high < NARROW * low:
        axis.set_major_locator(MaxNLocator(5))
        return
    if axis is axis.axes.xaxis:
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


def _pct(ratio: float | None) -> float:
    return ((ratio or 1.0) - 1) * 100
