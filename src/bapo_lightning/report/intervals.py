"""Means over seeds with 95 % intervals (Student's t)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

LEAST_VALUES = 3  # two have an interval of 12.7 standard errors, which is often 0 for discrete quantities


@dataclass(frozen=True)
class Interval:
    """Mean of `count` values and the half-width of its 95 % interval; a single value has no interval."""

    mean: float
    half_width: float | None
    count: int

    @property
    def is_testable(self) -> bool:
        """Whether a conclusion is possible: `LEAST_VALUES` or more, and not all equal, maybe by chance."""
        return self.count >= LEAST_VALUES and bool(self.half_width)

    @property
    def excludes_zero(self) -> bool:
        """Whether an interval that may be tested lies entirely on one side of zero."""
        return self.is_testable and abs(self.mean) > (self.half_width or 0.0)

    def seen(self, decimals: int, sign: str = "", between: str = " ± ") -> str:
        """As `text`, but a half-width is never shown as 0: it gets more decimals, or is "n/a"."""
        half_width = self.half_width or None
        if half_width is None or float(f"{half_width:.{decimals}f}"):
            return replace(self, half_width=half_width).text(decimals, sign, between)
        return f"{self.mean:{sign}.{decimals}f}{between}{half_width:.1g}"

    def text(self, decimals: int, sign: str = "", between: str = " ± ") -> str:
        """Formats mean and half-width, "n/a" if there is none."""
        half_width = "n/a" if self.half_width is None else f"{self.half_width:.{decimals}f}"
        return f"{self.mean:{sign}.{decimals}f}{between}{half_width}"


@cache
def t_quantile(degrees_of_freedom: int) -> float:
    """Quantile 0.975 of Student's t. Raises ValueError for less than one degree of freedom."""
    from scipy.stats import t

    if degrees_of_freedom < 1:
        raise ValueError(
            f"an interval needs at least 1 degree of freedom (2 values), got {degrees_of_freedom}"
        )
    return float(t.ppf(0.975, degrees_of_freedom))


def mean_interval(values: Sequence[float], resolution: float = 0.0) -> Interval | None:
    """mean +- t * s / sqrt(n) with the sample deviation s; None without values.

    It assumes that runs are independent and their values roughly normal. `resolution` is the step of a
    discrete quantity, 1/(P k) for the accuracy of k answers to each of P problems. A value is only known to
    half a step, so s is at least the deviation of such a rounding, resolution / sqrt(12).
    """
    count = len(values)
    if count == 0:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    variance = max(variance, resolution**2 / 12)
    return Interval(mean, t_quantile(count - 1) * math.sqrt(variance / count), count)


def interval_on_axis(
    values: Sequence[float],
    logarithmic: bool = False,
    limits: tuple[float, float] | None = None,
    resolution: float = 0.0,
) -> tuple[float, float, float] | None:
    """(mean, lower, upper end of the 95 % interval) as an axis shows them; None without values.

    A single value is its own interval. On a logarithmic axis mean and interval are of the logarithms of
    `values`, all positive. `limits` are the quantity's: no interval extends beyond them.
    `resolution` is its step, as for `mean_interval`.
    """
    to, back = (math.log, math.exp) if logarithmic else (float, float)
    interval = mean_interval([to(value) for value in values], 0.0 if logarithmic else resolution)
    if interval is None:
        return None
    width, (least, most) = interval.half_width or 0.0, limits or (-math.inf, math.inf)
    lower, upper = back(interval.mean - width), back(interval.mean + width)
    return back(interval.mean), max(least, lower), min(most, upper)
