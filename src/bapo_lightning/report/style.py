"""One look for all figures: colours for colour-blind readers, quiet axes, no global matplotlib state."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullLocator

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, GREEN, BLUE, VERMILLION, PURPLE = "#000000", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
INK, FAINT, GRID = "#333333", "#8A8A8A", "#E6E6E6"
NEUTRAL = "#7D8590"  # visible on white and on black pages
ALGORITHM_COLOURS = {"grpo": VERMILLION, "dapo": GREEN, "bapo": BLUE, "bapo_authors_code": PURPLE}
# For parts of a whole, side by side: Tol's "bright" and "muted" (2021), neighbours far apart.
PART_COLOURS = (
    "#4477AA", "#EE8866", "#228833", "#DDCC77", "#AA3377", "#66CCEE", "#BBBBBB", "#882255", "#999933",
)  # fmt: skip
_OTHER_COLOURS = ("#882255", "#999933", "#332288")  # wine, olive, indigo: Tol, "Colour Schemes" (2021)
_LIGHTEST, _DARKEST = 0.45, 0.35  # shares of white and of black in the first and the last shade
LineStyle = Literal["-", "--", ":", "-."]
LINES: tuple[LineStyle, ...] = ("-", "--", ":", "-.")
FEWEST_OF_A_BAND = 4  # seeds; t intervals of fewer are wider than the data's range, and single runs show more
_DOTS_PER_INCH = 150
_NARROW = 24  # characters of labels that fit side by side
_LABELS = 4.4  # height of the horizontal axis' numbers and label, in sizes of the legend's type
_SPIKE = 20.0  # a value this many times the median flattens everything else on a linear axis


@dataclass(frozen=True)
class Look:
    """Colour and line of a setting."""

    colour: str
    line: LineStyle


def algorithm_colour(algorithm: str) -> str:
    """Colour of an algorithm; a variant such as `bapo_rest` has the colour of the algorithm in its name."""
    if algorithm in ALGORITHM_COLOURS:
        return ALGORITHM_COLOURS[algorithm]
    # crc32 rather than hash(), which Python salts differently in each process.
    other = _OTHER_COLOURS[zlib.crc32(algorithm.encode()) % len(_OTHER_COLOURS)]
    return ALGORITHM_COLOURS.get(algorithm.partition("_")[0], other)


def setting_looks(algorithms: Mapping[str, str]) -> dict[str, Look]:
    """Look of each setting by its algorithm, which decides the colour; several settings of one colour are
    shades of it, from light to dark in the given order, with different lines. Colours beyond those that
    colour-blind readers can distinguish start with dotted lines.
    """
    colours = {setting: algorithm_colour(algorithm) for setting, algorithm in algorithms.items()}
    looks = {}
    for setting, colour in colours.items():
        peers = [name for name in colours if colours[name] == colour]
        rank = peers.index(setting)
        first = LINES.index(":") if colour in _OTHER_COLOURS else 0
        looks[setting] = Look(shades(colour, len(peers))[rank], LINES[(first + rank) % len(LINES)])
    return looks


def shades(colour: str, count: int) -> list[str]:
    """Shades of a colour from light to dark; a single one is the colour itself."""
    colours = []
    for place in np.linspace(-1.0, 1.0, count) if count != 1 else [0.0]:
        end, share = (1.0, -_LIGHTEST * place) if place < 0 else (0.0, _DARKEST * place)
        red, green, blue = ((1 - share) * part + share * end for part in to_rgb(colour))
        colours.append(to_hex((red, green, blue)))
    return colours


def algorithm_rank(algorithm: str) -> tuple[int, str]:
    """Sort key: the algorithms of the package from baseline to BAPO, then any other by name."""
    known = list(ALGORITHM_COLOURS)
    return (known.index(algorithm) if algorithm in known else len(known), algorithm)


def new_figure(width: float, height: float) -> Figure:
    """Empty figure (sizes in inches), laid out without overlaps and unknown to pyplot."""
    spacious = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.09)  # inches
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout=spacious, facecolor="white")


def png_bytes(figure: Figure) -> bytes:
    """Renders with Agg, whatever back end the user's process has chosen."""
    file = BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def save_png(figure: Figure, path: Path) -> Path:
    """Writes a figure; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png_bytes(figure))
    return path


def style_axes(axes: Axes, title: str, xlabel: str, ylabel: str) -> None:
    """Sets title and labels (with units), without a box, on a faint horizontal grid behind the data."""
    axes.set_title(title, fontsize=10, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(labelsize=8, colors=INK, color=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def draw_legend(axes: Axes) -> None:
    """Draws a legend below the label of the horizontal axis, where it hides nothing."""
    labels = axes.get_legend_handles_labels()[1]
    columns = 2 if max(map(len, labels)) <= _NARROW else 1
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": _LABELS}
    axes.legend(fontsize=8, labelcolor=INK, ncols=columns, frameon=False, borderpad=0.0, **place)


def draw_top_legend(figure: Figure, handles: list[Any], columns: int, title: str | None = None) -> None:
    """Draws a legend of labelled lines or bars above all panels; the title says what they have in common."""
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": columns, "frameon": False}
    legend = figure.legend(handles=handles, fontsize=10, labelcolor=INK, title=title, **place)
    legend.get_title().set(fontsize=10, color=INK)


def scale_from_zero(axes: Axes, values: list[float]) -> None:
    """Starts the axis at zero, or makes it logarithmic, without zeros, if spikes would flatten the rest."""
    ordered = sorted(value for value in values if value > 0)
    if ordered and min(values) >= 0 and ordered[-1] > _SPIKE * ordered[len(ordered) // 2]:
        axes.set_yscale("log", nonpositive="mask")
        axes.set_ylim(bottom=ordered[len(ordered) // 20] / 2)
        zeros = len(values) - len(ordered)
        left_out = f", without {zeros} zero{'' if zeros == 1 else 's'}" if zeros else ""
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale{left_out}")
    else:
        axes.set_ylim(bottom=min(0.0, *values))


def scale_log(axes: Axes, low: float, high: float) -> None:
    """Makes the axis logarithmic, with plain numbers and a little room around `low` and `high`."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(low / 1.2, high * 1.2)


def seeds_text(counts: Sequence[int]) -> str:
    """Number of seeds behind the plot, for legends."""
    least, most = min(counts, default=0), max(counts, default=0)
    return f"{least} to {most} seeds" if least < most else f"{most} seed{'' if most == 1 else 's'}"


def say_missing(axes: Axes, text: str) -> None:
    """Puts a sentence where data would be, so that an empty panel explains itself."""
    middle: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, fontsize=9, color=FAINT, wrap=True, **middle)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
