"""The figure of a study: final values with intervals on top, mean curves with bands below, one column per
condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bapo_lightning.report.comparison.mean_curve import MeanCurve, mean_curve
from bapo_lightning.report.comparison.study import cell_of, conditions, settings
from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.report.plot_style import (
    INK,
    LineStyle,
    line_styles,
    new_figure,
    save_png,
    say_missing,
    scale_from_zero,
    setting_colours,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_DOTS = (
    ("reward_last", "Final reward", "mean reward per sample"),
    ("entropy_last", "Final entropy", "entropy per token [nats]"),
    ("grad_norm_max", "Largest gradient norm", "L2 norm"),
    ("positive_share", "Positive share of the gradient", "share [fraction]"),
)
_CURVES = (
    ("train/reward", "Reward", "mean reward per sample"),
    ("policy/entropy", "Policy entropy", "entropy per token [nats]"),
)


def plot_study(runs: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw the usable runs of `study.collect` into one PNG and return `path`. Every interval and band is 95 %
    over seeds.
    """
    from matplotlib.lines import Line2D

    usable = [run for run in runs if run["problem"] is None]
    found = conditions(usable)
    named = settings(usable)
    colours = setting_colours({run["setting"]: run["algorithm"] for run in usable}, named)
    figure = new_figure(14.0, 9.4)
    parts = figure.subfigures(2, 1, height_ratios=(1.0, 1.35), hspace=0.04, squeeze=False)
    top, bottom = parts[0, 0], parts[1, 0]
    top.suptitle(
        "After training: mean and 95 % interval over seeds, one faint dot per run", fontsize=11, color=INK
    )
    for axes, (key, title, ylabel) in zip(top.subplots(1, len(_DOTS)), _DOTS, strict=True):
        style_axes(axes, title, "staleness [updates per rollout batch]", ylabel)
        _draw_dots(axes, usable, key, found, colours)
    bottom.suptitle("During training: mean over seeds with 95 % band", fontsize=11, color=INK)
    _draw_all_curves(bottom, usable, found, colours)
    lines = line_styles(colours)
    handles = [
        Line2D(
            [], [], color=colour, marker="o", linestyle=lines[name], linewidth=1.8, label=_label(usable, name)
        )
        for name, colour in colours.items()
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(named), 4),
        fontsize=10,
        frameon=False,
        labelcolor=INK,
    )
    return save_png(figure, path)


def _draw_dots(
    axes: Axes, usable: Sequence[dict[str, Any]], key: str, found: list[str], colours: dict[str, str]
) -> None:
    drawn = False
    for rank, (setting, colour) in enumerate(colours.items()):
        offset = 0.6 * ((rank + 0.5) / len(colours) - 0.5)
        for place, condition in enumerate(found):
            values = [run[key] for run in cell_of(usable, setting, condition) if run[key] is not None]
            interval = mean_interval(values)
            if interval is None:
                continue
            drawn = True
            axes.scatter(
                [place + offset + 0.05] * len(values), values, s=12, color=colour, alpha=0.35, linewidths=0
            )
            axes.errorbar(
                place + offset,
                interval.mean,
                interval.half_width or 0.0,
                fmt="o",
                color=colour,
                markersize=6,
                capsize=3,
            )
    if not drawn:
        say_missing(axes, "was not recorded")
        return
    axes.set_xticks(range(len(found)), [condition.replace(", ", "\n") for condition in found])
    axes.set_xlim(-0.5, len(found) - 0.5)
    if key == "grad_norm_max":
        scale_from_zero(axes, [run[key] for run in usable if run[key] is not None])


def _draw_all_curves(
    figure: SubFigure, usable: Sequence[dict[str, Any]], found: list[str], colours: dict[str, str]
) -> None:
    lines = line_styles(colours)
    grid = figure.subplots(len(_CURVES), len(found), sharex="col", sharey="row", squeeze=False)
    for row, (metric, title, ylabel) in zip(grid, _CURVES, strict=True):
        for axes, condition in zip(row, found, strict=True):
            last_row, first_column = metric == _CURVES[-1][0], condition == found[0]
            style_axes(
                axes,
                f"{title}, staleness {condition}",
                "optimizer update" if last_row else "",
                ylabel if first_column else "",
            )
            for setting, colour in colours.items():
                cell = cell_of(usable, setting, condition)
                if cell:
                    curves = [run["curves"][metric] for run in cell]
                    draw_mean(axes, mean_curve(curves, cell[0]["staleness"]), colour, lines[setting])


def draw_mean(axes: Axes, curve: MeanCurve, colour: str, line: LineStyle = "-") -> None:
    """A mean with its band."""
    axes.plot(
        curve.steps,
        curve.means,
        color=colour,
        linestyle=line,
        linewidth=1.8,
        marker="o" if len(curve.steps) == 1 else "",
    )
    axes.fill_between(curve.steps, curve.lower, curve.upper, color=colour, alpha=0.15, linewidth=0)


def _label(usable: Sequence[dict[str, Any]], setting: str) -> str:
    count = sum(run["setting"] == setting for run in usable)
    return f"{setting} ({count} run{'' if count == 1 else 's'})"
