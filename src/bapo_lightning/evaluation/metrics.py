"""avg@k, pass@k, maj@k and their companions as torchmetrics: additive states, so that ranks with any shares
of the problems agree.

Every rank updates with its own problems, which may be none, and computes; sums and counts are reduced, never
means.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from bapo_lightning.evaluation.outcome import (
    Outcomes,
    SampleOutcome,
    majority,
    pass_sizes,
    passed,
    sample_counts,
)


class SampleMean(Metric):
    """Mean over samples of a whole number that each has, such as its length, or 1 where it is correct. NaN
    without samples.
    """

    full_state_update = False
    total: Tensor
    num_samples: Tensor

    def __init__(self, count: Callable[[SampleOutcome], int], **kwargs: Any) -> None:
        """
        Args:
            count: of one sample.
            kwargs: torchmetrics' own, such as the process group.
        """
        super().__init__(**kwargs)
        self._count = count
        self.add_state("total", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("num_samples", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, problems: Sequence[Outcomes]) -> None:
        """Add problems, each with its samples; none is fine."""
        self.total += sum(self._count(sample) for samples in problems for sample in samples)
        self.num_samples += sum(len(samples) for samples in problems)

    def compute(self) -> Tensor:
        """The mean, a float64 scalar."""
        return self.total.double() / self.num_samples


class ProblemMean(Metric):
    """Mean over problems of a value that each has. NaN without problems. A subclass says which value."""

    full_state_update = False
    total: Tensor
    num_problems: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """`kwargs` are torchmetrics' own, such as the process group."""
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_problems", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @abstractmethod
    def value(self, samples: Outcomes) -> float:
        """Of one problem."""

    def update(self, problems: Sequence[Outcomes]) -> None:
        """Add problems, each with its samples; none is fine."""
        self.total += math.fsum(self.value(samples) for samples in problems)
        self.num_problems += len(problems)

    def compute(self) -> Tensor:
        """The mean, a float64 scalar."""
        return self.total / self.num_problems


class AvgAtK(SampleMean):
    """Mean correctness of the samples; all problems have the same number of them."""

    def __init__(self, **kwargs: Any) -> None:
        """`kwargs` are torchmetrics' own."""
        super().__init__(lambda sample: sample.is_correct, **kwargs)


class PassAtK(ProblemMean):
    """Unbiased probability that one of k samples is correct, of problems with at least k samples each."""

    def __init__(self, k: int, **kwargs: Any) -> None:
        """`kwargs` are torchmetrics' own."""
        super().__init__(**kwargs)
        self.k = k

    def value(self, samples: Outcomes) -> float:
        """Of one problem."""
        return passed(samples, self.k)


class MajAtK(ProblemMean):
    """Correctness of the most frequent answer. NaN when samples were judged by a reward that does not say
    which answer it read.
    """

    num_unnamed: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """`kwargs` are torchmetrics' own."""
        super().__init__(**kwargs)
        self.add_state("num_unnamed", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def value(self, samples: Outcomes) -> float:
        """Of one problem."""
        return majority(samples)

    def update(self, problems: Sequence[Outcomes]) -> None:
        """Add problems, each with its samples; none is fine."""
        super().update(problems)
        self.num_unnamed += sum(sample.is_unnamed for samples in problems for sample in samples)

    def compute(self) -> Tensor:
        """The mean, a float64 scalar."""
        return torch.where(self.num_unnamed > 0, torch.nan, super().compute())


def evaluation_metrics(k: int, **kwargs: Any) -> MetricCollection:
    """All metrics of problems with k samples each, under the names of `outcome.problem_values`. `kwargs` are
    torchmetrics' own.
    """
    named: dict[str, Metric | MetricCollection] = {
        name: SampleMean(count, **kwargs) for name, count in sample_counts(k).items()
    }
    named |= {f"pass@{size}": PassAtK(size, **kwargs) for size in pass_sizes(k)}
    named |= {f"avg@{k}": AvgAtK(**kwargs), f"maj@{k}": MajAtK(**kwargs)}
    # Compute groups would let metrics with equal states share them; equal after the first update does not
    # mean equal.
    return MetricCollection(named, compute_groups=False)
