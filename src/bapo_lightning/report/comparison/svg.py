"""The panels of the comparison page: inline SVG whose groups the page can hide, and the numbers that the page
shows under the pointer.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from bapo_lightning.report import style
from bapo_lightning.report.comparison.mean_curve import MeanCurve, draw_mean
from bapo_lightning.report.comparison.runs import Quantity
from bapo_lightning.report.comparison.table import Comparison

_WIDTH, _HEIGHT = 3.7, 2.55  # inches
_MOST_POINTS = 160  # of a curve; more cannot be told apart at this width
_SPIKE = 20.0  # highest mean over lowest mean from which the axis is logarithmic
_POINTS_PER_INCH = 72  # unit of matplotlib's SVG


@dataclass(frozen=True)
class PanelPicture:
    """One quantity under one condition."""

    condition: str
    svg: str
    numbers: str  # JSON for the page's script: where the axes are, and the curves


def draw_panels(
    comparison: Comparison, quantity: Quantity, colours: Mapping[str, str], salt: str
) -> list[PanelPicture]:
    """Draws one panel for each condition, all with the same vertical axis. `salt` must be unique on the page:
    it makes the ids in the SVG unique.
    """
    cells = {
        condition: {
            setting: comparison.curves[setting, condition, quantity.metric].thinned(_MOST_POINTS)
            for setting in comparison.settings
            if (setting, condition, quantity.metric) in comparison.curves
        }
        for condition in comparison.conditions
    }
    limits, is_log = _limits([curve for cell in cells.values() for curve in cell.values()], quantity.spiky)
    return [
        _draw_panel(condition, cell, quantity, colours, (limits, is_log), f"{salt}-{rank}")
        for rank, (condition, cell) in enumerate(cells.items())
    ]


def _draw_panel(
    condition: str,
    cell: Mapping[str, MeanCurve],
    quantity: Quantity,
    colours: Mapping[str, str],
    scale: tuple[tuple[float, float] | None, bool],
    salt: str,
) -> PanelPicture:
    figure = style.new_figure(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    limits, is_log = scale
    unit = f"{quantity.unit}{', log' if is_log else ''}"
    style.style_axes(axes, f"staleness {condition}", "optimizer update", unit)
    drawn = {setting: curve for setting, curve in cell.items() if curve.steps}
    order, lines = list(colours), style.line_styles(colours)
    for setting, curve in drawn.items():
        draw_mean(axes, curve, colours[setting], lines[setting])
        axes.lines[-1].set_gid(f"line-{order.index(setting)}")
        axes.collections[-1].set_gid(f"band-{order.index(setting)}")
    if not drawn:
        style.say_missing(axes, "was not recorded")
    elif limits is not None:
        if is_log:
            axes.set_yscale("log")
        axes.set_ylim(*limits)
    return PanelPicture(condition, _inline_svg(figure, salt), _numbers(axes, drawn, order))


def _numbers(axes: Axes, drawn: Mapping[str, MeanCurve], order: list[str]) -> str:
    """JSON of the curves, of the axes in the coordinates of the SVG, and of the updates at their left and
    right sides; after rendering, which lays the axes out.
    """
    box = axes.get_position()
    width, height = _WIDTH * _POINTS_PER_INCH, _HEIGHT * _POINTS_PER_INCH
    sides = [box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height]
    series = [
        {
            "setting": setting,
            "index": order.index(setting),
            "steps": curve.steps,
            "means": [float(f"{mean:.4g}") for mean in curve.means],
            "widths": [float(f"{width:.3g}") for width in curve.half_widths] if curve.num_runs > 1 else None,
        }
        for setting, curve in drawn.items()
    ]
    frame = {"box": [round(side, 2) for side in sides], "x": [round(end, 3) for end in axes.get_xlim()]}
    return json.dumps({**frame, "series": series}, separators=(",", ":"))


def _limits(curves: list[MeanCurve], spiky: bool) -> tuple[tuple[float, float] | None, bool]:
    """Common limits of the vertical axis with a little room, and whether the axis is logarithmic.

    A band over very few seeds can be so wide that it would flatten every mean; it is then cut off one range
    of the means beyond them, on either side.
    """
    means = [mean for curve in curves for mean in curve.means]
    if not means:
        return None, False
    least, most = min(means), max(means)
    if spiky and least > 0 and most > _SPIKE * least:
        return (0.7 * least, 1.4 * most), True
    spread = (most - least) or abs(most) or 1.0
    lower = max(min(value for curve in curves for value in [*curve.lower, least]), least - spread)
    upper = min(max(value for curve in curves for value in [*curve.upper, most]), most + spread)
    room = 0.05 * spread
    # A quantity that is never negative gets almost no room below zero.
    return (max(lower - room, -0.4 * room) if least >= 0 else lower - room, upper + room), False


def _inline_svg(figure: Figure, salt: str) -> str:
    """Turns a drawing into an element of HTML: text stays text, and nothing names an address."""
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(text, metadata=no_metadata)
    _, _, svg = text.getvalue().partition("<svg")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    attributes, _, elements = svg.partition(">")
    attributes = re.sub(r'\s(xmlns(:\w+)?|version|width|height)="[^"]*"', "", attributes)
    svg = f"<svg{attributes}>{elements}".replace("xlink:href", "href")
    svg = re.sub(r'id="(line|band)-(\d+)"', r'class="s\2"', svg)
    named = set(re.findall(r"#([\w.-]+)", svg))
    svg = re.sub(r'\sid="([^"]*)"', lambda found: found[0] if found[1] in named else "", svg)
    return re.sub(r">\s+<", "><", svg)
