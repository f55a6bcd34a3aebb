"""A policy sharded over the ranks by FSDP2, and what several ranks change about gradients.

Units are the decoder layers; the root is the policy itself, because token scores take the output head's
weight outside of the model's own forward pass: embeddings, final norm and head (tied or not) are the root's.
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

from bapo_lightning.ranks.collectives import full_tensor, num_ranks


@dataclass(frozen=True)
class Sharding:
    """How a policy is sharded. Parameters, gradients and optimizer state stay as they are; only the
    computation is in `compute_dtype`.
    """

    compute_dtype: str = "bfloat16"
    reshard_after_forward: bool = (
        True  # False keeps a layer's weights from forward to backward: less traffic, more memory
    )
    cpu_offload: bool = False  # shards, gradients and optimizer state wait in the host's memory
    reduce_every_micro_batch: bool = (
        False  # True shards gradients after every micro-batch: no rank ever holds all of them
    )

    def shard(self, policy: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh) -> None:
        """Shard `policy` in place over `mesh`, each of its `layers` as a unit. Gradients are reduced in
        float32.
        """
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
    """After a pass without a backward pass: let go of gathered weights, which an update would not reach."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to `max_norm` over all parameters of all ranks; returns the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(full_tensor(norm))


def gradient_sync(module: L.LightningModule, when: bool) -> AbstractContextManager[None]:
    """Context of a backward pass that sums gradients over ranks, or, with `when=False`, leaves that to a
    later one.
    """
    policy = module.policy
    if isinstance(policy, FSDPModule):
        return sharded_sync(policy, when or cast(Sharding, module.sharding).reduce_every_micro_batch)
    if num_ranks() > 1 and not when:
        return module.trainer.strategy.block_backward_sync()  # type: ignore[attr-defined]
    return nullcontext()


@contextmanager
def sharded_sync(policy: FSDPModule, when: bool) -> Iterator[None]:
    """`gradient_sync` of FSDP2, whose modules keep the setting for the passes to come."""
    policy.set_requires_gradient_sync(when)
    policy.set_is_last_backward(when)
    yield
