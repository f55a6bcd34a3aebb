"""Parts of the trained module that the data side needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.rollout.weight_sync import ScoringWeightSource


class VersionedPolicyOwner(Protocol):
    """The part of the LightningModule that its data module needs."""

    policy: ScoringWeightSource
    micro_batch_tokens: int
    last_entropy: float | Tensor  # nats, mean over the tokens of the last update

    @property
    def policy_version(self) -> int:
        """Optimizer updates made so far."""
        ...


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
