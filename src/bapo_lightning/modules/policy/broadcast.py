"""A policy on every rank, read once: the leader loads it, the others begin without memory and are given what
they hold.

Tensors go out one at a time, so that no rank but the leader, and there the host alone, ever has the whole
policy besides its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from bapo_lightning.modules.fsdp.sharding import Sharding
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.ranks.collectives import from_controller, num_ranks

MakePolicy = Callable[..., Policy]  # (on_meta=False) -> policy


def replicated_policy(make_policy: MakePolicy) -> Policy:
    """The whole policy on every rank. Every rank must call it."""
    if num_ranks() == 1:
        return make_policy()
    leads = dist.get_rank() == 0
    policy = make_policy() if leads else _with_memory(make_policy(on_meta=True), "cpu")
    _fill(policy, policy if leads else None)
    return policy


def sharded_policy(make_policy: MakePolicy, sharding: Sharding, mesh: DeviceMesh) -> Policy:
    """This rank's shard of the policy. Every rank must call it."""
    loaded = make_policy() if dist.get_rank() == 0 else None
    policy = make_policy(on_meta=True)
    sharding.shard(policy, decoder_layers(policy.model), mesh)
    _with_memory(policy, "cpu" if sharding.cpu_offload else mesh.device_type)
    _fill(policy, loaded)
    return policy


def _with_memory(policy: Policy, device: str) -> Policy:
    policy.to_empty(device=device)
    policy.model.tie_weights()  # each of the tied names got memory of its own
    return policy


@torch.no_grad()
def _fill(policy: Policy, source: Policy | None) -> None:
    """Give every rank the parameters and buffers of the leader's `source`, by name."""
    loaded: dict[str, Tensor] = dict(source.named_parameters()) if source is not None else {}
    for name, parameter in policy.named_parameters():
        _spread(parameter, loaded.get(name))
    buffers: dict[str, Any] = from_controller(
        {name: buffer.cpu() for name, buffer in source.named_buffers()} if source is not None else None
    )
    for name, buffer in policy.named_buffers():
        buffer.copy_(buffers[name])


def _spread(parameter: Tensor, loaded: Tensor | None) -> None:
    """Fill one tensor, or this rank's part of it."""
    if not isinstance(parameter, DTensor):
        dist.broadcast(parameter, src=0)
        return
    mesh = parameter.device_mesh
    full = torch.empty(parameter.shape, dtype=parameter.dtype) if loaded is None else loaded
    parameter.to_local().copy_(
        distribute_tensor(full.to(mesh.device_type), mesh, parameter.placements).to_local()
    )
