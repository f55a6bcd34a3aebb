"""The numbers of an evaluated problem set: every metric with its interval, and differences between two models
on the same problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bapo_lightning.evaluation.bootstrap import Estimate, estimates
from bapo_lightning.evaluation.outcome import Outcomes, problem_values

LENGTH = "response_length"  # the one metric that is no share


def set_estimates(problems: Sequence[Outcomes]) -> dict[str, Estimate]:
    """Every metric of a set, each problem with the same number of samples; maj@k is absent when the reward
    tells no answers.
    """
    names = metric_names([problems])
    ranges = [(0.0, None if name == LENGTH else 1.0) for name in names]
    return dict(zip(names, estimates(_matrix(problems, names), ranges), strict=True))


def paired_differences(problems: Sequence[Outcomes], reference: Sequence[Outcomes]) -> dict[str, Estimate]:
    """Every metric minus that of `reference`, problem by problem: the same problems in the same order, with
    as many samples each.

    Pairing takes out how hard the problems are, which is most of what an interval of one model alone consists
    of.
    """
    names = metric_names([problems, reference])
    ranges = [(None, None) if name == LENGTH else (-1.0, 1.0) for name in names]
    return dict(
        zip(names, estimates(_matrix(problems, names) - _matrix(reference, names), ranges), strict=True)
    )


def status_counts(problems: Sequence[Outcomes]) -> dict[str, int]:
    """How many samples got each verdict."""
    return dict(Counter(sample.status.value for samples in problems for sample in samples))


def metric_names(evaluated: Sequence[Sequence[Outcomes]]) -> list[str]:
    """Metrics that are defined for all of the evaluations of one set."""
    tells_answers = not any(
        sample.is_unnamed for problems in evaluated for samples in problems for sample in samples
    )
    return [name for name in problem_values(evaluated[0][0]) if tells_answers or not name.startswith("maj@")]


def _matrix(problems: Sequence[Outcomes], names: Sequence[str]) -> NDArray[np.float64]:
    rows = [problem_values(samples) for samples in problems]
    return np.array([[row[name] for name in names] for row in rows], dtype=np.float64)
