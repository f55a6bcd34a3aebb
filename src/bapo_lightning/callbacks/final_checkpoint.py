"""The last weights of a run, however it ends."""

from __future__ import annotations

from pathlib import Path

import lightning as L


class FinalCheckpoint(L.Callback):
    """Writes `checkpoints/last.ckpt` when training ends or is stopped; Lightning's ModelCheckpoint saves only at its interval."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the run folder."""
        self.path = folder / "checkpoints" / "last.ckpt"

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save."""
        trainer.save_checkpoint(self.path)
