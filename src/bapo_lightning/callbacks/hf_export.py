"""Exports the policy during training, as a Hugging Face model folder."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path
from typing import Any

import lightning as L
import torch

from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.export.model_card import model_card
from bapo_lightning.modules.export.model_folder import write_model_folder
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.run_folder.checkpoint import checkpoint_name, list_checkpoints
from bapo_lightning.run_folder.record import read_manifest, read_rows

EXPORTS = "exports"


class HfExport(L.Callback):
    """Writes `exports/update000080/` every so many updates, and after the last one. Comes after the metrics
    are written, which the card shows. An export that a resumed run makes again replaces the earlier one.
    """

    def __init__(
        self,
        folder: Path,
        model_path: str,
        config: dict[str, Any],
        every: int,
        keep: int | None,
        dtype: str | None,
    ) -> None:
        """
        Args:
            folder: run folder.
            model_path: of the model that is trained.
            config: resolved configuration of the run, for the card.
            every: updates between two exports.
            keep: newest exports that are kept; None: all.
            dtype: of the exported weights; None: as they are trained.
        """
        self._folder = folder
        self._model_path = model_path
        self._config = config
        self._every = every
        self._keep = keep
        self._dtype = dtype

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Export when it is time."""
        assert isinstance(pl_module, BapoModule)
        update = batch_idx + 1
        if update % self._every and update != trainer.num_training_batches:
            return
        if trainer.is_global_zero:
            self._write(pl_module.policy, update)
        else:
            deque(pl_module.policy.named_weights(), maxlen=0)  # shards are put together by all ranks
        trainer.strategy.barrier()

    def _write(self, policy: Policy, update: int) -> None:
        dtype = self._dtype or self._config["model"]["dtype"]
        root = self._folder / EXPORTS
        write_model_folder(
            root / checkpoint_name(update),
            self._model_path,
            policy.named_weights(),
            model_card(self._config, read_manifest(self._folder), read_rows(self._folder), update, dtype),
            getattr(torch, dtype),
            overwrite=True,
        )
        for old in list_checkpoints(root)[self._keep :] if self._keep is not None else []:
            shutil.rmtree(old)
