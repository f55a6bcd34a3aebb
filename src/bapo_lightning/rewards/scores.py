"""Problems with their completions, and scores without partial credit."""

from __future__ import annotations

from typing import Any

from bapo_lightning.errors import RewardError
from bapo_lightning.types import Completion, Problem, Score, ScoreStatus

UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


def pairs_of(problems: list[Problem], completions: list[Completion]) -> list[tuple[Problem, Completion]]:
    """Returns each completion with the problem at the same index. Raises ValueError: the lists differ in
    length.
    """
    if len(problems) != len(completions):
        counts = f"{len(problems)} problems and {len(completions)} completions"
        raise ValueError(f"each completion needs its problem: got {counts}")
    return list(zip(problems, completions, strict=True))


def checked(scores: Any, count: int) -> list[Score]:
    """Returns what a reward returned for `count` completions; raises RewardError if those are no scores."""
    if not isinstance(scores, list) or len(scores) != count:
        what = f"{len(scores)} scores" if isinstance(scores, list) else f"a {type(scores).__name__}"
        raise RewardError(f"the reward returned {what} for {count} completions; return a list of scores")
    for index, score in enumerate(scores):
        if not isinstance(score, Score):
            raise RewardError(
                f"the reward returned {score!r} for completion {index}; return a bapo_lightning.types.Score, "
                "or write reward=functions for functions that return numbers"
            )
    return scores


def all_or_nothing(is_right: bool, answer: str) -> Score:
    """Returns 1.0, CORRECT, or 0.0, WRONG."""
    return Score(float(is_right), ScoreStatus.CORRECT if is_right else ScoreStatus.WRONG, answer)
