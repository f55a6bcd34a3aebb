"""Lets Lightning's own callbacks follow a run that has neither epochs nor a validation loop."""

from __future__ import annotations

from typing import Any, ClassVar

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from bapo_lightning.callbacks.order import Order


class StockHooks(L.Callback):
    """Calls `on_validation_end` of every EarlyStopping and ModelCheckpoint after each update that measured
    the metric which it monitors: after every update for `train/reward`, after a validation for `val/...`.
    """

    order: ClassVar[Order] = Order.REACT

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls them."""
        measured = trainer.strategy.broadcast(sorted(outputs["metrics"]))  # other ranks measure less
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping | ModelCheckpoint) and callback.monitor in measured:
                callback.on_validation_end(trainer, pl_module)
