"""Figures over the course of training: mean over seeds with a 95 % band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.report.comparison.mean_curve import draw_mean, mean_curve
from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.values import LOSS_SHARE, TOKEN_SHARE
from bapo_lightning.report.plot_style import (
    BLUE,
    GREEN,
    INK,
    LINES,
    NEGATIVE,
    ORANGE,
    POSITIVE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    LineStyle,
    algorithm_colour,
    draw_legend,
    draw_top_legend,
    new_figure,
    save_png,
    say_missing,
    smoothed,
    smoothing_window,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

XLABEL = "rollout batches trained on"
TITLES = {
    "train/reward": ("Reward", "mean per sample"),
    "policy/entropy": ("Policy entropy", "nats per token"),
    "train/grad_norm": ("Gradient norm", "L2 before clipping, log scale"),
    "train/clip_fraction": ("Clipped tokens", "fraction"),
    "bapo/positive_share": ("Positive share of the gradient", "fraction"),
    "bapo/clip_high": ("Upper bound", "importance ratio"),
    "bapo/clip_low": ("Lower bound", "importance ratio"),
    "bapo/target_met": ("Updates that meet the target", "fraction"),
    "staleness/age_mean": ("Age of the tokens", "updates"),
}
_LOGARITHMIC = {"train/grad_norm"}
_COLUMNS = 2


def variant_styles(figure: Figure, runs: Mapping[str, Sequence[Run]]) -> dict[str, tuple[str, LineStyle]]:
    """Colour and line of each variant that has runs: its algorithm's colour where each algorithm has one
    variant, else the next of a list.
    """
    drawn = [variant for variant in figure.variants if runs[variant]]
    algorithms = [runs[variant][0].algorithm for variant in drawn]
    others = [BLUE, ORANGE, VERMILLION, GREEN, PURPLE, SKY_BLUE]
    alone = len(set(algorithms)) == len(algorithms)
    colours = (
        [algorithm_colour(name) for name in algorithms]
        if alone
        else [others[rank % len(others)] for rank in range(len(drawn))]
    )
    return {
        variant: (colour, LINES[rank % len(LINES)])
        for rank, (variant, colour) in enumerate(zip(drawn, colours, strict=True))
    }


def seeds_text(count: int) -> str:
    """Number of seeds, for legends."""
    return f"{count} seed{'' if count == 1 else 's'}"


def draw_curves(figure: Figure, runs: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Draws one panel for each metric of the figure, one line for each variant."""
    from matplotlib.lines import Line2D

    rows = -(-len(figure.metrics) // _COLUMNS)
    canvas = new_figure(11.0, 0.7 + 3.0 * rows)
    styles = variant_styles(figure, runs)
    panels = canvas.subplots(rows, _COLUMNS, squeeze=False).flat
    for number, (axes, metric) in enumerate(zip(panels, figure.metrics, strict=False)):
        is_last_row = number >= len(figure.metrics) - _COLUMNS
        style_axes(axes, TITLES[metric][0], XLABEL if is_last_row else "", TITLES[metric][1])
        reached: list[float] = []
        for variant, (colour, line) in styles.items():
            curves = [run.curves[metric] for run in runs[variant] if run.curves[metric][1]]
            if curves:
                period = runs[variant][0].staleness
                draw_mean(axes, mean_curve(curves, period), colour, line, period)
                reached += [
                    value
                    for _, values in curves
                    for value in smoothed(values, smoothing_window(len(values), period))
                ]
        if not reached:
            say_missing(axes, "was not recorded")
        else:
            scale_to(axes, min(reached), max(reached), metric in _LOGARITHMIC)
    handles = [
        Line2D([], [], color=colour, linestyle=line, linewidth=2.0, label=label)
        for variant, (colour, line) in styles.items()
        for label in [f"{figure.labels[variant]} ({seeds_text(len(runs[variant]))})"]
    ]
    if handles:
        draw_top_legend(canvas, handles, 2)
    return save_png(canvas, path)


def scale_to(axes: Axes, low: float, high: float, logarithmic: bool) -> None:
    """Limits the axis to the values that single runs reach. Where few seeds disagree, a band goes far beyond
    them and would flatten everything else.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    if not logarithmic or low <= 0:
        margin = 0.06 * (high - low) or 0.05
        axes.set_ylim(low - margin, high + margin)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(low / 1.2, high * 1.2)


def draw_shares(figure: Figure, runs: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Draws the shares of positive and negative tokens in the loss and among the tokens, for the figure's
    first variant.
    """
    canvas = new_figure(11.0, 3.9)
    variant = figure.variants[0]
    title = f"{figure.labels[variant]}: mean over {seeds_text(len(runs[variant]))} with 95 % band"
    canvas.suptitle(title, fontsize=11, color=INK)
    panels = canvas.subplots(1, 2, sharey=True)
    loss_label = "share of the loss that is not clipped,\nweighted by behaviour probability"
    shares = (
        (LOSS_SHARE, "Share of the loss", loss_label),
        (TOKEN_SHARE, "Share of the tokens", "fraction of tokens"),
    )
    for axes, (metric, title, ylabel) in zip(panels, shares, strict=True):
        style_axes(axes, title, XLABEL, ylabel)
        curves = [run.curves[metric] for run in runs[variant] if run.curves[metric][1]]
        if not curves:
            say_missing(axes, "was not recorded")
            continue
        period = runs[variant][0].staleness
        mirrored = [(steps, [1 - value for value in values]) for steps, values in curves]
        draw_mean(axes, mean_curve(mirrored, period), NEGATIVE, "--", period, "negative")
        draw_mean(axes, mean_curve(curves, period), POSITIVE, "-", period, "positive")
        axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
        draw_legend(axes)
    return save_png(canvas, path)
