"""Mean of several runs' curves with its 95 % band, aligned by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bapo_lightning.report.intervals import shown_interval
from bapo_lightning.report.run.curves import moving_average, smoothing_window


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
        values = (self.means, self.lower, self.upper, *self.runs)
        means, lower, upper, *runs = (each[::-stride][::-1] for each in values)
        return MeanCurve(self.steps[::-stride][::-1], means, lower, upper, runs, self.last_recorded)


def mean_curve(
    curves: Sequence[tuple[list[int], list[float]]],
    period: int,
    logarithmic: bool = False,
    limits: tuple[float, float] | None = None,
) -> MeanCurve:
    """Smooths every curve by itself, then averages at the updates that all curves have.

    Args:
        curves: (updates, values) of each run; those without a value are left out.
        period: updates on one rollout batch, for `smoothing_window`.
        logarithmic: averages and intervals are of logarithms; values that have none are left out.
        limits: that no interval goes beyond; None: the least and the largest value of single updates.
    """
    recorded = [
        {step: value for step, value in zip(*curve, strict=True) if value > 0 or not logarithmic}
        for curve in curves
    ]
    recorded = [curve for curve in recorded if curve]
    smooth = [
        dict(zip(curve, _smoothed([*curve.values()], period, logarithmic), strict=True)) for curve in recorded
    ]
    common = sorted(set.intersection(*map(set, smooth))) if smooth else []
    if limits is None and recorded:
        values = [value for curve in recorded for value in curve.values()]
        limits = min(values), max(values)
    shown = [shown_interval([curve[step] for curve in smooth], logarithmic, limits) for step in common]
    means, lower, upper = ([found[place] for found in shown if found] for place in range(3))
    ends = [max(curve) for curve in recorded] or [0]
    single = [[curve[step] for step in common] for curve in smooth]
    return MeanCurve(common, means, lower, upper, single, (min(ends), max(ends)))


def _smoothed(values: list[float], period: int, logarithmic: bool) -> list[float]:
    window = smoothing_window(len(values), period)
    if not logarithmic:
        return moving_average(values, window)
    return [math.exp(value) for value in moving_average([math.log(value) for value in values], window)]
