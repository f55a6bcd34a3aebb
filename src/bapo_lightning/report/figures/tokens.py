"""Probability and entropy of tokens by their importance ratio, over all recorded tokens of all seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.curves import seeds_text
from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.report.plot_style import (
    BLUE,
    INK,
    VERMILLION,
    new_figure,
    save_png,
    say_missing,
    style_axes,
)
from bapo_lightning.run_folder.record import Columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_EDGES = (0.0, 0.5, 0.8, 0.9, 0.98, 1.02, 1.1, 1.2, 1.5, float("inf"))
_DRAWN = 20_000  # dots; more would hide each other
_SHOWN_RATIOS = (0.1, 10.0)


def draw_tokens(figure: Figure, runs: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Draws ratio against probability, coloured by entropy, and means by classes of the ratio, for the
    figure's first variant.
    """
    canvas = new_figure(12.0, 4.6)
    tables: list[Columns] = [run.tokens for run in runs[figure.variants[0]] if run.tokens is not None]
    scatter, probabilities, entropies = canvas.subplots(1, 3, width_ratios=(1.35, 1.0, 1.0))
    count = sum(len(table["ratio"]) for table in tables)
    canvas.suptitle(
        f"{figure.labels[figure.variants[0]]}: {count:,} recorded tokens of {seeds_text(len(tables))}",
        fontsize=11,
        color=INK,
    )
    style_axes(scatter, "Every dot a token", "importance ratio, log scale", "probability under the policy")
    style_axes(probabilities, "Probability by ratio", "importance ratio", "mean probability, 95 % over seeds")
    style_axes(entropies, "Entropy by ratio", "importance ratio", "mean entropy [nats], 95 % over seeds")
    if not tables:
        for axes in (scatter, probabilities, entropies):
            say_missing(axes, "no tokens were recorded")
        return save_png(canvas, path)
    _draw_scatter(canvas, scatter, tables)
    _draw_classes(probabilities, tables, "probability", BLUE)
    _draw_classes(entropies, tables, "entropy", VERMILLION)
    return save_png(canvas, path)


def _draw_scatter(canvas: Canvas, axes: Axes, tables: Sequence[Columns]) -> None:
    rows = [
        row
        for table in tables
        for row in zip(table["ratio"], table["probability"], table["entropy"], strict=True)
    ]
    chosen = rows[:: max(1, len(rows) // _DRAWN)]
    low, high = _SHOWN_RATIOS
    dots = axes.scatter(
        [min(max(ratio, low), high) for ratio, _, _ in chosen],
        [probability for _, probability, _ in chosen],
        c=[entropy for _, _, entropy in chosen],
        s=5,
        alpha=0.5,
        linewidths=0,
        cmap="viridis",
        rasterized=True,
    )
    axes.set_xscale("log")
    axes.set_xlim(low * 0.9, high * 1.1)
    axes.set_xticks([0.1, 0.3, 1, 3, 10], ["≤ 0.1", "0.3", "1", "3", "≥ 10"])
    axes.minorticks_off()
    canvas.colorbar(dots, ax=axes, label="entropy [nats]")


def _draw_classes(axes: Axes, tables: Sequence[Columns], name: str, colour: str) -> None:
    """Draws the mean over the tokens of a class within each seed, then over seeds."""
    for index, (low, high) in enumerate(pairwise(_EDGES)):
        means = []
        for table in tables:
            members = [
                value for ratio, value in zip(table["ratio"], table[name], strict=True) if low <= ratio < high
            ]
            if members:
                means.append(fmean(members))
        interval = mean_interval(means)
        if interval is not None:
            axes.errorbar(index, interval.mean, interval.half_width or 0.0, fmt="o", color=colour, capsize=3)
    names = [f"{low:g} to {high:g}" for low, high in pairwise(_EDGES[1:-1])]
    axes.set_xticks(
        range(len(_EDGES) - 1), [f"< {_EDGES[1]:g}", *names, f"≥ {_EDGES[-2]:g}"], rotation=45, ha="right"
    )
    axes.set_ylim(bottom=0.0)
