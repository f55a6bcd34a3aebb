"""OPO: a baseline weighted by length, for the least variance (arXiv 2505.23585)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import check_group
from bapo_lightning.objectives.advantages.reward_batch import RewardBatch


def length_weighted(batch: RewardBatch) -> Tensor:
    """Returns A_i = R_i - sum_j L_j R_j / sum_j L_j within each group, [P, G], where L are lengths.

    The paper trains exactly on-policy (`regime=on_policy`), without KL and entropy terms. verl's `opo` does
    the same. Exactly zero for a group of equal rewards.

    Raises:
        ValueError: G is 1.
    """
    rewards, lengths = batch.rewards, batch.lengths
    check_group(rewards, "a baseline")
    baseline = (lengths * rewards).sum(1, keepdim=True) / lengths.sum(1, keepdim=True)
    return torch.where((rewards == rewards[:, :1]).all(1, keepdim=True), 0.0, rewards - baseline)
