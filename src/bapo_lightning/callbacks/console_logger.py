"""One line on the console every so many updates, for output that is piped or read later."""

from __future__ import annotations

from typing import Any, ClassVar

import lightning as L

from bapo_lightning.callbacks.order import Order
from bapo_lightning.values import Count

COLUMNS = {
    "reward": ("train/reward", "{:.3f}"),
    "entropy": ("policy/entropy", "{:.3f}"),
    "positive share": ("bapo/positive_share", "{:.3f}"),
    "low": ("bapo/clip_low", "{:.2f}"),
    "high": ("bapo/clip_high", "{:.2f}"),
    "grad norm": ("train/grad_norm", "{:.2f}"),
    "age": ("staleness/age_mean", "{:.1f}"),
}


class ConsoleLogger(L.Callback):
    """Prints the numbers that tell whether training is healthy. Comes after `MetricsWriter`."""

    order: ClassVar[Order] = Order.WRITE

    def __init__(self, every: Count) -> None:
        """`every` in updates."""
        self.every = every

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print on every `every`-th update."""
        if (batch_idx + 1) % self.every or not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        parts = [
            f"{title} {form.format(float(metrics[name]))}"
            for title, (name, form) in COLUMNS.items()
            if name in metrics
        ]
        print(f"update {batch_idx + 1:>5}/{trainer.num_training_batches}  " + "  ".join(parts), flush=True)
