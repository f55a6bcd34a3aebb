"""Which replies of an environment a pass takes together, so that their conversations go on side by side.

Tokens follow from seeds and weights, their last bits from what shares a forward pass as well. With threads
that ask the environment, that depends on when replies come; so it is recorded, and can be followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from bapo_lightning.phases import phase
from bapo_lightning.types import Reply


@dataclass(eq=False)
class Rounds:
    """The rounds of one pass.

    Attributes:
        recorded: numbers of the requests that were answered in each round, to be followed; None: those whose
            replies are there.
    """

    recorded: Sequence[Sequence[int]] | None = None
    _taken: list[list[int]] = field(default_factory=list, init=False)
    _all_at_once: bool = field(default=True, init=False)

    @property
    def taken(self) -> list[list[int]]:
        """Value of `recorded` for a pass that follows this one; empty where every round took all."""
        return [] if self._all_at_once else self._taken

    def take(self, waiting: dict[int, Future[Reply]], patience: float) -> dict[int, Reply]:
        """Takes the replies of the next round out of `waiting`, in its order; one at least, if any is waited
        for.

        Args:
            waiting: replies on their way, by number of their request.
            patience: seconds after which those that are there go on without the others.
        """
        with phase("waiting for the environment"):
            numbers = (
                self._there(waiting, patience)
                if self.recorded is None
                else self._next(waiting, self.recorded)
            )
            replies = {number: waiting[number].result() for number in numbers}
        for number in numbers:
            del waiting[number]
        self._taken.append(numbers)
        self._all_at_once &= not waiting
        return replies

    def _there(self, waiting: dict[int, Future[Reply]], patience: float) -> list[int]:
        wait(waiting.values(), timeout=patience)
        if not any(future.done() for future in waiting.values()):
            wait(waiting.values(), return_when="FIRST_COMPLETED")
        return [number for number, future in waiting.items() if future.done()]

    def _next(self, waiting: dict[int, Future[Reply]], recorded: Sequence[Sequence[int]]) -> list[int]:
        """The recorded round; everything, where the content differs from the recorded one's and nothing of it
        is waited for.
        """
        place = len(self._taken)
        wanted = recorded[place] if place < len(recorded) else ()
        return [number for number in waiting if number in wanted] or list(waiting)
