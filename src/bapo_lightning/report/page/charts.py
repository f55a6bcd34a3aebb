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
