"""Loads the policy on rank 0 only and broadcasts it; other ranks start on the meta device.

Tensors are sent one at a time. Only the host of rank 0 ever holds the whole policy beside its own part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from bapo_lightning.modules.fsdp import Sharding
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.ranks.collectives import from_controller, num_ranks

MakePolicy = Callable[..., Policy]  # (on_meta=False) -> policy


def replicated_policy(make_policy: MakePolicy) -> Policy:
    """Returns the whole policy on every rank. Every rank must call it."""
    if num_ranks() == 1:
        return make_policy()
    if dist.get_rank() == 0:
        policy = source = make_policy()
    else:
        policy, source = _with_memory(make_policy(on_meta=True), "cpu"), None
    broadcast_state(policy, source)
    return policy


def sharded_policy(
    make_policy: MakePolicy, sharding: Sharding, mesh: DeviceMesh, is_mixed: bool = False
) -> Policy:
    """Returns this rank's shard of the policy, which computes in bfloat16 if `is_mixed`. Every rank must call
    it.
    """
    source = make_policy() if dist.get_rank() == 0 else None
    policy = make_policy(on_meta=True)
    sharding.shard(policy, decoder_layers(policy.model), mesh, is_mixed)
    _with_memory(policy, "cpu" if sharding.cpu_offload else mesh.device_type)
    broadcast_state(policy, source)
    return policy


def _with_memory(policy: Policy, device: str) -> Policy:
    policy.to_empty(device=device)
    policy.model.tie_weights()  # `to_empty` gave each tied name memory of its own
    return policy


@torch.no_grad()
def broadcast_state(policy: Policy, source: Policy | None) -> None:
    """Copies parameters and buffers, by name, from rank 0's `source` to `policy` on every rank.

    Args:
        policy: the whole policy, or this rank's shard of it.
        source: the whole policy on rank 0, which may be `policy` itself; None on other ranks.
    """
    loaded: dict[str, Tensor] = dict(source.named_parameters()) if source is not None else {}
    for name, parameter in policy.named_parameters():
        broadcast_parameter(parameter, loaded.get(name))
    buffers: dict[str, Any] = from_controller(
        {name: buffer.cpu() for name, buffer in source.named_buffers()} if source is not None else None
    )
    for name, buffer in policy.named_buffers():
        buffer.copy_(buffers[name])


def broadcast_parameter(parameter: Tensor, loaded: Tensor | None) -> None:
    """Copies rank 0's `loaded` to one tensor, or to this rank's part of it."""
    if not isinstance(parameter, DTensor):
        dist.broadcast(parameter, src=0)
        return
    mesh = parameter.device_mesh
    device = mesh.device_type
    full = (
        torch.empty(parameter.shape, dtype=parameter.dtype, device=device)  # there, or it would be uploaded
        if loaded is None
        else loaded.to(device)
    )
    parameter.to_local().copy_(distribute_tensor(full, mesh, parameter.placements).to_local())
