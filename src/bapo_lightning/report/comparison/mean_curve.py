"""The mean of several runs' curves with its 95 % band, aligned by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from bapo_lightning.report.intervals import mean_interval
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
    curves: Sequence[tuple[list[int], list[float]]], period: int, logarithmic: bool = False
) -> MeanCurve:
    """Smooths every curve by itself, then averages at the updates that all curves have, so that every point
    is a mean of the same runs. No interval reaches beyond the values of single updates, such as the ends of
    a search or the ends of a fraction.

    Args:
        curves: (updates, values) of each run; those without a value are left out.
        period: updates on one rollout batch, for `smoothing_window`.
        logarithmic: mean and interval are taken of logarithms, for an axis of that scale, if all values are
            positive.
    """
    recorded = [(steps, values) for steps, values in curves if values]
    smooth = [
        dict(zip(steps, smoothed(values, smoothing_window(len(values), period)), strict=True))
        for steps, values in recorded
    ]
    common = sorted(set.intersection(*map(set, smooth))) if smooth else []
    least, most = extremes(recorded)
    to, back = (math.log, math.exp) if logarithmic and least > 0 else (float, float)
    means, lower, upper = [], [], []
    for step in common:
        if interval := mean_interval([to(curve[step]) for curve in smooth]):
            width = interval.half_width or 0.0
            means.append(back(interval.mean))
            lower.append(max(least, back(interval.mean - width)))
            upper.append(min(most, back(interval.mean + width)))
    ends = [steps[-1] for steps, _ in recorded] or [0]
    single = [[curve[step] for step in common] for curve in smooth]
    return MeanCurve(common, means, lower, upper, single, (min(ends), max(ends)))


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
