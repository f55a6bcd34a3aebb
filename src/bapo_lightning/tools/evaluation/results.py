"""Metrics of an evaluated problem set, and differences between two models on the same problems, with 95 %
intervals: the spread over other sets of problems like these.

Percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3). It resamples
problems, not samples, which are not independent within a problem; equal values give equal intervals.

Shapes: P problems, M metrics, R resamples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bapo_lightning.objectives.outcome import Outcomes, problem_values

LENGTH = "response_length"  # the only metric that is not a share
Interval = tuple[float | None, float | None]
NUM_RESAMPLES = 10_000
SEED = 20251018
TAIL = 0.025  # on either side
_ROWS = 1_000  # resamples at once, which limits the memory


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % interval."""

    value: float
    low: float
    high: float


def estimates(values_PM: NDArray[np.float64], ranges: Sequence[Interval]) -> list[Estimate]:
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
    num_problems, generator = len(values_PM), np.random.default_rng(SEED)
    shares = np.full(num_problems, 1 / num_problems)
    # One product per metric: a product of several may round a metric by its place among them.
    columns_MP = np.ascontiguousarray(values_PM.T)
    # The counts of drawn problems are multinomial: a matrix product replaces the gathering.
    counts = (generator.multinomial(num_problems, shares, _ROWS) for _ in range(NUM_RESAMPLES // _ROWS))
    sums_MR = np.hstack([[drawn @ column for column in columns_MP] for drawn in counts])
    lows, highs = np.quantile(sums_MR / num_problems, [TAIL, 1 - TAIL], axis=1)
    intervals = []
    for metric, (column, (smallest, largest)) in enumerate(zip(columns_MP, ranges, strict=True)):
        if np.all(column == column[0]):
            value, missed = float(column[0]), 1 - TAIL ** (1 / num_problems)
            low = value if smallest is None else value - missed * (value - smallest)
            high = value if largest is None else value + missed * (largest - value)
            intervals.append(Estimate(value, low, high))
        else:
            intervals.append(Estimate(float(column.mean()), float(lows[metric]), float(highs[metric])))
    return intervals


def set_estimates(problems: Sequence[Outcomes]) -> dict[str, Estimate]:
    """Returns every metric of a set with k samples a problem; no maj@k if answers have no names."""
    return _defined_estimates(_values(problems), (0.0, 1.0), (0.0, None))


def paired_differences(problems: Sequence[Outcomes], reference: Sequence[Outcomes]) -> dict[str, Estimate]:
    """Returns every metric minus the reference's, problem by problem.

    Both have the same problems in the same order, with the same number of samples each. Pairing cancels what
    both share, mainly how hard the problems are, which makes up most of one model's interval.
    """
    values, others = _values(problems), _values(reference)
    differences = {name: column - others[name] for name, column in values.items()}
    return _defined_estimates(differences, (-1.0, 1.0), (None, None))


def status_counts(problems: Sequence[Outcomes]) -> dict[str, int]:
    """Returns the number of samples with each verdict."""
    return dict(Counter(sample.status.value for samples in problems for sample in samples))


def _values(problems: Sequence[Outcomes]) -> dict[str, NDArray[np.float64]]:
    rows = [problem_values(samples) for samples in problems]
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}


def _defined_estimates(
    values: dict[str, NDArray[np.float64]], shares: Interval, lengths: Interval
) -> dict[str, Estimate]:
    # `shares` and `lengths`: smallest and largest value for one problem of a share, and of `response_length`.
    names = [name for name, column in values.items() if not np.isnan(column).any()]
    matrix_PM = np.stack([values[name] for name in names], axis=1)
    intervals = estimates(matrix_PM, [lengths if name == LENGTH else shares for name in names])
    return dict(zip(names, intervals, strict=True))
