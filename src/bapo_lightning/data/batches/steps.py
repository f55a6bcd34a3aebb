"""Steps of the samples of a minibatch as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bapo_lightning.data.batches.places import Place
from bapo_lightning.types import Group


def step_fields(
    groups: Sequence[Group], shape: tuple[int, ...], places: Sequence[Place], skipped: Sequence[int]
) -> dict[str, Any]:
    """Returns the fields of a `TrainBatch` that say what its steps are; none where no sample has steps.

    A sample without steps, beside others that have some, is one step with the advantage of its response.

    Args:
        groups: groups of the batch.
        shape: (B, T).
        places: columns of each sample's trained tokens.
        skipped: tokens of each response before its trained ones.
    """
    pairs = [pair for group in groups for pair in zip(group.samples, group.advantages, strict=True)]
    if all(sample.steps is None for sample, _ in pairs):
        return {}
    number, advantage, counts = np.zeros(shape, np.int64), np.zeros(shape, np.float32), []
    for row, ((sample, value), place, skip) in enumerate(zip(pairs, places, skipped, strict=True)):
        steps = sample.steps
        number[row, place] = 0 if steps is None else steps.numbers[skip:]
        advantage[row, place] = value if steps is None else steps.advantages[skip:]
        counts.append(1 if steps is None else len(set(steps.numbers[skip:])))
    return {
        "step": torch.from_numpy(number),
        "step_advantage": torch.from_numpy(advantage),
        "step_counts": tuple(counts),
    }
