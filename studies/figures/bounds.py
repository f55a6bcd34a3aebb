"""Figure of the bounds that a search chose: their distribution over the course of training.

A search ends at its start or at the end of its path in most updates. A mean of bounds is then a value that
was hardly ever chosen, and is not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure as Canvas

from bapo_lightning.report import style
from bapo_lightning.tools.comparison.runs import Run
from studies.colour_maps import draw_colour_bar, shares_map
from studies.figures.catalogue import Figure
from studies.figures.means import XLABEL, draw_metric, draw_variants
from studies.figures.values import RunsByVariant

_BOUNDS = {"bapo/clip_high": "Upper bound", "bapo/clip_low": "Lower bound"}
_NUM_CLASSES = 13  # of values, between the least and the largest that was chosen
_NAMED = 0.05  # share from which a class has its number beside it


def draw_bounds(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws for each bound and variant which values were chosen, batch by batch and over all updates; below,
    the figure's metrics as curves.
    """
    canvas = style.new_figure(11.0, 10.2)
    num_columns = 2 * len(figure.variants)
    grid = canvas.add_gridspec(3, num_columns, width_ratios=(4, 1) * len(figure.variants))
    panels, mesh = [], None
    for row, (metric, title) in enumerate(_BOUNDS.items()):
        edges = _class_edges([run for variant in figure.variants for run in runs[variant]], metric)
        for number, variant in enumerate(figure.variants):
            axes = canvas.add_subplot(grid[row, 2 * number])
            overall = canvas.add_subplot(grid[row, 2 * number + 1], sharey=axes)
            style.style_axes(axes, f"{title}, {figure.labels[variant]}", XLABEL, "importance ratio")
            style.style_axes(overall, "", "all updates", "")
            panels += [axes, overall]
            mesh = _draw_choices(axes, overall, runs[variant], metric, edges) or mesh
    for number, metric in enumerate(figure.metrics):
        first, last = (place * num_columns // len(figure.metrics) for place in (number, number + 1))
        draw_metric(canvas.add_subplot(grid[2, first:last]), metric, figure, runs, XLABEL)
    if mesh is not None:
        draw_colour_bar(canvas, mesh, panels, "share of the updates")
    draw_variants(canvas, figure, runs)
    return canvas


def _class_edges(runs: Sequence[Run], metric: str) -> np.ndarray:
    """Edges of equal classes, of which the first and the last have the extremes in their middle."""
    values = [value for run in runs for value in run.curves[metric][1]] or [1.0]
    half = (max(values) - min(values)) / (2 * (_NUM_CLASSES - 1)) or 0.01
    return np.linspace(min(values) - half, max(values) + half, _NUM_CLASSES + 1)


def _draw_choices(
    axes: Axes, overall: Axes, runs: Sequence[Run], metric: str, edges: np.ndarray
) -> QuadMesh | None:
    """Draws the share of each class of values in each rollout batch into `axes`, and over all updates into
    `overall`; returns what the colour bar is of, None where nothing was recorded.
    """
    curves = [(run.staleness, zip(*run.curves[metric], strict=True)) for run in runs]
    chosen = [(step // staleness, value) for staleness, curve in curves for step, value in curve]
    if not chosen:
        style.say_missing(axes, "was not recorded")
        overall.set_axis_off()
        return None
    batches, values = (np.array(column) for column in zip(*chosen, strict=True))
    places = np.arange(batches.max() + 2)
    counts = np.histogram2d(values, batches, bins=(edges, places))[0]
    colour = style.algorithm_colour(runs[0].algorithm)
    shares = counts / np.maximum(counts.sum(0), 1)
    mesh = axes.pcolormesh(places, edges, shares, cmap=shares_map(colour), vmin=0.0, vmax=1.0)
    totals, middles = counts.sum(1) / counts.sum(), (edges[:-1] + edges[1:]) / 2
    overall.barh(middles, totals, 0.8 * (edges[1] - edges[0]), color=colour)
    for middle, total in zip(middles, totals, strict=True):
        if total >= _NAMED:
            overall.text(total, middle, f" {total:.0%}", va="center", fontsize=8, color=style.INK)
    overall.set_xlim(0.0, 1.5)
    overall.set_xticks([])
    overall.tick_params(labelleft=False)
    return mesh
