"""A reward that takes the score of the environment that answered the policy."""

from __future__ import annotations

from bapo_lightning.rewards.scores import UNPARSABLE, pairs_of
from bapo_lightning.types import Completion, Problem, Score, ScoreStatus


def environment_score(
    problems: list[Problem], completions: list[Completion], correct_from: float = 1.0
) -> list[Score]:
    """Scores each conversation as its environment did; one without a score is unparsable, value 0.0.

    A conversation with at least the score `correct_from` counts as right. The problems are not read.
    """
    return [_score(completion, correct_from) for _, completion in pairs_of(problems, completions)]


def _score(completion: Completion, correct_from: float) -> Score:
    value = completion.replies[-1].score if completion.replies else None
    if value is None:
        return UNPARSABLE
    return Score(value, ScoreStatus.CORRECT if value >= correct_from else ScoreStatus.WRONG, completion.text)
