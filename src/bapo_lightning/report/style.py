"""One look for all figures: colours that colour-blind readers can tell apart, quiet axes, no global
matplotlib state.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, ORANGE, SKY_BLUE, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
INK, FAINT, GRID = "#333333", "#8A8A8A", "#E6E6E6"
POSITIVE, NEGATIVE = SKY_BLUE, ORANGE  # tokens of either sign of the advantage, and the bound that clips them
ALGORITHM_COLOURS = {"grpo": VERMILLION, "dapo": GREEN, "bapo": BLUE, "bapo_authors_code": PURPLE}
_OTHER_COLOURS = (ORANGE, SKY_BLUE, FAINT)
_SETTING_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, SKY_BLUE, PURPLE, FAINT)
LineStyle = Literal["-", "--", ":", "-."]
LINES: tuple[LineStyle, ...] = ("-", "--", ":", "-.")
_DOTS_PER_INCH = 150
_SPIKE = 20.0  # a value this many times the median flattens everything else on a linear axis


def algorithm_colour(algorithm: str) -> str:
    """The colour of an algorithm, the same in every figure and process."""
    # crc32 rather than hash(), which Python salts anew in each process.
    other = _OTHER_COLOURS[zlib.crc32(algorithm.encode()) % len(_OTHER_COLOURS)]
    return ALGORITHM_COLOURS.get(algorithm, other)


def setting_colours(algorithms: Mapping[str, str], order: Sequence[str]) -> dict[str, str]:
    """A colour for each setting, in `order`: its algorithm's where that has no other setting, else one that
    is not used by an algorithm here. Beyond the number of colours these repeat, with other `line_styles`.
    """
    counts = Counter(algorithms.values())
    own = {name: algorithm_colour(algorithms[name]) for name in order if counts[algorithms[name]] == 1}
    free = cycle([colour for colour in _SETTING_COLOURS if colour not in own.values()])
    return {name: own[name] if name in own else next(free) for name in order}


def line_styles(colours: Mapping[str, str]) -> dict[str, LineStyle]:
    """A line for each setting: solid, or dashed or dotted where an earlier setting has the same colour."""
    given = list(colours.values())
    return {
        setting: LINES[given[:rank].count(colour) % len(LINES)]
        for rank, (setting, colour) in enumerate(colours.items())
    }


def algorithm_rank(algorithm: str) -> tuple[int, str]:
    """Sort key: the algorithms of the package from baseline to BAPO, then any other by name."""
    known = list(ALGORITHM_COLOURS)
    return (known.index(algorithm) if algorithm in known else len(known), algorithm)


def new_figure(width: float, height: float) -> Figure:
    """Makes an empty figure (sizes in inches), laid out without overlaps and unknown to pyplot."""
    spacious = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.09)  # inches
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout=spacious, facecolor="white")


def save_png(figure: Figure, path: Path) -> Path:
    """Renders with Agg, whatever back end the user's process has chosen; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(path))
    return path


def style_axes(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    """Sets title and labels (with units), without a box, on a faint horizontal grid below the data."""
    axes.set_title(title, fontsize=10, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelsize=8, colors=INK, color=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def draw_legend(axes: Axes) -> None:
    """Draws a legend that stays readable over data."""
    axes.legend(fontsize=8, labelcolor=INK, loc="best", framealpha=0.85, edgecolor="none", facecolor="white")


def draw_top_legend(figure: Figure, handles: list[Any], columns: int) -> None:
    """Draws a legend of labelled lines or bars above all panels."""
    figure.legend(
        handles=handles, loc="outside upper center", ncols=columns, fontsize=10, frameon=False, labelcolor=INK
    )


def scale_from_zero(axes: Axes, values: list[float]) -> None:
    """Starts the axis at zero, or makes it logarithmic when spikes would flatten the rest of `values` (at
    least one).
    """
    ordered = sorted(values)
    if ordered[0] > 0 and ordered[-1] > _SPIKE * ordered[len(ordered) // 2]:
        axes.set_yscale("log")
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale")
    else:
        axes.set_ylim(bottom=min(0.0, ordered[0]))


def say_missing(axes: Axes, text: str) -> None:
    """Puts a sentence where data would be, so that an empty panel explains itself."""
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9, color=FAINT, wrap=True
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def smoothed(values: list[float], window: int, middle: Callable[[list[float]], float] = fmean) -> list[float]:
    """Centred moving average (or median) of the same length; the window shrinks at both ends, so that no
    value is invented.
    """
    half = window // 2
    return [middle(values[max(0, index - half) : index - half + window]) for index in range(len(values))]


def smoothing_window(count: int, period: int = 1) -> int:
    """Number of updates to average over: about a fifteenth of `count`, in whole periods when these fit at
    least twice.

    Updates on one rollout batch differ by age; a window that cuts through a batch would show its saw-tooth.
    """
    if not 1 < period <= count // 2:
        return 2 * (count // 30) + 1
    return period * max(1, round(count / (15 * period)))
