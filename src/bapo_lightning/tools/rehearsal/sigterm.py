"""Stops a rehearsed run after its first update, however short its updates are."""

from __future__ import annotations

import signal
from typing import Any

from lightning import Callback, LightningModule, Trainer


class SigtermAfterFirst(Callback):
    """Sends each rank a SIGTERM at the end of the first update, as a scheduler does.

    One from outside could come after the last update of a run of two.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Sends the signal."""
        if batch_idx == 0:
            signal.raise_signal(signal.SIGTERM)
