"""Makes the policy that an objective needs: with gradients through its entropy, with a head for log Z, or
with a copy of its first weights to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from bapo_lightning.modules.fsdp import Sharding
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.modules.policy.lora import has_adapters
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.objectives.objective import Objective, needs_of
from bapo_lightning.system.ranks.collectives import from_controller, num_ranks

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
    """Returns this rank's shard of the policy. Every rank must call it."""
    source = make_policy() if dist.get_rank() == 0 else None
    policy = make_policy(on_meta=True)
    sharding.shard(policy, decoder_layers(policy.model), mesh, is_mixed)
    _with_memory(policy, "cpu" if sharding.cpu_offload else mesh.device_type)
    broadcast_state(policy, source)
    return policy


def _with_memory(policy: Policy, device: str) -> Policy:
    policy.to_empty(device=device)
    policy.model.tie_weights()  # `to_empty` gave each tied name separate memory
    return policy


@torch.no_grad()
def broadcast_state(policy: Policy, source: Policy | None) -> None:
    """Copies parameters and buffers, by name, from rank 0's `source`, the whole policy, to `policy` on every
    rank, which is whole or a shard. Tensors are sent one at a time: only the host of rank 0 ever holds the
    whole policy in addition to its own part.
    """
    loaded: dict[str, Tensor] = dict(source.named_parameters()) if source is not None else {}
    for name, parameter in policy.named_parameters():
        if isinstance(parameter, DTensor):
            _distribute(parameter, loaded.get(name))
        else:
            dist.broadcast(parameter, src=0)
    buffers: dict[str, Any] = from_controller(
        {name: buffer.cpu() for name, buffer in source.named_buffers()} if source is not None else None
    )
    for name, buffer in policy.named_buffers():
        buffer.copy_(buffers[name])


def _distribute(parameter: DTensor, loaded: Tensor | None) -> None:
    mesh = parameter.device_mesh
    if loaded is None:  # made on the device, so that it need not be uploaded
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=mesh.device_type)
    else:
        full = loaded.to(mesh.device_type)
    parameter.to_local().copy_(distribute_tensor(full, mesh, parameter.placements).to_local())


def policy_for(
    objective: Objective,
    make_policy: MakePolicy,
    sharding: Sharding | None,
    mesh: DeviceMesh | None,
    is_mixed: bool = False,
) -> Policy:
    """Returns the policy that an objective trains, whole or this rank's shard. Every rank must call it. It is
    loaded on the host, whatever the default device: the whole policy may not fit on a GPU. `make_policy` is
    called with `log_z=True` for a head, and with `frozen=True` for a second copy; without `sharding` over the
    `mesh` of all ranks each keeps all of it.
    """

    def build(make: MakePolicy) -> Policy:
        with torch.device("cpu"):
            if sharding is None or mesh is None:
                return replicated_policy(make)
            return sharded_policy(make, sharding, mesh, is_mixed)

    needs = needs_of(objective)
    policy = build(partial(make_policy, log_z=True) if "log_z" in needs else make_policy)
    policy.serve(needs)
    if "reference_logp" in needs and not has_adapters(policy.model):
        policy.keep_reference(build(partial(make_policy, frozen=True)))
    if is_mixed and sharding is None:  # shards are gathered in bfloat16
        policy.mix_precision()
    return policy
