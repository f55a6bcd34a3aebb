"""Exports the policy during training, as a Hugging Face model folder."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from lightning import Callback, LightningModule, Trainer

from bapo_lightning.callbacks.order import Order
from bapo_lightning.callbacks.validation import measured_now
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.rollout.engine import Wanted
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import say
from bapo_lightning.system.run_folder.checkpoint import checkpoint_name, prune
from bapo_lightning.system.run_folder.config_keys import value_of
from bapo_lightning.system.run_folder.record import read_config, read_manifest, read_rows
from bapo_lightning.system.values import Count, CountOrZero, Dtype
from bapo_lightning.tools.export.model_card import model_card
from bapo_lightning.tools.export.model_folder import rounding_problem, write_model_folder

EXPORTS = "exports"


@dataclass(eq=False, kw_only=True)
class ExportCallback(Callback):
    """Writes the policy below `exports/` of the run folder."""

    order: ClassVar[Order] = Order.EXPORT
    key: ClassVar[str]  # of the callback in conf/
    folder: str  # run folder
    dtype: Dtype | None = None  # of the exported weights; None: as trained

    def write(self, trainer: Trainer, policy: Policy, update: int, name: str) -> None:
        """Writes the policy after `update` updates to `exports/<name>/`. Every rank must call it."""
        if trainer.is_global_zero:
            self._write(policy, update, name)
        else:
            deque(policy.named_weights(), maxlen=0)  # all ranks take part in assembling shards
        trainer.strategy.barrier()

    def _write(self, policy: Policy, update: int, name: str) -> None:
        folder, config = Path(self.folder), read_config(Path(self.folder))
        dtype = self.dtype or value_of(config, "model.dtype")
        with phase("exporting weights", policy.num_weights):
            write_model_folder(
                folder / EXPORTS / name,
                model_path(value_of(config, "model.path")),
                policy.named_weights(Wanted(dtype=dtype, names="files", is_export=True)),
                model_card(config, read_manifest(folder), read_rows(folder), update, dtype),
                getattr(torch, dtype),
                overwrite=True,
            )
        if problem := rounding_problem(policy.update_kept, dtype):
            say(f"warning: {problem} (callbacks.{self.key}.dtype=float32)")


@dataclass(eq=False, kw_only=True)
class HfExport(ExportCallback):
    """Writes `exports/update000080/` every few updates and after the last; a resumed run replaces them."""

    key: ClassVar[str] = "hf_export"
    is_idle_at_zero: ClassVar[bool] = True  # not created with every=0
    every: CountOrZero  # updates between two exports; 0 never exports
    keep: Count | None = None  # newest exports that are kept; None: all

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Exports when it is time."""
        assert isinstance(pl_module, BapoModule)
        update = batch_idx + 1
        if not self.every or (update % self.every and update != trainer.num_training_batches):
            return
        self.write(trainer, pl_module.policy, update, checkpoint_name(update))
        if self.keep is not None and trainer.is_global_zero:
            prune(Path(self.folder, EXPORTS), self.keep)


@dataclass(eq=False, kw_only=True)
class BestExport(ExportCallback):
    """Writes `exports/best/` whenever a metric has its best value so far."""

    key: ClassVar[str] = "best_checkpoint"
    monitor: str  # metric
    mode: Literal["max", "min"] = "max"
    _best: float = field(default=-math.inf, init=False)  # the larger, the better

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Exports if this update measured a new best value, of the weights that training has now."""
        assert isinstance(pl_module, BapoModule)
        measured = outputs["metrics"][self.monitor] if self.monitor in measured_now(outputs) else math.nan
        value = trainer.strategy.broadcast(float(measured))  # other ranks measure less
        score = value if self.mode == "max" else -value
        if score > self._best:
            self._best = score
            self.write(trainer, pl_module.policy, batch_idx + 1, "best")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warns if the metric was never measured."""
        if self._best == -math.inf and trainer.is_global_zero:
            say(f"warning: no update measured {self.monitor}, so {EXPORTS}/best was not written")

    def state_dict(self) -> dict[str, Any]:
        """Returns the best value so far."""
        return {"best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from it."""
        self._best = state_dict["best"]
