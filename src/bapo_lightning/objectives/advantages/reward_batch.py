"""Input of advantages that need a whole rollout batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class RewardBatch:
    """P groups of G responses that enter training together; groups not admitted have advantages of zero."""

    rewards: Tensor  # [P, G]
    lengths: Tensor  # [P, G], tokens of each response
    advantages: Tensor  # [P, G], relative to the group, by `algorithm.advantages`
    problems: tuple[str, ...]  # id of each group's problem
    is_new: tuple[bool, ...]  # of each group: false if it comes from the reuse buffer
    # [P, G, K], components of `rewards` if a reward is a sum: K single unweighted rewards, the last of which
    # is the addition of shaping.
    parts: Tensor | None = None

    @classmethod
    def example(cls, rewards: Tensor, advantages: Tensor) -> RewardBatch:
        """Two new groups of responses of one token, to try advantages on; both arguments [2, G]."""
        lengths = torch.ones_like(rewards, dtype=torch.long)
        return cls(rewards, lengths, advantages, ("right", "wrong"), (True, True))


# batch -> advantages[P, G]
BatchAdvantages = Callable[[RewardBatch], Tensor]


@runtime_checkable
class Remembers(Protocol):
    """Batch advantages with a memory, which checkpoints hold. The memory learns only from new groups."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the memory, in primitives and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it."""


def lone_advantages(
    advantages: Callable[[Tensor], Tensor], batch_advantages: BatchAdvantages | None = None
) -> Tensor:
    """Returns advantages [2, 1] of a right and a wrong answer, each the only one to its problem."""
    rewards = torch.tensor([[1.0], [0.0]])
    values = advantages(rewards)
    if batch_advantages is None:
        return values
    return batch_advantages(RewardBatch.example(rewards, values))
