"""Bars in groups: mean of a value with its 95 % interval, and a dot for every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.report.comparison.runs import Run
from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.values import TITLES, VALUES
from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.report.plot_style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    VERMILLION,
    draw_top_legend,
    new_figure,
    save_png,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BASELINE_LOOKS = ((VERMILLION, "//"), (ORANGE, ".."), (GREEN, "xx"))
_LAST_LOOK = (BLUE, "")  # of the last series, which the others are compared with


def draw_bars(figure: Figure, runs: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Draws one panel for each value of the figure, in each a group of bars for each place on the axis, and a
    bar for each series.
    """
    canvas = new_figure(11.0, 4.2)
    groups = list(dict.fromkeys(name for row in figure.series.values() for name in row))
    width = 0.8 / len(figure.series)
    looks = [*_BASELINE_LOOKS[: len(figure.series) - 1], _LAST_LOOK]
    panels = canvas.subplots(1, len(figure.values), squeeze=False)[0]
    for axes, value in zip(panels, figure.values, strict=True):
        style_axes(axes, TITLES[value][0], figure.axis, TITLES[value][1])
        for rank, (label, row) in enumerate(figure.series.items()):
            offset = width * (rank - (len(figure.series) - 1) / 2)
            for index, group in enumerate(groups):
                members = runs.get(row.get(group, ""), ())
                found = [number for run in members if (number := VALUES[value](run)) is not None]
                _draw_bar(axes, index + offset, found, width, looks[rank], label if index == 0 else None)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_xlim(-0.5, len(groups) - 0.5)
    handles, _ = canvas.axes[0].get_legend_handles_labels()
    if handles:
        draw_top_legend(canvas, handles, 3)
    return save_png(canvas, path)


def _draw_bar(
    axes: Axes, x: float, values: list[float], width: float, look: tuple[str, str], label: str | None
) -> None:
    interval = mean_interval(values)
    if interval is None:
        return
    colour, hatch = look
    axes.bar(
        x, interval.mean, 0.92 * width, color=colour, alpha=0.75, hatch=hatch, edgecolor="white", label=label
    )
    axes.errorbar(x, interval.mean, interval.half_width or 0.0, color=INK, capsize=3, linewidth=1.2)
    axes.scatter([x] * len(values), values, s=10, color=INK, alpha=0.45, linewidths=0, zorder=3)
