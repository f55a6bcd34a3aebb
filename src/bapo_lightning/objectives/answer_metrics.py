"""avg@k, pass@k, maj@k and their companions as torchmetrics with additive states.

Every rank updates with its own problems, of which there may be none, and computes. Sums and counts are
reduced, never means, so that the result does not depend on how problems are spread over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from bapo_lightning.objectives.outcome import Outcomes, metric_functions


class ProblemMean(Metric):
    """Mean over problems of a value that each problem has; NaN without problems or if one value is NaN."""

    full_state_update = False
    total: Tensor
    num_problems: Tensor

    def __init__(self, value: Callable[[Outcomes], float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._value = value
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_problems", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, problems: Sequence[Outcomes]) -> None:
        """Adds problems, each with its samples; there may be none."""
        self.total += math.fsum(map(self._value, problems))
        self.num_problems += len(problems)

    def compute(self) -> Tensor:
        """Returns the mean, a float64 scalar."""
        return self.total / self.num_problems


def evaluation_metrics(k: int, **kwargs: Any) -> MetricCollection:
    """Returns all metrics of problems with k samples each, under the names of `outcome.metric_functions`."""
    named: dict[str, Metric | MetricCollection] = {
        name: ProblemMean(value, **kwargs) for name, value in metric_functions(k).items()
    }
    # Compute groups would let metrics share states that are equal after the first update but not later.
    return MetricCollection(named, compute_groups=False)
