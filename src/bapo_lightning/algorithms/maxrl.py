"""MaxRL: rewards relative to the share of right answers (arXiv 2602.02710)."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import check_group
from bapo_lightning.system.values import Positive


def maxrl(rewards: Tensor, eps: Positive = 1e-6) -> Tensor:
    """Returns A = (R - mean) / (mean + eps) within each group, [P, G], as SkyRL's `maxrl` does.

    With rewards of 0 and 1, a right answer counts more the rarer it is in its group, as in the gradient of
    the log-likelihood of being right. Rewards must not be negative. Exactly zero for a group of equal
    rewards.

    Raises:
        ValueError: G is 1.
    """
    check_group(rewards, "its mean")
    mean = rewards.mean(1, keepdim=True)
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return torch.where(equal, 0.0, (rewards - mean) / (mean + eps))
