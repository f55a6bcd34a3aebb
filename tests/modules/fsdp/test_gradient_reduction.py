"""When FSDP2 sums gradients over ranks, once an update or after every micro-batch, and where it keeps them:
on two real gloo ranks.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from tests.builders import random_policy, rollout, stale_batch
from tests.commands import start_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from bapo_lightning.modules.fsdp import Sharding, gradient_sync
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.ranks.collectives import full_tensor
from bapo_lightning.ranks.launch import free_port

WAYS = (Sharding(), Sharding(reduce_every_micro_batch=True), Sharding(cpu_offload=True))


def gradients(sharding, mesh):
    """Gradients of three micro-batches, and how many weights had a gradient in `.grad` after each."""
    policy = random_policy()
    batch = stale_batch(random_policy(), num_groups=3, group_size=2)
    sharding.shard(policy, decoder_layers(policy.model), mesh)
    module = SimpleNamespace(policy=policy, sharding=sharding)
    micro_batches, counts = batch.split(60, batch.response_mask / batch.num_tokens)[:3], []
    for number, micro_batch in enumerate(micro_batches, 1):
        with gradient_sync(module, when=number == len(micro_batches)):
            (micro_batch.weight * micro_batch.advantage * policy(micro_batch)[0]).sum().backward()
        counts.append(sum(parameter.grad is not None for parameter in policy.parameters()))
    return {name: full_tensor(parameter.grad) for name, parameter in policy.named_parameters()}, counts


def sharded_between_passes(mesh):
    """Whether head and a layer are sharded again after a forward pass, and after their weights were taken."""
    policy = random_policy()
    batch = stale_batch(random_policy(), num_groups=3, group_size=2)
    Sharding().shard(policy, decoder_layers(policy.model), mesh)
    policy(batch.split(10**6, batch.response_mask / batch.num_tokens)[0])
    between = are_sharded(policy)
    policy.response_logprobs([rollout([1, 2], [3], [0.0])], token_budget=8)
    return between, are_sharded(policy)


def are_sharded(policy):
    layer = decoder_layers(policy.model)[0].mlp.up_proj
    return [isinstance(each.weight, DTensor) for each in (policy.model.get_output_embeddings(), layer)]


def on_rank(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    made = [gradients(sharding, mesh) for sharding in WAYS], sharded_between_passes(mesh)
    torch.save(made, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_all_ways_give_the_same_gradients_and_one_shards_them_at_once(tmp_path):
    port = free_port()
    start_ranks(on_rank, args=(port, tmp_path), nprocs=2)
    ways, (between, afterwards) = torch.load(tmp_path / "0.pt")
    (once, counts_once), (every, counts_every), (offloaded, _) = ways
    for other in (every, offloaded):
        assert once.keys() == other.keys()
        assert all(torch.allclose(once[name], other[name], rtol=1e-5, atol=1e-7) for name in once)
    assert counts_once == [0, 0, len(once)]
    assert counts_every == [len(once)] * 3
    # The backward pass begins with the head, and would gather it again.
    assert (between, afterwards) == ([False, True], [True, True])
