"""The order in which groups enter training: as they become ready, or as they were started, within a window.

    window = 3:   [taken] [running] [ready] [ready] | [ready]
                           oldest    may     may       must wait until the oldest has entered

This is the windowed FIFO of MiniMax (arXiv 2605.26494, section 6.2.4) and TitanRL. The window begins at the
oldest group that has not entered training, whatever has entered around it, so that at most `window` - 1 later
ones enter before a given group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bapo_lightning.data.rollouts.group_state import ProblemOfId
from bapo_lightning.types import Group, WorkItem


@dataclass(eq=False)
class StartOrder:
    """Work items in the order of their start, from the oldest on that is running or ready."""

    window: int | None  # of items, counted from the oldest; None: groups enter as they become ready
    _items: deque[WorkItem] = field(default_factory=deque, init=False)

    def add(self, items: Iterable[WorkItem]) -> None:
        """Notes that items were started."""
        if self.window is not None:
            self._items.extend(items)

    def choose(self, ready: Sequence[Group], running: Iterable[WorkItem], count: int) -> list[Group]:
        """The next groups, at most `count`, that may enter training.

        Args:
            ready: scored groups, in the order in which they became ready.
            running: items on their way.
            count: groups wanted.
        """
        if self.window is None:
            return list(ready[:count])
        waiting = {group.item: group for group in ready}
        present = {*waiting, *running}
        while self._items and self._items[0] not in present:
            self._items.popleft()
        order = deque(self._items)
        chosen: list[Group] = []
        while len(chosen) < count:
            while order and order[0] not in present:
                order.popleft()
            item = next((item for item in islice(order, self.window) if item in waiting), None)
            if item is None:
                break
            chosen.append(waiting.pop(item))
            present.discard(item)
        return chosen

    def state_dict(self) -> list[list[Any]]:
        """The items, as primitives."""
        return [[item.problem.id, item.epoch] for item in self._items]

    def load_state_dict(self, state: list[list[Any]], problem: ProblemOfId) -> None:
        """Restores a state. Raises DataError for an unknown problem."""
        self._items = deque(WorkItem(problem(name), epoch) for name, epoch in state)
