"""Held-out accuracy during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import lightning as L

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.rollouts.validation import ValidationSet
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.values import CountOrZero


class Validation(L.Callback):
    """Emits `val/<set>/{avg@k, pass@k, maj@k, ...}` every so many updates and after the last one, with the
    weights after the update.

    Not Lightning's validation loop: this way the numbers stand in the record of the update they belong to.
    """

    order: ClassVar[Order] = Order.MEASURE

    def __init__(self, every: CountOrZero, validation_sets: Sequence[ValidationSet] = ()) -> None:
        """
        Args:
            every: updates between two validations; 0 never validates.
            validation_sets: given by the run.
        """
        self.every = every
        self.sets = validation_sets

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Give the engine the new weights and answer the sets."""
        if not self.every:
            return
        data_module = cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]
        done = batch_idx + 1
        if done % self.every == 0 or done == data_module.num_updates:
            if not trainer.is_global_zero:
                return cast(WorkerDataModule, data_module).assist_evaluation()
            with data_module.engine_for_evaluation():
                for validation_set in self.sets:
                    outputs["metrics"].update(validation_set.evaluate(data_module.sampler))
