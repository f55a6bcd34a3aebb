"""An endless, shuffled stream of problems."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bapo_lightning.errors import DataError
from bapo_lightning.types import Problem


class ProblemStream:
    """Yields every problem once per epoch, in an order drawn anew for each epoch from the stream's own seed."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        """Raises DataError when there are no problems or when two share an id."""
        if not problems:
            raise DataError("the training set holds no problems")
        if len({problem.id for problem in problems}) != len(problems):
            raise DataError(f"problem ids must be unique, got {len(problems)} problems with repeated ids")
        self._problems = list(problems)
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._epoch_order(0)

    def take(self, count: int) -> list[Problem]:
        """The next `count` problems; a new epoch begins whenever one is used up."""
        taken: list[Problem] = []
        while len(taken) < count:
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._epoch_order(self._epoch)
            taken.append(self._problems[self._order[self._position]])
            self._position += 1
        return taken

    def state(self) -> list[int]:
        """Epoch and position."""
        return [self._epoch, self._position]

    def load(self, state: list[int]) -> None:
        """Go on from `state`."""
        self._epoch, self._position = state
        self._order = self._epoch_order(self._epoch)

    def _epoch_order(self, epoch: int) -> list[int]:
        order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
