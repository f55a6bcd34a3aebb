"""The picture of a comparison: values after training, with intervals and a dot for each run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bapo_lightning.report import style
from bapo_lightning.report.comparison.runs import COLUMNS, Column
from bapo_lightning.report.comparison.table import Comparison
from bapo_lightning.report.intervals import shown_interval
from bapo_lightning.report.metrics import HEADLINES, metric_of


def draw_comparison(comparison: Comparison) -> Figure:
    """Draws a panel for each headline, in the statistic of the console's table."""
    shown = {column.metric: column for column in reversed(COLUMNS)}  # the first of each metric
    figure = style.new_figure(16.0, 4.4)
    for axes, metric in zip(figure.subplots(1, len(HEADLINES)), HEADLINES, strict=True):
        _draw_values(axes, comparison, shown[metric.name])
    handles = [
        Line2D([], [], color=look.colour, marker="o", linestyle="", label=name)
        for name, look in comparison.looks.items()
    ]
    seeds = style.seeds_text([len(runs) for runs in comparison.cells.values()])
    title = f"Mean and 95 % interval over {seeds}, one faint dot per run"
    style.draw_top_legend(figure, handles, min(len(handles), 4), title)
    return figure


def _draw_values(axes: Axes, comparison: Comparison, column: Column) -> None:
    metric = metric_of(column.metric)
    statistic = metric.extreme if column.statistic == "extreme" else column.statistic
    unit = f"{statistic}: {metric.unit}{', log scale' if metric.log else ''}"
    style.style_axes(axes, metric.title, "staleness [updates per rollout batch]", unit)
    looks, conditions, drawn = comparison.looks, comparison.conditions, list[float]()
    for setting, condition in comparison.cells:
        result = comparison.result((setting, condition), column)
        values = [value for value in result.by_seed.values() if value > 0 or not metric.log]
        shown = shown_interval(values, metric.log, metric.limits)
        if shown is None:
            continue
        mean, lower, upper = shown
        offset = 0.6 * ((list(looks).index(setting) + 0.5) / len(looks) - 0.5)
        x, colour = conditions.index(condition) + offset, looks[setting].colour
        drawn += values
        axes.scatter([x + 0.05] * len(values), values, s=12, color=colour, alpha=0.35, linewidths=0)
        ends = [[mean - lower], [upper - mean]]
        axes.errorbar(x, mean, ends, fmt="o", color=colour, markersize=6, capsize=3)
    if not drawn:
        style.say_missing(axes, "was not recorded")
        return
    axes.set_xticks(range(len(conditions)), [condition.replace(", ", "\n") for condition in conditions])
    axes.set_xlim(-0.5, len(conditions) - 0.5)
    if metric.log:
        style.scale_log(axes, min(drawn), max(drawn))
