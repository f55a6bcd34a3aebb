"""Pictures of the map: where a method is better or worse, and what its search does there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from bapo_lightning.report import style
from bapo_lightning.report.map.verdicts import EQUAL, LESS, MORE, CellResult

SIGN = {MORE: "+", LESS: "−", EQUAL: "="}
COLOUR_LIMIT = 0.15  # difference in area at which a colour is full
LEGEND = (
    "difference in mean reward over training: + more, − less, = equal, ? unresolved;  R: the search rests at "
    "its start, E: it runs to its end, in more than nine updates of ten;  pale: the cell fails the gate"
)
DARK = 0.7  # of that difference: colours are too dark for black text
MOST = 0.9  # share of the updates that counts as "nearly always"


def draw_phases(
    results: Sequence[CellResult], method: str, against: Sequence[str], labels: Mapping[str, str], path: Path
) -> Path:
    """Draws a row of heat maps for each world: the difference of `method` to each of `against` in every cell.

    Rows of a heat map are the options of the world, columns staleness and learning rate. The sign is the
    verdict; R where the search nearly always rests at its start, E where it nearly always runs to its end.
    Cells that fail the gate are pale.
    """
    worlds = list(dict.fromkeys(result.cell.world for result in results))
    heights = [
        len({result.cell.options for result in results if result.cell.world == world}) for world in worlds
    ]
    figure = style.new_figure(5.6 * len(against), 1.5 * len(worlds) + 0.34 * sum(heights))
    panels = figure.subplots(len(worlds), len(against), squeeze=False, height_ratios=[h + 2 for h in heights])
    image = None
    for row, world in zip(panels, worlds, strict=True):
        own = [result for result in results if result.cell.world == world]
        for axes, other in zip(row, against, strict=True):
            image = _heat_map(axes, own, method, other)
            axes.set_title(
                f"{world}: {labels[method]} against {labels[other]}", fontsize=10, loc="left", color=style.INK
            )
    assert image is not None
    for axes in panels[:, 1:].flat:
        axes.set_yticklabels([])
    figure.supxlabel(LEGEND, fontsize=8, color=style.INK)
    bar = figure.colorbar(image, ax=panels, shrink=0.6, pad=0.02)
    bar.ax.set_title("difference", fontsize=8, color=style.INK)
    return style.save_png(figure, path)


def _heat_map(axes: Axes, results: Sequence[CellResult], method: str, other: str) -> AxesImage:
    rows = sorted({result.cell.options for result in results})
    columns = sorted({(result.cell.staleness, result.cell.learning_rate) for result in results})
    values = np.full((len(rows), len(columns)), np.nan)
    alpha = np.zeros_like(values)
    for result in results:
        place = (
            rows.index(result.cell.options),
            columns.index((result.cell.staleness, result.cell.learning_rate)),
        )
        comparison = result.comparison(method, other)
        values[place] = comparison.difference.mean
        alpha[place] = 1.0 if result.gate.is_passed else 0.25
        text = (
            f"{SIGN.get(comparison.verdict, '?')} {comparison.difference.mean:+.3f} {_search(result, method)}"
        )
        is_dark = result.gate.is_passed and abs(comparison.difference.mean) > DARK * COLOUR_LIMIT
        colour = "white" if is_dark else style.INK
        axes.text(place[1], place[0], text.strip(), ha="center", va="center", fontsize=7.5, color=colour)
    image = axes.imshow(
        values, cmap="RdBu", vmin=-COLOUR_LIMIT, vmax=COLOUR_LIMIT, alpha=alpha, aspect="auto"
    )
    axes.set_yticks(range(len(rows)), [_options(options) for options in rows], fontsize=8)
    axes.set_xticks(range(len(columns)), [f"staleness {s:g}\nlr {lr:g}" for s, lr in columns], fontsize=8)
    return image


def _options(options: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name.rpartition('.')[2].replace('_', ' ')} {value:g}" for name, value in options)


def _search(result: CellResult, method: str) -> str:
    found = result.figures[method]
    return "R" if (found.rests or 0) > MOST else "E" if (found.ends or 0) > MOST else ""


def draw_gap(results: Sequence[CellResult], labels: Mapping[str, str], path: Path) -> Path:
    """Draws, for every method but the first, the share of the staleness gap that it closes in each cell that
    passes the gate, with its 95 % interval; colours tell the natural share of positive tokens.
    """
    reference, *methods = labels
    worlds = list(dict.fromkeys(result.cell.world for result in results))
    figure = style.new_figure(11.0, 0.6 + 3.4 * len(worlds))
    panels = figure.subplots(len(worlds), 1, squeeze=False)[:, 0]
    for axes, world in zip(panels, worlds, strict=True):
        own = [result for result in results if result.cell.world == world and result.gate.is_passed]
        style.style_axes(
            axes, f"{world}: {len(own)} cells that pass the gate", "", "share of the staleness gap closed"
        )
        axes.axhline(0, color=style.FAINT, linewidth=0.8)
        axes.axhline(1, color=style.FAINT, linewidth=0.8, linestyle=":")
        for place, name in enumerate(methods):
            for number, result in enumerate(own):
                gap = result.gap_closed[name]
                x = place + 0.7 * ((number + 0.5) / max(len(own), 1) - 0.5)
                axes.errorbar(
                    x,
                    gap.mean,
                    gap.half_width,
                    fmt="o",
                    markersize=3,
                    linewidth=0.8,
                    color=_share_colour(result.figures[reference].natural_share),
                )
        axes.set_xticks(
            range(len(methods)), [labels[name] for name in methods], fontsize=8, rotation=20, ha="right"
        )
        axes.set_ylim(-1.5, 1.5)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=f"natural share {text}")
        for text, colour in (
            ("below 0.40", style.BLUE),
            ("0.40 to 0.48", style.GREEN),
            ("above 0.48", style.VERMILLION),
        )
    ]
    style.draw_top_legend(figure, handles, 3)
    return style.save_png(figure, path)


def _share_colour(share: float | None) -> str:
    return (
        style.FAINT
        if share is None
        else style.BLUE
        if share < 0.40
        else style.GREEN
        if share < 0.48
        else style.VERMILLION
    )
