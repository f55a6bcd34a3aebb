"""The largest learning rate that is usable at each staleness, and the power of staleness that it follows
(arXiv 2607.01083: -1 where staleness binds, 0 where the horizon does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bapo_lightning.report import style
from bapo_lightning.report.markdown import markdown_table
from studies.map.hypotheses import Curves

if TYPE_CHECKING:
    from studies.map.plan import MapConfig, VerdictConfig

RESAMPLES = 2000
LAST = 0.1  # share of the measurements at the end that is averaged


@dataclass(frozen=True)
class Rates:
    """Of one method in one world; R resamples of the seeds, the first of them all seeds as they are."""

    staleness: np.ndarray  # [S]
    largest: np.ndarray  # [R, S], NaN where no rate of the grid is usable
    best: np.ndarray  # [S], the rate of the most reward over training


def largest_rates(setup: VerdictConfig, measured: Curves, world: str, method: str) -> Rates:
    items = {cell: item for (cell, name), item in measured.items() if (cell.world, name) == (world, method)}
    rates = np.array(sorted({cell.learning_rate for cell in items}))
    staleness = np.array(sorted({cell.staleness for cell in items}))
    curves = {(cell.staleness, cell.learning_rate): item.curves["reward"] for cell, item in items.items()}
    count = max(1, round(LAST * next(iter(curves.values())).shape[1]))
    ends = np.stack([[curves[s, rate][:, -count:].mean(1) for rate in rates] for s in staleness])
    areas = np.stack([[curves[s, rate].mean() for rate in rates] for s in staleness])
    generator = np.random.default_rng(0)
    seeds = ends.shape[-1]
    drawn = np.vstack([np.arange(seeds), generator.integers(seeds, size=(RESAMPLES, seeds))])
    resampled = ends[:, :, drawn].mean(-1)  # [S, rates, R]
    best = resampled[0].max(0)
    largest = np.array(
        [
            [
                crossing(rates, resampled[row, :, number], setup.usable * best[number])
                for row in range(len(staleness))
            ]
            for number in range(len(drawn))
        ]
    )
    return Rates(staleness, largest, rates[areas.argmax(1)])


def crossing(rates: np.ndarray, ends: np.ndarray, least: float) -> float:
    """Largest rate at which the reward at the end is `least`, between rates by straight lines in their
    logarithm; NaN if none reaches it, the last rate if that one does.
    """
    usable = np.flatnonzero(ends >= least)
    if not len(usable):
        return float("nan")
    last = usable[-1]
    if last == len(rates) - 1:
        return float(rates[-1])
    share = (ends[last] - least) / (ends[last] - ends[last + 1])
    return float(np.exp((1 - share) * np.log(rates[last]) + share * np.log(rates[last + 1])))


def exponents(rates: Rates, first: int) -> np.ndarray:
    """Slope of log largest rate over log staleness from a staleness on, of every resample, [R]."""
    chosen = rates.staleness >= first
    x = np.log(rates.staleness[chosen])
    x = x - x.mean()
    return (np.log(rates.largest[:, chosen]) * x).sum(1) / (x**2).sum()


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The value of all seeds, and the ends of its 95 % interval."""
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return float(values[0]), float(low), float(high)


def text(values: np.ndarray) -> str:
    """The value with its interval, and the share of resamples without one, which the interval leaves out."""
    missing = float(np.isnan(values[1:]).mean())
    if np.isnan(values[0]):
        return f"none (nor have {missing:.1%} of resamples)"
    shown = "{:.2f} ({:.2f} to {:.2f})".format(*interval(values))
    return shown if not missing else f"{shown}, {missing:.1%} of resamples have none"


def render_law(
    config: MapConfig, setup: VerdictConfig, rates_by_method: Mapping[tuple[str, str], Rates], settings: str
) -> str:
    parts = ["# Verdict", settings, f"Endpoint: {setup.endpoint}"]
    for world in config.worlds:
        claims = [
            [each.name, each.claim, f"{each.expected:g}", text(exponents(rates, setup.law_from))]
            for each in setup.law
            for rates in (rates_by_method[world, each.method],)
        ]
        for constant in setup.constants:
            one, other = (rates_by_method[world, name].largest[:, -1] for name in constant.pair)
            claims.append([constant.name, constant.claim, constant.expected, text(one / other)])
        parts += [f"## `{world}`", markdown_table(["hypothesis", "claim", "expected", "found"], claims)]
    return "\n\n".join(parts) + "\n"


def rate_table(
    config: MapConfig, setup: VerdictConfig, rates_by_method: Mapping[tuple[str, str], Rates]
) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of rates.csv: the largest usable rate at each staleness with its 95 % interval,
    the exponent, and the rate of the most reward over training.
    """
    rows = [
        [
            world,
            entry.label,
            *(text(column) for column in rates.largest.T),
            text(exponents(rates, setup.law_from)),
            *(f"{rate:g}" for rate in rates.best),
        ]
        for world in config.worlds
        for name, entry in config.methods.items()
        for rates in (rates_by_method[world, name],)
    ]
    columns = [f"S = {value}" for value in next(iter(rates_by_method.values())).staleness]
    best = [f"most reward: {column}" for column in columns]
    return ["world", "method", *columns, f"exponent from {setup.law_from} on", *best], rows


def draw_law(config: MapConfig, rates_by_method: Mapping[tuple[str, str], Rates], path: Path) -> Path:
    figure = style.new_figure(5.0 * len(config.worlds), 4.0)
    looks = ["o-", "s--", "^-.", "D:"]
    for axes, world in zip(
        figure.subplots(1, len(config.worlds), squeeze=False)[0], config.worlds, strict=True
    ):
        style.style_axes(
            axes, world, "staleness S, updates on a rollout batch", "largest usable learning rate"
        )
        for number, (name, entry) in enumerate(config.methods.items()):
            rates = rates_by_method[world, name]
            ends = np.array([interval(rates.largest[:, place]) for place in range(len(rates.staleness))])
            x = rates.staleness * (1 + 0.03 * (number - 1.5))
            errors = np.abs(ends[:, 1:].T - ends[:, 0])
            axes.errorbar(
                x, ends[:, 0], errors, fmt=looks[number % 4], markersize=4, linewidth=1.2, label=entry.label
            )
        top = np.nanmax([rates_by_method[world, name].largest[0, 0] for name in config.methods])
        axes.plot(rates.staleness, top / rates.staleness, color=style.FAINT, linewidth=1, label="1 / S")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        style.draw_legend(axes)
    return style.save_png(figure, path)
