"""The mean of several runs' curves with its 95 % band, aligned by update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from bapo_lightning.report.intervals import mean_interval
from bapo_lightning.report.style import LineStyle, smoothed, smoothing_window


@dataclass(frozen=True)
class MeanCurve:
    """Mean and half-width of the 95 % interval at each update; the half-width is 0 with one run."""

    steps: list[int]
    means: list[float]
    half_widths: list[float]
    num_runs: int
    last_recorded: tuple[int, int]  # updates at which the shortest and the longest curve end

    @property
    def lower(self) -> list[float]:
        """Lower ends of the band."""
        return [mean - width for mean, width in zip(self.means, self.half_widths, strict=True)]

    @property
    def upper(self) -> list[float]:
        """Upper ends of the band."""
        return [mean + width for mean, width in zip(self.means, self.half_widths, strict=True)]

    def thinned(self, most: int) -> MeanCurve:
        """At most about `most` points, evenly chosen, the last one among them."""
        stride = -(-len(self.steps) // most) or 1
        return replace(
            self,
            steps=self.steps[::-stride][::-1],
            means=self.means[::-stride][::-1],
            half_widths=self.half_widths[::-stride][::-1],
        )


def mean_curve(curves: Sequence[tuple[list[int], list[float]]], period: int) -> MeanCurve:
    """Smooths every curve by itself, then averages at the updates that all curves have, so that every point
    is a mean of the same runs.

    Args:
        curves: (updates, values) of each run; those without a value are left out.
        period: updates on one rollout batch, for `smoothing_window`.
    """
    recorded = [(steps, values) for steps, values in curves if values]
    smooth = [
        dict(zip(steps, smoothed(values, smoothing_window(len(values), period)), strict=True))
        for steps, values in recorded
    ]
    common = sorted(set.intersection(*map(set, smooth))) if smooth else []
    intervals = [
        interval for step in common if (interval := mean_interval([curve[step] for curve in smooth]))
    ]
    ends = [steps[-1] for steps, _ in recorded] or [0]
    return MeanCurve(
        common,
        [interval.mean for interval in intervals],
        [interval.half_width or 0.0 for interval in intervals],
        len(recorded),
        (min(ends), max(ends)),
    )


def draw_mean(
    axes: Axes,
    curve: MeanCurve,
    colour: str,
    line: LineStyle = "-",
    period: int = 0,
    label: str | None = None,
) -> None:
    """Draws a mean with its band over updates; with a `period` over rollout batches of so many updates."""
    xs = [(step + 1) / period for step in curve.steps] if period else curve.steps
    marker = "o" if len(xs) == 1 else ""
    axes.plot(xs, curve.means, color=colour, linestyle=line, linewidth=1.8, marker=marker, label=label)
    axes.fill_between(xs, curve.lower, curve.upper, color=colour, alpha=0.15, linewidth=0)
