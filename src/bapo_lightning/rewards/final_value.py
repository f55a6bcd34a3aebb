"""Verdicts on responses of the tiny world: the number between the last `.` and the end of the response."""

from __future__ import annotations

import re

from bapo_lightning.rewards.scores import UNPARSABLE, all_or_nothing, pairs_of
from bapo_lightning.types import Completion, FinishReason, Problem, Score

_FINAL_VALUE = re.compile(r"\.(\d+)\Z")


def final_value(problems: list[Problem], completions: list[Completion]) -> list[Score]:
    """Scores each completion against the problem at the same index; 1.0 for the right number.

    A response that was cut (it has no end token) or that does not end in `.digits` is unparsable, value 0.0.
    """
    return [_verdict(problem, completion) for problem, completion in pairs_of(problems, completions)]


def _verdict(problem: Problem, completion: Completion) -> Score:
    match = _FINAL_VALUE.search(completion.text)
    if completion.finish is not FinishReason.STOP or match is None:
        return UNPARSABLE
    return all_or_nothing(match.group(1) == problem.answer, match.group(1))
