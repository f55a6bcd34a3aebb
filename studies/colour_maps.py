"""Colour maps in the colours of algorithms, and their keys."""

from __future__ import annotations

from typing import Any

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure

from bapo_lightning.report import style


def shares_map(colour: str) -> Colormap:
    """Colours of shares: white for none, through `colour`, to its darkest shade for all."""
    return LinearSegmentedColormap.from_list("shares", ["white", *style.shades(colour, 3)[1:]])


def difference_map(first: str, second: str) -> Colormap:
    """Colours of the second algorithm's value minus the first's: the colour of the one that has more (of the
    first in grey if they share one), white where they are equal.
    """
    less, more = style.algorithm_colour(first), style.algorithm_colour(second)
    colours = [style.FAINT if less == more else less, "white", more]
    return LinearSegmentedColormap.from_list("difference", colours)


def draw_colour_bar(figure: Figure, mapped: ScalarMappable, axes: Any, label: str) -> None:
    opaque = ScalarMappable(mapped.norm, mapped.cmap)
    bar = figure.colorbar(opaque, ax=axes, pad=0.02)
    bar.set_label(label, fontsize=9, color=style.INK)
    bar.ax.tick_params(labelsize=8, colors=style.INK, color=style.FAINT)
    bar.outline.set_visible(False)
