"""The comparison as one self-contained HTML file, and its picture."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bapo_lightning.report import style
from bapo_lightning.report.intervals import Interval, interval_on_axis
from bapo_lightning.report.metrics import HEADLINES, Metric
from bapo_lightning.report.run.console import duration_text
from bapo_lightning.system.run_folder.record import read_rollouts
from bapo_lightning.tools.comparison.mean_curve import MeanCurve
from bapo_lightning.tools.comparison.runs import STATISTICS, damage
from bapo_lightning.tools.comparison.table import Comparison
from bapo_lightning.tools.page.charts import (
    AXES,
    DASHES,
    axis_limits,
    coinciding,
    page_environment,
    places,
    short,
)
from bapo_lightning.tools.page.samples import has_turns, samples_by_update

TEMPLATES = Path(__file__).with_name("templates")
_MOST_UPDATES = 3  # of a cell, whose texts are shown
_MOST_POINTS = 160  # of a curve; more cannot be distinguished at this width


def render_page(comparison: Comparison, title: str, command: str, created_at: str) -> str:
    """Renders the page, which names the command and the time that made it."""
    environment = page_environment(TEMPLATES)
    environment.filters |= {"interval": interval_text, "p": p_text, "number": number_text}
    environment.filters |= {"duration": duration_text, "last_part": lambda path: Path(path).name}
    drawn = {metric for (_, _, metric), curve in comparison.curves.items() if curve.steps}
    recorded = [metric for metric in comparison.metrics if metric.name in drawn]
    texts = recorded_texts(comparison)
    return environment.get_template("compare.html.j2").render(
        title=title,
        command=command,
        made_at=created_at,
        comparison=comparison,
        looks=comparison.looks,
        axes=AXES,
        statistics=STATISTICS,
        metrics=recorded,
        headlines=[metric for metric in HEADLINES if metric in recorded],
        missing=[metric for metric in comparison.metrics if metric not in recorded],
        picture=b64encode(style.png_bytes(draw_comparison(comparison))).decode(),
        charts=[chart for metric in recorded for chart in make_charts(comparison, metric)],
        damage=damage,
        fewest=style.FEWEST_OF_A_BAND,
        texts=texts,
        has_turns=has_turns([update for entry in texts for update in entry["updates"]]),
        seeds=sorted({run.seed for run in comparison.usable}),
        environments=environments(comparison),
    )


def make_charts(comparison: Comparison, metric: Metric) -> list[dict[str, Any]]:
    """Returns a chart for each condition (see `plot.js`), all with the same vertical axis."""
    cells = {
        (setting, condition): curve.thinned(_MOST_POINTS)
        for condition in comparison.conditions
        for setting in comparison.settings
        if (curve := comparison.curves.get((setting, condition, metric.name))) and curve.steps
    }
    means = [value for curve in cells.values() for value in curve.means]
    ends = [_ends(curve) for curve in cells.values()]
    lower, upper = ([value for pair in ends for value in pair[side]] for side in (0, 1))
    limits, charts = axis_limits(means, metric.log, lower, upper), []
    for condition in comparison.conditions:
        curves = {setting: curve for (setting, at), curve in cells.items() if at == condition}
        drawn = [_curve(comparison, setting, condition, curve) for setting, curve in curves.items()]
        same = {
            axis: coinciding(
                {line["label"]: (line["x"][axis], line["mean"]) for line in drawn if axis in line["x"]},
                limits,
                metric.log,
            )
            for axis in AXES
        }
        charts.append({
            "title": f"staleness {condition}" if len(comparison.conditions) > 1 else "",
            "unit": "log scale" if metric.log else "",
            "log": metric.log,
            "limits": limits,
            "curves": drawn,
            "same": same,
        })  # fmt: skip
    return charts


def _ends(curve: MeanCurve) -> tuple[list[float], list[float]]:
    """The lowest and the highest value that is drawn at each update: of a band, or of single runs."""
    if curve.num_runs >= style.FEWEST_OF_A_BAND:
        return curve.lower, curve.upper
    updates = [*zip(*curve.runs, strict=True)]
    return [*map(min, updates)], [*map(max, updates)]


def _curve(comparison: Comparison, setting: str, condition: str, curve: MeanCurve) -> dict[str, Any]:
    look = comparison.looks[setting]
    has_band = curve.num_runs >= style.FEWEST_OF_A_BAND
    band = {"lower": short(curve.lower), "upper": short(curve.upper)} if has_band else {}
    return {
        "index": comparison.settings.index(setting),
        "label": setting,
        "colour": look.colour,
        "dash": DASHES[look.line],
        "x": places(curve.steps, [run.costs for run in comparison.cells[setting, condition]]),
        "mean": short(curve.means),
        **band,
        "runs": [short(values) for values in curve.runs],
    }


def draw_comparison(comparison: Comparison) -> Figure:
    """A panel for each headline: values after training, with intervals and a dot for each run."""
    figure = style.new_figure(16.0, 4.4)
    for axes, metric in zip(figure.subplots(1, len(HEADLINES)), HEADLINES, strict=True):
        _draw_values(axes, comparison, metric)
    handles = [
        Line2D([], [], color=look.colour, marker="o", linestyle="", label=name)
        for name, look in comparison.looks.items()
    ]
    counts = [len(runs) for runs in comparison.cells.values()]
    interval = " and 95 % interval" if max(counts) >= style.FEWEST_OF_A_BAND else ""
    title = f"Mean{interval} over {style.seeds_text(counts)}, one faint dot per run"
    style.draw_top_legend(figure, handles, min(len(handles), 4), title)
    return figure


def _draw_values(axes: Axes, comparison: Comparison, metric: Metric) -> None:
    unit = f"final: {metric.unit}{', log scale' if metric.log else ''}"
    style.style_axes(axes, metric.title, "staleness [updates per rollout batch]", unit)
    looks, conditions, drawn = comparison.looks, comparison.conditions, list[float]()
    for setting, condition in comparison.cells:
        result = comparison.results[setting, condition, metric.name, "final"]
        values = [value for value in result.by_seed.values() if value > 0 or not metric.log]
        shown = interval_on_axis(values, metric.log, metric.limits, result.resolution)
        if shown is None:
            continue
        mean, lower, upper = shown
        offset = 0.6 * ((list(looks).index(setting) + 0.5) / len(looks) - 0.5)
        x, colour = conditions.index(condition) + offset, looks[setting].colour
        drawn += values
        has_interval = len(values) >= style.FEWEST_OF_A_BAND
        alpha = 0.35 if has_interval else 0.7
        axes.scatter([x + 0.05] * len(values), values, s=12, color=colour, alpha=alpha, linewidths=0)
        ends = [[mean - lower], [upper - mean]] if has_interval else None
        axes.errorbar(x, mean, ends, fmt="o", color=colour, markersize=6, capsize=3)
    if not drawn:
        style.say_missing(axes, "was not recorded")
        return
    axes.set_xticks(range(len(conditions)), [condition.replace(", ", "\n") for condition in conditions])
    axes.set_xlim(-0.5, len(conditions) - 0.5)
    if metric.log:
        style.scale_log(axes, min(drawn), max(drawn))


def recorded_texts(comparison: Comparison) -> list[dict[str, Any]]:
    """{name, updates} of each cell's first run that recorded texts; `updates` are some of its updates."""
    tables = []
    for (setting, condition), runs in comparison.cells.items():
        for run in sorted(runs, key=lambda run: run.seed):
            if updates := samples_by_update(read_rollouts(Path(run.path)), _MOST_UPDATES):
                at = f", staleness {condition}" if len(comparison.conditions) > 1 else ""
                tables.append({"name": f"{setting}{at}, seed {run.seed}", "updates": updates})
                break
    return tables


