"""Pictures of the quality gate and of the release as a whole: divergence by text, error by layer, time by step."""

from collections.abc import Sequence

from headway.pages.drawing import BAD, CANDIDATE, INK, MUTED, STABLE, one, scale, svg


def divergences(rows: Sequence[tuple[str, float, float | None]], limit: float) -> str:
    """Draw each text's divergence from the source, the limit of their mean and the noise; empty without texts.

    Args:
        rows: Name of a text, nats a token as served, and of the source served as it is where that is known.
        limit: Nats a token.
    """
    if not rows:
        return ""
    figure, axes = one(0.6 + 0.24 * len(rows))
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
    scale(axes.xaxis, low, high)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("nats a token; red line: limit of the mean; grey: noise of the engine")
    told = "; ".join(f"{name} {value:.4f}" for name, value, _ in rows)
    return svg(figure, "divergences", "Divergence from the source by text", f"limit of the mean {limit:g}; {told}")


def layers(errors: Sequence[tuple[str, float]], name: str) -> str:
    """Draw the relative error of each layer in its order; empty without layers.

    Args:
        errors: Name and error of each layer.
        name: Of the picture, for the ids within.
    """
    if not errors:
        return ""
    from matplotlib.ticker import MaxNLocator

    figure, axes = one(2.2)
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
    told = f"largest: {errors[worst][0]} with {values[worst]:.4g}; {len(values)} layers"
    return svg(figure, name, "Relative error by layer", told)


def durations(steps: Sequence[tuple[str, float]]) -> str:
    """Draw how long each step took; empty without steps."""
    if not steps:
        return ""
    figure, axes = one(0.6 + 0.26 * len(steps))
    names, seconds = zip(*reversed(steps), strict=True)
    longest = max(seconds) or 1.0
    axes.barh(range(len(names)), seconds, color=[MUTED if n == "between steps" else STABLE for n in names], height=0.6)
    for row, value in enumerate(seconds):
        axes.text(value + longest * 0.01, row, f"{value:.0f}", va="center", color=INK, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, longest * 1.12)
    axes.set_xlabel("seconds")
    told = ", ".join(f"{name} {value:.0f} s" for name, value in steps)
    return svg(figure, "durations", "Seconds by step", told)
