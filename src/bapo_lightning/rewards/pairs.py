"""Problems and completions that belong together."""

from __future__ import annotations

from bapo_lightning.types import Completion, Problem


def pairs_of(problems: list[Problem], completions: list[Completion]) -> list[tuple[Problem, Completion]]:
    """Returns each completion with the problem at the same index.

    Raises:
        ValueError: the lists differ in length.
    """
    if len(problems) != len(completions):
        raise ValueError(
            f"each completion needs its problem: got {len(problems)} problems and {len(completions)} "
            "completions"
        )
    return list(zip(problems, completions, strict=True))
