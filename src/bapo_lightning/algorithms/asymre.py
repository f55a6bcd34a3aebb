"""AsymRE: a baseline below the mean reward, for data of another policy (arXiv 2506.20520)."""

from __future__ import annotations

from torch import Tensor

from bapo_lightning.objectives.advantages.group import check_group
from bapo_lightning.system.values import SignedFactor


def shifted_mean(rewards: Tensor, shift: SignedFactor = -0.1) -> Tensor:
    """Returns A = R - V within each group, [P, G], with V = mean + shift, slightly below the mean in the
    paper.

    If V is below the mean reward of the behaviour policy, right answers count more than wrong ones, and every
    update of a tabular policy improves it; at the mean and above, such a policy collapses. A group of equal
    rewards has the advantage -shift: a negative shift reinforces its answers, even wrong ones.

    Raises:
        ValueError: G is 1.
    """
    check_group(rewards, "its mean")
    return rewards - (rewards.mean(1, keepdim=True) + shift)
