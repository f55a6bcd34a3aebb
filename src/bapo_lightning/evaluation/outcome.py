"""Outcomes of one problem's samples, and the value of every metric for that problem.

A metric of a set is the mean of these values over its problems, all of which have the same number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bapo_lightning.evaluation.functional import avg_at_k, maj_at_k, pass_at_k
from bapo_lightning.types import ScoreStatus


@dataclass(frozen=True, slots=True)
class SampleOutcome:
    """Facts about a sample that the metrics need."""

    status: ScoreStatus
    answer: str  # its vote in maj@k; empty: none
    num_tokens: int
    is_cut: bool  # at the token limit

    @property
    def is_correct(self) -> bool:
        """Whether the verifier accepted it."""
        return self.status is ScoreStatus.CORRECT

    @property
    def is_unnamed(self) -> bool:
        """Whether its reward gave a verdict but not the answer that it read, so that it cannot vote."""
        return self.status in (ScoreStatus.CORRECT, ScoreStatus.WRONG) and not self.answer


Outcomes = Sequence[SampleOutcome]  # the samples of one problem


def pass_sizes(k: int) -> list[int]:
    """Returns the j of every pass@j that is reported of k samples: powers of two, and k itself."""
    return sorted({k, *(1 << power for power in range(1, k.bit_length()))})


def average(samples: Outcomes) -> float:
    """Returns avg@k of a problem with k samples."""
    return avg_at_k([sample.is_correct for sample in samples])


def passed(samples: Outcomes, k: int) -> float:
    """Returns the unbiased pass@k of a problem with at least k samples."""
    return pass_at_k(len(samples), sum(sample.is_correct for sample in samples), k)


def majority(samples: Outcomes) -> float:
    """Returns maj@k of a problem with k samples; NaN if the reward does not name the answers."""
    if any(sample.is_unnamed for sample in samples):
        return math.nan
    return maj_at_k([sample.answer for sample in samples], [sample.is_correct for sample in samples])


def metric_functions(k: int) -> dict[str, Callable[[Outcomes], float]]:
    """Returns every metric of a problem with k samples, by name.

    All are shares but `response_length`, which is in tokens.
    """

    def mean(count: Callable[[SampleOutcome], int]) -> Callable[[Outcomes], float]:
        return lambda samples: sum(map(count, samples)) / len(samples)

    return {
        f"avg@{k}": average,
        **{f"pass@{size}": partial(passed, k=size) for size in pass_sizes(k)},
        f"maj@{k}": majority,
        "response_length": mean(lambda sample: sample.num_tokens),
        "cut_fraction": mean(lambda sample: sample.is_cut),
        "unparsable_fraction": mean(lambda sample: sample.status is ScoreStatus.UNPARSABLE),
        "timeout_fraction": mean(lambda sample: sample.status is ScoreStatus.TIMEOUT),
        "failed_fraction": mean(lambda sample: sample.status is ScoreStatus.FAILED),
    }


def problem_values(samples: Outcomes) -> dict[str, float]:
    """Returns every metric of one problem; NaN where one is undefined."""
    return {name: value(samples) for name, value in metric_functions(len(samples)).items()}
