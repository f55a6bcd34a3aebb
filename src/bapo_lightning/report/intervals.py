"""Means over seeds with 95 % intervals (Student's t), unpaired and paired, and the paired t-test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Interval:
    """Mean of `count` values and the half-width of its 95 % interval; one value alone has no interval."""

    mean: float
    half_width: float | None
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width

    def text(self, decimals: int, sign: str = "", between: str = " ± ") -> str:
        """Formats mean and half-width, "n/a" where there is none."""
        half_width = "n/a" if self.half_width is None else f"{self.half_width:.{decimals}f}"
        return f"{self.mean:{sign}.{decimals}f}{between}{half_width}"


@cache
def t_quantile(degrees_of_freedom: int) -> float:
    """Quantile 0.975 of Student's t. Raises ValueError with fewer than one degree of freedom."""
    from scipy.stats import t

    if degrees_of_freedom < 1:
        raise ValueError(
            f"an interval needs at least 1 degree of freedom (2 values), got {degrees_of_freedom}"
        )
    return float(t.ppf(0.975, degrees_of_freedom))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """mean +- t * s / sqrt(n) with the sample deviation s; None without values.

    It assumes that runs are independent and their values roughly normal.
    """
    count = len(values)
    if count == 0:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Interval(mean, t_quantile(count - 1) * math.sqrt(variance / count), count)


def shown_interval(
    values: Sequence[float], logarithmic: bool = False, limits: tuple[float, float] | None = None
) -> tuple[float, float, float] | None:
    """(mean, lower, upper end of the 95 % interval) as an axis shows them; None without values.

    A single value is its own interval. On a logarithmic axis mean and interval are of the logarithms of
    `values`, all positive. `limits` are those of the quantity: no interval goes beyond them.
    """
    to, back = (math.log, math.exp) if logarithmic else (float, float)
    interval = mean_interval([to(value) for value in values])
    if interval is None:
        return None
    width, (least, most) = interval.half_width or 0.0, limits or (-math.inf, math.inf)
    lower, upper = back(interval.mean - width), back(interval.mean + width)
    return back(interval.mean), max(least, lower), min(most, upper)


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Interval | None:
    """Interval of value - reference over the seeds that both have; None when they share no seed."""
    return mean_interval(
        [values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())]
    )


def paired_p_value(values: Mapping[int, float], reference: Mapping[int, float]) -> float | None:
    """Two-sided p-value of the paired t-test over the seeds that both have; None with fewer than two.

    It is below 0.05 exactly where the interval of `paired_difference` excludes 0. Where all differences are
    equal it is 1 if they are zero, else 0.
    """
    from scipy.stats import t

    difference = paired_difference(values, reference)
    if difference is None or difference.half_width is None:
        return None
    if difference.half_width == 0:
        return 1.0 if difference.mean == 0 else 0.0
    error = difference.half_width / t_quantile(difference.count - 1)
    return float(2 * t.sf(abs(difference.mean) / error, difference.count - 1))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts p-values for their number (Holm 1979): the chance of even one false discovery among all stays
    below the level.
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted
