"""Advantages of reward tables by loops, each from the formula of its paper; numpy only.

Shapes: P problems, G responses to each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gamma, sqrt

import numpy as np

Array = np.ndarray


def dr_grpo(rewards: Array) -> Array:
    """arXiv 2503.20783, Eq. 3: R - mean."""
    return np.array([[reward - row.mean() for reward in row] for row in rewards])


def rloo(rewards: Array) -> Array:
    """arXiv 2402.14740, Eq. 7: R minus the mean of the others."""
    return np.array([[row[i] - np.delete(row, i).mean() for i in range(len(row))] for row in rewards])


def pass_at_k(rewards: Array) -> Array:
    """arXiv 2503.19595 as in verl: best - second best to the best one, over the group's deviation."""
    found = np.zeros_like(rewards)
    for row, values in zip(found, rewards, strict=True):
        second, best = np.sort(values)[-2:]
        row[values.argmax()] = (best - second) / (values.std(ddof=1) + 1e-6)
    return found


def reinforce_pp(rewards: Array, lengths: Array, baseline: bool) -> Array:
    """arXiv 2501.03262: every token has its response's value; standardised over all tokens of the batch."""
    values = dr_grpo(rewards) if baseline else rewards
    tokens = np.concatenate([np.full(n, x) for x, n in zip(values.ravel(), lengths.ravel(), strict=True)])
    return (values - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)


def gdpo(parts: Array, weights: list[float]) -> Array:
    """arXiv 2601.05242 as in the authors' code for TRL: each reward by its group, the weighted sum by all."""
    summed = np.zeros(parts.shape[:2])
    for row, group in zip(summed, parts, strict=True):
        for weight, values in zip(weights, group.T, strict=True):
            row += weight * (values - values.mean()) / (values.std(ddof=1) + 1e-4)
    return (summed - summed.mean()) / (summed.std(ddof=1) + 1e-4)


def bnpo(rewards: Array) -> Array:
    """arXiv 2506.02864: (R - p) over the density of the Beta distribution that the batch's p suggest."""
    shares = rewards.mean(1)
    mean, variance = shares.mean(), shares.var(ddof=1)
    tightness = mean * (1 - mean) / variance - 1
    a, b = (max(1.0, 1 + tightness * x / 3) for x in (mean, 1 - mean))
    found = np.zeros_like(rewards)
    for row, values, p in zip(found, rewards, shares, strict=True):
        if np.ptp(values):
            density = p ** (a - 1) * (1 - p) ** (b - 1) * gamma(a + b) / gamma(a) / gamma(b)
            row[:] = (values - p) * min(1 / density, 1e6)
    return found


@dataclass
class Dcpo:
    """arXiv 2509.02333, of one problem: keeps all groups, and pools them anew at each visit."""

    groups: list[Array] = field(default_factory=list)

    def __call__(self, rewards: Array) -> Array:
        """The advantages of one more group, [G]."""
        self.groups.append(rewards)
        visits = len(self.groups)
        means = np.array([group.mean() for group in self.groups])
        # Law of total variance, with unbiased variances within groups and equal weights.
        variance = np.mean([group.var(ddof=1) for group in self.groups]) + means.var()

        def z(mean: float, variance: float) -> Array:
            return (rewards - mean) / sqrt(variance) if variance > 1e-12 else np.zeros_like(rewards)

        new, whole = z(rewards.mean(), rewards.var(ddof=1)), z(means.mean(), variance)
        one, other = whole / visits + (1 - 1 / visits) * new, new / visits + (1 - 1 / visits) * whole
        return np.where(np.abs(one) < np.abs(other), one, other)


def spo(past: list[list[float]], rewards: Array, keep: float = 0.875) -> Array:
    """arXiv 2509.13232: R minus the discounted share of right answers of each problem's past, oldest first,
    standardised over the batch.

    Args:
        past: rewards that each problem had.
        rewards: [P, G].
        keep: share of the past that is kept with each answer.
    """
    values = []
    for own in past:
        ages = keep ** np.arange(len(own))[::-1]
        start = 0.5 * keep ** len(own)
        values.append((start + (ages * own).sum()) / (2 * start + ages.sum()))
    gains = rewards - np.array(values)[:, None]
    return (gains - gains.mean()) / (gains.std(ddof=1) + 1e-8)
