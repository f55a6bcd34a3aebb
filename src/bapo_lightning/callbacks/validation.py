"""Held-out accuracy during training, and stock callbacks that wait for a validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.rollouts.validation import ValidationSet
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.values import CountOrZero


@dataclass(eq=False)
class Validation(Callback):
    """Emits `val/<set>/{avg@k, pass@k, maj@k, ...}` every so many updates and after the last one, with the
    weights after the update.

    Not Lightning's validation loop: this way the numbers stand in the record of the update they belong to.
    """

    order: ClassVar[Order] = Order.MEASURE
    every: CountOrZero  # updates between two validations; 0 never validates
    validation_sets: Sequence[ValidationSet] = ()  # given by the run

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Gives the engine the new weights and answers the sets."""
        if not self.every:
            return
        data_module = cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]
        done = batch_idx + 1
        if done % self.every == 0 or done == data_module.num_updates:
            if not trainer.is_global_zero:
                return cast(WorkerDataModule, data_module).assist_evaluation()
            with data_module.engine_for_evaluation():
                for validation_set in self.validation_sets:
                    outputs["metrics"].update(validation_set.evaluate(data_module.sampler))


class StockHooks(Callback):
    """Lets Lightning's own callbacks follow a run that has neither epochs nor a validation loop: calls
    `on_validation_end` of every EarlyStopping and ModelCheckpoint after each update that measured the metric
    which it monitors: after every update for `train/reward`, after a validation for `val/...`.
    """

    order: ClassVar[Order] = Order.REACT

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls them."""
        measured = trainer.strategy.broadcast(sorted(outputs["metrics"]))  # other ranks measure less
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping | ModelCheckpoint) and callback.monitor in measured:
                callback.on_validation_end(trainer, pl_module)
