"""What advantages may know of a whole rollout batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RewardBatch:
    """P groups of G responses that enter training together."""

    rewards: Tensor  # [P, G]
    lengths: Tensor  # [P, G], tokens of each response
    advantages: Tensor  # [P, G], relative to the group: those of `algorithm.advantages`
    problems: tuple[str, ...]  # id of each group's problem


# batch -> advantages[P, G]; one that remembers has `state_dict` and `load_state_dict`
BatchAdvantages = Callable[[RewardBatch], Tensor]
