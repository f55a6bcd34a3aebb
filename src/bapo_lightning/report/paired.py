"""Two methods compared by seed, and the verdict that every page gives their difference.

A verdict needs `LEAST_VALUES` seeds whose differences are not all equal, and a p-value below `LEVEL`
after adjustment for all comparisons of its page (Holm). A difference whose interval lies within what counts
as equal is equal, even if it is significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bapo_lightning.report.intervals import Interval, mean_interval, t_quantile

LEVEL = 0.05
EQUAL_WITHIN = 0.01  # of rewards and shares between 0 and 1
MORE, LESS, EQUAL, UNRESOLVED, UNTESTED, NONE = "more", "less", "equal", "unresolved", "untested", "none"
_ROUNDING = 1e-6  # of values, which may come from float32: differences that vary by less are equal


def paired_difference(
    values: Mapping[int, float], reference: Mapping[int, float], resolution: float = 0.0
) -> Interval | None:
    """Interval of value - reference over the seeds that both have; None if they share no seed.

    `resolution` is the step of both values, as for `mean_interval`: the deviation of their differences is at
    least the deviation of two roundings, resolution / sqrt(6).
    """
    seeds = sorted(values.keys() & reference.keys())
    differences = [values[seed] - reference[seed] for seed in seeds]
    interval = mean_interval(differences)
    if interval is None or interval.half_width is None:
        return interval
    largest = max(abs(side[seed]) for side in (values, reference) for seed in seeds)
    is_equal = max(differences) - min(differences) <= _ROUNDING * largest
    least = t_quantile(len(seeds) - 1) * resolution / math.sqrt(6 * len(seeds))
    return replace(interval, half_width=max(0.0 if is_equal else interval.half_width, least))


def paired_p_value(
    values: Mapping[int, float], reference: Mapping[int, float], resolution: float = 0.0
) -> float | None:
    """Two-sided p-value of the paired t-test over the seeds that both have; None with fewer than
    `LEAST_VALUES`, and if all differences are equal.

    It is below 0.05 exactly if the interval of `paired_difference`, at the same resolution, excludes 0.
    """
    from scipy.stats import t

    difference, plain = paired_difference(values, reference, resolution), paired_difference(values, reference)
    if difference is None or difference.half_width is None or plain is None or not plain.is_testable:
        return None
    error = difference.half_width / t_quantile(difference.count - 1)
    return float(2 * t.sf(abs(difference.mean) / error, difference.count - 1))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts p-values for their number (Holm 1979): the chance of even one false discovery among all of
    them stays below the level. None means no test, and does not count.
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted


def verdict_of(difference: Interval | None, adjusted: float | None, within: float = 0.0) -> str:
    """Returns the verdict on a difference with this adjusted p-value.

    `within` is the difference that counts as equal; 0 if none does, since the quantity has no known scale.
    equal: the whole interval lies inside; more, less: it does not, and the p-value is below `LEVEL`;
    unresolved: neither; untested: without a p-value; none: without a difference.
    """
    if difference is None:
        return NONE
    width = difference.half_width
    is_known = width is not None and (difference.is_testable or difference.mean == 0)
    if is_known and abs(difference.mean) + (width or 0.0) < within:
        return EQUAL
    if adjusted is None:
        return UNTESTED
    if adjusted >= LEVEL:
        return UNRESOLVED
    return MORE if difference.mean > 0 else LESS
