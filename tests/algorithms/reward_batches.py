"""Rollout batches for advantages that need a whole one, and what such advantages that remember must do."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bapo_lightning.objectives.advantages.reward_batch import Remembers, RewardBatch


def batch(
    rewards: Any, lengths: Any = None, problems: Sequence[str] = (), is_new: Sequence[bool] = ()
) -> RewardBatch:
    """A batch of new groups, each of a problem of its own, and of answers of one token, unless given."""
    rewards = torch.as_tensor(rewards)
    lengths = torch.ones_like(rewards, dtype=torch.long) if lengths is None else torch.as_tensor(lengths)
    size = len(rewards)
    return RewardBatch(
        rewards, lengths, torch.zeros_like(rewards), tuple(problems or map(str, range(size))),
        tuple(is_new or [True] * size),
    )  # fmt: skip


def random_batch(seed: int = 0) -> RewardBatch:
    """Six groups of five rewards of 0 or 1, one of them all right, and lengths up to 19."""
    generator = np.random.default_rng(seed)
    rewards = generator.integers(0, 2, (6, 5)).astype(float)
    rewards[2] = 1
    return batch(torch.from_numpy(rewards), generator.integers(1, 20, (6, 5)))


def check_memory(make: Callable[[], Any], folder: Path) -> None:
    """Checks that a memory goes on where it was saved, and learns from new groups only."""
    whole, begun, resumed = make(), make(), make()
    assert isinstance(whole, Remembers)
    for advantages in (whole, begun):
        advantages(random_batch(0))
    torch.save(begun.state_dict(), folder / "state")
    resumed.load_state_dict(torch.load(folder / "state", weights_only=True))
    before = resumed.state_dict()
    again = batch(random_batch(3).rewards, is_new=[False] * 6)
    assert resumed(again).any() and resumed.state_dict() == before
    assert torch.equal(resumed(random_batch(1)), whole(random_batch(1)))
    assert resumed.state_dict() == whole.state_dict() != before
