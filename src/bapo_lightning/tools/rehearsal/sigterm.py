"""Stops a rehearsed run after its first update, however short its updates are."""

from __future__ import annotations

import signal
from typing import Any

from lightning import Callback, LightningModule, Trainer


class SigtermAfterFirst(Callback):
    """Sends each rank a SIGTERM after the first update; one from outside may come after the last one."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Sends the signal."""
        if batch_idx == 0:
            signal.raise_signal(signal.SIGTERM)
