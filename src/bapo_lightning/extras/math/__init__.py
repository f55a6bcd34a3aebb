"""Verdicts on mathematical answers: `MathReward` for a run, `score_answers` for texts."""

from __future__ import annotations

from functools import cache

from bapo_lightning.extras.math.reward import DEFAULT_TIMEOUT_SECONDS, MathReward
from bapo_lightning.types import Score

__all__ = ["MathReward", "score_answers"]


def score_answers(
    golds: list[str], answers: list[str], timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> list[Score]:
    """Scores each answer against the gold answer at the same index, as `MathReward(accept="any")` does.

    All calls of a process share one pool of workers, which lasts until the process ends.

    Args:
        golds: in the form of data sets: plain, in LaTeX, in dollars, in a box, or after `####`.
        answers: a bare answer, or a text that ends in one.
        timeout_seconds: for one answer.

    Raises:
        ValueError: the lists differ in length, or the timeout is not positive.
        RewardError: no worker can be started.
    """
    if len(golds) != len(answers):
        counts = f"{len(golds)} gold answers and {len(answers)} answers"
        raise ValueError(f"each answer needs its gold answer: got {counts}")
    if not timeout_seconds > 0:
        raise ValueError(f"timeout_seconds={timeout_seconds} leaves no time to judge; give a positive number")
    return _shared_reward().score_texts(golds, answers, timeout_seconds)


@cache
def _shared_reward() -> MathReward:
    return MathReward(accept="any")
