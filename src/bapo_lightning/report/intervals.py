"""Means over seeds with 95 % confidence intervals (Student's t), unpaired and paired by seed, and p-values of
the paired t-test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Two-sided 95 %: quantile 0.975 of Student's t for 1 to 30 degrees of freedom.
_T_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
_NORMAL_QUANTILE = 1.959964


@dataclass(frozen=True)
class Interval:
    """Mean of `count` values and the half-width of its 95 % interval, which one value alone does not have."""

    mean: float
    half_width: float | None
    count: int

    @property
    def excludes_zero(self) -> bool:
        """True when the whole interval lies on one side of zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def t_quantile(degrees_of_freedom: int) -> float:
    """Quantile 0.975 of Student's t, to 1e-3: tabled up to 30 degrees, beyond by the expansion z + (z^3 + z)
    / (4 v) + ...

    Raises:
        ValueError: fewer than one degree of freedom.
    """
    if degrees_of_freedom < 1:
        raise ValueError(
            f"an interval needs at least 1 degree of freedom (2 values), got {degrees_of_freedom}"
        )
    if degrees_of_freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[degrees_of_freedom - 1]
    z = _NORMAL_QUANTILE
    return (
        z
        + (z**3 + z) / (4 * degrees_of_freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)
    )


def mean_interval(values: Sequence[float]) -> Interval | None:
    """mean +- t * s / sqrt(n) with the sample deviation s; None without values.

    The interval is of the mean over runs like these; it assumes that runs are independent and their values
    roughly normal.
    """
    count = len(values)
    if count == 0:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Interval(mean, t_quantile(count - 1) * math.sqrt(variance / count), count)


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Interval | None:
    """Interval of value - reference over the seeds that both have; None when they share no seed."""
    return mean_interval(
        [values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())]
    )


def t_probability(t: float, degrees_of_freedom: int) -> float:
    """P(|T| >= |t|) of Student's t for whole degrees of freedom: the finite series 26.7.3 and 26.7.4 of
    Abramowitz and Stegun (1964).

    Raises:
        ValueError: fewer than one degree of freedom.
    """
    if degrees_of_freedom < 1:
        raise ValueError(f"a t-test needs at least 1 degree of freedom (2 pairs), got {degrees_of_freedom}")
    angle = math.atan2(abs(t), math.sqrt(degrees_of_freedom))
    is_odd = degrees_of_freedom % 2 == 1
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for power in range(1 if is_odd else 0, degrees_of_freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    within = 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
    return min(1.0, max(0.0, 1.0 - within))


def paired_p_value(values: Mapping[int, float], reference: Mapping[int, float]) -> float | None:
    """Two-sided p-value of the paired t-test over the seeds that both have; None with fewer than two.

    It is below 0.05 exactly where the interval of `paired_difference` excludes 0. Differences that are all
    alike give 1 when they are zero, else 0.
    """
    difference = paired_difference(values, reference)
    if difference is None or difference.half_width is None:
        return None
    if difference.half_width == 0:
        return 1.0 if difference.mean == 0 else 0.0
    error = difference.half_width / t_quantile(difference.count - 1)
    return t_probability(difference.mean / error, difference.count - 1)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for their number (Holm 1979): the chance of even one false discovery among all stays
    below the level.
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted
