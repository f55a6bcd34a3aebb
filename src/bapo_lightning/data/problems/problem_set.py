"""A list of problems that remembers where it was read from and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bapo_lightning.types import Problem


class ProblemSet(list[Problem]):
    """Problems in the order of their table.

    Attributes:
        name: first part of the problems' ids.
        origin: where they were read from, e.g. "openai/gsm8k, split train".
        num_rows: rows of the table, before `limit`.
        left_out: number of rows that gave no problem, by reason.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        name: str,
        origin: str,
        num_rows: int,
        left_out: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(problems)
        self.name, self.origin, self.num_rows, self.left_out = name, origin, num_rows, dict(left_out or {})
