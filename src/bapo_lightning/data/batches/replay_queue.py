"""Holds rollout batches between generation and training and serves each one E x M times."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from bapo_lightning.data.rollouts.group_state import ArrayStore, ProblemOfId, pack_group, unpack_group
from bapo_lightning.types import Group


class ReplayQueue:
    """A rollout batch goes in, its E epochs of M minibatches of whole groups come out, reshuffled for each
    epoch.

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
        """Queues all minibatches of a rollout batch. Raises ValueError unless it divides into `minibatches`
        equal parts.
        """
        size, remainder = divmod(len(groups), self._minibatches)
        if remainder or not size:
            raise ValueError(
                f"a rollout batch of {len(groups)} groups does not divide into {self._minibatches} "
                "minibatches"
            )
        for _ in range(self._epochs):
            # The single minibatch of a pass needs no shuffling: its sum does not depend on the order.
            order = list(groups) if self._minibatches == 1 else self._random.sample(list(groups), len(groups))
            self._pending.extend(order[first : first + size] for first in range(0, len(order), size))

    def take(self) -> list[Group]:
        """Returns the next minibatch. Raises IndexError when the queue is empty."""
        return self._pending.popleft()

    def state_dict(self, store: ArrayStore) -> dict[str, Any]:
        """Each pending group once, the minibatches as numbers of groups, and the shuffler's state."""
        groups = list({id(group): group for minibatch in self._pending for group in minibatch}.values())
        numbers = {id(group): index for index, group in enumerate(groups)}
        version, words, gauss = self._random.getstate()
        return {
            "groups": [pack_group(store, group) for group in groups],
            "pending": [[numbers[id(group)] for group in minibatch] for minibatch in self._pending],
            "random": [version, list(words), gauss],
        }

    def load_state_dict(self, state: dict[str, Any], store: ArrayStore, problem: ProblemOfId) -> None:
        """Restores a state."""
        groups = [unpack_group(store, packed, problem) for packed in state["groups"]]
        self._pending = deque([groups[index] for index in minibatch] for minibatch in state["pending"])
        version, words, gauss = state["random"]
        self._random.setstate((version, tuple(words), gauss))
