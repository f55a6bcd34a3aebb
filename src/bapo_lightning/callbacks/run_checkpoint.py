"""Saves a run so that it can go on from there as if it had never stopped, and puts it back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol, cast

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from bapo_lightning.callbacks.checkpoint_folder import (
    JOURNALS,
    TRAINER_FILE,
    Checkpoint,
    commit,
    partial_folder,
    prune,
    rank_file,
    remove_leftovers,
    sync,
)
from bapo_lightning.errors import ConfigError
from bapo_lightning.random_states import random_states, set_random_states


class RankStateOwner(Protocol):
    """What a checkpoint needs of the data module."""

    def rank_state(self) -> dict[str, Any]:
        """Everything of this rank's data side, as primitives, lists, dicts and tensors; `summary` says in words what it holds."""
        ...

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Go on where `rank_state` was taken; called before the first batch."""
        ...


class RunCheckpoint(L.Callback):
    """Writes `checkpoints/update000080/` (see `checkpoint_folder`) every so many updates or minutes, and when training ends.

    Comes last: a checkpoint holds an update whole, with its rows in every journal and the states of all callbacks. It is taken in
    `on_train_batch_end`, from where Lightning's loops go on with the next batch; after `on_train_end` they would take the run for finished.
    """

    def __init__(self, folder: Path, every: int, minutes: float | None, keep: int, resumed: Checkpoint | None = None) -> None:
        """
        Args:
            folder: run folder.
            every: updates between two checkpoints.
            minutes: of wall time after which one is made all the same; None: never.
            keep: newest checkpoints that are kept.
            resumed: what this run goes on from.
        """
        self._folder = folder
        self._root = folder / "checkpoints"
        self._every = every
        self._minutes = minutes
        self._keep = keep
        self._resumed = resumed
        self._last_save = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore what Lightning does not: the data side, and as the very last thing the random generators."""
        self._last_save = time.monotonic()
        if self._resumed is None:
            return
        if self._resumed.num_ranks != trainer.world_size:
            raise ConfigError([
                f"trainer.devices={trainer.world_size}: {self._resumed.path} was written by {self._resumed.num_ranks} ranks, each with a "
                f"part of the data; write trainer.devices={self._resumed.num_ranks}"
            ])  # fmt: skip
        state = torch.load(self._resumed.path / rank_file(trainer.global_rank), map_location="cpu", weights_only=True)
        _data_module(trainer).load_rank_state(state["data"])
        if trainer.is_global_zero:
            print(
                f"resumed {self._folder} at update {self._resumed.update} (policy version {self._resumed.version}): policy, optimizer, "
                f"schedule, {state['data']['summary']}, random states",
                flush=True,
            )
        set_random_states(state["random"])

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save when it is time."""
        # A signal or an alarm may have reached one rank only; all must stop, and save, at the same update.
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(trainer.should_stop, all=False)
        if self._is_due(trainer, batch_idx + 1):
            self._save(trainer, batch_idx + 1)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Let a run that is resumed be made longer."""
        # Else Lightning ends a run that is resumed to be made longer: it takes the last batch of the shorter one for the last.
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False

    def _is_due(self, trainer: L.Trainer, update: int) -> bool:
        if update % self._every == 0 or update == trainer.num_training_batches or trainer.should_stop:
            return True
        if self._minutes is None:
            return False
        return bool(trainer.strategy.broadcast(time.monotonic() - self._last_save >= 60 * self._minutes))  # clocks of ranks differ

    def _save(self, trainer: L.Trainer, update: int) -> None:
        partial = partial_folder(self._root, update)
        side = {"random": random_states(), "data": _data_module(trainer).rank_state()}
        if trainer.is_global_zero:
            remove_leftovers(self._root)
            partial.mkdir(parents=True)
        trainer.strategy.barrier()
        trainer.save_checkpoint(partial / TRAINER_FILE)
        torch.save(side, partial / rank_file(trainer.global_rank))
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            commit(self._root, update, trainer.global_step, trainer.world_size, self._journal_sizes())
            prune(self._root, self._keep)
        trainer.strategy.barrier()  # when this returns the checkpoint is there, whichever rank looks
        self._last_save = time.monotonic()

    def _journal_sizes(self) -> dict[str, int]:
        """Sizes on the disk: a checkpoint must never promise rows that a power failure takes."""
        paths = [self._folder / name for name in JOURNALS]
        for path in paths:
            if path.exists():
                sync(path)
        return {path.name: path.stat().st_size if path.exists() else 0 for path in paths}


class DirectCheckpointIO(TorchCheckpointIO):
    """Writes straight into the file. Lightning's own builds the whole checkpoint in memory first and moves it through the system's folder
    for temporary files; a folder that is renamed when it is complete needs neither.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Save."""
        torch.save(checkpoint, path)


def _data_module(trainer: L.Trainer) -> RankStateOwner:
    return cast(RankStateOwner, trainer.datamodule)  # type: ignore[attr-defined]
