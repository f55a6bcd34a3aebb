"""avg@k, pass@k, maj@k and their companions for one problem with k samples.

A metric of a set is the mean of these values over its problems, all of which have the same number of samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

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
    def is_correct_and_finished(self) -> bool:
        """Whether it is correct and was not cut."""
        return self.is_correct and not self.is_cut


Outcomes = Sequence[SampleOutcome]  # the samples of one problem


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Returns the unbiased probability that at least one of k samples is correct: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al., arXiv 2107.03374, Eq. 1. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct must be in 0..num_samples ({num_samples}), got {num_correct}")
    if not 1 <= k <= num_samples:
        raise ValueError(f"k must be in 1..num_samples ({num_samples}), got {k}")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def maj_at_k(answers: Sequence[str], correct: Sequence[bool]) -> float:
    """Returns the correctness of the most frequent answer. Ties count as the mean of their answers.

    Samples without an answer (empty string) do not vote. An answer is correct if any of its samples was
    judged correct: verdicts on equal answers differ only if one of them timed out.

    Raises ValueError if the two sequences differ in length.
    """
    if len(answers) != len(correct):
        raise ValueError(
            f"maj@k needs one verdict per answer, got {len(answers)} answers and {len(correct)} verdicts"
        )
    votes = Counter(answer for answer in answers if answer)
    if not votes:
        return 0.0
    right = {answer for answer, is_correct in zip(answers, correct, strict=True) if is_correct}
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    return sum(answer in right for answer in winners) / len(winners)


def pass_sizes(k: int) -> list[int]:
    """Returns the j of every pass@j that is reported for k samples: powers of two, and k itself."""
    return sorted({k, *(1 << power for power in range(1, k.bit_length()))})


def average(samples: Outcomes) -> float:
    """Returns avg@k of a problem with k samples."""
    return sum(sample.is_correct for sample in samples) / len(samples)


def passed(samples: Outcomes, k: int) -> float:
    """Returns the unbiased pass@k of a problem with at least k samples."""
    return pass_at_k(len(samples), sum(sample.is_correct for sample in samples), k)


def majority(samples: Outcomes) -> float:
    """Returns maj@k of a problem with k samples; NaN if the reward does not name the answers."""
    judged = (ScoreStatus.CORRECT, ScoreStatus.WRONG)
    if any(sample.status in judged and not sample.answer for sample in samples):
        return math.nan
    return maj_at_k([sample.answer for sample in samples], [sample.is_correct for sample in samples])


def metric_functions(k: int) -> dict[str, Callable[[Outcomes], float]]:
    """Returns every metric of a problem with k samples, by name: shares, and `response_length` in tokens."""

    def mean(count: Callable[[SampleOutcome], int]) -> Callable[[Outcomes], float]:
        return lambda samples: sum(map(count, samples)) / len(samples)

    return {
        f"avg@{k}": average,
        **{f"pass@{size}": partial(passed, k=size) for size in pass_sizes(k)},
        f"maj@{k}": majority,
        "right_and_finished": mean(lambda sample: sample.is_correct_and_finished),
        "response_length": mean(lambda sample: sample.num_tokens),
        "cut_fraction": mean(lambda sample: sample.is_cut),
        "unparsable_fraction": mean(lambda sample: sample.status is ScoreStatus.UNPARSABLE),
        "timeout_fraction": mean(lambda sample: sample.status is ScoreStatus.TIMEOUT),
        "failed_fraction": mean(lambda sample: sample.status is ScoreStatus.FAILED),
    }


def problem_values(samples: Outcomes) -> dict[str, float]:
    """Returns every metric of one problem; NaN for undefined metrics."""
    return {name: value(samples) for name, value in metric_functions(len(samples)).items()}
