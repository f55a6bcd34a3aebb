"""Advantages that depend on the whole rollout batch, given when the batch enters training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bapo_lightning.objectives.reward_batch import BatchAdvantages, RewardBatch
from bapo_lightning.types import Group


def with_batch_advantages(advantages: BatchAdvantages, groups: Sequence[Group]) -> list[Group]:
    """Returns the groups of a rollout batch, equally large, with other advantages."""
    found = advantages(
        RewardBatch(
            rewards=torch.tensor([group.rewards for group in groups], dtype=torch.float32),
            lengths=torch.tensor([[sample.rollout.length for sample in group.samples] for group in groups]),
            advantages=torch.tensor([group.advantages for group in groups], dtype=torch.float32),
            problems=tuple(group.problem.id for group in groups),
        )
    )
    return [replace(group, advantages=tuple(row)) for group, row in zip(groups, found.tolist(), strict=True)]
