"""Which answers of a request are judged next, for how long, and what came of them.

Every answer first gets a short try, the shorter answers before the longer ones, so that quick answers seldom
wait behind slow ones. Those that need longer follow, each with its whole deadline, as long as the budget of
the request lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bapo_lightning.types import ScoreStatus

# Forty times what algebra takes on an honest answer. Less would be lost time: the first formula of a new kind
# takes half a second to read, and a worker that is killed has learnt nothing.
FIRST_TRY_SECONDS = 1.0


class Tries:
    """The answers of one request, by index.

    Args:
        lengths: of the answers.
        seconds: the deadline of one answer.
        budget_seconds: that all workers together may spend on tries that last longer than the first one may.
            What has not been decided when they have stays TIMEOUT.
    """

    def __init__(self, lengths: Sequence[int], seconds: float, budget_seconds: float) -> None:
        self.verdicts: list[tuple[str, str]] = [(ScoreStatus.TIMEOUT, "")] * len(lengths)
        self._seconds, self._first_seconds = seconds, min(seconds, FIRST_TRY_SECONDS)
        self._budget = budget_seconds
        self._first = deque(sorted(range(len(lengths)), key=lengths.__getitem__))
        self._second = deque[int]()

    def __bool__(self) -> bool:
        """Whether an answer waits for a worker and may have one."""
        return self._budget > 0 and bool(self._first or self._second)

    def take(self) -> tuple[int, float]:
        """Returns the next answer and the seconds that it has."""
        if self._first:
            return self._first.popleft(), self._first_seconds
        return self._second.popleft(), self._seconds

    def more_seconds(self, elapsed: float) -> float:
        """Returns how long a try may go on that has had its time: not at all if its worker has more to do."""
        if self._first or self._second:
            return 0.0
        return max(0.0, min(self._seconds, self._budget) - elapsed)

    def settle(self, index: int, verdict: tuple[str, str] | None, elapsed: float) -> None:
        """Records the end of a try: with a verdict, or at its deadline without one."""
        if verdict is not None:
            self.verdicts[index] = verdict
        elif elapsed < self._seconds:
            self._second.append(index)
        if elapsed >= self._first_seconds:
            self._budget -= elapsed
