"""95 % intervals of means over problems: what another set of problems like these would have given.

The percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3), resampling
problems, not samples: the samples of a problem are not independent of each other. Deterministic: equal values
give equal intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 10_000
SEED = 20251018
TAIL = 0.025  # on either side
_ROWS = 1_000  # resamples at once: bounds the memory


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True when the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def estimate(
    values: NDArray[np.float64], smallest: float | None = None, largest: float | None = None
) -> Estimate:
    """Mean and interval of one metric; see `estimates`."""
    return estimates(values[:, None], [(smallest, largest)])[0]


def estimates(
    values_PM: NDArray[np.float64], ranges: Sequence[tuple[float | None, float | None]]
) -> list[Estimate]:
    """Mean and interval of M metrics, from the same resamples of the problems.

    Args:
        values_PM: value of each metric for each of P problems.
        ranges: smallest and largest value that a problem can have, or None, per metric. They matter where all
            problems have the same value: resampling can then only repeat it, and what bounds the mean is how
            many problems with another value could have been
            missed: a share of at most 1 - 0.025^(1/P) (Clopper and Pearson's bound for 0 of P).

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
    # How often each problem is drawn is multinomial: one matrix product instead of gathering the problems
    # themselves.
    parts = [
        generator.multinomial(num_problems, shares, _ROWS) @ values_PM for _ in range(NUM_RESAMPLES // _ROWS)
    ]
    return np.concatenate(parts) / num_problems


def _alike(value: float, num_problems: int, smallest: float | None, largest: float | None) -> Estimate:
    missed = 1 - TAIL ** (1 / num_problems)
    low = value if smallest is None else value - missed * (value - smallest)
    high = value if largest is None else value + missed * (largest - value)
    return Estimate(value, low, high)
