"""What the samples of one problem came to, and the value of every metric for that problem.

A metric of a set is the mean of these values over its problems, each of which has the same number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bapo_lightning.evaluation.functional import maj_at_k, pass_at_k
from bapo_lightning.types import ScoreStatus


@dataclass(frozen=True, slots=True)
class SampleOutcome:
    """What evaluation needs to know of a sample."""

    status: ScoreStatus
    answer: str  # its vote in maj@k; empty: none
    num_tokens: int
    is_cut: bool  # at the token limit

    @property
    def is_correct(self) -> bool:
        """Whether the verifier said so."""
        return self.status is ScoreStatus.CORRECT

    @property
    def is_unnamed(self) -> bool:
        """Whether it was judged by a reward that does not say which answer it read: nothing can vote then."""
        return self.status in (ScoreStatus.CORRECT, ScoreStatus.WRONG) and not self.answer


Outcomes = Sequence[SampleOutcome]  # the samples of one problem


def sample_counts(k: int) -> dict[str, Callable[[SampleOutcome], int]]:
    """Name -> whole number per sample, of the metrics that are means over samples: shares, but for
    `response_length`, in tokens.
    """
    return {
        f"avg@{k}": lambda sample: sample.is_correct,
        "response_length": lambda sample: sample.num_tokens,
        "cut_fraction": lambda sample: sample.is_cut,
        "unparsable_fraction": lambda sample: sample.status is ScoreStatus.UNPARSABLE,
        "timeout_fraction": lambda sample: sample.status is ScoreStatus.TIMEOUT,
        "failed_fraction": lambda sample: sample.status is ScoreStatus.FAILED,
    }


def pass_sizes(k: int) -> list[int]:
    """The j of the pass@j that k samples are reported with: powers of two, and k itself."""
    return sorted({k, *(1 << power for power in range(1, k.bit_length()) if 1 << power <= k)})


def passed(samples: Outcomes, k: int) -> float:
    """pass@k, unbiased, of a problem with at least k samples."""
    return pass_at_k(len(samples), sum(sample.is_correct for sample in samples), k)


def majority(samples: Outcomes) -> float:
    """maj@k of a problem with k samples."""
    return maj_at_k([sample.answer for sample in samples], [sample.is_correct for sample in samples])


def problem_values(samples: Outcomes) -> dict[str, float]:
    """Every metric of one problem. All are shares but `response_length`, which is in tokens."""
    k = len(samples)
    means = {name: sum(map(count, samples)) / k for name, count in sample_counts(k).items()}
    passes = {f"pass@{size}": passed(samples, size) for size in pass_sizes(k)}
    return {f"avg@{k}": means.pop(f"avg@{k}"), **passes, f"maj@{k}": majority(samples), **means}
