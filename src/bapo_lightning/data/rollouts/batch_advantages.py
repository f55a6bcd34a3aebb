"""Advantages that depend on the whole rollout batch, given when the batch enters training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from bapo_lightning.objectives.advantages.reward_batch import BatchAdvantages, RewardBatch
from bapo_lightning.types import Group


def with_batch_advantages(
    advantages: BatchAdvantages, groups: Sequence[Group], num_new: int, admits: Callable[[Group], bool]
) -> list[Group]:
    """Returns the groups of a rollout batch, equally large, with other advantages.

    Args:
        advantages: RewardBatch of the admitted groups -> their advantages.
        groups: groups of the batch.
        num_new: number of groups, the first ones, that enter training for the first time.
        admits: whether a group is trained on. Others fill up a batch, and keep advantages of zero.
    """
    admitted = [index for index, group in enumerate(groups) if admits(group)]
    if not admitted:
        return list(groups)
    chosen = [groups[index] for index in admitted]
    found = advantages(
        RewardBatch(
            rewards=torch.tensor([group.rewards for group in chosen], dtype=torch.float32),
            lengths=torch.tensor([[sample.rollout.length for sample in group.samples] for group in chosen]),
            advantages=torch.tensor([group.advantages for group in chosen], dtype=torch.float32),
            problems=tuple(group.problem.id for group in chosen),
            is_new=tuple(index < num_new for index in admitted),
        )
    ).tolist()
    rows = dict(zip(admitted, found, strict=True))
    return [
        replace(group, advantages=tuple(rows[index])) if index in rows else group
        for index, group in enumerate(groups)
    ]
