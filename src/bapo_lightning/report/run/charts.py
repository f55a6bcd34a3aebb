"""Charts of one run, for its plots and its page: panels of the catalogue, filled with recorded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bapo_lightning.report import style
from bapo_lightning.report.metrics import CATALOGUE, MAIN, PANELS, Metric, Panel, metric_of, place_of
from bapo_lightning.report.run.curves import moving_average, moving_median, series, window_of
from bapo_lightning.system.run_folder.record import RunRecord, finite

_LINES: Mapping[str, style.LineStyle] = {"positive": "--", "negative": "-.", "grey": "--"}


@dataclass(frozen=True)
class RunCurve:
    """One metric of a run."""

    metric: Metric
    look: style.Look
    steps: list[int]
    values: list[float]
    window: int  # number of values in the moving average

    @cached_property
    def smooth(self) -> list[float]:
        """Moving average of the values, or median for a spiky metric; for ages the values themselves."""
        if self.metric.log:
            return moving_median(self.values, self.window)
        return self.values if self.metric.is_drawn_raw else moving_average(self.array, self.window)

    @cached_property
    def array(self) -> NDArray[np.float64]:
        """The values as an array."""
        return np.asarray(self.values)


@dataclass(frozen=True)
class Chart:
    """One panel of a run."""

    name: str
    panel: Panel
    main: Metric
    curves: list[RunCurve]  # the recorded ones
    rule: tuple[float, str] | None = None  # height and label of a horizontal line


def panel_charts(record: RunRecord) -> list[Chart]:
    """A chart for each of `PANELS`, except those that only the page has and that have no recorded values."""
    names = record.columns.keys() | {metric.name for metric in CATALOGUE if metric.source}
    members = [metric_of(name) for name in sorted(names, key=place_of)]
    charts = []
    for main, (name, panel) in zip(MAIN, PANELS.items(), strict=True):
        curves = _curves(record, [metric for metric in members if metric.group == name])
        if curves or panel.plotted:
            charts.append(Chart(name, panel, main, curves, _rule(panel, record.config)))
    return charts


def other_charts(record: RunRecord) -> list[Chart]:
    """A chart for each recorded metric that is in no panel."""
    metrics = [metric_of(name) for name in sorted(record.columns, key=place_of)]
    return [
        Chart(metric.name, Panel(metric.title, metric.unit), metric, curves)
        for metric in metrics
        if metric.group not in PANELS and (curves := _curves(record, [metric]))
    ]


def colours_of(algorithm: str) -> dict[str, str]:
    """Colours of the catalogue, for a run of this algorithm."""
    colour = style.algorithm_colour(algorithm)
    positive, negative = style.shades(colour, 2)  # light and dark, for tokens and for their bounds
    return {"algorithm": colour, "positive": positive, "negative": negative, "grey": style.NEUTRAL}


def _curves(record: RunRecord, metrics: Sequence[Metric]) -> list[RunCurve]:
    colours = colours_of(str(record.manifest.get("algorithm", "")))
    period = record.manifest.get("staleness") or 1  # updates on each rollout batch
    alike = [metric for metric in metrics if metric.colour == "algorithm"]
    looks = map(style.Look, style.shades(colours["algorithm"], len(alike)), cycle(style.LINES))
    shades = dict(zip(alike, looks, strict=True))
    curves = []
    for metric in metrics:
        steps, values = series(record, metric.name)
        look = shades.get(metric) or style.Look(colours[metric.colour], _LINES[metric.colour])
        if values:
            curves.append(RunCurve(metric, look, steps, values, window_of(steps, period)))
    return curves


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
    """(share, kind of contribution) that `target` in `algorithm` or below sets, converted from P/N."""
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
