"""Means over seeds with 95 % confidence intervals (Student's t), unpaired and paired by seed."""

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
    """Quantile 0.975 of Student's t, to 1e-3: tabled up to 30 degrees, beyond by the expansion z + (z^3 + z) / (4 v) + ...

    Raises:
        ValueError: fewer than one degree of freedom.
    """
    if degrees_of_freedom < 1:
        raise ValueError(f"an interval needs at least 1 degree of freedom (2 values), got {degrees_of_freedom}")
    if degrees_of_freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[degrees_of_freedom - 1]
    z = _NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * degrees_of_freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """mean +- t * s / sqrt(n) with the sample deviation s; None without values.

    The interval is of the mean over runs like these; it assumes that runs are independent and their values roughly normal.
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
    return mean_interval([values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())])
