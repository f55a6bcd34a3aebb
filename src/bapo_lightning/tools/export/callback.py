"""Exports the policy during training, as a Hugging Face model folder."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.order import Order
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import say
from bapo_lightning.system.run_folder.checkpoint import checkpoint_name, prune
from bapo_lightning.system.run_folder.config_keys import value_of
from bapo_lightning.system.run_folder.record import read_config, read_manifest, read_rows
from bapo_lightning.system.values import Count, CountOrZero
from bapo_lightning.tools.export.model_card import model_card
from bapo_lightning.tools.export.model_folder import rounding_problem, write_model_folder

EXPORTS = "exports"


@dataclass(eq=False)
class HfExport(Callback):
    """Writes `exports/update000080/` every so many updates, and after the last one. A resumed run replaces
    exports that it makes again.
    """

    order: ClassVar[Order] = Order.EXPORT
    is_idle_at_zero: ClassVar[bool] = True  # not created with every=0
    folder: str  # run folder
    every: CountOrZero  # updates between two exports; 0 never exports
    keep: Count | None = None  # newest exports that are kept; None: all
    # of the exported weights; None: as trained
    dtype: Literal["bfloat16", "float16", "float32"] | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Exports when it is time."""
        assert isinstance(pl_module, BapoModule)
        update = batch_idx + 1
        if not self.every or (update % self.every and update != trainer.num_training_batches):
            return
        if trainer.is_global_zero:
            self._write(pl_module.policy, update)
        else:
            deque(pl_module.policy.named_weights(), maxlen=0)  # all ranks take part in assembling shards
        trainer.strategy.barrier()

    def _write(self, policy: Policy, update: int) -> None:
        folder, config = Path(self.folder), read_config(Path(self.folder))
        dtype = self.dtype or value_of(config, "model.dtype")
        with phase("exporting weights", policy.num_weights):
            write_model_folder(
                folder / EXPORTS / checkpoint_name(update),
                model_path(value_of(config, "model.path")),
                policy.named_weights(Wanted(dtype=dtype, names="files", is_export=True)),
                model_card(config, read_manifest(folder), read_rows(folder), update, dtype),
                getattr(torch, dtype),
                overwrite=True,
            )
        if problem := rounding_problem(policy.update_kept, dtype):
            say(f"warning: {problem} (callbacks.hf_export.dtype=float32)")
        if self.keep is not None:
            prune(folder / EXPORTS, self.keep)
