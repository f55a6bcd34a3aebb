"""Verdicts by the scorers that come with reasoning-gym's data sets (pip extra `reasoning-gym`).

A scorer may give partial credit for a near miss: if 7 is right, chain_sum gives half of it for 17 and
-7, because both contain a 7. Such an answer is WRONG with the scorer's value, which is what training sees.
`rewards.last_number` judges numbers all or nothing.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from bapo_lightning.rewards.last_number import canonical, last_number_in, whole_number_text
from bapo_lightning.rewards.scores import UNPARSABLE, pairs_of
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.types import Completion, Problem, Score, ScoreStatus

Extraction = Literal["last_number", "answer_tag", "all"]
Scorer = Callable[[str, Mapping[str, Any]], Any]  # answer, entry of the data set -> value in [0, 1]

# Some scorers (spiral_matrix, countdown, ...) run the answer as Python code, directly or in sympy's parser.
_RUNS_THE_ANSWER = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(\s*(?!entry\b|metadata\b)")


def reasoning_gym() -> ModuleType:
    """Returns the library; raises DataError with the command that installs it if it is missing."""
    try:
        return import_module("reasoning_gym")
    except ImportError as error:
        raise DataError(
            f"reasoning-gym cannot be imported ({error}); "
            '.venv/bin/python -m pip install -e ".[reasoning-gym]"'
        ) from None


def reasoning_gym_score(
    problems: list[Problem], completions: list[Completion], extract: Extraction = "last_number"
) -> list[Score]:
    """Scores each completion against the problem at the same index with the scorer of the problem's data set.

    Args:
        problems: made by `data.problems.reasoning_gym`: `source` names the data set, `metadata` is its entry.
        completions: responses to the problems.
        extract: the part of a response that is its answer: its last number (as `rewards.last_number` reads
            it), the text of its last closed <answer>...</answer>, or all of it.

    Returns:
        The scorer's value, CORRECT only if it is 1. UNPARSABLE, 0.0, if there is no answer or the scorer
        fails on it.

    Raises:
        ConfigError: `extract` has none of these values, or passes free text to a scorer that would run it.
        DataError: reasoning-gym is missing, or a problem does not come from it.
    """
    if extract not in _EXTRACTIONS:
        values = ", ".join(_EXTRACTIONS)
        raise ConfigError([f"reward.extract={extract} is none of its values; write {values}"])
    return [
        _verdict(_scorer(problem, extract), problem, _EXTRACTIONS[extract](completion.text))
        for problem, completion in pairs_of(problems, completions)
    ]


def tagged_answer(text: str) -> str | None:
    """Returns the text of the last closed <answer>...</answer>, stripped; None if it is missing or empty."""
    before, _, _ = text.rpartition("</answer>")
    _, opened, behind = before.rpartition("<answer>")
    return (behind.partition("</answer>")[0].strip() or None) if opened else None


_EXTRACTIONS: dict[str, Callable[[str], str | None]] = {
    "last_number": last_number_in,
    "answer_tag": tagged_answer,
    "all": lambda text: text.strip() or None,
}


def _verdict(scorer: Scorer, problem: Problem, answer: str | None) -> Score:
    if answer is None:
        return UNPARSABLE
    try:
        value = float(scorer(answer, problem.metadata))
    except Exception:  # foreign code on text that the policy made up: if it raises, it cannot read it
        return UNPARSABLE
    if not math.isfinite(value):
        return UNPARSABLE
    number = whole_number_text(answer)
    vote = answer.strip() if number is None else canonical(number)
    return Score(value, ScoreStatus.CORRECT if value == 1.0 else ScoreStatus.WRONG, vote)


def _scorer(problem: Problem, extract: Extraction) -> Scorer:
    if "question" not in problem.metadata:
        raise DataError(
            f"problem {problem.id} does not come from reasoning-gym, so that reward=reasoning_gym has no "
            "scorer for it; choose another reward, e.g. reward=last_number"
        )
    scorer, runs_the_answer = _scorer_of(problem.source)
    if runs_the_answer and extract != "last_number":
        fault = (
            f"reward.extract={extract} passes text of the policy to the scorer of {problem.source}, which "
            "runs it as Python code; write reward.extract=last_number, or choose another task"
        )
        raise ConfigError([fault])
    return scorer


@cache
def _scorer_of(task: str) -> tuple[Scorer, bool]:
    """Returns a data set's scorer (made once: some load word lists), and whether it runs answers as code."""
    scorer = reasoning_gym().get_score_answer_fn(task)
    return scorer, _RUNS_THE_ANSWER.search(inspect.getsource(scorer)) is not None
