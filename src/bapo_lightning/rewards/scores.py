"""Problems with their completions, and scores without partial credit."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

from bapo_lightning.system.errors import FOREIGN, BapoLightningError, RewardError, in_words, pass_stops
from bapo_lightning.types import Completion, Problem, Score, ScoreStatus

Reward = Callable[[list[Problem], list[Completion]], list[Score]]
UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


def pairs_of(problems: list[Problem], completions: list[Completion]) -> list[tuple[Problem, Completion]]:
    """Returns each completion with the problem at its index. Raises ValueError for unequal lengths."""
    if len(problems) != len(completions):
        counts = f"{len(problems)} problems and {len(completions)} completions"
        raise ValueError(f"each completion needs its problem: got {counts}")
    return list(zip(problems, completions, strict=True))


def judged(reward: Reward, problems: list[Problem], completions: list[Completion]) -> list[Score]:
    """Returns a reward's score of each completion; a reward is not called without completions. Raises
    RewardError, which names the reward, if it fails or returns anything other than scores; errors of this
    package pass through unchanged.
    """
    if not pairs_of(problems, completions):
        return []
    # A reward may change its arguments; the run's problems stay unchanged.
    copies = [replace(one, metadata=deepcopy(one.metadata)) if one.metadata else one for one in problems]
    try:
        scores = reward(copies, completions)
    except BapoLightningError:
        raise
    except FOREIGN as error:
        pass_stops(error)
        raise RewardError(failure(f"reward {name_of(reward)}", error)) from error
    return checked(scores, len(completions), f"reward {name_of(reward)}")


def checked(scores: Any, count: int, name: str) -> list[Score]:
    """Returns what a reward returned for `count` completions; raises RewardError if those are not scores."""
    if not isinstance(scores, list) or len(scores) != count:
        what = f"{len(scores)} scores" if isinstance(scores, list) else f"a {type(scores).__name__}"
        raise RewardError(f"{name} returned {what} for {count} completions; return a list of scores")
    for index, score in enumerate(scores):
        if not isinstance(score, Score):
            raise RewardError(
                f"{name} returned {score!r} for completion {index}; return a bapo_lightning.types.Score, "
                "or write reward=functions for functions that return numbers"
            )
        is_number = isinstance(score.value, int | float) and math.isfinite(score.value)
        if not (is_number and isinstance(score.status, ScoreStatus) and isinstance(score.answer, str)):
            raise RewardError(
                f"{name} returned {score!r} for completion {index}; write a finite Python number, a "
                "ScoreStatus and a text into it"
            )
    return scores


def name_of(reward: Any) -> str:
    """The dotted name of a function, of the function in a partial, or of an object's class."""
    called = getattr(reward, "func", reward)
    return f"{called.__module__}.{getattr(called, '__qualname__', type(called).__qualname__)}"


def failure(name: str, error: BaseException) -> str:
    """Says what was raised, and in which line of the code that `name` calls."""
    frames = extract_tb(error.__traceback__)[1:]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{name} failed: {in_words(error)}{place}"


def all_or_nothing(is_right: bool, answer: str) -> Score:
    """Returns 1.0, CORRECT, or 0.0, WRONG."""
    return Score(float(is_right), ScoreStatus.CORRECT if is_right else ScoreStatus.WRONG, answer)
