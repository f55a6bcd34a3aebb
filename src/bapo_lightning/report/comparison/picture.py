"""The picture of a comparison: final values with intervals on top; below, mean curves with bands, one column
per condition.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from bapo_lightning.report import style
from bapo_lightning.report.comparison.mean_curve import draw_mean
from bapo_lightning.report.comparison.runs import COLUMNS
from bapo_lightning.report.comparison.table import Comparison
from bapo_lightning.report.intervals import shown_interval
from bapo_lightning.report.run.curves import HELD_OUT, SPIKY, limits_of

_DOTS = {
    "accuracy_last": ("Held-out accuracy", "avg@k after training"),
    "reward_last": ("Final reward", "mean reward per sample"),
    "entropy_last": ("Final entropy", "entropy per token [nats]"),
    "grad_norm_max": ("Largest gradient norm", "L2 norm, geom. mean, log scale"),
    "positive_share": ("Positive share of the gradient", "share [fraction]"),
}
_CURVES = (
    (HELD_OUT, "Held-out accuracy", "avg@k"),
    ("train/reward", "Reward", "mean reward per sample"),
    ("policy/entropy", "Policy entropy", "entropy per token [nats]"),
)


def draw_comparison(comparison: Comparison, path: Path) -> Path:
    """Draws one PNG and returns `path`. Every interval and band is 95 % over seeds."""
    figure = style.new_figure(16.0, 11.6)
    parts = figure.subfigures(2, 1, height_ratios=(1.0, 2.0), hspace=0.04, squeeze=False)
    top, bottom = parts[:, 0]
    title = "After training: mean and 95 % interval over seeds, one faint dot per run"
    top.suptitle(title, fontsize=11, color=style.INK)
    for axes, (key, (title, ylabel)) in zip(top.subplots(1, len(_DOTS)), _DOTS.items(), strict=True):
        style.style_axes(axes, title, "staleness [updates per rollout batch]", ylabel)
        _draw_dots(axes, comparison, key)
    bottom.suptitle("During training: mean over seeds with 95 % band", fontsize=11, color=style.INK)
    _draw_all_curves(bottom, comparison)
    handles = [
        Line2D([], [], color=look.colour, marker="o", linestyle=look.line, linewidth=1.8, label=name)
        for name, look in comparison.looks.items()
    ]
    seeds = style.seeds_text([len(runs) for runs in comparison.cells.values()])
    style.draw_top_legend(figure, handles, min(len(handles), 4), seeds)
    return style.save_png(figure, path)


def _draw_dots(axes: Axes, comparison: Comparison, key: str) -> None:
    (column,) = (column for column in COLUMNS if column.key == key)
    looks, conditions = comparison.looks, comparison.conditions
    is_log, drawn = column.metric in SPIKY, list[float]()
    for rank, (setting, look) in enumerate(looks.items()):
        colour, offset = look.colour, 0.6 * ((rank + 0.5) / len(looks) - 0.5)
        for index, condition in enumerate(conditions):
            result = comparison.results.get((setting, condition, column.metric, column.statistic))
            values = [value for value in result.by_seed.values() if value > 0 or not is_log] if result else []
            shown = shown_interval(values, is_log, limits_of(column.metric))
            if shown is None:
                continue
            (mean, lower, upper), x = shown, index + offset
            drawn += values
            axes.scatter([x + 0.05] * len(values), values, s=12, color=colour, alpha=0.35, linewidths=0)
            ends = [[mean - lower], [upper - mean]]
            axes.errorbar(x, mean, ends, fmt="o", color=colour, markersize=6, capsize=3)
    if not drawn:
        style.say_missing(axes, "was not recorded")
        return
    axes.set_xticks(range(len(conditions)), [condition.replace(", ", "\n") for condition in conditions])
    axes.set_xlim(-0.5, len(conditions) - 0.5)
    if is_log:
        style.scale_log(axes, min(drawn), max(drawn))


def _draw_all_curves(figure: SubFigure, comparison: Comparison) -> None:
    conditions = comparison.conditions
    curves, cells = comparison.curves, comparison.cells
    recorded = [curve for curve in _CURVES if any(curves[*cell, curve[0]].steps for cell in cells)]
    grid = figure.subplots(len(recorded), len(conditions), sharex="col", sharey="row", squeeze=False)
    for row, (metric, title, ylabel) in zip(grid, recorded, strict=True):
        for axes, condition in zip(row, conditions, strict=True):
            xlabel = "optimizer update" if metric == recorded[-1][0] else ""
            is_first = condition == conditions[0]
            style.style_axes(axes, f"{title}, staleness {condition}", xlabel, ylabel if is_first else "")
            for setting, look in comparison.looks.items():
                if (setting, condition) in comparison.cells:
                    draw_mean(axes, comparison.curves[setting, condition, metric], look)
