"""Verdicts on the game countdown: an expression that uses each given number once and makes the target."""

from __future__ import annotations

import re

from bapo_lightning.environments.calculator import NotComputable, value_of
from bapo_lightning.rewards.reasoning_gym_score import tagged_answer
from bapo_lightning.rewards.scores import UNPARSABLE, all_or_nothing, pairs_of
from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Completion, Problem, Score

# reasoning-gym's own scorer runs an answer as Python code, which text of the policy must not be.
_EXPRESSION = re.compile(r"(?!.*(?:\*\*|//))[\d\s()+*/-]+", re.DOTALL)


def countdown(problems: list[Problem], completions: list[Completion]) -> list[Score]:
    """Scores each completion against the problem at the same index; 1.0 if the expression in its last closed
    <answer></answer> uses exactly the given numbers, each once, and + - * / of it give the target exactly.
    A response without an expression of numbers, parentheses and these operations is unparsable, 0.0.

    Raises DataError: a problem is not from reasoning-gym's task countdown.
    """
    return [_verdict(problem, completion.text) for problem, completion in pairs_of(problems, completions)]


def _verdict(problem: Problem, text: str) -> Score:
    task = problem.metadata.get("metadata") or {}
    if not {"numbers", "target"} <= set(task):
        reason = f"problem {problem.id} has no numbers and no target, which reward=countdown needs"
        raise DataError(f"{reason}; write data=countdown, or choose another reward")
    answer = tagged_answer(text)
    if answer is None or not _EXPRESSION.fullmatch(answer):
        return UNPARSABLE
    try:
        value = value_of(answer)
    except NotComputable:
        return UNPARSABLE
    used = sorted(map(int, re.findall(r"\d+", answer)))
    is_right = value == task["target"] and used == sorted(task["numbers"])
    return all_or_nothing(is_right, "".join(answer.split()))
