"""Sampled texts, for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import lightning as L

from bapo_lightning.callbacks.order import Order
from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.run_folder.journal import Journal
from bapo_lightning.types import Group
from bapo_lightning.values import Count


class RolloutWriter(L.Callback):
    """Appends whole groups to `rollouts.jsonl` every so many updates: problem, texts, scores, rewards,
    advantages, versions.
    """

    order: ClassVar[Order] = Order.WRITE

    def __init__(self, folder: str, every: Count, num_groups: Count) -> None:
        """
        Args:
            folder: run folder.
            every: updates between two writes.
            num_groups: groups written each time.
        """
        self._journal = Journal(Path(folder, "rollouts.jsonl"))
        self.every = every
        self.num_groups = num_groups

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: TrainBatch,
        batch_idx: int,
    ) -> None:
        """Write on every `every`-th update, the first included."""
        if batch_idx % self.every or not trainer.is_global_zero:
            return
        self._journal.append(
            {"step": batch_idx, **row}
            for group in (batch.global_batch or batch).groups[: self.num_groups]
            for row in group_rows(group)
        )


def group_rows(group: Group) -> list[dict[str, Any]]:
    """One flat row per sample."""
    return [
        {
            "problem": group.problem.id,
            "prompt": group.problem.prompt,
            "gold": group.problem.answer,
            "response": sample.text,
            "finish": sample.rollout.finish,
            "status": sample.score.status,
            "score": sample.score.value,
            "reward": sample.reward,
            "advantage": advantage,
            "num_tokens": sample.rollout.length,
            "versions": [segment.version for segment in sample.rollout.segments],
        }
        for sample, advantage in zip(group.samples, group.advantages, strict=True)
    ]
