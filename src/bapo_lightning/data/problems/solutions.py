"""Solutions in a problem's metadata: whole answers of an expert, or the texts from which hints are taken.

A solution is a text, or a list of texts, in a column that a table keeps (`mapping.keep`).
"""

from __future__ import annotations

from collections.abc import Iterable

from bapo_lightning.system.errors import DataError
from bapo_lightning.types import Problem


def solutions(problem: Problem, column: str) -> list[str]:
    """Returns the solutions in a column of the problem's metadata, without empty ones."""
    cell = problem.metadata.get(column)
    return [text for text in (cell if isinstance(cell, list) else [cell]) if isinstance(text, str) and text]


def require_solutions(problems: Iterable[Problem], column: str) -> None:
    """Raises DataError if no problem has a solution in the column."""
    if not any(solutions(problem, column) for problem in problems):
        raise DataError(
            f"column={column}: no training problem has a text in that column of its metadata; keep it, as in "
            f"data.train.mapping.keep=[{column}], or name another one"
        )
