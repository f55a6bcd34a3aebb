"""Figures of single dots: recorded tokens by their importance ratio, and updates by the Entropy-Clip Rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bapo_lightning.report import style
from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.system.run_folder.record import Columns
from studies.colour_maps import draw_colour_bar
from studies.figures.catalogue import Figure
from studies.figures.values import RunsByVariant, rule_pairs

EDGES = (0.0, 0.5, 0.8, 0.9, 0.98, 1.02, 1.1, 1.2, 1.5, float("inf"))
TOKENS = ("ratio", "probability", "entropy")  # what is known of each
_SHOWN_RATIOS = (0.1, 10.0)
_KEPT = 0.98  # share of the updates within the axes; a few large ones would hide the others


def draw_tokens(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws ratio against probability, coloured by entropy, and means by classes of the ratio, over the
    kept tokens of all seeds of the figure's first variant.
    """
    canvas = style.new_figure(12.0, 4.6)
    variant = figure.variants[0]
    tables = [run.tokens for run in runs[variant] if run.tokens is not None]
    count = sum(len(table["ratio"]) for table in tables)
    seeds = style.seeds_text([len(tables)])
    title = f"{figure.labels[variant]}: {count:,} tokens of {seeds}, up to 40 a seed in each class"
    canvas.suptitle(title, fontsize=11, color=style.INK)
    panels = scatter, probabilities, entropies = canvas.subplots(1, 3, width_ratios=(1.35, 1.0, 1.0))
    dots, ratio, over = "Every dot a token", "importance ratio", "95 % over seeds"
    style.style_axes(scatter, dots, f"{ratio}, log scale", "probability under the policy")
    style.style_axes(probabilities, "Probability by ratio", ratio, f"mean probability, {over}")
    style.style_axes(entropies, "Entropy by ratio", ratio, f"mean entropy [nats], {over}")
    if tables:
        _draw_scatter(canvas, scatter, tables)
        colour = style.algorithm_colour(runs[variant][0].algorithm)
        _draw_classes(probabilities, tables, "probability", colour)
        _draw_classes(entropies, tables, "entropy", colour)
    else:
        for axes in panels:
            style.say_missing(axes, "no tokens were recorded")
    return canvas


def _draw_scatter(canvas: Canvas, axes: Axes, tables: list[Columns]) -> None:
    ratios, probabilities, entropies = (
        [value for table in tables for value in table[name]] for name in TOKENS
    )
    low, high = _SHOWN_RATIOS
    shown = [min(max(ratio, low), high) for ratio in ratios]
    dots = axes.scatter(shown, probabilities, c=entropies, s=5, alpha=0.5, linewidths=0, cmap="viridis")
    axes.set_xscale("log")
    axes.set_xlim(low * 0.9, high * 1.1)
    axes.set_xticks([0.1, 0.3, 1, 3, 10], ["≤ 0.1", "0.3", "1", "3", "≥ 10"])
    axes.minorticks_off()
    draw_colour_bar(canvas, dots, axes, "entropy [nats]")


def _draw_classes(axes: Axes, tables: list[Columns], name: str, colour: str) -> None:
    for index, (low, high) in enumerate(pairwise(EDGES)):
        classes = [
            [value for ratio, value in zip(table["ratio"], table[name], strict=True) if low <= ratio < high]
            for table in tables
        ]
        interval = mean_interval([fmean(members) for members in classes if members])
        if interval is not None:
            axes.errorbar(index, interval.mean, interval.half_width or 0.0, fmt="o", color=colour, capsize=3)
    names = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES[1:-1])]
    names = [f"< {EDGES[1]:g}", *names, f"≥ {EDGES[-2]:g}"]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_ylim(bottom=0.0)


def draw_entropy_rule(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws predicted against measured entropy change of the same tokens: a panel for each variant, a dot for
    each measured update.
    """
    canvas = style.new_figure(4.0 * len(figure.variants), 4.4)
    canvas.suptitle(f"{figure.title}: a dot for each update", fontsize=11, color=style.INK)
    panels = canvas.subplots(1, len(figure.variants), squeeze=False)[0]
    for axes, variant in zip(panels, figure.variants, strict=True):
        pairs = [pair for run in runs[variant] for pair in rule_pairs(run)]
        xlabel, ylabel = "predicted by Eq. 6 [1e-4 nats]", "measured [1e-4 nats]"
        style.style_axes(axes, figure.labels[variant], xlabel, ylabel)
        if not pairs:
            style.say_missing(axes, "was not measured (callbacks.entropy_rule.every)")
            continue
        xs, ys = [1e4 * predicted for predicted, _ in pairs], [1e4 * measured for _, measured in pairs]
        colour = style.algorithm_colour(runs[variant][0].algorithm)
        places = _within(xs, axes.set_xlim), _within(ys, axes.set_ylim)
        axes.scatter(*places, s=9, alpha=0.35, color=colour, linewidths=0)
        axes.axhline(0, color=style.INK, linewidth=0.8)
        axes.axvline(0, color=style.INK, linewidth=0.8)
        agreeing = sum((x > 0) == (y > 0) for x, y in zip(xs, ys, strict=True)) / len(pairs)
        axes.set_title(f"same sign: {agreeing:.0%} of {len(pairs)}", loc="right", fontsize=8, color=style.INK)
    return canvas


def _within(values: list[float], limit: Callable[[float, float], object]) -> list[float]:
    """Limits an axis to most of `values` on both sides of zero; returns `values` with those beyond at its
    edges, so that few large ones do not hide the others, and none is left out.
    """
    reach = sorted(map(abs, values))[int(_KEPT * (len(values) - 1))] or 1.0
    limit(-1.1 * reach, 1.1 * reach)
    return [min(max(value, -1.08 * reach), 1.08 * reach) for value in values]
