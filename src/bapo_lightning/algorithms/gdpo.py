"""GDPO: several rewards, each normalised in its group before they are summed (arXiv 2601.05242)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import check_group
from bapo_lightning.objectives.advantages.reward_batch import RewardBatch
from bapo_lightning.system.values import Positive


def gdpo(batch: RewardBatch, weights: Sequence[float] | None = None, eps: Positive = 1e-4) -> Tensor:
    """Returns (S - mean S) / (std S + eps), [P, G], over the responses of the batch, where

    S = sum over rewards k of w_k (r_k - mean r_k) / (std r_k + eps), mean and std over the group

    If a sum of rewards is normalised afterwards, as in GRPO, groups whose rewards differ in kind get the same
    advantages. Deviations are unbiased, and a reward that does not apply counts as 0, as in the authors' code
    for TRL; their code for verl takes the last mean and std over tokens. The addition of shaping is one more
    reward, of weight 1. Exactly zero in a batch of equal rewards.

    Args:
        batch: groups with their `parts`; without parts, `rewards` is the only reward.
        weights: weights of the single rewards; None: 1 each.
        eps: added to every deviation.

    Raises:
        ValueError: the number of weights differs from the number of rewards, or G is 1.
    """
    check_group(batch.rewards, "its mean")
    one = torch.stack([batch.rewards, torch.zeros_like(batch.rewards)], -1)
    parts = (one if batch.parts is None else batch.parts).double()
    count = parts.shape[-1] - 1
    if weights is not None and len(weights) != count:
        raise ValueError(
            f"weights has {len(weights)} values for {count} rewards; write one for each function"
        )
    factors = parts.new_tensor([*(weights or [1.0] * count), 1.0])
    equal = (parts == parts[:, :1]).all(1, keepdim=True)
    centred = torch.where(equal, 0.0, parts - parts.mean(1, keepdim=True))
    summed = (factors * centred / (parts.std(1, keepdim=True) + eps)).sum(-1)
    if (summed == summed[0, 0]).all():
        return torch.zeros_like(batch.rewards)
    return ((summed - summed.mean()) / (summed.std() + eps)).to(batch.rewards.dtype)
