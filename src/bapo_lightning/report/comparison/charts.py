"""The charts of the comparison page as numbers, which its script draws over updates, samples, tokens or
time.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import fmean
from typing import Any

from bapo_lightning.report.comparison.mean_curve import MeanCurve
from bapo_lightning.report.comparison.runs import COSTS, Quantity, Run
from bapo_lightning.report.comparison.table import Comparison
from bapo_lightning.report.run.curves import SPIKY
from bapo_lightning.report.style import LineStyle

AXES = {
    "updates": "optimizer updates",
    "samples": "samples generated",
    "tokens": "tokens generated",
    "minutes": "minutes",
}
DASHES: dict[LineStyle, str] = {"-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_MOST_POINTS = 160  # of a curve; more cannot be told apart at this width


def make_charts(comparison: Comparison, quantity: Quantity) -> list[dict[str, Any]]:
    """Returns a chart for each condition (see `plot.js`), all with the same vertical axis."""
    cells = {
        condition: {
            setting: curve.thinned(_MOST_POINTS)
            for setting in comparison.settings
            if (curve := comparison.curves.get((setting, condition, quantity.metric))) and curve.steps
        }
        for condition in comparison.conditions
    }
    curves = [curve for cell in cells.values() for curve in cell.values()]
    is_log = quantity.metric in SPIKY
    limits = _limits(curves, is_log)
    return [
        {
            "title": f"staleness {condition}" if len(cells) > 1 else "",
            "unit": "log scale" if is_log else "",
            "log": is_log,
            "limits": limits,
            "curves": [
                {"index": comparison.settings.index(setting), "label": setting}
                | _look(comparison, setting)
                | {"x": _costs(comparison.cells[setting, condition], curve.steps)}
                | _numbers(curve)
                for setting, curve in cell.items()
            ],
        }
        for condition, cell in cells.items()
    ]


def _look(comparison: Comparison, setting: str) -> dict[str, str]:
    look = comparison.looks[setting]
    return {"colour": look.colour, "dash": DASHES[look.line]}


def _numbers(curve: MeanCurve) -> dict[str, Any]:
    several = {"lower": curve.lower, "upper": curve.upper} if curve.num_runs > 1 else {}
    rounded = {name: _short(values) for name, values in {"mean": curve.means, **several}.items()}
    return {**rounded, "runs": [_short(values) for values in curve.runs]}


def _short(values: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _costs(runs: list[Run], steps: list[int]) -> dict[str, list[float]]:
    """The places of `steps` on each horizontal axis, means over runs; an axis that one of them did not record
    is left out.
    """
    axes: dict[str, list[float]] = {"updates": [step + 1 for step in steps]}
    for name, metric in COSTS.items():
        recorded = [run.curves[metric] for run in runs]
        if name == "minutes":
            recorded = [(at, [*accumulate(second / 60 for second in values)]) for at, values in recorded]
        tables = [dict(zip(at, values, strict=True)) for at, values in recorded]
        if all(step in table for table in tables for step in steps):
            axes[name] = [round(fmean(table[step] for table in tables), 3) for step in steps]
    return axes


def _limits(curves: list[MeanCurve], logarithmic: bool) -> tuple[float, float]:
    """Common limits of the vertical axis with a little room.

    A band over very few seeds can be so wide that it would flatten every mean; it is then cut off one range
    of the means beyond them, on either side.
    """
    to, back = (math.log, math.exp) if logarithmic else (float, float)
    means = [to(value) for curve in curves for value in curve.means]
    if not means:
        return 0.0, 1.0
    least, most = min(means), max(means)
    spread = (most - least) or abs(most) or 1.0
    low = max(min(to(value) for curve in curves for value in curve.lower), least - spread)
    high = min(max(to(value) for curve in curves for value in curve.upper), most + spread)
    room = 0.05 * spread
    # A quantity that is never negative gets almost no room below zero.
    is_positive = least >= 0 and not logarithmic
    return back(max(low - room, -0.4 * room) if is_positive else low - room), back(high + room)
