"""Guessed bounds on two gloo ranks, replicated and sharded: weights are those of two passes."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tests.builders import random_policy, stale_batch
from tests.commands import start_ranks
from tests.modules.test_speculation import RULES
from tests.modules.test_speculation_training import attached, flat, with_optimizer
from torch.distributed.device_mesh import init_device_mesh

from bapo_lightning.modules.fsdp import Sharding
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.system.ranks.collectives import full_tensor
from bapo_lightning.system.ranks.launch import free_port

MODES = "exact", "guessed"
AT_ONCE = Sharding(reduce_every_micro_batch=True)
WAYS = {"replicated": None, "sharded": Sharding(), "sharded, reduced at once": AT_ONCE}
SHIFTS = 0.5, -0.5, -0.4, 0.5, -0.5, 0.4, -0.3, 0.3  # of advantages, by update, which move the bounds


class Replicas:
    """What Lightning's DDP does with gradients: averages them in each backward pass that is not blocked."""

    is_blocked = False

    @contextmanager
    def block_backward_sync(self):
        self.is_blocked = True
        yield
        self.is_blocked = False


def trained(mode, batches, sharding):
    """Whole weights after four updates, their bounds, and how many guesses held."""
    owner = attached(mode, random_policy(), RULES["paper"], {"max_grad_norm": 0.5})
    policy = owner.policy
    if sharding is not None:
        sharding.shard(policy, decoder_layers(policy.model), init_device_mesh("cpu", (2,)))
        owner.sharding = sharding
        with_optimizer(owner)
    owner.micro_batch_tokens = 60
    replicas = Replicas()
    owner._trainer = SimpleNamespace(global_step=3, callbacks=[], strategy=replicas)

    def backward(loss):
        loss.backward()
        if sharding is None and not replicas.is_blocked:
            for parameter in policy.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2

    owner.manual_backward = backward
    bounds, held = [], []
    for batch in batches:
        outputs = owner.training_step(batch, 0)
        bounds.append(torch.stack(list(outputs["bounds"][0][:2])))
        held.append(outputs["metrics"].get("search/guessed"))
    weights = [full_tensor(each.detach()).flatten() for each in policy.parameters()]
    return torch.cat(weights), torch.stack(bounds), held


def on_rank(rank, port, folder):
    # Ranks score together, so these come first.
    seeds = [10 * number + rank for number in range(len(SHIFTS))]
    batches = [stale_batch(random_policy(), num_groups=4 - rank, seed=seed) for seed in seeds]
    for batch, shift in zip(batches, SHIFTS, strict=True):
        batch.advantage.add_(shift)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {(way, mode): trained(mode, batches, WAYS[way]) for way in WAYS for mode in MODES}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    start_ranks(on_rank, args=(free_port(), folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("way", WAYS)
def test_weights_and_bounds_of_two_ranks_are_those_of_two_passes(ranks, way):
    exact, bounds, _ = ranks[0][way, "exact"]
    moved = (exact - flat(random_policy())).norm()
    assert moved > 0 and len(bounds.unique(dim=0)) > 1
    for mode in MODES:
        (weights, found, held), (others, _, _) = (each[way, mode] for each in ranks)
        assert torch.equal(weights, others) and torch.equal(found, bounds)
        assert (weights - exact).norm() <= 1e-5 * moved
        assert mode == "exact" or {0.0, 1.0} <= set(held)
