"""Lightning's source of minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bapo_lightning.data.batches.batch import TrainBatch


@dataclass(eq=False)
class RolloutLoader:
    """One pass over a run's updates. Has a length, so that Lightning does not fetch ahead, and is lazy, so
    that a batch is produced only after the update before it.
    """

    num_updates: int
    next_batch: Callable[[], TrainBatch]

    def __len__(self) -> int:
        """Updates of the whole run."""
        return self.num_updates

    def __iter__(self) -> Iterator[TrainBatch]:
        """Batches without end; `__len__` ends the epoch."""
        while True:
            yield self.next_batch()
