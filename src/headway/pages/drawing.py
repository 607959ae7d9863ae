"""What every picture shares: size, axes, and SVG text that takes its colours from the page.

So a picture suits light and dark alike, needs nothing beside the page, and says in words what it shows.
"""

import io
import re
from typing import TYPE_CHECKING

from headway.pages.html import esc

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Stand-ins that matplotlib writes into the SVG and that are replaced by the page's own colours afterwards.
INK, MUTED, STABLE, CANDIDATE = "#010101", "#020202", "#030303", "#040404"
GOOD, BAD, WAIT = "#050505", "#060606", "#070707"
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    STABLE: "var(--stable)",
    CANDIDATE: "var(--candidate)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    WAIT: "var(--wait)",
}
WIDTH_IN = 5.0
"""As wide as a phone shows without shrinking the text below 8 pixels."""
NARROW = 4
"""Ratio of largest to smallest value below which a linear axis shows more than a logarithmic one."""


def one(height_in: float) -> "tuple[Figure, Axes]":
    """Return an empty picture with one pair of axes."""
    figure, axes = grid(1, 1, height_in)
    return figure, axes[0]


def grid(rows: int, columns: int, height_in: float) -> "tuple[Figure, list[Axes]]":
    """Return an empty picture with pairs of axes, row by row."""
    # Slow to import (about a second); only the last step of a release draws.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = [a for row in figure.subplots(rows, columns, squeeze=False) for a in row]
    for a in axes:
        a.set_facecolor("none")
        a.tick_params(colors=INK, labelsize=8)
        a.xaxis.label.set(color=INK, fontsize=8)
        a.yaxis.label.set(color=INK, fontsize=8)
        for side, spine in a.spines.items():
            spine.set_color(MUTED)
            spine.set_visible(side in ("left", "bottom"))
    return figure, axes


def svg(figure: "Figure", name: str, title: str, told: str) -> str:
    """Return the picture as SVG text.

    Args:
        figure: What was drawn.
        name: A word of its own on the page, for the ids within.
        title: What it is, for those who do not see it.
        told: What it shows, likewise.
    """
    import matplotlib as mpl
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text):
            # Names come from checkpoints and servers; a dollar sign in one is no formula.
            text.set_parse_math(False)
    buffer = io.StringIO()
    # A fixed salt and no date: the same records draw the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"\s*<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    # matplotlib numbers its groups in every picture alike, and nothing refers to the numbers.
    drawn = re.sub(r' id="[\w.]+_\d+"', "", drawn)
    for stand_in, variable in VARIABLES.items():
        drawn = drawn.replace(stand_in, variable)
    words = f'<title id="{name}-title">{esc(title)}</title><desc id="{name}-desc">{esc(told)}</desc>'
    return drawn.replace(">", f' role="img" aria-labelledby="{name}-title {name}-desc">{words}', 1)


def legend(axes: "Axes", *, columns: int) -> None:
    """Name the lines where there is room."""
    made = axes.legend(fontsize=7, frameon=False, ncols=columns, loc="best")
    for label in made.get_texts():
        label.set_color(INK)


def scale(axis: "Axis", low: float, high: float) -> None:
    """Choose a linear scale for a narrow range, else a logarithmic one with plain numbers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    if high < NARROW * low:
        axis.set_major_locator(MaxNLocator(5))
        return
    if axis is axis.axes.xaxis:
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
    # Below the first ratio there is room for three numbers a decade, above the second for one.
    steps = (1.0, 2.0, 5.0) if high < 15 * low else (1.0, 3.0) if high < 150 * low else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)
