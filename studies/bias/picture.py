"""The picture of the atlas: who is nearest to the truth at which age and batch, who points where, and what
each of BAPO's bounds does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from bapo_lightning.report import style
from studies.bias.claims import Nearest, Tables
from studies.bias.measure import Table
from studies.bias.plan import AtlasConfig

# Okabe and Ito: of no, token, prefix and sequence weights, clips, BAPO and others.
FAMILY_COLOURS = ("#F0E442", "#56B4E9", "#CC79A7", "#009E73", "#D55E00", "#0072B2", "#8A8A8A")
MANY = 10  # methods within what matters of the best: the choice makes no difference
ALIKE = "#D9D9D9"
WIDEST = 16  # characters of a line in a cell
CURVES = (
    "sequence",
    "sequence_2",
    "score_centering",
    "reinforce",
    "token",
    "sapo",
    "m2po",
    "gmpo",
    "gspo",
    "vespo",
    "grpo",
)
SIDES = ("reinforce", "bapo_50", "bapo_upper", "bapo_lower", "grpo")
SIDE_TITLES = {"tree": "answers equally long", "tree_longer": "wrong answers longer"}
MARKERS = "osD^vPX*<>d"


def draw_atlas(config: AtlasConfig, tables: Tables, nearest: Sequence[Nearest], path: Path) -> Path:
    """Draws the headline's world, and BAPO's bounds in every world that has its rate and moment too."""
    head = config.head
    here = tables[head]
    places = [replace(head, world=name) for name in SIDE_TITLES]
    sides = {SIDE_TITLES[each.world]: tables[each] for each in places if each in tables} or {head.world: here}
    figure = style.new_figure(11.0, 10.4)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.0, 1.15])
    _draw_nearest(figure.add_subplot(grid[0, :]), config, nearest)
    title = "Which way does the expected gradient point?"
    _draw_curves(figure.add_subplot(grid[1, 0]), config, here, CURVES, title)
    panels = grid[1, 1].subgridspec(len(sides), 1)
    for number, (where, shown) in enumerate(sides.items()):
        title = f"BAPO's two bounds: {where}"
        axes = figure.add_subplot(panels[number])
        _draw_curves(axes, config, shown, SIDES, title, is_last=number == len(sides) - 1)
    return style.save_png(figure, path)


def _draw_nearest(axes: Axes, config: AtlasConfig, nearest: Sequence[Nearest]) -> None:
    colours = dict(zip(config.families, FAMILY_COLOURS, strict=True))
    ages, batches = config.ages[1:], config.batches
    image = np.ones((len(batches), len(ages), 4))
    for item in nearest:
        row, column = batches.index(item.batch), ages.index(item.age)
        method = config.methods[item.method]
        alike = item.as_good >= MANY
        name = f"{item.as_good + 1} methods alike" if alike else fill(method.label, WIDEST)
        others = f"\nand {item.as_good} more" if item.as_good and not alike else ""
        text = f"{name}\n{item.error:.2f}{others}"
        image[row, column] = to_rgba(ALIKE if alike else colours[method.family], 0.75)
        middle: dict[str, Any] = {"ha": "center", "va": "center"}
        axes.text(column, row, text, fontsize=8, color="black", linespacing=1.25, **middle)
    axes.imshow(image, aspect="auto", origin="lower")
    axes.set_xticks(range(len(ages)), [f"{age:g}" for age in ages])
    axes.set_yticks(range(len(batches)), [f"{batch:,}" for batch in batches])
    style.style_axes(
        axes,
        "Nearest to the true gradient: the method of the least error (0: exact, 1: tells nothing)",
        "age of the data: updates of exact ascent since they were sampled",
        "answers in a batch",
    )
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    shown = {config.methods[item.method].family for item in nearest if item.as_good < MANY}
    handles = [
        Patch(color=to_rgba(colours[name], 0.75), label=label)
        for name, label in config.families.items()
        if name in shown
    ]
    handles.append(Patch(color=ALIKE, label=f"more than {MANY} methods\nwithin {config.matters:g}"))
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
    axes.legend(handles=handles, fontsize=8, labelcolor=style.INK, labelspacing=1.0, **place)


def _draw_curves(
    axes: Axes,
    config: AtlasConfig,
    methods: Mapping[str, Table],
    names: Sequence[str],
    title: str,
    is_last: bool = True,
) -> None:
    """Mean cosine over age, the name of each method at the end of its line."""
    colours = dict(zip(config.families, FAMILY_COLOURS, strict=True))
    places = np.arange(len(config.ages))
    ends: list[tuple[float, str, str]] = []
    for number, name in enumerate(name for name in names if name in methods and name in config.methods):
        method, values = config.methods[name], methods[name]["cosine"].mean(1)
        colour = colours[method.family] if method.family != "none" else "#B8A800"
        look: dict[str, Any] = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4, "linewidth": 1.5}
        axes.plot(places, values, color=colour, **look)
        ends.append((float(values[-1]), method.label, colour))
    axes.axhline(0, color=style.INK, linewidth=0.8)
    axes.text(0, -0.03, "below: against the truth", fontsize=8, color=style.INK, va="top")
    style.style_axes(axes, title, "age of the data, updates" if is_last else "", "cosine to the truth")
    axes.set_xticks(places, [f"{age:g}" for age in config.ages])
    axes.set_ylim(-0.65, 1.05)
    axes.set_xlim(-0.2, len(places) - 1 + 0.1)
    heights = spread([end[0] for end in ends], 0.9 / len(ends))
    for (value, label, colour), height in zip(ends, heights, strict=True):
        line: dict[str, Any] = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.7,
            "shrinkA": 0,
            "shrinkB": 0,
        }
        axes.annotate(
            label,
            (places[-1], value),
            (places[-1] + 0.45, height),
            fontsize=8,
            color=style.INK,
            va="center",
            arrowprops=line,
            annotation_clip=False,
        )


def spread(heights: Sequence[float], least: float) -> list[float]:
    """Moves heights apart until neighbours differ by `least`, around where they were."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = [heights[place] for place in order]
    for _ in range(200):
        for one in range(len(placed) - 1):
            if (lack := least - (placed[one + 1] - placed[one])) > 1e-9:
                placed[one] -= lack / 2
                placed[one + 1] += lack / 2
    moved = dict(zip(order, placed, strict=True))
    return [moved[place] for place in range(len(heights))]
