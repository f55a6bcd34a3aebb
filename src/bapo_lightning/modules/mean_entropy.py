"""The entropy of the policy on a minibatch, apart from an update."""

from __future__ import annotations

import torch
from torch import Tensor

from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.modules.fsdp import reshard
from bapo_lightning.ranks.collectives import count_over_ranks, num_ranks, sum_over_ranks


@torch.no_grad()
def mean_entropy(module: BapoModule, batch: TrainBatch) -> Tensor:
    """Mean entropy in nats of the minibatch's tokens under the current weights, 0-dim. Every rank must call
    it, with its share.
    """
    micro_batches, num_own = module.micro_batches(batch)
    parts = [module.score(micro_batch).entropy for micro_batch in micro_batches][:num_own]
    reshard(module.policy)
    if num_ranks() == 1:
        return torch.cat(parts).mean()
    own = [part.double().sum() for part in parts] or [torch.zeros((), dtype=torch.float64)]
    (num_tokens,) = count_over_ranks(batch.num_tokens, device=torch.device("cpu"))
    return sum_over_ranks(torch.stack(own).sum()) / num_tokens
