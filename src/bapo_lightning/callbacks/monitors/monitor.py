"""The base of every callback that turns an optimizer update into metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.token_table import TokenTable
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.surrogate import clipped_mask

Metrics = dict[str, float | Tensor]  # 0-dim tensors are read once, by `MetricsWriter`


@dataclass(frozen=True)
class Update:
    """What one `training_step` did, as monitors see it."""

    index: int  # 0-based number of the update in the run
    version: int  # policy version that was trained, before the step
    tokens: TokenTable  # of the whole minibatch, as scored before the step
    searches: Sequence[BoundSearch]  # one for the minibatch, or one per micro-batch
    batch: TrainBatch  # the whole minibatch
    module: BapoModule
    metrics: Mapping[str, float | Tensor]  # of the step itself and of the monitors before this one
    share: TrainBatch | None = None  # what this rank trained on, where that is not the whole minibatch

    @property
    def low(self) -> Tensor:
        """Lower bound, the mean over searches."""
        return torch.stack([search.low for search in self.searches]).mean()

    @property
    def high(self) -> Tensor:
        """Upper bound, the mean over searches."""
        return torch.stack([search.high for search in self.searches]).mean()

    @property
    def clipped(self) -> Tensor:
        """Which tokens' gradients the bounds cut off, [N] bool."""
        return clipped_mask(self.tokens.ratio, self.tokens.advantage, self.low, self.high)


class Monitor(L.Callback, ABC):
    """Adds metrics of each update to the step's outputs; `MetricsWriter`, which comes last, writes them."""

    order: ClassVar[Order] = Order.MEASURE

    @abstractmethod
    def measure(self, update: Update) -> Metrics:
        """Metrics of one update."""

    @torch.no_grad()
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: TrainBatch,
        batch_idx: int,
    ) -> None:
        """Measure and add."""
        assert isinstance(outputs, Mapping) and isinstance(pl_module, BapoModule)
        if outputs["tokens"] is None:
            return self.assist(pl_module, batch, batch_idx)
        whole = batch.global_batch or batch
        update = Update(
            batch_idx,
            outputs["version"],
            outputs["tokens"],
            outputs["bounds"],
            whole,
            pl_module,
            outputs["metrics"],
            batch,
        )
        outputs["metrics"].update(self.measure(update))

    def assist(self, module: BapoModule, share: TrainBatch, index: int) -> None:
        """On a rank that is not the leader: take part in what `measure` computes over all ranks; nothing
        unless it does.
        """
