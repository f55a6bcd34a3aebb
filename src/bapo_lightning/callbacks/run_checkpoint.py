"""Saves a run so that it can continue from there as if it had never stopped, and restores it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.load import _load_distributed_checkpoint

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.data_module import RolloutDataModule
from bapo_lightning.data.worker import WorkerDataModule
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.phases import phase
from bapo_lightning.system.printable import say
from bapo_lightning.system.random_states import random_states, set_random_states
from bapo_lightning.system.ranks.rank_group import ALONE, RankGroup
from bapo_lightning.system.run_folder.checkpoint import (
    DATA_FILE,
    JOURNALS,
    TRAINER_FILE,
    Checkpoint,
    Fingerprint,
    checkpoint_name,
    commit,
    fingerprints,
    partial_folder,
    prune,
    remove_leftovers,
    sync,
)
from bapo_lightning.system.run_folder.journal import JournalDigest
from bapo_lightning.system.run_folder.text_file import is_disk_full
from bapo_lightning.system.values import Count, Minutes


@dataclass(eq=False)
class RunCheckpoint(Callback):
    """Writes `checkpoints/update000080/` every so many updates or minutes, and when training ends.

    Comes last: a checkpoint holds a complete update, with its rows in every journal and the states of all
    callbacks. It is taken in `on_train_batch_end`, from where Lightning's loops continue with the next batch;
    after `on_train_end` they would take the run for finished.
    """

    order: ClassVar[Order] = Order.SAVE
    folder: str  # run folder
    every: Count  # updates between two checkpoints
    minutes: Minutes | None  # of wall time after which one is made in any case; None: never
    keep: Count  # newest checkpoints that are kept
    resumed: Checkpoint | None = None  # the checkpoint that the run continues from, set by the run
    ranks: RankGroup = ALONE  # all ranks of the run, set by the run
    run_id: str = ""  # of the run, set by the run
    _last_save: float = field(init=False, default=0.0)
    _reached: tuple[int, int] = field(init=False, default=(0, 0))  # last complete update, the trainer's step

    def __post_init__(self) -> None:
        self._journals = {name: JournalDigest(Path(self.folder, name)) for name in JOURNALS}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the data side, including the weights that engines held, and last the random generators."""
        self._last_save = time.monotonic()
        if self.resumed is None:
            return
        state = torch.load(self.resumed.path / DATA_FILE, map_location="cpu", weights_only=True)
        if trainer.is_global_zero:
            _data_module(trainer).load_resume_state(state["data"])
            where = f"at update {self.resumed.update} (policy version {self.resumed.version})"
            restored = f"policy, optimizer, schedule, {state['data']['summary']}, random states"
            say(f"resumed {self.folder} {where}: {restored}")
        else:
            cast(WorkerDataModule, trainer.datamodule).assist()  # type: ignore[attr-defined]
        set_random_states(state["random"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves when it is time."""
        # The request to stop may have reached only one rank; all must stop, and save, at the same update.
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(trainer.should_stop, all=False)
        self._reached = batch_idx + 1, trainer.global_step
        if self._is_due(trainer, batch_idx + 1):
            self._save(trainer, batch_idx + 1)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves the last update if no engine is left for the next one; impossible with several ranks."""
        update, step = self._reached
        path = Path(self.folder, "checkpoints", checkpoint_name(update))
        is_between = update and step == trainer.global_step and not path.exists()
        if isinstance(exception, EngineError) and is_between and trainer.world_size == 1:
            self._save(trainer, update)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Allows a resumed run to be longer than this one."""
        checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"] = False

    def _is_due(self, trainer: Trainer, update: int) -> bool:
        if update % self.every == 0 or update == trainer.num_training_batches or trainer.should_stop:
            return True
        if self.minutes is None:
            return False
        is_late = time.monotonic() - self._last_save >= 60 * self.minutes
        return bool(trainer.strategy.broadcast(is_late))  # clocks of ranks differ

    @phase("saving a checkpoint")
    def _save(self, trainer: Trainer, update: int) -> None:
        root = Path(self.folder, "checkpoints")
        partial = partial_folder(root, update)
        sizes: dict[str, int] = {}
        try:
            if trainer.is_global_zero:
                side = {"random": random_states(), "data": _data_module(trainer).resume_state()}
                sizes = side["data"].get("journals", {})
                remove_leftovers(root)
                partial.mkdir(parents=True)
                torch.save(side, partial / DATA_FILE)
            self.ranks.barrier()  # has no time limit: digests of many gigabytes take long
            trainer.save_checkpoint(partial / TRAINER_FILE)
        except Exception as error:
            if is_disk_full(error):  # room for the manifest, and the reason
                shutil.rmtree(partial, ignore_errors=True)
            raise
        files = self._all_fingerprints(trainer, partial)
        if trainer.is_global_zero:
            counts = update, trainer.global_step, trainer.world_size
            commit(root, *counts, self.run_id, self._journals_on_disk(sizes), files)
            prune(root, self.keep)
        self.ranks.barrier()  # after this the checkpoint is visible to every rank
        self._last_save = time.monotonic()

    def _all_fingerprints(self, trainer: Trainer, partial: Path) -> dict[str, Fingerprint]:
        """Each made by the rank that wrote the file: otherwise one rank would read all shards again."""
        written = fingerprints(partial, trainer.global_rank)
        everyones = [written] if self.ranks.control is None else self.ranks.control.all(written)
        return {name: each for files in everyones for name, each in files.items()}

    def _journals_on_disk(self, sizes: Mapping[str, int]) -> dict[str, Fingerprint]:
        """Sizes and digests of the journals on the disk: a checkpoint must not promise rows that a power
        failure can lose. `sizes`, in bytes, are those at the time of the state for journals that a thread
        may have written to since then; this thread writes the others.
        """
        for path in [Path(self.folder, name) for name in JOURNALS]:
            if path.exists():
                sync(path)
        return {name: journal.read_on(sizes.get(name)) for name, journal in self._journals.items()}


class DirectCheckpointIO(TorchCheckpointIO):
    """Writes straight into the file: the folder is renamed when it is complete, so that Lightning's copies in
    memory and in the system's temporary folder are not needed.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Saves."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # for a stock ModelCheckpoint
        torch.save(checkpoint, path)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads; shards are combined in the host's memory, optimizer states by names of weights."""
        if not Path(path).is_dir():
            return super().load_checkpoint(path, *args, **kwargs)
        checkpoint = _load_distributed_checkpoint(Path(path))
        count = sum(key.startswith("optimizer_") and key != "optimizer_states" for key in checkpoint)
        checkpoint["optimizer_states"] = [checkpoint.pop(f"optimizer_{index}") for index in range(count)]
        return checkpoint


def _data_module(trainer: Trainer) -> RolloutDataModule:
    return cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]
