"""Saves a run so that it can go on from there as if it had never stopped, and puts it back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar, cast

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.load import _load_distributed_checkpoint

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.random_states import random_states, set_random_states
from bapo_lightning.ranks.rank_group import RankGroup
from bapo_lightning.run_folder.checkpoint import (
    DATA_FILE,
    JOURNALS,
    TRAINER_FILE,
    Checkpoint,
    commit,
    partial_folder,
    prune,
    remove_leftovers,
    sync,
)
from bapo_lightning.values import Count, Positive


class RunCheckpoint(L.Callback):
    """Writes `checkpoints/update000080/` (see `checkpoint_folder`) every so many updates or minutes, and when
    training ends.

    Comes last: a checkpoint holds an update whole, with its rows in every journal and the states of all
    callbacks. It is taken in `on_train_batch_end`, from where Lightning's loops go on with the next batch;
    after `on_train_end` they would take the run for finished.
    """

    order: ClassVar[Order] = Order.SAVE

    def __init__(
        self,
        folder: str,
        every: Count,
        minutes: Positive | None,
        keep: Count,
        resumed: Checkpoint | None = None,
        ranks: RankGroup | None = None,
    ) -> None:
        """
        Args:
            folder: run folder.
            every: updates between two checkpoints.
            minutes: of wall time after which one is made all the same; None: never.
            keep: newest checkpoints that are kept.
            resumed: the checkpoint that the run goes on from, given by it.
            ranks: all ranks of the run, given by it.
        """
        self._folder = Path(folder)
        self._root = self._folder / "checkpoints"
        self._every = every
        self._minutes = minutes
        self._keep = keep
        self._resumed = resumed
        self._ranks = ranks
        self._last_save = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore what Lightning does not: the data side, which only the leader has, and as the very last
        thing the random generators.
        """
        self._last_save = time.monotonic()
        if self._resumed is None:
            return
        state = torch.load(self._resumed.path / DATA_FILE, map_location="cpu", weights_only=True)
        if trainer.is_global_zero:
            _data_module(trainer).load_resume_state(state["data"])
            print(
                f"resumed {self._folder} at update {self._resumed.update} (policy version "
                f"{self._resumed.version}): policy, optimizer, schedule, {state['data']['summary']}, random "
                "states",
                flush=True,
            )
        set_random_states(state["random"])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when it is time."""
        # A signal or an alarm may have reached one rank only; all must stop, and save, at the same update.
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(trainer.should_stop, all=False)
        if self._is_due(trainer, batch_idx + 1):
            self._save(trainer, batch_idx + 1)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let a run that is resumed be made longer."""
        # Else Lightning ends a run that is resumed to be made longer: it takes the last batch of the shorter
        # one for the last.
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False

    def _is_due(self, trainer: L.Trainer, update: int) -> bool:
        if update % self._every == 0 or update == trainer.num_training_batches or trainer.should_stop:
            return True
        if self._minutes is None:
            return False
        return bool(
            trainer.strategy.broadcast(time.monotonic() - self._last_save >= 60 * self._minutes)
        )  # clocks of ranks differ

    def _save(self, trainer: L.Trainer, update: int) -> None:
        partial = partial_folder(self._root, update)
        if trainer.is_global_zero:
            side = {"random": random_states(), "data": _data_module(trainer).resume_state()}
            remove_leftovers(self._root)
            partial.mkdir(parents=True)
            torch.save(side, partial / DATA_FILE)
        self._barrier(trainer)
        trainer.save_checkpoint(partial / TRAINER_FILE)
        self._barrier(trainer)
        if trainer.is_global_zero:
            commit(self._root, update, trainer.global_step, trainer.world_size, self._journal_sizes())
            prune(self._root, self._keep)
        self._barrier(trainer)  # when this returns the checkpoint is there, whichever rank looks
        self._last_save = time.monotonic()

    def _barrier(self, trainer: L.Trainer) -> None:
        """Wait for all ranks; without a limit within a run, because digests of many gigabytes take
        longer than a collective may.
        """
        trainer.strategy.barrier() if self._ranks is None else self._ranks.barrier()

    def _journal_sizes(self) -> dict[str, int]:
        """Sizes on the disk: a checkpoint must never promise rows that a power failure takes."""
        paths = [self._folder / name for name in JOURNALS]
        for path in paths:
            if path.exists():
                sync(path)
        return {path.name: path.stat().st_size if path.exists() else 0 for path in paths}


class DirectCheckpointIO(TorchCheckpointIO):
    """Writes straight into the file. Lightning's own builds the whole checkpoint in memory first and moves it
    through the system's folder for temporary files; a folder that is renamed when it is complete needs
    neither.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Save."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # of a stock ModelCheckpoint
        torch.save(checkpoint, path)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load; one that several ranks wrote in shards is put together in the host's memory. Its optimizer
        states go by weights' names.
        """
        if not Path(path).is_dir():
            loaded: dict[str, Any] = super().load_checkpoint(path, *args, **kwargs)
            return loaded
        checkpoint = _load_distributed_checkpoint(Path(path))
        count = sum(key.startswith("optimizer_") and key != "optimizer_states" for key in checkpoint)
        checkpoint["optimizer_states"] = [checkpoint.pop(f"optimizer_{index}") for index in range(count)]
        return checkpoint


def _data_module(trainer: L.Trainer) -> RolloutDataModule:
    return cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]
