"""Scores of tokens when their batch entered training, beside those of `batch`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.batches.places import Place
from bapo_lightning.types import Sample


def entry_scores(
    samples: Sequence[Sample], shape: tuple[int, ...], skipped: Sequence[int], places: Sequence[Place]
) -> dict[str, Tensor]:
    """Returns the scores that all samples of a minibatch have, by name, each [B, T] float32, 0 elsewhere.

    Args:
        samples: one for each row of the minibatch.
        shape: (B, T).
        skipped: response tokens of each sample that are too old to be trained on.
        places: columns of each sample's trained tokens.
    """
    grids = {name: np.zeros(shape, np.float32) for name in samples[0].entry_scores}
    for name, grid in grids.items():
        for row, (sample, skip, place) in enumerate(zip(samples, skipped, places, strict=True)):
            grid[row, place] = sample.entry_scores[name][skip:]
    return {name: torch.from_numpy(grid) for name, grid in grids.items()}
