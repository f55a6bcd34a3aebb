"""The charts of one run, for its plots and its page: panels of the catalogue, with what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean, median
from typing import Any

from bapo_lightning.report import style
from bapo_lightning.report.metrics import PANELS, Metric, Panel, in_group, metric_of
from bapo_lightning.report.run.curves import recorded_names, series
from bapo_lightning.run_folder.record import RunRecord, finite

_LINES: Mapping[str, style.LineStyle] = {"algorithm": "-", "positive": "--", "negative": "-.", "grey": "--"}


@dataclass(frozen=True)
class RunCurve:
    """One metric of a run."""

    metric: Metric
    look: style.Look
    steps: list[int]
    values: list[float]
    smooth: list[float]  # moving average of `values`, of a spiky metric the median


@dataclass(frozen=True)
class Chart:
    """One panel of a run."""

    name: str
    panel: Panel
    main: Metric
    curves: list[RunCurve]  # those that were recorded
    rule: tuple[float, str] | None = None  # height and label of a line across


def panel_charts(record: RunRecord) -> list[Chart]:
    """A chart for each of `PANELS`, but for those of the page alone of which nothing was recorded."""
    charts = []
    for name, panel in PANELS.items():
        rows = in_group(name)
        members = [metric_of(member) for member in sorted(recorded_names(record))]
        family = [metric for metric in members if metric.group == name and metric not in rows]
        curves = _curves(record, [row for row in rows if not row.is_family], family)
        if curves or panel.plotted:
            charts.append(Chart(name, panel, rows[0], curves, _rule(panel, record.config)))
    return charts


def other_charts(record: RunRecord) -> list[Chart]:
    """A chart for each metric that was recorded and is in no panel."""
    names = sorted(name for name in recorded_names(record) if metric_of(name).group not in PANELS)
    curves = [curve for name in names for curve in _curves(record, [metric_of(name)], [])]
    return [
        Chart(curve.metric.name, Panel(curve.metric.title, curve.metric.unit), curve.metric, [curve])
        for curve in curves
    ]


def colours_of(algorithm: str) -> dict[str, str]:
    """The colours of the catalogue, for a run of this algorithm."""
    positive, negative = style.sign_colours(algorithm)
    own = style.algorithm_colour(algorithm)
    return {"algorithm": own, "positive": positive, "negative": negative, "grey": style.NEUTRAL}


def _curves(record: RunRecord, metrics: Iterable[Metric], family: list[Metric]) -> list[RunCurve]:
    """Curves of metrics, and of the members of a family in shades."""
    algorithm = str(record.manifest.get("algorithm", ""))
    colours = colours_of(algorithm)
    looks = [(metric, style.Look(colours[metric.colour], _LINES[metric.colour])) for metric in metrics]
    shades = zip(style.shades(colours["algorithm"], len(family)), cycle(style.LINES), strict=False)
    looks += [(metric, style.Look(*look)) for metric, look in zip(family, shades, strict=False)]
    found = [(metric, look, *series(record, metric.name)) for metric, look in looks]
    period = batch_period(record.manifest)
    return [
        RunCurve(metric, look, steps, values, _smooth(values, period, metric))
        for metric, look, steps, values in found
        if values
    ]


def _smooth(values: list[float], period: int, metric: Metric) -> list[float]:
    return style.smoothed(
        values, style.smoothing_window(len(values), period), median if metric.log else fmean
    )


def batch_period(manifest: Mapping[str, Any]) -> int:
    """Updates on each rollout batch, 1 where the manifest does not say."""
    staleness = manifest.get("staleness")
    return staleness if isinstance(staleness, int) and staleness > 0 else 1


def _rule(panel: Panel, config: Mapping[str, Any]) -> tuple[float, str] | None:
    if panel.rule != "target":
        return None if panel.rule is None else (panel.rule, "")
    if (target := target_share(config)) is None:
        return None
    share, kind = target
    # The curves show the gradient; a search over the surrogate balances another quantity, whose target
    # these curves need not meet.
    return share, f"target {share:.3g}" if kind == "gradient" else f"target {share:.3g} (of the {kind})"


def target_share(config: Mapping[str, Any]) -> tuple[float, str] | None:
    """(share, kind of contribution) that the algorithm in `config` aims at: `target` in `algorithm` or below,
    converted when its `measure` is P/N.
    """
    stack: list[Any] = [config.get("algorithm")]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            target = finite(node.get("target"))
            if target is not None:
                share = target / (1.0 + target) if node.get("measure") == "ratio" else target
                return share, str(node.get("kind", "gradient"))
            stack.extend(node.values())
    return None
