"""Shards a policy over the ranks by FSDP2, and sums and clips gradients over ranks.

Units are the decoder layers. The root is the policy itself and holds embeddings, final norm and head (tied or
not), because token scores use the head's weight outside of the model's own forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import lightning as L
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from bapo_lightning.modules.policy.options import Dtype
from bapo_lightning.ranks.collectives import full_tensor, num_ranks


@dataclass(frozen=True)
class Sharding:
    """How a policy is sharded. Only passes compute in `compute_dtype`; parameters, gradients and optimizer
    state keep their precision.
    """

    compute_dtype: Dtype = "bfloat16"
    # False keeps a layer's weights from forward to backward pass: less traffic, more memory.
    reshard_after_forward: bool = True
    cpu_offload: bool = False  # shards, gradients and optimizer state stay in the host's memory
    # True shards gradients after every micro-batch, so that no rank ever holds all of them.
    reduce_every_micro_batch: bool = False

    def shard(self, policy: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh) -> None:
        """Shards `policy` in place over `mesh`, each layer as a unit. Gradients are reduced in float32."""
        options: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": self.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=getattr(torch, self.compute_dtype), reduce_dtype=torch.float32
            ),
            "offload_policy": CPUOffloadPolicy() if self.cpu_offload else OffloadPolicy(),
        }
        for layer in layers:
            fully_shard(layer, **options)
        fully_shard(policy, **options)


def reshard(module: nn.Module) -> None:
    """Frees gathered weights after a forward pass without a backward pass: an update would not reach them."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scales gradients down to `max_norm` over all parameters of all ranks. Returns the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(full_tensor(norm))


def gradient_sync(module: L.LightningModule, when: bool) -> AbstractContextManager[None]:
    """Returns a context for a backward pass that sums gradients over ranks, or with `when=False` leaves the
    sum to a later pass.
    """
    policy = module.policy
    if isinstance(policy, FSDPModule):
        return sharded_sync(policy, when or cast(Sharding, module.sharding).reduce_every_micro_batch)
    if num_ranks() > 1 and not when:
        return module.trainer.strategy.block_backward_sync()  # type: ignore[attr-defined]
    return nullcontext()


@contextmanager
def sharded_sync(policy: FSDPModule, when: bool) -> Iterator[None]:
    """`gradient_sync` for FSDP2, whose modules keep the setting for later passes."""
    policy.set_requires_gradient_sync(when)
    policy.set_is_last_backward(when)
    yield
