"""Templates of pages, and numbers of charts as `plot.js` takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bapo_lightning.report.run.curves import Curve
from bapo_lightning.report.style import LineStyle

AXES = {
    "updates": "optimizer updates",
    "samples": "samples generated",
    "tokens": "tokens generated",
    "minutes": "minutes",
}
# What an update cost; the last is of one update, the others of all so far.
COSTS = {"samples": "progress/samples", "tokens": "progress/tokens", "minutes": "time/step_seconds"}
DASHES: dict[LineStyle, str] = {"-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_LINE = 0.005  # width of a line, of the height of its axis
_SHARED = Path(__file__).with_name("templates")


def page_environment(templates: Path) -> Environment:
    """Environment with the templates in `templates` and the shared style sheet and script for curves.

    It escapes everything: folder names, settings, errors and samples are text that others wrote.
    """
    return Environment(
        loader=FileSystemLoader([templates, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def places(steps: Sequence[int], costs: Sequence[Mapping[str, Curve]]) -> dict[str, list[float]]:
    """Places of updates on each horizontal axis, means over runs; axes that a run did not record are absent.

    Args:
        steps: updates.
        costs: curves of `COSTS`, by metric, of each run.
    """
    found: dict[str, list[float]] = {"updates": [step + 1 for step in steps]}
    for axis, metric in COSTS.items():
        recorded = [run[metric] for run in costs]
        if axis == "minutes":
            recorded = [(at, [*accumulate(second / 60 for second in values)]) for at, values in recorded]
        tables = [dict(zip(at, values, strict=True)) for at, values in recorded]
        if all(step in table for table in tables for step in steps):
            found[axis] = [round(fmean(table[step] for table in tables), 3) for step in steps]
    return found


def short(values: Iterable[float]) -> list[float]:
    """Values with four digits."""
    return [float(f"{value:.4g}") for value in values]


def axis_limits(
    means: Sequence[float], log: bool, lower: Sequence[float] = (), upper: Sequence[float] = ()
) -> tuple[float, float]:
    """Limits of the vertical axis with a little room; a band so wide that it would flatten every mean is cut
    off one range of the means beyond them, on either side.
    """
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
    """Labels of lines that lie on one another, so that only the last one drawn is seen.

    Args:
        lines: updates and values by label.
        limits: of the vertical axis; two lines are one where they never part by more than their width.
        log: whether the axis is logarithmic.
    """
    if len(lines) < 2:
        return []
    to = math.log if log else float
    width = _LINE * (to(limits[1]) - to(limits[0]))
    groups: list[list[str]] = []
    for label, (at, values) in lines.items():
        for group in groups:
            places, others = lines[group[0]]
            if [*at] == [*places] and all(
                abs(to(one) - to(other)) <= width for one, other in zip(values, others, strict=True)
            ):
                group.append(label)
                break
        else:
            groups.append([label])
    return [group for group in groups if len(group) > 1]
