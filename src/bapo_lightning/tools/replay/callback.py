"""Writes chosen updates of a run as files that `bapo-replay` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from bapo_lightning.callbacks.order import Order
from bapo_lightning.callbacks.writers import to_floats
from bapo_lightning.data.batches.batch import TrainBatch, split_over_ranks
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.bound_rules import searches_each_micro_batch
from bapo_lightning.objectives.token_table import NAMES, TokenTable
from bapo_lightning.system.printable import say
from bapo_lightning.system.ranks.collectives import num_ranks
from bapo_lightning.system.run_folder.record import read_config
from bapo_lightning.system.values import CountOrZero
from bapo_lightning.tools.replay.step import (
    ENTRY,
    GROUP,
    LENGTH,
    PART,
    REWARD,
    TOKENS,
    Step,
    leaves,
    write_step,
)

# Number that a replay computes as well -> metric of the run.
SHOWN = {
    "loss": "train/loss",
    "clip_low": "bapo/clip_low",
    "clip_high": "bapo/clip_high",
    "positive_share": "bapo/positive_share",
    "clip_fraction": "train/clip_fraction",
}


@dataclass(eq=False)
class Capture(Callback):
    """Writes `steps/<number>.safetensors` in the run folder."""

    order: ClassVar[Order] = Order.WRITE
    needs = frozenset[str]()  # none between its writes
    folder: str  # run folder
    updates: Sequence[CountOrZero]  # to write, by `step` in metrics.jsonl

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warns of updates that the run does not have."""
        count: int = trainer.datamodule.num_updates  # type: ignore[attr-defined]
        if trainer.is_global_zero and max(self.updates, default=count) >= count:
            setting = f"callbacks.capture.updates={[*self.updates]}"
            say(f"warning: {setting}: write numbers from 0 to {count - 1}, the updates of this run")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Requests all columns of an update to be written."""
        self.needs = frozenset(NAMES) if batch_idx in self.updates else frozenset()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        """Writes the update; the controller has the tokens of all ranks."""
        if batch_idx not in self.updates or outputs["tokens"] is None:
            return
        assert isinstance(pl_module, BapoModule)
        whole, plain = batch.global_batch or batch, read_config(Path(self.folder))["algorithm"]
        columns = step_columns(outputs["tokens"], whole)
        columns[PART] = micro_batch_numbers(pl_module, whole)
        if outputs["version"] == whole.entry_version:
            columns[ENTRY] = columns["logp"].clone()
        elif pl_module.correction is not None and pl_module.proximal is None:
            columns[ENTRY] = columns["proximal_logp"].clone()
        metrics = to_floats(outputs["metrics"])
        numbers = {name: metrics[metric] for name, metric in SHOWN.items() if metric in metrics}
        file = Path(self.folder, "steps", f"{batch_idx}.safetensors")
        try:
            write_step(file, Step(columns, plain["name"], leaves(plain), batch_idx, numbers))
        except ValueError as error:
            say(f"warning: update {batch_idx} was not captured: {error}")


def step_columns(tokens: TokenTable, batch: TrainBatch) -> dict[str, Tensor]:
    """Returns the columns of a step, without its cut and entry."""
    order = tokens.sequence.argsort(stable=True)
    known = {**tokens.columns, "advantages": tokens.advantage}
    columns = {name: known[name][order].cpu() for name in TOKENS if name in known}
    sequence = tokens.sequence[order].cpu()
    columns["correction"] *= batch.factor.cpu()[sequence]
    rewards = [sample.reward for group in batch.groups for sample in group.samples]
    columns[LENGTH] = sequence.bincount(minlength=batch.num_samples)
    if any(rollout.branch for rollout in batch.rollouts):  # rewards are of conversations, rows of branches
        return columns
    return columns | {GROUP: torch.tensor(batch.group_numbers), REWARD: torch.tensor(rewards)}


def micro_batch_numbers(module: BapoModule, batch: TrainBatch) -> Tensor:
    """Returns for each response of all ranks' minibatch the number of its micro-batch on its rank, [B]."""
    numbers = torch.zeros(batch.num_samples, dtype=torch.long)
    mixed, layout = searches_each_micro_batch(module.bound_rule), module.policy.layout
    for share in split_over_ranks(batch, num_ranks()) if num_ranks() > 1 else [batch]:
        parts = share.split(module.micro_batch_tokens, torch.zeros_like(share.behaviour_logp), layout, mixed)
        for number, part in enumerate(parts):
            numbers[part.sequence.cpu()] = number
    return numbers
