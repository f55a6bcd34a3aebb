"""Figures of means over seeds with 95 % intervals: curves over the course of training, and bars in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bapo_lightning.report import style
from bapo_lightning.report.intervals import interval_on_axis
from bapo_lightning.report.metrics import HIGH_RAISED, LOW_RAISED, metric_of
from bapo_lightning.system.run_folder.record import Curve
from bapo_lightning.tools.comparison.mean_curve import MeanCurve, mean_curve
from bapo_lightning.tools.comparison.runs import COLUMNS
from studies.figures.catalogue import Figure
from studies.figures.values import LOSS_SHARE, TOKEN_SHARE, RunsByVariant, value_of

XLABEL = "rollout batches trained on"
_METRIC_TITLES = {
    "train/reward": ("Reward", "mean per sample"),
    "policy/entropy": ("Policy entropy", "nats per token"),
    "train/grad_norm": ("Gradient norm", "L2 before clipping, log scale"),
    "train/clip_fraction": ("Clipped tokens", "fraction"),
    "bapo/positive_share": ("Positive share of the gradient", "fraction"),
    HIGH_RAISED: ("Upper bound raised above its start", "share of updates"),
    LOW_RAISED: ("Lower bound raised above its start", "share of updates"),
    "bapo/target_met": ("Updates that meet the target", "fraction"),
    "staleness/age_mean": ("Age of the tokens", "updates"),
}
_VALUE_TITLES = {
    "accuracy_last": ("Held-out accuracy", "avg@k after training"),
    "reward_last": ("Training reward", "mean of the last tenth"),
    "entropy_last": ("Policy entropy", "nats per token, mean of the last tenth"),
}
_METRIC_OF_VALUE = {column.key: column.metric for column in COLUMNS}
_COLUMNS = 2
_HATCHES = {"-": "", "--": "//", ":": "..", "-.": "xx"}  # of bars, by the line of their look


def draw_curves(figure: Figure, runs: RunsByVariant) -> Canvas:
    rows = -(-len(figure.metrics) // _COLUMNS)
    canvas = style.new_figure(11.0, 0.9 + 3.0 * rows)
    panels = canvas.subplots(rows, _COLUMNS, squeeze=False).flat
    for number, (axes, metric) in enumerate(zip(panels, figure.metrics, strict=False)):
        is_last_row = number >= len(figure.metrics) - _COLUMNS
        draw_metric(axes, metric, figure, runs, XLABEL if is_last_row else "")
    draw_variants(canvas, figure, runs)
    return canvas


def draw_variants(canvas: Canvas, figure: Figure, runs: RunsByVariant) -> None:
    looks = _looks(figure, runs)
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.line, linewidth=2.0, label=figure.labels[variant])
        for variant, look in looks.items()
    ]
    if handles:
        seeds = style.seeds_text([len(runs[variant]) for variant in looks])
        style.draw_top_legend(canvas, handles, 2, f"{figure.title}: mean over {seeds}, 95 % band")


def draw_metric(axes: Axes, metric: str, figure: Figure, runs: RunsByVariant, xlabel: str) -> None:
    """Draws one panel: the mean of a metric for each variant, with its band.

    The axis ends with the values that single runs reach: where few seeds disagree, a band goes far beyond
    them and would flatten everything else.
    """
    title, ylabel = _METRIC_TITLES[metric]
    style.style_axes(axes, title, xlabel, ylabel)
    is_log, limits = metric_of(metric).log, metric_of(metric).limits
    reached: list[float] = []
    for variant, look in _looks(figure, runs).items():
        period = runs[variant][0].staleness
        curves = [run.curves[metric] for run in runs[variant]]
        curve = mean_curve(curves, period, is_log, limits)
        if curve.steps:
            draw_mean(axes, curve, look, period)
        reached += [value for values in curve.runs for value in values]
    if not reached:
        style.say_missing(axes, "was not recorded")
    elif is_log:
        style.scale_log(axes, min(reached), max(reached))
    else:
        margin = 0.06 * (max(reached) - min(reached)) or 0.05
        axes.set_ylim(min(reached) - margin, max(reached) + margin)


def draw_mean(
    axes: Axes, curve: MeanCurve, look: style.Look, period: int = 0, label: str | None = None
) -> None:
    """Draws a mean with its band over updates; with a `period` over rollout batches of so many updates."""
    xs = [(step + 1) / period for step in curve.steps] if period else curve.steps
    marker = "o" if len(xs) == 1 else ""
    axes.plot(
        xs, curve.means, color=look.colour, linestyle=look.line, linewidth=1.8, marker=marker, label=label
    )
    axes.fill_between(xs, curve.lower, curve.upper, color=look.colour, alpha=0.15, linewidth=0)


def _looks(figure: Figure, runs: RunsByVariant) -> dict[str, style.Look]:
    return style.setting_looks(
        {variant: runs[variant][0].algorithm for variant in figure.variants if runs[variant]}
    )


def draw_shares(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws the shares of positive and negative tokens in the loss and among the tokens, for the figure's
    first variant.
    """
    canvas = style.new_figure(11.0, 4.2)
    variant = figure.variants[0]
    loss_label = "share of the loss that is not clipped,\nweighted by behaviour probability"
    shares = (
        (LOSS_SHARE, "Share of the loss", loss_label),
        (TOKEN_SHARE, "Share of the tokens", "fraction of tokens"),
    )
    for axes, (metric, title, ylabel) in zip(canvas.subplots(1, 2, sharey=True), shares, strict=True):
        style.style_axes(axes, title, XLABEL, ylabel)
        curves = [run.curves[metric] for run in runs[variant] if run.curves[metric][1]]
        if not curves:
            style.say_missing(axes, "was not recorded")
            continue
        algorithm, period = runs[variant][0].algorithm, runs[variant][0].staleness
        mirrored: list[Curve] = [(steps, [1 - value for value in values]) for steps, values in curves]
        positive, negative = style.shades(style.algorithm_colour(algorithm), 2)
        for drawn, look, sign in (
            (curves, style.Look(positive, "-"), "positive tokens"),
            (mirrored, style.Look(negative, "--"), "negative tokens"),
        ):
            draw_mean(axes, mean_curve(drawn, period, limits=metric_of(metric).limits), look, period, sign)
        axes.axhline(0.5, color=style.INK, linewidth=0.8, linestyle=":")
    if handles := canvas.axes[0].get_legend_handles_labels()[0]:
        seeds = style.seeds_text([len(runs[variant])])
        style.draw_top_legend(canvas, handles, 2, f"{figure.labels[variant]}: mean over {seeds}, 95 % band")
    return canvas


