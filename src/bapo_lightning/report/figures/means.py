"""Figures of means over seeds with 95 % intervals: curves over the course of training, and bars in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from bapo_lightning.report import style
from bapo_lightning.report.comparison.mean_curve import draw_mean, mean_curve
from bapo_lightning.report.figures.catalogue import Figure
from bapo_lightning.report.figures.values import LOSS_SHARE, TOKEN_SHARE, VALUES, RunsByVariant
from bapo_lightning.report.intervals import mean_interval

XLABEL = "rollout batches trained on"
_METRIC_TITLES = {
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
_VALUE_TITLES = {
    "accuracy_last": ("Held-out accuracy", "avg@k after training"),
    "reward_last": ("Training reward", "mean of the last tenth"),
    "entropy_last": ("Policy entropy", "nats per token, mean of the last tenth"),
}
_LOGARITHMIC = {"train/grad_norm"}
_COLUMNS = 2
_HATCHES = {"-": "", "--": "//", ":": "..", "-.": "xx"}  # of bars, by the line of their look


def seeds_text(count: int) -> str:
    """Number of seeds, for legends."""
    return f"{count} seed{'' if count == 1 else 's'}"


def draw_curves(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws one panel for each metric of the figure, one line for each variant."""
    rows = -(-len(figure.metrics) // _COLUMNS)
    canvas = style.new_figure(11.0, 0.7 + 3.0 * rows)
    looks = style.setting_looks(
        {variant: runs[variant][0].algorithm for variant in figure.variants if runs[variant]}
    )
    panels = canvas.subplots(rows, _COLUMNS, squeeze=False).flat
    for number, (axes, metric) in enumerate(zip(panels, figure.metrics, strict=False)):
        title, ylabel = _METRIC_TITLES[metric]
        is_last_row = number >= len(figure.metrics) - _COLUMNS
        style.style_axes(axes, title, XLABEL if is_last_row else "", ylabel)
        reached: list[float] = []
        for variant, look in looks.items():
            period = runs[variant][0].staleness
            curves = [run.curves[metric] for run in runs[variant] if run.curves[metric][1]]
            if curves:
                draw_mean(axes, mean_curve(curves, period, metric in _LOGARITHMIC), look, period)
            for _, values in curves:
                reached += style.smoothed(values, style.smoothing_window(len(values), period))
        if reached:
            _scale_to(axes, min(reached), max(reached), metric in _LOGARITHMIC)
        else:
            style.say_missing(axes, "was not recorded")
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.line, linewidth=2.0, label=figure.labels[variant])
        for variant, look in looks.items()
    ]
    if handles:
        style.draw_top_legend(canvas, handles, 2, means_text([len(runs[variant]) for variant in looks]))
    return canvas


def means_text(counts: Sequence[int]) -> str:
    """What lines and bands are, for a legend, given the number of runs of each."""
    least, most = min(counts), max(counts)
    return f"mean over {seeds_text(most) if least == most else f'{least} to {most} seeds'}, 95 % band"


def _scale_to(axes: Axes, low: float, high: float, logarithmic: bool) -> None:
    """Limits the axis to the values that single runs reach. Where few seeds disagree, a band goes far beyond
    them and would flatten everything else.
    """
    if not logarithmic or low <= 0:
        margin = 0.06 * (high - low) or 0.05
        axes.set_ylim(low - margin, high + margin)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(low / 1.2, high * 1.2)


def draw_shares(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws the shares of positive and negative tokens in the loss and among the tokens, for the figure's
    first variant.
    """
    canvas = style.new_figure(11.0, 3.9)
    variant = figure.variants[0]
    title = f"{figure.labels[variant]}: mean over {seeds_text(len(runs[variant]))} with 95 % band"
    canvas.suptitle(title, fontsize=11, color=style.INK)
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
        period = runs[variant][0].staleness
        mirrored = [(steps, [1 - value for value in values]) for steps, values in curves]
        draw_mean(axes, mean_curve(mirrored, period), style.Look(style.NEGATIVE, "--"), period, "negative")
        draw_mean(axes, mean_curve(curves, period), style.Look(style.POSITIVE, "-"), period, "positive")
        axes.axhline(0.5, color=style.INK, linewidth=0.8, linestyle=":")
        style.draw_legend(axes)
    return canvas


def draw_bars(figure: Figure, runs: RunsByVariant) -> Canvas:
    """Draws one panel for each value of the figure: in each a group of bars for each place on the axis, a bar
    for each series, and a dot for every seed.
    """
    canvas = style.new_figure(11.0, 4.2)
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
                found = [number for run in members if (number := VALUES[value](run)) is not None]
                _draw_bar(axes, index + offset, found, width, looks[label], label if index == 0 else None)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_xlim(-0.5, len(groups) - 0.5)
    handles, _ = canvas.axes[0].get_legend_handles_labels()
    if handles:
        style.draw_top_legend(canvas, handles, 3)
    return canvas


def _algorithm(row: Mapping[str, str], runs: RunsByVariant) -> str:
    """The algorithm of a series of bars; none where nothing was run."""
    return next((run.algorithm for variant in row.values() for run in runs.get(variant, ())), "")


def _draw_bar(
    axes: Axes, x: float, values: list[float], width: float, look: style.Look, label: str | None
) -> None:
    interval = mean_interval(values)
    if interval is None:
        return
    bar = axes.bar(x, interval.mean, 0.92 * width, color=look.colour, alpha=0.75, label=label)
    bar.patches[0].set(hatch=_HATCHES[look.line], edgecolor="white")
    axes.errorbar(x, interval.mean, interval.half_width or 0.0, color=style.INK, capsize=3, linewidth=1.2)
    axes.scatter([x] * len(values), values, s=10, color=style.INK, alpha=0.45, linewidths=0, zorder=3)
