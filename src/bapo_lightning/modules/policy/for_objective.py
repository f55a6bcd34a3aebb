"""The policy as an objective needs it: with gradients through its entropy, with a head for log Z, or with a
copy of its first weights to compare with.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh

from bapo_lightning.modules.fsdp import Sharding
from bapo_lightning.modules.policy.broadcast import MakePolicy, replicated_policy, sharded_policy
from bapo_lightning.modules.policy.lora import has_adapters
from bapo_lightning.modules.policy.policy import Policy
from bapo_lightning.objectives.objective import Objective, needs_of


def policy_for(
    objective: Objective,
    make_policy: MakePolicy,
    sharding: Sharding | None,
    mesh: DeviceMesh | None,
    is_mixed: bool = False,
) -> Policy:
    """Returns the policy that an objective trains, whole or this rank's shard. Every rank must call it.

    It is loaded on the host, whatever the default device: a GPU may not hold the whole policy.

    Args:
        objective: objective of the run.
        make_policy: see `BapoModule`; called with `log_z=True` for a head, and with `frozen=True` for a
            second copy.
        sharding: way to shard over `mesh`; None keeps all of it on each rank.
        mesh: device mesh of all ranks, for a sharded policy.
        is_mixed: whether its blocks compute in bfloat16.
    """

    def made(make: MakePolicy) -> Policy:
        with torch.device("cpu"):
            if sharding is None or mesh is None:
                return replicated_policy(make)
            return sharded_policy(make, sharding, mesh, is_mixed)

    needs = needs_of(objective)
    policy = made(partial(make_policy, log_z=True) if "log_z" in needs else make_policy)
    policy.serve(needs)
    if "reference_logp" in needs and not has_adapters(policy.model):
        policy.keep_reference(made(partial(make_policy, frozen=True)))
    if is_mixed and sharding is None:  # shards are gathered in bfloat16
        policy.mix_precision()
    return policy
