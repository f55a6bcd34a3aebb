"""The share of each rank in a minibatch, and the blank one of a rank with less work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.data.batches.micro_batches import balanced_parts


def split_over_ranks(batch: TrainBatch, num_ranks: int) -> list[TrainBatch]:
    """Returns the share of every rank: a batch without groups and metrics, maybe without any sample. Sums
    over the shares are sums over the minibatch, whatever the number of ranks.
    """
    return [_share(batch, rows) for rows in balanced_parts(batch.lengths, num_ranks)]


def _share(batch: TrainBatch, rows: list[int]) -> TrainBatch:
    """Selects samples of a batch, with tensors cut to the longest of them."""
    lengths, picked = batch.lengths, torch.tensor(rows, dtype=torch.long)
    names = (
        *("context_lengths", "response_lengths", "skipped", "prompts", "prompt_lengths"),
        *("sequences", "group_numbers", "origins"),
        *(name for name in ("step_counts", "gaps") if getattr(batch, name)),
    )
    numbers: dict[str, Any] = {name: tuple(getattr(batch, name)[row] for row in rows) for name in names}
    width = max((lengths[row] for row in rows), default=0)
    grids = ["input_ids", "response_mask", "behaviour_logp", "proximal_logp", "version"]
    grids += [name for name in ("step", "step_advantage") if getattr(batch, name) is not None]
    return replace(
        batch,
        **{name: getattr(batch, name)[picked, :width] for name in grids},
        advantage=batch.advantage[picked],
        factor=batch.factor[picked],
        **numbers,
        groups=(),
        entry_version=0,
        scores={name: grid[picked, :width] for name, grid in batch.scores.items()},
        metrics={},
    )


def blank_batch(like: TrainBatch) -> TrainBatch:
    """Makes a batch of one sample that adds nothing to any sum, with the device and the scores of another. A
    rank with less work passes it through the model while others have more, because all ranks gather sharded
    weights and sum gradients together.
    """
    device = like.input_ids.device
    zeros = torch.zeros(1, 2, device=device)
    return TrainBatch(
        input_ids=zeros.long(),
        response_mask=torch.tensor([[False, True]], device=device),
        behaviour_logp=zeros,
        proximal_logp=zeros,
        version=zeros.long(),
        advantage=zeros[0, :1],
        context_lengths=(1,),
        response_lengths=(1,),
        skipped=(0,),
        prompts=(0,),
        prompt_lengths=(1,),
        sequences=(0,),
        group_numbers=(0,),
        origins=(0,),
        factor=zeros[0, :1],
        groups=(),
        entry_version=0,
        scores=dict.fromkeys(like.scores, zeros),
        metrics={},
    )
