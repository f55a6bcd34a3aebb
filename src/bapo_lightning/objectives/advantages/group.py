"""Advantages relative to the other answers to the same problem: GRPO, Dr. GRPO and RLOO."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bapo_lightning.system.values import NonNegative

LEAST_DEVIATION = 1e-8  # a smaller deviation is rounding: such numbers count as equal


def group_advantages(
    rewards: Tensor,
    scale: Literal["std", "none"] = "std",
    baseline: Literal["mean", "leave_one_out"] = "mean",
    eps: NonNegative = 1e-6,
) -> Tensor:
    """Returns A = (R - baseline) / (std(R) + eps) within each group; std is unbiased, as in verl.

    GRPO (arXiv 2402.03300, section 4.1.2): std, mean. Dr. GRPO (arXiv 2503.20783, Eq. 3): none, mean. RLOO
    (arXiv 2402.14740, Eq. 7): none, leave_one_out. Published codes differ in eps (verl 1e-6, TRL 1e-4), and
    AReaL divides by the deviation of the whole batch.

    Args:
        rewards: [P, G], one row per problem.
        scale: "std" divides by the group's standard deviation, "none" does not (Dr. GRPO).
        baseline: "mean" of the group, or "leave_one_out": mean of the others (RLOO), which multiplies
            advantages by G / (G - 1).
        eps: added to the standard deviation.

    Returns:
        Advantages [P, G]; exactly zero for a group of equal rewards.

    Raises:
        ValueError: the scale or baseline is unknown, `rewards` is not [P, G], or G is 1 although spread or
            others are needed.
    """
    if scale not in ("std", "none"):
        raise ValueError(f"scale must be 'std' or 'none', got {scale!r}")
    if baseline not in ("mean", "leave_one_out"):
        raise ValueError(f"baseline must be 'mean' or 'leave_one_out', got {baseline!r}")
    if rewards.dim() != 2:
        raise ValueError(f"rewards must be [problems, group size], got shape {list(rewards.shape)}")
    group_size = rewards.shape[1]
    if group_size == 1 and (scale == "std" or baseline == "leave_one_out"):
        raise ValueError(
            f"a group of 1 has neither spread nor others (scale {scale!r}, baseline {baseline!r}): sample at "
            "least 2 answers per problem, or use scale 'none' with baseline 'mean'"
        )
    advantages = rewards - rewards.mean(1, keepdim=True)
    if baseline == "leave_one_out":
        advantages = advantages * (group_size / (group_size - 1))
    if scale == "std":
        advantages = advantages / (rewards.std(1, keepdim=True) + eps)
    # The mean of equal numbers can miss them by a rounding error, which the tiny deviation would blow up.
    return torch.where((rewards == rewards[:, :1]).all(1, keepdim=True), 0.0, advantages)


def check_group(rewards: Tensor, needed: str) -> None:
    """Raises ValueError for groups of 1, which have nothing to compare with.

    Args:
        rewards: [P, G].
        needed: missing part of such a group, for the error.
    """
    if rewards.shape[1] == 1:
        raise ValueError(
            f"a group of 1 has only itself to be compared with, not {needed}: sample at least 2 answers per "
            "problem"
        )
