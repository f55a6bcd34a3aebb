"""BNPO: advantages normalised by a Beta distribution of the problems' success (arXiv 2506.02864).

TRL and ms-swift use the name for something else, a token mean over a local batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.objectives.advantages.group import LEAST_DEVIATION, check_group
from bapo_lightning.objectives.advantages.reward_batch import RewardBatch
from bapo_lightning.system.values import Positive


def beta_normalised(
    batch: RewardBatch, lowest: float = 0.0, highest: float = 1.0, most: Positive = 1e6
) -> Tensor:
    """Returns A = (R - p) min(1 / f(p), most), [P, G], where p is the mean of a group's rewards and f the
    density of Beta(alpha, beta).

    With m and v, the mean and unbiased variance of p over the batch, and n = m (1 - m) / v - 1:
    alpha = max(1, 1 + n m / 3), beta = max(1, 1 + n (1 - m) / 3), as in the authors' code. There and here f
    is uniform for a batch of one group; if all p are equal except for rounding (1e-8), it is uniform here and
    NaN there.
    Rewards count as 0 at `lowest` and as 1 at `highest`. Exactly zero for a group of equal rewards.

    Raises:
        ValueError: G is 1, or `highest` is not above `lowest`.
    """
    if not highest > lowest:
        raise ValueError(f"highest must be above lowest, got {highest} and {lowest}")
    check_group(batch.rewards, "a share of right answers")
    rewards = (batch.rewards.double() - lowest) / (highest - lowest)
    share = rewards.mean(1, keepdim=True).clamp(0, 1)
    alpha, beta = torch.ones(2, dtype=torch.float64)
    if len(share) > 1 and (variance := float(share.var())) >= LEAST_DEVIATION**2:
        mean = share.mean()
        tightness = mean * (1 - mean) / variance - 1
        alpha = (1 + tightness * mean / 3).clamp_min(1)
        beta = (1 + tightness * (1 - mean) / 3).clamp_min(1)
    # Not Beta.log_prob: it is NaN at 0 and 1 for a parameter of 1, although the density is finite.
    log_norm = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    log_density = torch.xlogy(alpha - 1, share) + torch.xlogy(beta - 1, 1 - share) - log_norm
    advantages = (rewards - share) * (-log_density).exp().clamp_max(most)
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return torch.where(equal, 0.0, advantages).to(batch.rewards.dtype)