def environments(comparison: Comparison) -> dict[str, Counter[str]]:
    """Commits, versions and devices that differ between runs: name -> value -> number of runs."""
    counters: dict[str, Counter[str]] = {}
    for run in comparison.usable:
        manifest = run.manifest
        devices, versions = manifest.get("devices"), manifest.get("versions") or {}
        values = {"commit": manifest.get("git_commit")}
        values |= {name: manifest.get(name) for name in ("python", "platform")}
        values |= devices if isinstance(devices, dict) else {}
        for name, value in (values | versions).items():
            counters.setdefault(name, Counter())[str(value)] += 1
    num_runs = len(comparison.usable)
    return {name: counts for name, counts in counters.items() if len(counts) > 1 or counts.total() < num_runs}


def interval_text(interval: Interval | None, signed: bool = False) -> str:
    """Formats mean and half-width, with fewer decimals the larger the mean is."""
    if interval is None:
        return "\N{EN DASH}"
    decimals = 0 if abs(interval.mean) >= 1000 else 1 if abs(interval.mean) >= 10 else 3
    text = interval.seen(decimals, "+" if signed else "").removesuffix(" ± n/a")
    return text.replace("-", "\N{MINUS SIGN}")


def p_text(p_value: float | None) -> str:
    """Formats a p-value; below 0.001 only as "below"."""
    if p_value is None:
        return "no test"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def number_text(value: float | None) -> str:
    """Formats a number with thousands separators."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}"
