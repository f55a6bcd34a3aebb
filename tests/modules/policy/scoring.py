"""One pass of a policy over a batch, as an update makes it."""

import torch
from torch import Tensor

from bapo_lightning.data.batches.batch import TrainBatch
from bapo_lightning.modules.policy.policy import Policy


def scored(policy: Policy, batch: TrainBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of a batch, and by name the gradients of their weighted sum."""
    policy.zero_grad()
    found = []
    for micro_batch in batch.split(100_000, batch.response_mask / batch.num_tokens, policy.layout):
        logp, entropy = policy(micro_batch)
        assert logp.dtype == entropy.dtype == torch.float32
        (micro_batch.weight * micro_batch.advantage * logp).sum().backward()
        found.append(logp.detach())
    return torch.cat(found), {
        name: parameter.grad.clone()
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None
    }


def joined(gradients: dict[str, Tensor]) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients.values()])
