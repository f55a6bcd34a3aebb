"""Problems with their completions, and scores without partial credit."""

from __future__ import annotations

from bapo_lightning.types import Completion, Problem, Score, ScoreStatus

UNPARSABLE = Score(0.0, ScoreStatus.UNPARSABLE)


def pairs_of(problems: list[Problem], completions: list[Completion]) -> list[tuple[Problem, Completion]]:
    """Returns each completion with the problem at the same index.

    Raises:
        ValueError: the lists differ in length.
    """
    if len(problems) != len(completions):
        counts = f"{len(problems)} problems and {len(completions)} completions"
        raise ValueError(f"each completion needs its problem: got {counts}")
    return list(zip(problems, completions, strict=True))


def all_or_nothing(is_right: bool, answer: str) -> Score:
    """Returns 1.0, CORRECT, or 0.0, WRONG."""
    return Score(float(is_right), ScoreStatus.CORRECT if is_right else ScoreStatus.WRONG, answer)
