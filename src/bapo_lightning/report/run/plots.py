"""Plots of one run: a moving average over faint raw points, one PNG per panel and an overview."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bapo_lightning.report import style
from bapo_lightning.report.run.charts import Chart, RunCurve, panel_charts
from bapo_lightning.report.run.curves import kept_places
from bapo_lightning.report.run.recorded import Recorded, find_recorded
from bapo_lightning.system.run_folder.record import RunRecord, read_run

_MOST_CHOICES = 2  # of a bound, named in its legend
# Of a curve: each of 2,000 stretches, more than a picture has columns, keeps its extremes.
_MOST_POINTS = 4000


def plot_run(folder: str | Path, output: str | Path | None = None) -> list[Path]:
    """Draws a run into `plots/` under `output`, by default the run folder; returns the paths of the PNGs."""
    record = read_run(folder)
    recorded = find_recorded(record.config)
    target = Path(output or folder) / "plots"
    charts = [chart for chart in panel_charts(record) if chart.panel.plotted]
    paths = []
    for chart in charts:
        figure = style.new_figure(6.4, 4.0)
        draw_chart(figure.subplots(), chart, recorded)
        figure.suptitle(record.name, fontsize=8, color=style.FAINT)
        paths.append(style.save_png(figure, target / f"{chart.name}.png"))
    figure = style.new_figure(14.0, 7.4)
    figure.suptitle(_overview_title(record), fontsize=12, color=style.INK)
    for axes, chart in zip(figure.subplots(2, 3).flat, charts, strict=True):
        draw_chart(axes, chart, recorded)
    paths.append(style.save_png(figure, target / "overview.png"))
    return paths


def draw_chart(axes: Axes, chart: Chart, recorded: Recorded | None = None) -> None:
    """Draws one panel, with the recorded curves behind its main one; an empty panel shows a sentence."""
    style.style_axes(axes, chart.panel.title, "optimizer update", chart.panel.unit)
    if not chart.curves:
        style.say_missing(axes, f"{chart.main.name}\nwas not recorded")
        return
    band = recorded.curves.get(chart.main.name) if recorded else None
    if recorded and band:
        colour = style.algorithm_colour(recorded.algorithm)
        axes.fill_between(band.steps, band.lower, band.upper, color=colour, alpha=0.2, linewidth=0)
        axes.plot(band.steps, band.mean, color=colour, linewidth=1.2, label=recorded.label)
    for curve in chart.curves:
        _draw_curve(axes, curve, curve.metric.label if len(chart.curves) > 1 else "this run")
    if chart.rule:
        height, label = chart.rule
        axes.axhline(height, color=style.INK, linewidth=1.0, linestyle=":", label=label or None)
    if chart.main.log:
        style.scale_from_zero(axes, chart.curves[0].values)
    elif chart.panel.from_zero:
        axes.set_ylim(bottom=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        style.draw_legend(axes)


def _draw_curve(axes: Axes, curve: RunCurve, label: str) -> None:
    colour, raw = curve.look.colour, kept_places(curve.values, _MOST_POINTS)
    points = [curve.steps[place] for place in raw], [curve.values[place] for place in raw]
    if curve.metric.log:
        # Spikes are the message: raw points are connected, and a median keeps spikes out of the smooth curve.
        axes.plot(*points, color=colour, alpha=0.35, linewidth=0.8)
    else:
        axes.scatter(*points, s=7, color=colour, alpha=0.3, linewidths=0)
    if curve.metric.jumps:
        common = Counter(round(value, 3) for value in curve.values).most_common(_MOST_CHOICES)
        shares = ", ".join(f"{value:g} in {count / len(curve.values):.0%}" for value, count in common)
        axes.scatter([], [], s=12, color=colour, label=f"{label}: {shares}")
        return
    line, marker = curve.look.line, "o" if len(curve.values) == 1 else ""
    above = 2 if line == "-" else 3  # a broken line hides nothing
    look: dict[str, Any] = {"color": colour, "linewidth": 1.8, "linestyle": line, "marker": marker}
    axes.plot(curve.steps, curve.smooth, label=label, zorder=above, **look)


def _overview_title(record: RunRecord) -> str:
    manifest = record.manifest
    parts = [manifest.get("experiment"), manifest.get("algorithm"), manifest.get("regime")]
    parts += [f"{key} {manifest[key]}" for key in ("staleness", "seed") if manifest.get(key) is not None]
    return "  |  ".join(str(part) for part in (*parts, record.ending) if part)
