"""Mean of several runs' curves with its 95 % band, aligned by update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bapo_lightning.report.intervals import t_quantile
from bapo_lightning.report.run.curves import kept_places, moving_average, window_of


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
        """At most `most` points (4 or more), including the extremes of the mean, see `kept_places`."""
        places = kept_places(self.means, most)
        values = (self.means, self.lower, self.upper, *self.runs)
        means, lower, upper, *runs = ([each[place] for place in places] for each in values)
        steps = [self.steps[place] for place in places]
        return MeanCurve(steps, means, lower, upper, runs, self.last_recorded)


def mean_curve(
    curves: Sequence[tuple[list[int], list[float]]],
    period: int,
    logarithmic: bool = False,
    limits: tuple[float, float] | None = None,
    smooth: bool = True,
) -> MeanCurve:
    """Smooths every curve separately, then averages at the updates that all curves have.

    Args:
        curves: (updates, values) of each run; empty curves are left out.
        period: updates on one rollout batch, for `window_of`.
        logarithmic: averages and intervals are of logarithms; values without one are left out.
        limits: bounds of every interval; None: the smallest and the largest value of single updates.
        smooth: whether to smooth at all.
    """
    recorded = [_of_axis(*curve, logarithmic) for curve in curves]
    recorded = [(steps, values) for steps, values in recorded if steps]
    if not recorded:
        return MeanCurve([], [], [], [], [], (0, 0))
    drawn = [
        dict(zip(steps, moving_average(values, window_of(steps, period)) if smooth else values, strict=True))
        for steps, values in recorded
    ]
    common = sorted(set.intersection(*map(set, drawn)))
    single = np.array([[curve[step] for step in common] for curve in drawn])
    mean, width = single.mean(0), np.zeros(len(common))
    if (count := len(single)) > 1:
        width = t_quantile(count - 1) * single.std(0, ddof=1) / math.sqrt(count)
    back = np.exp if logarithmic else np.asarray
    shown = [back(each) for each in (mean, mean - width, mean + width, single)]
    if limits is None:
        values = [value for _, some in curves for value in some if value > 0 or not logarithmic]
        limits = min(values), max(values)
    means, lower, upper = shown[0], np.maximum(shown[1], limits[0]), np.minimum(shown[2], limits[1])
    ends = [steps[-1] for steps, _ in recorded]
    return MeanCurve(
        common, means.tolist(), lower.tolist(), upper.tolist(), shown[3].tolist(), (min(ends), max(ends))
    )


def _of_axis(steps: list[int], values: list[float], logarithmic: bool) -> tuple[list[int], list[float]]:
    """A curve as its axis shows it: the values, or the logarithms that exist."""
    if not logarithmic:
        return steps, values
    positive = [(step, math.log(value)) for step, value in zip(steps, values, strict=True) if value > 0]
    return [step for step, _ in positive], [value for _, value in positive]
