"""The mean of several runs' curves with its 95 % band, aligned by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from bapo_lightning.report.intervals import shown_interval
from bapo_lightning.report.style import Look, smoothed, smoothing_window


@dataclass(frozen=True)
class MeanCurve:
    """Mean and 95 % interval at each update; with one run the interval is the value."""

    steps: list[int]
    means: list[float]
    lower: list[float]
    upper: list[float]
    runs: list[list[float]]  # the smoothed curve of each run, at the same updates
    last_recorded: tuple[int, int]  # updates at which the shortest and the longest curve end

    @property
    def num_runs(self) -> int:
        """Number of curves in the mean."""
        return len(self.runs)

    def thinned(self, most: int) -> MeanCurve:
        """At most about `most` points, evenly chosen, the last one among them."""
        stride = -(-len(self.steps) // most) or 1
        return replace(
            self,
            steps=self.steps[::-stride][::-1],
            means=self.means[::-stride][::-1],
            lower=self.lower[::-stride][::-1],
            upper=self.upper[::-stride][::-1],
            runs=[values[::-stride][::-1] for values in self.runs],
        )


def mean_curve(
    curves: Sequence[tuple[list[int], list[float]]],
    period: int,
    logarithmic: bool = False,
    limits: tuple[float, float] | None = None,
) -> MeanCurve:
    """Smooths every curve by itself, then averages at the updates that all curves have, so that every point
    is a mean of the same runs.

    Args:
        curves: (updates, values) of each run; those without a value are left out.
        period: updates on one rollout batch, for `smoothing_window`.
        logarithmic: averages and intervals are taken of logarithms, for an axis of that scale; values that
            have none are left out.
        limits: that no interval goes beyond; by default the least and the largest value of single updates.
    """
    recorded = [_positive(*curve) if logarithmic else curve for curve in curves]
    recorded = [(steps, values) for steps, values in recorded if values]
    smooth = [
        dict(zip(steps, _smoothed(values, period, logarithmic), strict=True)) for steps, values in recorded
    ]
    common = sorted(set.intersection(*map(set, smooth))) if smooth else []
    limits = limits or extremes(recorded)
    shown = [shown_interval([curve[step] for curve in smooth], logarithmic, limits) for step in common]
    means, lower, upper = ([found[place] for found in shown if found] for place in range(3))
    ends = [steps[-1] for steps, _ in recorded] or [0]
    single = [[curve[step] for step in common] for curve in smooth]
    return MeanCurve(common, means, lower, upper, single, (min(ends), max(ends)))


def _positive(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    kept = [(step, value) for step, value in zip(steps, values, strict=True) if value > 0]
    return [step for step, _ in kept], [value for _, value in kept]


def _smoothed(values: list[float], period: int, logarithmic: bool) -> list[float]:
    window = smoothing_window(len(values), period)
    if not logarithmic:
        return smoothed(values, window)
    return [math.exp(value) for value in smoothed([math.log(value) for value in values], window)]


def extremes(curves: Sequence[tuple[list[int], list[float]]]) -> tuple[float, float]:
    """The least and the largest value of curves; zeros where there is none."""
    values = [value for _, found in curves for value in found]
    return (min(values), max(values)) if values else (0.0, 0.0)


def draw_mean(axes: Axes, curve: MeanCurve, look: Look, period: int = 0, label: str | None = None) -> None:
    """Draws a mean with its band over updates; with a `period` over rollout batches of so many updates."""
    xs = [(step + 1) / period for step in curve.steps] if period else curve.steps
    marker = "o" if len(xs) == 1 else ""
    axes.plot(
        xs, curve.means, color=look.colour, linestyle=look.line, linewidth=1.8, marker=marker, label=label
    )
    axes.fill_between(xs, curve.lower, curve.upper, color=look.colour, alpha=0.15, linewidth=0)
