"""95 % intervals of means over problems: the spread over other sets of problems like these.

Percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3).
It resamples problems, not samples, because the samples of a problem are not independent of each other. It is
deterministic: equal values give equal intervals.

Shapes: P problems, M metrics, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 10_000
SEED = 20251018
TAIL = 0.025  # on either side
_ROWS = 1_000  # resamples at once, which bounds the memory


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def estimate(
    values: NDArray[np.float64], smallest: float | None = None, largest: float | None = None
) -> Estimate:
    """Returns mean and interval of one metric, as `estimates` does for several."""
    return estimates(values[:, None], [(smallest, largest)])[0]


def estimates(
    values_PM: NDArray[np.float64], ranges: Sequence[tuple[float | None, float | None]]
) -> list[Estimate]:
    """Returns mean and interval of M metrics, from the same resamples of the problems.

    Args:
        values_PM: value of each metric for each problem.
        ranges: smallest and largest value of each metric for a problem, or None. They matter only if all
            problems have the same value. Resampling can then only repeat it, and the mean is bounded by the
            share of problems with another value that a set of this size can miss: at most 1 - 0.025^(1/P)
            (Clopper and Pearson's bound for 0 of P).

    Raises:
        ValueError: there are no problems.
    """
    if not len(values_PM):
        raise ValueError("an interval needs at least one problem, got none")
    means_RM = _resampled_means(values_PM)
    lows, highs = np.quantile(means_RM, [TAIL, 1 - TAIL], axis=0)
    found = []
    for metric, (smallest, largest) in enumerate(ranges):
        column = values_PM[:, metric]
        if np.all(column == column[0]):
            found.append(_alike(float(column[0]), len(column), smallest, largest))
        else:
            found.append(Estimate(float(column.mean()), float(lows[metric]), float(highs[metric])))
    return found


def _resampled_means(values_PM: NDArray[np.float64]) -> NDArray[np.float64]:
    num_problems = len(values_PM)
    generator = np.random.default_rng(SEED)
    shares = np.full(num_problems, 1 / num_problems)
    # The counts of drawn problems are multinomial: one matrix product replaces the gathering.
    parts = [
        generator.multinomial(num_problems, shares, _ROWS) @ values_PM for _ in range(NUM_RESAMPLES // _ROWS)
    ]
    return np.concatenate(parts) / num_problems


def _alike(value: float, num_problems: int, smallest: float | None, largest: float | None) -> Estimate:
    missed = 1 - TAIL ** (1 / num_problems)
    low = value if smallest is None else value - missed * (value - smallest)
    high = value if largest is None else value + missed * (largest - value)
    return Estimate(value, low, high)
