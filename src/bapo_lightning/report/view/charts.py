"""What the page of a run draws: its charts as numbers for `plot.js`, choices of bounds, shares of time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bapo_lightning.report.page.charts import COSTS, DASHES, axis_limits, places, short
from bapo_lightning.report.run.charts import Chart, RunCurve, other_charts, panel_charts
from bapo_lightning.report.run.summary import TIME_PARTS
from bapo_lightning.run_folder.record import Row, RunRecord, finite

_MOST_POINTS = 400  # of a curve


def drawn(record: RunRecord) -> dict[str, list[dict[str, Any]]]:
    """Charts of the panels and of all other metrics, and the places of points, which many curves share."""
    costs = [{metric: record.series(metric) for metric in COSTS.values()}]
    known: dict[tuple[int, ...], int] = {}
    panels, others = (
        [_chart(chart, f"{kind}{number}", known) for number, chart in enumerate(charts)]
        for kind, charts in (("p", panel_charts(record)), ("o", other_charts(record)))
    )
    return {"panels": panels, "others": others, "places": [places(steps, costs) for steps in known]}


def _chart(chart: Chart, index: str, known: dict[tuple[int, ...], int]) -> dict[str, Any]:
    log = chart.main.log
    curves = [_curve(curve, log, known) | {"index": f"{index}-{n}"} for n, curve in enumerate(chart.curves)]
    shown = [value for curve in curves for value in curve["mean"]]
    rules = [chart.rule[0]] if chart.rule and shown else []
    return {
        "name": chart.name,
        "title": chart.panel.title,
        "unit": f"{chart.panel.unit}, log scale" if log else chart.panel.unit,
        "log": log,
        "limits": axis_limits([*shown, *rules], log),
        "curves": curves,
        "rules": rules,
    }


def _curve(curve: RunCurve, log: bool, known: dict[tuple[int, ...], int]) -> dict[str, Any]:
    metric = curve.metric
    values = curve.values if metric.log or metric.jumps else curve.smooth
    points = [(at, value) for at, value in zip(curve.steps, values, strict=True) if value > 0 or not log]
    points = points[:: -max(1, math.ceil(len(points) / _MOST_POINTS))][::-1]
    at = tuple(step for step, _ in points)
    return {
        "label": metric.label or metric.title,
        "colour": curve.look.colour,
        "dash": DASHES[curve.look.line],
        "marks": metric.jumps,
        "x": known.setdefault(at, len(known)),
        "mean": short(value for _, value in points),
    }


def bound_choices(record: RunRecord) -> list[dict[str, Any]]:
    """How often the search chose which pair of bounds: {low, high, share}, the most frequent first.

    A mean of bounds describes nothing where the search jumps between its start and its end.
    """
    pairs = Counter[tuple[float, float]]()
    for row in record.rows:
        low, high = finite(row.get("bapo/clip_low")), finite(row.get("bapo/clip_high"))
        if low is not None and high is not None:
            pairs[round(low, 2), round(high, 2)] += 1
    return [{"low": low, "high": high, "share": n / pairs.total()} for (low, high), n in pairs.most_common()]


def phases(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(part, share of the time) of the updates so far, with what is left as `other`; empty without times."""
    total = sum(finite(row.get("time/step_seconds")) or 0.0 for row in rows)
    if not total:
        return []
    parts = [
        (part, sum(finite(row.get(f"time/{part}_seconds")) or 0.0 for row in rows) / total)
        for part in TIME_PARTS
    ]
    other = max(0.0, 1 - sum(share for _, share in parts))
    return [(part, share) for part, share in [*parts, ("other", other)] if share > 0]
