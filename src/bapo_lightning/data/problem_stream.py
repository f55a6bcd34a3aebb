"""An endless, shuffled stream of problems."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bapo_lightning.errors import DataError
from bapo_lightning.types import Draw, Problem


class ProblemStream:
    """Yields every problem once per epoch, in an order drawn anew for each epoch from the stream's own seed."""

    def __init__(self, problems: Sequence[Problem], seed: int, overlong: Sequence[Problem] = ()) -> None:
        """
        Args:
            problems: training set.
            seed: of the order.
            overlong: problems of the set that are never drawn, since their prompts are too long; kept for the ledger.

        Raises:
            DataError: there are no problems, or two share an id.
        """
        self.overlong = tuple(overlong)
        if not problems:
            raise DataError("the training set holds no problems")
        self._by_id = {problem.id: problem for problem in problems}
        if len(self._by_id) != len(problems):
            raise DataError(f"problem ids must be unique, got {len(problems)} problems with repeated ids")
        self._problems = list(problems)
        self._seed = seed
        self.go_to(epoch=0, position=0)

    @property
    def place(self) -> tuple[int, int]:
        """Epoch, and draws taken of it."""
        return self._epoch, self._position

    def go_to(self, epoch: int, position: int) -> None:
        """Go on as if so many draws of this epoch had been taken."""
        self._epoch, self._position = epoch, position
        self._order = self._epoch_order(epoch)

    def take(self, count: int) -> list[Draw]:
        """The next `count` problems; a new epoch begins whenever one is used up."""
        taken: list[Draw] = []
        while len(taken) < count:
            if self._position == len(self._order):
                self.go_to(self._epoch + 1, 0)
            taken.append(Draw(self._problems[self._order[self._position]], self._epoch))
            self._position += 1
        return taken

    def problem(self, problem_id: str) -> Problem:
        """The problem of this id. Raises DataError when the training set has none."""
        if problem_id not in self._by_id:
            raise DataError(f"a checkpoint holds rollouts of problem {problem_id!r}, which the training set does not have; was it changed?")
        return self._by_id[problem_id]

    def _epoch_order(self, epoch: int) -> list[int]:
        order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
