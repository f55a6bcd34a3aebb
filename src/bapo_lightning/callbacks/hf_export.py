"""Exports the policy during training, as a Hugging Face model folder."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Literal

import lightning as L
import torch

from bapo_lightning.callbacks.order import Order
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.export.model_card import model_card
from bapo_lightning.modules.export.model_folder import write_model_folder
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.run_folder.checkpoint import checkpoint_name, list_checkpoints
from bapo_lightning.run_folder.record import read_config, read_manifest, read_rows
from bapo_lightning.values import Count, CountOrZero

EXPORTS = "exports"


class HfExport(L.Callback):
    """Writes `exports/update000080/` every so many updates, and after the last one. Comes after the metrics
    are written, which the card shows. An export that a resumed run makes again replaces the earlier one.
    """

    order: ClassVar[Order] = Order.EXPORT

    def __init__(
        self,
        folder: str,
        every: CountOrZero,
        keep: Count | None = None,
        dtype: Literal["bfloat16", "float16", "float32"] | None = None,
    ) -> None:
        """
        Args:
            folder: run folder.
            every: updates between two exports; 0 never exports.
            keep: newest exports that are kept; None: all.
            dtype: of the exported weights; None: as they are trained.
        """
        self._folder = Path(folder)
        self._every = every
        self._keep = keep
        self._dtype = dtype

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Export when it is time."""
        assert isinstance(pl_module, BapoModule)
        update = batch_idx + 1
        if not self._every or (update % self._every and update != trainer.num_training_batches):
            return
        if trainer.is_global_zero:
            self._write(pl_module.policy, update)
        else:
            deque(pl_module.policy.named_weights(), maxlen=0)  # shards are put together by all ranks
        trainer.strategy.barrier()

    def _write(self, policy: Policy, update: int) -> None:
        config = read_config(self._folder)
        dtype = self._dtype or config["model"]["dtype"]
        root = self._folder / EXPORTS
        write_model_folder(
            root / checkpoint_name(update),
            model_path(config["model"]["path"]),
            policy.named_weights(),
            model_card(config, read_manifest(self._folder), read_rows(self._folder), update, dtype),
            getattr(torch, dtype),
            overwrite=True,
        )
        for old in list_checkpoints(root)[self._keep :] if self._keep is not None else []:
            shutil.rmtree(old)
