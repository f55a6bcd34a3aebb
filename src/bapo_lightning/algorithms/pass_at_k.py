"""Pass@k as the goal: rewards the best answer's lead over the second best (arXiv 2503.19595)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import check_group
from bapo_lightning.system.values import NonNegative


def best_minus_second(
    rewards: Tensor, scale: Literal["std", "none"] = "std", eps: NonNegative = 1e-6
) -> Tensor:
    """Returns A = best - second best for the best answer of each group, and 0 for the others, [P, G]; k is G.

    It gives the gradient of the expected best reward of G answers. With rewards of 0 and 1 only groups with
    exactly one right answer have an advantage. This is verl's `grpo_passk`. The scale "std" divides by the
    group's unbiased standard deviation + eps, as in verl; "none" does not. Exactly zero for a group of equal
    rewards.

    Raises:
        ValueError: the scale is unknown, or G is 1.
    """
    if scale not in ("std", "none"):
        raise ValueError(f"scale must be 'std' or 'none', got {scale!r}")
    check_group(rewards, "a second best")
    best, second = rewards.topk(2, dim=1).values.split(1, dim=1)
    gain = best - second
    if scale == "std":
        gain = gain / (rewards.std(1, keepdim=True) + eps)
    return torch.where((rewards == best) & (best > second), gain, 0.0)
