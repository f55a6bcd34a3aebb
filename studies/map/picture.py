"""Pictures of the map: where a method is better or worse, and what its search does there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage

from bapo_lightning.report import style
from bapo_lightning.report.paired import EQUAL, LESS, MORE, UNRESOLVED, UNTESTED
from studies.colour_maps import difference_map, draw_colour_bar
from studies.map.cells import MapCell, ages_text
from studies.map.verdicts import CellResult, PairedComparison

COLOUR_LIMIT = 0.15  # difference in area at which a colour is full
LEGEND = (
    "difference in mean reward over training, in the colour of the algorithm that has more; bold: certain, "
    "=: equal, ?: unresolved;\nR: the search rests at its start, E: it runs to its end, in more than nine "
    "updates of ten; pale: the cell fails the gate"
)
DARK = 0.6  # of that difference: colours are too dark for black text
MOST = 0.9  # share of the updates that counts as "nearly always"


@dataclass(frozen=True)
class MethodLook:
    """What a picture says of a method: its name, and the algorithm that it takes its colour from."""

    label: str
    algorithm: str


def draw_phases(
    results: Sequence[CellResult],
    method: str,
    against: Sequence[str],
    methods: Mapping[str, MethodLook],
    path: Path,
) -> Path:
    """Draws a row of heat maps for each world: the difference of `method` to each of `against` in every cell.

    Rows of a heat map are the options of the world, columns staleness and learning rate. R is where the
    search nearly always rests at its start, E where it nearly always runs to its end. Cells that fail the
    gate are pale.
    """
    worlds = list(dict.fromkeys(result.cell.world for result in results))
    heights = [
        len({result.cell.options for result in results if result.cell.world == world}) for world in worlds
    ]
    height = 0.8 + 1.5 * len(worlds) + 0.34 * sum(heights)
    figure = style.new_figure(5.6 * len(against), height)
    panels = figure.subplots(len(worlds), len(against), squeeze=False, height_ratios=[h + 2 for h in heights])
    for column, other in enumerate(against):
        colours = difference_map(methods[other].algorithm, methods[method].algorithm)
        for row, world in enumerate(worlds):
            axes = panels[row, column]
            members = [result for result in results if result.cell.world == world]
            image = _heat_map(axes, members, method, other, colours)
            title = f"{world}: {methods[method].label}\nagainst {methods[other].label}"
            axes.set_title(title, fontsize=10, loc="left", color=style.INK)
            if column:
                axes.set_yticklabels([])
        draw_colour_bar(figure, image, panels[:, column], "")
    figure.supxlabel(LEGEND, fontsize=9, color=style.INK)
    return style.save_png(figure, path)


def _heat_map(
    axes: Axes, results: Sequence[CellResult], method: str, other: str, colours: Colormap
) -> AxesImage:
    rows = sorted({result.cell.options for result in results})
    columns = sorted({_column(result.cell) for result in results})
    values = np.full((len(rows), len(columns)), np.nan)
    alpha = np.zeros_like(values)
    for result in results:
        row = rows.index(result.cell.options)
        column = columns.index(_column(result.cell))
        comparison = result.comparison(method, other)
        values[row, column] = comparison.difference.mean
        alpha[row, column] = 1.0 if result.gate.is_passed else 0.25
        is_certain = comparison.verdict in (MORE, LESS)
        is_dark = result.gate.is_passed and abs(comparison.difference.mean) > DARK * COLOUR_LIMIT
        text = f"{_difference(comparison)} {_search(result, method)}".strip()
        weight, colour = "bold" if is_certain else "normal", "white" if is_dark else style.INK
        middle: dict[str, Any] = {"ha": "center", "va": "center"}
        axes.text(column, row, text, fontsize=8, fontweight=weight, color=colour, **middle)
    image = axes.imshow(
        values, cmap=colours, vmin=-COLOUR_LIMIT, vmax=COLOUR_LIMIT, alpha=alpha, aspect="auto"
    )
    axes.set_yticks(range(len(rows)), [_options(options) for options in rows])
    axes.set_xticks(range(len(columns)), [f"{ages_text(*ages)}\nlr {lr:g}" for *ages, lr in columns])
    axes.tick_params(labelsize=8, colors=style.INK, length=0)
    axes.spines[:].set_visible(False)
    return image


def _column(cell: MapCell) -> tuple[int, int, int, float]:
    return cell.staleness, cell.epochs, cell.lag, cell.learning_rate


def _difference(comparison: PairedComparison) -> str:
    number = f"{comparison.difference.mean:+.3f}".replace("-", "−")
    return {EQUAL: f"= {number}", UNRESOLVED: f"? {number}", UNTESTED: f"? {number}"}.get(
        comparison.verdict, number
    )


def _options(options: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name.rpartition('.')[2].replace('_', ' ')} {value:g}" for name, value in options)


def _search(result: CellResult, method: str) -> str:
    figures = result.figures[method]
    return "R" if (figures.rests or 0) > MOST else "E" if (figures.ends or 0) > MOST else ""


def draw_gap(results: Sequence[CellResult], methods: Mapping[str, MethodLook], path: Path) -> Path:
    """Draws, for every method but the first, the share of the staleness gap that it closes in each cell that
    passes the gate, with its 95 % interval. Cells stand and darken in the order of their natural share.
    """
    reference, *others = methods
    worlds = list(dict.fromkeys(result.cell.world for result in results))
    figure = style.new_figure(11.0, 0.9 + 3.6 * len(worlds))
    for axes, world in zip(figure.subplots(len(worlds), 1, squeeze=False)[:, 0], worlds, strict=True):
        passed = [result for result in results if result.cell.world == world and result.gate.is_passed]
        passed.sort(key=lambda result: _natural_share(result, reference))
        title = f"{world}: {len(passed)} cell{'' if len(passed) == 1 else 's'} that pass the gate"
        style.style_axes(axes, title, "", "share of the staleness gap closed")
        if not passed:
            style.say_missing(axes, "no cell can tell methods apart")
            continue
        axes.axhline(0, color=style.FAINT, linewidth=0.8)
        axes.axhline(1, color=style.FAINT, linewidth=0.8, linestyle=":")
        for place, name in enumerate(others):
            shades = style.shades(style.algorithm_colour(methods[name].algorithm), len(passed))
            for number, (result, shade) in enumerate(zip(passed, shades, strict=True)):
                gap, x = result.gap_closed[name], place + 0.7 * ((number + 0.5) / len(passed) - 0.5)
                if gap is not None:
                    ends = [[gap.value - gap.lower], [gap.upper - gap.value]]
                    axes.errorbar(x, gap.value, ends, fmt="o", markersize=4, linewidth=1.2, color=shade)
        labels = [methods[name].label for name in others]
        turned: dict[str, Any] = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(others)), labels, fontsize=8, **turned)
        axes.set_xlim(-0.5, len(others) - 0.5)
    figure.suptitle(_order_text(results, reference, methods[reference].label), fontsize=10, color=style.INK)
    return style.save_png(figure, path)


def _natural_share(result: CellResult, reference: str) -> float:
    return result.figures[reference].natural_share or 0.0


def _order_text(results: Sequence[CellResult], reference: str, label: str) -> str:
    shares = [_natural_share(result, reference) for result in results if result.gate.is_passed]
    between = f" ({min(shares):.2f} to {max(shares):.2f})" if shares else ""
    return (
        f"0 is {label} on stale data, 1 on fresh data; a dot for each cell, with its 95 % interval;\n"
        f"cells stand from left to right, and darken, by the natural share of positive tokens{between}"
    )
