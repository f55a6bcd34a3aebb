"""REINFORCE++: whitens advantages over all tokens of a batch (arXiv 2501.03262)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import check_group
from bapo_lightning.objectives.advantages.reward_batch import RewardBatch
from bapo_lightning.system.values import Positive


def whitened(batch: RewardBatch, baseline: Literal["mean", "none"] = "none", eps: Positive = 1e-8) -> Tensor:
    """Returns A = (X - mean X) / sqrt(var X + eps), [P, G], with the mean and unbiased variance over the
    tokens of the batch, each of which has the X of its response.

    X is the reward (baseline "none": REINFORCE++, with discount 1 and without its KL penalty), or the reward
    minus its group's mean ("mean": REINFORCE++-baseline). Tokens are the unit, so that in either case groups
    of equal rewards have advantages. The same as verl's `reinforce_plus_plus` and
    `reinforce_plus_plus_baseline`. Exactly zero in a batch of equal rewards.

    Raises:
        ValueError: the baseline is unknown, or "mean" with G = 1.
    """
    if baseline not in ("mean", "none"):
        raise ValueError(f"baseline must be 'mean' or 'none', got {baseline!r}")
    values, lengths = batch.rewards.double(), batch.lengths.double()
    if baseline == "mean":
        check_group(batch.rewards, "its mean")
        values = values - values.mean(1, keepdim=True)
    tokens = lengths.sum()
    centred = values - (lengths * values).sum() / tokens
    variance = (lengths * centred.square()).sum() / (tokens - 1).clamp_min(1)
    advantages = centred / (variance + eps).sqrt()
    equal = (batch.rewards == batch.rewards[0, 0]).all()
    return torch.where(equal, 0.0, advantages).to(batch.rewards.dtype)
