"""Templates of pages, and numbers of charts as `plot.js` takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from bapo_lightning.report.style import LineStyle
from bapo_lightning.system.run_folder.record import Curve

AXES = {
    "updates": "optimizer updates",
    "samples": "samples generated",
    "tokens": "tokens generated",
    "minutes": "minutes",
}
# Cost of an update; the last is of one update, the others of all so far.
COSTS = {"samples": "progress/samples", "tokens": "progress/tokens", "minutes": "time/step_seconds"}
DASHES: dict[LineStyle, str] = {"-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
CostTables = Mapping[str, Mapping[int, float]]  # axis -> update -> cost of the run so far
_LINE = 0.005  # width of a line, as a share of the height of its axis
_SHARED = Path(__file__).with_name("templates")


def page_environment(templates: Path) -> Environment:
    """Environment with `templates` and the shared ones; it escapes everything: texts are from elsewhere."""
    return Environment(
        loader=FileSystemLoader([templates, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def cost_tables(costs: Mapping[str, Curve]) -> CostTables:
    """Cost of a run after each update, by axis; `costs` has the curves of `COSTS`."""
    tables = {}
    for axis, metric in COSTS.items():
        at, values = costs[metric]
        if axis == "minutes":
            values = [*accumulate(second / 60 for second in values)]
        tables[axis] = dict(zip(at, values, strict=True))
    return tables


def places(steps: Sequence[int], costs: Sequence[CostTables]) -> dict[str, list[float]]:
    """Places of updates on each axis, as means over runs with these `costs`; unrecorded axes are absent."""
    axes: dict[str, list[float]] = {"updates": [step + 1 for step in steps]}
    for axis in COSTS:
        tables = [run[axis] for run in costs]
        if all(step in table for table in tables for step in steps):
            axes[axis] = [round(sum(table[step] for table in tables) / len(tables), 4) for step in steps]
    return axes


def short(values: Iterable[float]) -> list[float]:
    """Values with four digits."""
    return [float(f"{value:.4g}") for value in values]


def axis_limits(
    means: Sequence[float], log: bool, lower: Sequence[float] = (), upper: Sequence[float] = ()
) -> tuple[float, float]:
    """Limits of the vertical axis; a band counts up to one range of the means beyond them."""
    to, back = (math.log, math.exp) if log else (float, float)
    middle = [to(value) for value in means]
    if not middle:
        return 0.0, 1.0
    least, most = min(middle), max(middle)
    spread = (most - least) or abs(most) or 1.0
    low = max(min(map(to, lower or means)), least - spread)
    high = min(max(map(to, upper or means)), most + spread)
    room = 0.05 * spread
    # A quantity that is never negative gets almost no room below zero.
    is_positive = least >= 0 and not log
    return back(max(low - room, -0.4 * room) if is_positive else low - room), back(high + room)


def coinciding(
    lines: Mapping[str, tuple[Sequence[int], Sequence[float]]], limits: tuple[float, float], log: bool
) -> list[list[str]]:
    """Labels of lines that coincide, so that only the last one drawn is visible.

    Args:
        lines: places on the horizontal axis that is shown, and values, by label.
        limits: of the vertical axis; two lines coincide if they never differ by more than a line's width.
        log: whether the vertical axis is logarithmic.
    """
    if len(lines) < 2:
        return []
    drawn = {
        label: (np.asarray(at), np.log(ys) if log else np.asarray(ys))
        for label, (at, ys) in lines.items()
        if at
    }
    width, length = (
        _LINE * (ends[-1] - ends[0]) for ends in (np.log(limits) if log else limits, _span(drawn))
    )
    groups: list[list[str]] = []
    for label, (at, values) in drawn.items():
        for group in groups:
            others, heights = drawn[group[0]]
            corners = np.union1d(at, others)
            parted = np.abs(np.interp(corners, at, values) - np.interp(corners, others, heights))
            if max(abs(at[0] - others[0]), abs(at[-1] - others[-1])) <= length and parted.max() <= width:
                group.append(label)
                break
        else:
            groups.append([label])
    return [group for group in groups if len(group) > 1]


def _span(drawn: Mapping[str, tuple[NDArray[np.float64], Any]]) -> tuple[float, float]:
    places = [place for at, _ in drawn.values() for place in (at[0], at[-1])]
    return min(places, default=0.0), max(places, default=0.0)
