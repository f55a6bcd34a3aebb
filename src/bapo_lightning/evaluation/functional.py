"""avg@k, pass@k and maj@k of one problem. Callers take the mean over problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb


def avg_at_k(correct: Sequence[bool]) -> float:
    """Returns the mean correctness of k samples. Raises ValueError without samples."""
    if not correct:
        raise ValueError("avg@k needs at least one sample, got none")
    return sum(correct) / len(correct)


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
    judged correct: verdicts on equal answers differ only if one was not reached in time.

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
