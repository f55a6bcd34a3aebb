"""Numbers of an evaluated problem set: every metric with its interval, and differences between two models on
the same problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bapo_lightning.evaluation.bootstrap import Estimate, estimates
from bapo_lightning.evaluation.outcome import Outcomes, problem_values

LENGTH = "response_length"  # the only metric that is not a share
Interval = tuple[float | None, float | None]


def set_estimates(problems: Sequence[Outcomes]) -> dict[str, Estimate]:
    """Returns every metric of a set whose problems have the same number of samples. maj@k is absent if the
    reward does not name the answers.
    """
    return _defined_estimates(_values(problems), (0.0, 1.0), (0.0, None))


def paired_differences(problems: Sequence[Outcomes], reference: Sequence[Outcomes]) -> dict[str, Estimate]:
    """Returns every metric minus that of `reference`, problem by problem.

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
    """Estimates of the metrics [P] that are defined for all problems; the intervals are the smallest and
    largest value for one problem of a share, and of `response_length`.
    """
    names = [name for name, column in values.items() if not np.isnan(column).any()]
    matrix_PM = np.stack([values[name] for name in names], axis=1)
    found = estimates(matrix_PM, [lengths if name == LENGTH else shares for name in names])
    return dict(zip(names, found, strict=True))
