"""Base of the callbacks that turn an optimizer update into metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.surrogate import clipped_mask
from bapo_lightning.objectives.token_table import NAMES, TokenTable, name_of

Metrics = dict[str, float | Tensor]  # 0-dim tensors are read together, by `in_numbers`


@dataclass(frozen=True)
class MonitoredUpdate:
    """Inputs and results of one `training_step`, as monitors see them."""

    index: int  # 0-based number of the update in the run
    version: int  # policy version before the step
    tokens: TokenTable  # tokens of the whole minibatch, scored before the step
    searches: Sequence[BoundSearch]  # one for the minibatch, or one per micro-batch
    batch: TrainBatch  # the whole minibatch
    module: BapoModule
    metrics: Mapping[str, float | Tensor]  # metrics of the step itself and of earlier monitors
    share: TrainBatch | None = None  # this rank's part of the minibatch

    @property
    def clipped(self) -> Tensor:
        """Mask of the tokens whose gradient the objective cuts off, [N] bool."""
        return clipped_mask(self.tokens.slope, self.tokens.advantage)


def in_numbers(metrics: Mapping[str, float | Tensor]) -> dict[str, float]:
    """All metrics as Python numbers; tensors are fetched in one transfer."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    fetched = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    return {**metrics, **dict(zip(tensors, fetched, strict=True))}


class Monitor(Callback, ABC):
    """Adds metrics of each update to the outputs of the step; `MetricsWriter` comes last and writes them."""

    order: ClassVar[Order] = Order.MEASURE
    needs: frozenset[str] = frozenset(NAMES)  # columns of the token table that `measure` reads

    @abstractmethod
    def measure(self, update: MonitoredUpdate) -> Metrics:
        """Metrics of one update."""

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Measures the update and adds its metrics."""
        assert isinstance(outputs, Mapping) and isinstance(pl_module, BapoModule)
        if outputs["tokens"] is None:
            return self.assist(pl_module, batch, batch_idx)
        update = MonitoredUpdate(
            index=batch_idx,
            version=outputs["version"],
            tokens=outputs["tokens"].only(self.needs, name_of(self)),
            searches=outputs["bounds"],
            batch=batch.global_batch or batch,
            module=pl_module,
            metrics=outputs["metrics"],
            share=batch,
        )
        outputs["metrics"].update(self.measure(update))

    def assist(self, module: BapoModule, share: TrainBatch, index: int) -> None:
        """Takes part, on a worker rank, in what `measure` computes over all ranks; nothing by default."""
