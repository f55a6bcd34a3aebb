"""Holds rollout batches between generation and training and serves each one E x M times."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from bapo_lightning.types import Group


class ReplayQueue:
    """A rollout batch goes in, its E epochs of M minibatches of whole groups come out, reshuffled for each epoch.

    It keeps order and versions, and never drops anything: what is put in is served exactly E times.
    """

    def __init__(self, epochs: int, minibatches: int, seed: int) -> None:
        self._epochs = epochs
        self._minibatches = minibatches
        self._random = random.Random(seed)
        self._pending: deque[list[Group]] = deque()

    def __len__(self) -> int:
        """Number of minibatches that can still be taken."""
        return len(self._pending)

    def put(self, groups: Sequence[Group]) -> None:
        """Queue all minibatches of a rollout batch. Raises ValueError unless it divides into `minibatches` equal parts."""
        size, remainder = divmod(len(groups), self._minibatches)
        if remainder or not size:
            raise ValueError(f"a rollout batch of {len(groups)} groups does not divide into {self._minibatches} minibatches")
        for _ in range(self._epochs):
            # The single minibatch of a pass needs no shuffling: its sum does not depend on the order.
            order = list(groups) if self._minibatches == 1 else self._random.sample(list(groups), len(groups))
            self._pending.extend(order[first : first + size] for first in range(0, len(order), size))

    def take(self) -> list[Group]:
        """The next minibatch. Raises IndexError when the queue is empty."""
        return self._pending.popleft()

    def state(self) -> tuple[Any, list[list[Group]]]:
        """Generator and pending minibatches."""
        return self._random.getstate(), list(self._pending)

    def load(self, state: tuple[Any, list[list[Group]]]) -> None:
        """Go on from `state`."""
        self._random.setstate(state[0])
        self._pending = deque(state[1])