def draw_bars(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws one panel for each value of the figure: in each a group of bars for each place on the axis, a bar
    for each series, and a dot for every seed.
    """
    canvas = style.new_figure(11.0, 4.5)
    groups = list(dict.fromkeys(name for row in figure.series.values() for name in row))
    width = 0.8 / len(figure.series)
    looks = style.setting_looks({label: _algorithm(row, runs) for label, row in figure.series.items()})
    panels = canvas.subplots(1, len(figure.values), squeeze=False)[0]
    for axes, value in zip(panels, figure.values, strict=True):
        title, ylabel = _VALUE_TITLES[value]
        style.style_axes(axes, title, figure.axis, ylabel)
        for rank, (label, row) in enumerate(figure.series.items()):
            offset = width * (rank - (len(figure.series) - 1) / 2)
            for index, group in enumerate(groups):
                members = runs.get(row.get(group, ""), ())
                numbers = [number for run in members if (number := value_of(run, value)) is not None]
                shown = interval_on_axis(numbers, limits=metric_of(_METRIC_OF_VALUE[value]).limits)
                if shown is not None:
                    _draw_bar(axes, index + offset, numbers, shown, width, looks[label])
        axes.set_xticks(range(len(groups)), groups)
        axes.set_xlim(-0.5, len(groups) - 0.5)
    if counts := [len(runs[variant]) for variant in figure.variants if runs[variant]]:
        handles = [Patch(**_bar_look(look), label=label) for label, look in looks.items()]
        what = f"mean over {style.seeds_text(counts)}, 95 % interval, a dot for each seed"
        style.draw_top_legend(canvas, handles, 3, f"{figure.title}: {what}")
    return canvas


def _algorithm(row: Mapping[str, str], runs: RunsByVariant) -> str:
    return next((run.algorithm for variant in row.values() for run in runs.get(variant, ())), "")


def _draw_bar(
    axes: Axes,
    x: float,
    values: list[float],
    shown: tuple[float, float, float],
    width: float,
    look: style.Look,
) -> None:
    mean, lower, upper = shown
    axes.bar(x, mean, 0.92 * width, **_bar_look(look))
    ends = [[mean - lower], [upper - mean]]
    axes.errorbar(x, mean, ends, color=style.INK, capsize=3, linewidth=1.2)
    axes.scatter([x] * len(values), values, s=10, color=style.INK, alpha=0.45, linewidths=0, zorder=3)


def _bar_look(look: style.Look) -> dict[str, Any]:
    return {"facecolor": look.colour, "alpha": 0.75, "hatch": _HATCHES[look.line], "edgecolor": "white"}
