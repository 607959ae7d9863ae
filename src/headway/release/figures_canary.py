"""Pictures of the comparison: effects against their margins, the way to the decision, blocks, distributions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headway.domain.bench import BlockSummary, RequestRecord
from headway.domain.profile import Goodput
from headway.domain.release import MetricEffect
from headway.judge.quantiles import quantile
from headway.judge.verdict import Look
from headway.pages.drawing import BAD, CANDIDATE, GOOD, INK, MUTED, STABLE, WAIT, grid, legend, one, scale, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"error_rate": "errors", "goodput": "goodput"}
MARKS = {"pass": ("o", GOOD), "fail": ("X", BAD), "undecided": ("D", WAIT)}
"""Shape and colour by verdict: who sees no colours sees the shape."""
LEFT, RIGHT = -1.5, 2.5
"""Ends of the scale on which 1 is the margin; what lies beyond is cut, and its number says so."""
CURVE_POINTS = 240
"""Points of a drawn distribution: more cannot be seen, and 12,000 requests must not make a page of megabytes."""
SLOWER = {50: "p50", 10: "p90", 5: "p95", 1: "p99", 0.1: "p99.9"}
"""Percentiles by the share of the requests that is slower (%)."""
PERCENT = 100


class Scaled(NamedTuple):
    """An effect on the scale on which 0 is equal and 1 is the margin."""

    low: float
    mean: float
    high: float


def label(metric: str) -> str:
    """Return a short name of a metric: `ttft_p95` is "TTFT p95"."""
    head, _, tail = metric.partition("_")
    return LABELS.get(metric) or f"{head.upper()} {'median' if tail == 'p50' else tail}".strip()


def scaled(effect: MetricEffect) -> Scaled | None:
    """Return an effect in margins, as the judge compares them: ratios by their logarithm; none if it has no bounds."""
    if not effect.margin:
        return None
    if effect.ratio and effect.ratio_low is not None and effect.ratio_high is not None:
        limit = math.log1p(effect.margin)
        values = (effect.ratio_low, effect.ratio, effect.ratio_high)
        return Scaled(*(math.log(value) / limit if value > 0 else -math.inf for value in values))
    if effect.difference is not None and effect.difference_low is not None and effect.difference_high is not None:
        values = (effect.difference_low, effect.difference, effect.difference_high)
        # Of goodput less is worse, so its margin is negative and its bounds change places.
        return Scaled(*sorted(value / effect.margin for value in values))
    return None


def change(effect: MetricEffect) -> tuple[str, str]:
    """Return an effect and its interval in words; empty where there is none."""
    if effect.ratio is not None:
        low, high = _percent(effect.ratio_low), _percent(effect.ratio_high)
        return _percent(effect.ratio), f"{low} to {high}"
    if effect.difference is not None:
        low, high = _points(effect.difference_low), _points(effect.difference_high)
        return f"{_points(effect.difference)} points", f"{low} to {high}"
    return "", ""


def effects(items: Sequence[MetricEffect], guards: frozenset[str]) -> str:
    """Draw every effect with its interval on one scale, on which 1 is the margin; empty if none has an interval.

    Args:
        items: Effects in the order of the table.
        guards: Metrics that can only take back; drawn hollow.
    """
    shown = [(effect, place) for effect in items if (place := scaled(effect)) is not None]
    if not shown:
        return ""
    figure, axes = one(0.75 + 0.36 * len(shown))
    for row, (effect, place) in enumerate(reversed(shown)):
        mark, colour = MARKS[effect.verdict]
        low, mean, high = (min(RIGHT, max(LEFT, value)) for value in place)
        hollow = "none" if effect.metric in guards else colour
        axes.plot([low, high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([mean], [row], mark, color=colour, markerfacecolor=hollow, markersize=6.5, clip_on=False)
        for end, beyond, arrow in ((low, place.low < LEFT, "<"), (high, place.high > RIGHT, ">")):
            if beyond:
                axes.plot([end], [row], arrow, color=colour, markersize=5, clip_on=False)
        axes.text(
            1.02, row, change(effect)[0], transform=axes.get_yaxis_transform(), color=INK, fontsize=8, va="center"
        )
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.axvline(0.5, color=BAD, linewidth=0.8, linestyle=":")
    axes.axvline(1, color=BAD, linewidth=1.4)
    axes.set_xlim(LEFT, RIGHT)
    axes.set_xticks([-1, 0, 0.5, 1, 2], ["-1", "equal", "half", "margin", "2"])
    axes.set_yticks(range(len(shown)), [label(effect.metric) for effect, _ in reversed(shown)])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlabel("in units of the margin; to the right the candidate is worse")
    told = "; ".join(_told(effect) for effect, _ in shown)
    return svg(figure, "effects", "Effect of every metric with its interval", told)


def path(looks: Sequence[Look], planned: int, guards: frozenset[str]) -> str:
    """Draw mean and bounds of every metric at each look against the margin; empty without a look.

    Args:
        looks: What each look saw.
        planned: Blocks of the whole plan.
        guards: Metrics that can only take back.
    """
    names = [effect.metric for effect in looks[-1].effects if scaled(effect)] if looks else []
    if not names:
        return ""
    from matplotlib.ticker import MaxNLocator

    rows = (len(names) + 1) // 2
    figure, axes_list = grid(rows, 2, 0.3 + 1.35 * rows)
    for axes, name in zip(axes_list, names, strict=False):
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        seen = [
            (look.block, e, place) for look in looks for e in look.effects if e.metric == name and (place := scaled(e))
        ]
        for block, effect, place in seen:
            mark, colour = MARKS[effect.verdict]
            # A bound from very few blocks reaches the moon; it is cut so that the margin stays visible.
            low, mean, high = (min(RIGHT, max(LEFT, value)) for value in place)
            axes.plot([block, block], [low, high], color=colour, linewidth=1.6, solid_capstyle="butt")
            axes.plot([block], [mean], mark, color=colour, markersize=4)
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.axhline(0.5, color=BAD, linewidth=0.8, linestyle=":")
        axes.axhline(1, color=BAD, linewidth=1.2)
        axes.set_xlim(0, planned + 0.5)
        axes.set_ylim(LEFT, RIGHT)
        axes.set_yticks([0, 1], ["equal", "margin"])
        note = " (guard)" if name in guards else ""
        axes.set_title(f"{label(name)}{note}", color=INK, fontsize=8)
    for axes in axes_list[len(names) :]:
        axes.set_visible(False)
    for axes in axes_list[max(0, len(names) - 2) : len(names)]:
        axes.set_xlabel("blocks")
    told = "; ".join(
        f"after {look.block} blocks: " + ", ".join(f"{label(e.metric)} {e.verdict}" for e in look.effects)
        for look in looks
    )
    return svg(figure, "path", "Bounds of every metric at each look", told)


def blocks(
    ratios: Sequence[Mapping[str, float | None]], summaries: Sequence[BlockSummary], margins: Mapping[str, float]
) -> str:
    """Draw candidate over stable block by block; empty if no block has both.

    Args:
        ratios: By block, in the order of the blocks.
        summaries: How the blocks went, in the same order.
        margins: Of each metric, as a share.
    """
    names = [name for name in margins if any(ratio.get(name) for ratio in ratios)]
    if not names:
        return ""
    from matplotlib.ticker import MaxNLocator

    rows = (len(names) + 1) // 2
    figure, axes_list = grid(rows, 2, 0.3 + 1.35 * rows)
    unused = [k + 1 for k, s in enumerate(summaries[: len(ratios)]) if s.void or s.stopped]
    swapped = [k + 1 for k, s in enumerate(summaries[: len(ratios)]) if s.placement % 2]
    told = []
    for axes, name in zip(axes_list, names, strict=False):
        points = [(k + 1, value) for k, ratio in enumerate(ratios) if (value := ratio.get(name))]
        for k in swapped:
            axes.axvspan(k - 0.5, k + 0.5, color=STABLE, alpha=0.12, linewidth=0)
        for k in unused:
            axes.axvspan(k - 0.5, k + 0.5, color=MUTED, alpha=0.3, linewidth=0)
        axes.plot([x for x, _ in points], [y for _, y in points], "o", color=CANDIDATE, markersize=3)
        axes.axhline(1, color=MUTED, linewidth=0.8)
        axes.axhline(1 + margins[name], color=BAD, linewidth=1.2)
        present = [value for _, value in points]
        low, high = min(1 / (1 + margins[name]), *present), max(1 + margins[name], *present)
        scale(axes.yaxis, low, high)
        axes.set_ylim(low * 0.95, high * 1.08)
        axes.set_xlim(0.2, len(ratios) + 0.8)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_title(label(name), color=INK, fontsize=8)
        told.append(f"{label(name)} from {min(present):.3g} to {max(present):.3g}")
    for axes in axes_list[len(names) :]:
        axes.set_visible(False)
    for axes in axes_list[max(0, len(names) - 2) : len(names)]:
        axes.set_xlabel("block")
    for axes in axes_list[: len(names) : 2]:
        axes.set_ylabel("candidate / stable")
    return svg(figure, "blocks", "Candidate over stable, block by block", "; ".join(told))


def distributions(records: Sequence[RequestRecord], goodput: Goodput | None) -> str:
    """Draw every percentile of both sides' latencies, with room for the slow end; empty if nothing ended well.

    Args:
        records: Requests of both sides.
        goodput: Limits of a good request; none if there are none.
    """
    good = [r for r in records if r.error is None]
    if not good:
        return ""
    limits = {} if goodput is None else {"TTFT": goodput.ttft_ms, "TPOT": goodput.tpot_ms, "E2E": goodput.e2e_ms}
    values: dict[str, Callable[[RequestRecord], Iterable[float | None]]] = {
        "TTFT": lambda r: (r.ttft_ms,),
        "TPOT": lambda r: (r.tpot_ms,),
        "E2E": lambda r: (r.e2e_ms,),
        "ITL": lambda r: r.itl_ms,
    }
    kinds = {
        name: {side: sorted(v for r in good if r.side == side for v in of(r) if v) for side in ("stable", "candidate")}
        for name, of in values.items()
    }
    shown = {name: sides for name, sides in kinds.items() if any(sides.values())}
    if not shown:
        return ""
    rows = (len(shown) + 1) // 2
    figure, axes_list = grid(rows, 2, 0.3 + 1.75 * rows)
    told = []
    for axes, (name, sides) in zip(axes_list, shown.items(), strict=False):
        told.append(_curves(axes, name, sides, limits.get(name)))
    for axes in axes_list[len(shown) :]:
        axes.set_visible(False)
    legend(axes_list[0], columns=1)
    return svg(figure, "distributions", "Latencies of both sides", "; ".join(told))


def worth_drawing(count: int) -> list[int]:
    """Return which of so many sorted values are drawn: evenly by the logarithm of how many are slower."""
    step = math.log(count) / CURVE_POINTS
    return sorted({0, *(count - round(math.exp(k * step)) for k in range(CURVE_POINTS + 1))})


def _curves(axes: "Axes", name: str, sides: Mapping[str, Sequence[float]], limit: float | None) -> str:
    """Draw the curves of one latency, and return their percentiles in words."""
    told = []
    for side, colour, line in (("stable", STABLE, "-"), ("candidate", CANDIDATE, "--")):
        values = sides[side]
        if not values:
            continue
        points = worth_drawing(len(values))
        slower = [(len(values) - k) / len(values) * PERCENT for k in points]
        axes.step([values[k] for k in points], slower, line, where="pre", color=colour, linewidth=1.5, label=side)
        marks = [(x, p) for p in (50, 95, 99) if (x := quantile(values, p)) is not None]
        axes.plot([x for x, _ in marks], [PERCENT - p for _, p in marks], "o", color=colour, markersize=3)
        told.append(f"{name} of {side} " + ", ".join(f"p{p} {x:.4g} ms" for x, p in marks))
    if limit is not None:
        axes.axvline(limit, color=BAD, linewidth=1, linestyle="--")
    for share in SLOWER:
        axes.axhline(share, color=MUTED, linewidth=0.5, linestyle=":")
    present = [v for values in sides.values() if values for v in (values[0], values[-1])]
    scale(axes.xaxis, min(present), max(present))
    axes.set_yscale("log")
    axes.set_ylim(PERCENT, 0.1)
    axes.set_yticks(list(SLOWER), list(SLOWER.values()))
    axes.minorticks_off()
    axes.set_xlabel(f"{name} (ms)")
    return "; ".join(told)


def _told(effect: MetricEffect) -> str:
    mean, between = change(effect)
    margin = f"{(effect.margin or 0) * PERCENT:+g} %" if effect.ratio is not None else f"{effect.margin:+g} points"
    return f"{label(effect.metric)} {mean} ({between}), margin {margin}: {effect.verdict}"


def _percent(ratio: float | None) -> str:
    if ratio is None:
        return "?"
    return f"{(ratio - 1) * PERCENT:+.1f} %" if ratio < 10 else f"x{ratio:.3g}"


def _points(value: float | None) -> str:
    return "?" if value is None else f"{value:+.2f}"
