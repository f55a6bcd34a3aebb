"""Verdict on free text that ends in a number, as answers to GSM8K do."""

from __future__ import annotations

from bapo_lightning.errors import DataError
from bapo_lightning.rewards.numbers import canonical, first_number, same_number, whole_number_text
from bapo_lightning.rewards.numbers import last_number as last_number_text
from bapo_lightning.types import Completion, FinishReason, Problem, Score, ScoreStatus

MARK = "####"  # GSM8K's own
_BOX = "\\boxed{"


def last_number(
    problems: list[Problem], completions: list[Completion], require_stop: bool = False
) -> list[Score]:
    """Score each completion against the problem at the same place; 1.0 when its final number equals the gold
    answer, exactly.

    Args:
        problems: each with a number as its answer.
        completions: one per problem.
        require_stop: a response that was cut at the token limit is unparsable; else its final number counts
            all the same.

    Returns:
        CORRECT, WRONG, or UNPARSABLE where `final_number` finds none.

    Raises:
        DataError: a gold answer is not a number.
    """
    if len(problems) != len(completions):
        raise ValueError(
            f"each completion needs its problem: got {len(problems)} problems and {len(completions)} "
            "completions"
        )
    return [
        _verdict(problem, completion, require_stop)
        for problem, completion in zip(problems, completions, strict=True)
    ]


def final_number(text: str) -> str | None:
    r"""The number that a response settles on, in plain notation: the first that applies of

    1. the first number behind the last ####,
    2. the last number in the last closed \boxed{...},
    3. the last number of the text.
    """
    _, mark, behind = text.rpartition(MARK)
    return (mark and first_number(behind)) or last_number_text(_boxed(text)) or last_number_text(text)


def _verdict(problem: Problem, completion: Completion, require_stop: bool) -> Score:
    gold = whole_number_text(problem.answer)
    if gold is None:
        raise DataError(
            f"problem {problem.id} has the gold answer {problem.answer!r}, and reward=last_number needs a "
            "number; check the data"
        )
    answer = (
        None if require_stop and completion.finish is not FinishReason.STOP else final_number(completion.text)
    )
    if answer is None:
        return Score(0.0, ScoreStatus.UNPARSABLE)
    is_right = same_number(answer, gold)
    return Score(float(is_right), ScoreStatus.CORRECT if is_right else ScoreStatus.WRONG, canonical(answer))


def _boxed(text: str) -> str:
    """What the last box holds, up to the brace that closes it; empty without a closed box. LaTeX's 1{,}234
    becomes 1,234.
    """
    _, box, behind = text.rpartition(_BOX)
    if not box:
        return ""
    depth = 1
    for position, character in enumerate(behind):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return behind[:position].replace("{,}", ",")
    return ""
