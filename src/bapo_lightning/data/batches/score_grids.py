"""Scores of tokens by other policies, beside those of `batch`: columns of the token table on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bapo_lightning.data.batches.places import Place
from bapo_lightning.types import Sample


def score_grids(
    samples: Sequence[Sample], shape: tuple[int, ...], skipped: Sequence[int], places: Sequence[Place]
) -> dict[str, Tensor]:
    """Returns the scores that the samples of a minibatch have, by column, each [B, T] float32, 0 elsewhere:
    those when the batch entered training, and log-probs by the weights that the run began with.

    Args:
        samples: one for each row of the minibatch.
        shape: (B, T).
        skipped: response tokens of each sample that are too old to be trained on.
        places: columns of each sample's trained tokens.
    """
    grids = {}
    for name in samples[0].scores:
        if name == "proximal_logp" or not all(name in sample.scores for sample in samples):
            continue
        grid = np.zeros(shape, np.float32)
        for row, (sample, skip, place) in enumerate(zip(samples, skipped, places, strict=True)):
            grid[row, place] = sample.scores[name][skip:]
        grids[name] = torch.from_numpy(grid)
    return grids
