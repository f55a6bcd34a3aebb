"""The picture of the audit: a row for each rule, a panel for each quantity, a colour for each world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bapo_lightning.report import style
from bapo_lightning.report.intervals import mean_interval
from studies.late.claims import Tables
from studies.late.plan import LateConfig

COLOURS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE)
MARKERS = "osD^"
PANELS = {  # title, axis, where nothing is left out
    "length_ratio": ("Long answers", "mean length, trained / sampled", 1.0),
    "difficulty": ("Hard problems", "mean difficulty, trained - sampled", 0.0),
    "waste": ("Waste", "share of the generated time", 0.0),
    "age": ("Age", "mean age when trained, updates", None),
    "reward_at_time": ("Reward", "mean over the same time", None),
}
APART = 0.17  # of two worlds in a row


def draw_audit(config: LateConfig, tables: Tables, path: Path) -> Path:
    """Draws every world at the bound of the claims."""
    figure = style.new_figure(12.5, 5.2)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, quantity in zip(panels, PANELS, strict=True):
        _draw_panel(axes, config, tables, quantity)
    panels[0].set_yticks(range(len(config.rules)), [rule.label for rule in config.rules.values()])
    panels[0].set_ylim(len(config.rules) - 0.5, -0.5)
    handles = [
        Line2D(
            [],
            [],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % 4],
            linestyle="",
            label=entry.label,
        )
        for number, entry in enumerate(config.worlds.values())
    ]
    style.draw_top_legend(figure, handles, 2)
    return style.save_png(figure, path)


def _draw_panel(axes: Axes, config: LateConfig, tables: Tables, quantity: str) -> None:
    title, label, fair = PANELS[quantity]
    if fair is not None:
        axes.axvline(fair, color=style.INK, linewidth=0.8)
    for number, world in enumerate(config.worlds):
        shift = APART * (number - (len(config.worlds) - 1) / 2)
        look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % 4]}
        for row, name in enumerate(config.rules):
            interval = mean_interval(tables[world, config.bound][name][quantity].tolist())
            assert interval is not None
            axes.errorbar(
                interval.mean, row + shift, xerr=interval.half_width, markersize=4, linestyle="", **look
            )
    style.style_axes(axes, title, label, "")
    axes.grid(axis="y", visible=False)
    for edge in range(1, len(config.rules)):
        axes.axhline(edge - 0.5, color=style.GRID, linewidth=0.8, zorder=0)
