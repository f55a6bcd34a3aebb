"""Bars in groups: mean of a value with its 95 % interval, and every seed as a dot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.values import TITLES, VALUES, Run
from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.report.plot_style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    VERMILLION,
    new_figure,
    save_png,
    style_axes,
)

_LOOKS = (
    (VERMILLION, "//"),
    (ORANGE, ".."),
    (GREEN, "xx"),
)  # of the baselines; the last series is the one they are compared with
_LAST_LOOK = (BLUE, "")


def draw_bars(figure: Figure, runs: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """One panel for each value of the figure; a group of bars for each place on the axis, a bar for each
    series.
    """
    canvas = new_figure(11.0, 4.2)
    groups = list(dict.fromkeys(name for row in figure.series.values() for name in row))
    width = 0.8 / len(figure.series)
    looks = [*_LOOKS[: len(figure.series) - 1], _LAST_LOOK]
    for axes, value in zip(
        canvas.subplots(1, len(figure.values), squeeze=False)[0], figure.values, strict=True
    ):
        style_axes(axes, TITLES[value][0], figure.axis, TITLES[value][1])
        for rank, (label, row) in enumerate(figure.series.items()):
            for place, group in enumerate(groups):
                kind = row.get(group)
                found = [
                    number for run in runs.get(kind or "", ()) if (number := VALUES[value](run)) is not None
                ]
                interval = mean_interval(found)
                if interval is None:
                    continue
                x = place + width * (rank - (len(figure.series) - 1) / 2)
                axes.bar(x, interval.mean, 0.92 * width, color=looks[rank][0], alpha=0.75, hatch=looks[rank][1], edgecolor="white",
                         label=label if place == 0 else None)  # fmt: skip
                axes.errorbar(
                    x, interval.mean, interval.half_width or 0.0, color=INK, capsize=3, linewidth=1.2
                )
                axes.scatter([x] * len(found), found, s=10, color=INK, alpha=0.45, linewidths=0, zorder=3)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_xlim(-0.5, len(groups) - 0.5)
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    if handles:
        canvas.legend(
            handles, labels, loc="outside upper center", ncols=3, fontsize=10, frameon=False, labelcolor=INK
        )
    return save_png(canvas, path)
