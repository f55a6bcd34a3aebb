"""Writes the metrics of each update to every logger, once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import lightning as L
import torch

from bapo_lightning.callbacks.monitors.monitor import Metrics
from bapo_lightning.callbacks.order import Order

SHOWN = {
    "reward": "train/reward",
    "entropy": "policy/entropy",
    "share": "bapo/positive_share",
    "high": "bapo/clip_high",
}


class MetricsWriter(L.Callback):
    """Writes what the monitors before it measured, reading all tensors in one transfer. Monitors do not use
    Lightning's `self.log`, whose bookkeeping runs per metric, because there are fifty metrics.

    It fills `trainer.callback_metrics`, so that Lightning's own callbacks can follow any metric. Comes after
    all monitors.
    """

    order: ClassVar[Order] = Order.WRITE

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reads all tensors together, drops what is undefined in this update, and writes. Every rank gets the
        values of rank 0, so that callbacks on all ranks decide alike.
        """
        values = trainer.strategy.broadcast(to_floats(outputs["metrics"]))
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=batch_idx)
        if trainer.progress_bar_callback is not None:
            shown = {short: values[name] for short, name in SHOWN.items() if name in values}
            pl_module.log_dict(shown, prog_bar=True, logger=False)


def to_floats(metrics: Mapping[str, float | torch.Tensor]) -> dict[str, float]:
    """Returns all finite metrics as Python numbers, tensors fetched in one transfer. A metric that is not
    finite is undefined in this update and left out.
    """
    tensors = {name: value for name, value in metrics.items() if isinstance(value, torch.Tensor)}
    fetched = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    numbers: Metrics = {**metrics, **dict(zip(tensors, fetched, strict=True))}
    return {name: value for name, value in sorted(numbers.items()) if math.isfinite(value)}  # type: ignore[misc]
