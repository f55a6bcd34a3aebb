"""The cosine of successive gradients, by hand, over splits into micro-batches, and on two real gloo ranks."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tests.builders import random_policy, stale_batch
from tests.commands import start_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from bapo_lightning.callbacks.monitors.gradient import GradientMonitor
from bapo_lightning.modules.fsdp import Sharding, clip_gradients, gradient_sync
from bapo_lightning.modules.policy.factory import decoder_layers
from bapo_lightning.objectives.gradients import cosine, inner_product
from bapo_lightning.system.ranks.launch import free_port

WAYS = (Sharding(), Sharding(reduce_every_micro_batch=True), Sharding(cpu_offload=True))
SEEDS = (0, 1, 0)  # of the batches of three updates


def after_step(monitor, weights):
    """`gradient/cosine` of an update whose gradients are there, None if it has none."""
    optimizer = SimpleNamespace(param_groups=[{"params": list(weights)}])
    monitor.on_before_optimizer_step(None, None, optimizer)
    found = monitor.measure(None)
    return float(found["gradient/cosine"]) if found else None


def after_steps(monitor, *updates):
    """The same for updates of weights with these gradients."""
    weights = [nn.Parameter(torch.zeros(2)) for _ in updates[0]]
    found = []
    for gradients in updates:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float32)
        found.append(after_step(monitor, weights))
    return found


def test_the_inner_product_is_over_all_weights_and_shards_of_it_add_up():
    one, other = torch.arange(6.0).reshape(2, 3), torch.tensor([[1.0, -1, 2], [0.5, 0, 1]])
    whole = inner_product([(one, other), (torch.ones(2), torch.tensor([3.0, 4]))])
    assert whole.dtype is torch.float64 and whole == -1 + 4 + 1.5 + 5 + 7
    shards = [inner_product([(one[row], other[row])]) for row in range(2)]
    assert shards == [3, 6.5] and inner_product([(one[2:], other[2:])]) == 0


def test_products_of_sixteen_bits_are_not_added_in_sixteen_bits():
    ones = torch.ones(1000, dtype=torch.bfloat16)  # which ends at 256, counting by one
    assert inner_product([(ones, ones)]) == 1000


@pytest.mark.parametrize(("product", "expected"), [(6.0, 1.0), (-6.0, -1.0), (0.0, 0.0), (3.0, 0.5)])
def test_the_cosine_is_between_minus_one_and_one(product, expected):
    squares = torch.tensor([4.0, 9.0], dtype=torch.float64)
    assert float(cosine(torch.tensor(product), *squares)) == pytest.approx(expected)


def test_each_update_is_compared_with_the_one_before_whatever_their_lengths():
    updates = ([[3.0, 0], [0, 4]], [[0.3, 0], [0, 0.4]], [[-30.0, 0], [0, -40]], [[4.0, 0], [0, -3]])
    assert after_steps(GradientMonitor(cosine=True), *updates) == [None, *map(pytest.approx, (1, -1, 0))]


def test_an_update_without_gradient_has_no_cosine_nor_has_the_next():
    found = after_steps(GradientMonitor(cosine=True), [[1.0, 0]], [[0.0, 0]], [[1.0, 0]], [[1.0, 0]])
    assert found[0] is None and found[3] == 1
    assert all(torch.tensor(found[1:3]).isnan()), "which is undefined, so that it is not written"


def test_weights_may_come_and_go():
    updates = ([[1.0, 0], None], [[1.0, 0], [0, 1.0]], [None, [0, 1.0]], [[1.0, 0], None])
    half = pytest.approx(0.5**0.5)
    assert after_steps(GradientMonitor(cosine=True), *updates) == [None, half, half, 0]


def test_an_update_that_was_skipped_is_passed_over_and_nothing_is_emitted_twice():
    monitor = GradientMonitor(cosine=True)
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, 0])
    assert after_step(monitor, [weight]) is None
    assert monitor.measure(None) == {}  # the optimizer made no step
    assert after_step(monitor, [weight]) == 1
    assert monitor.measure(None) == {}


def test_it_keeps_one_copy_of_the_gradients_and_nothing_where_it_is_off():
    weights = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(5))]
    for each in weights:
        each.grad = torch.ones_like(each)
    on, off = GradientMonitor(cosine=True), GradientMonitor(cosine=False)
    for _ in range(3):
        after_step(on, weights), after_step(off, weights)
        kept = [copy.data_ptr() for copy in on._before.values()]
    after_step(on, weights)
    assert [copy.data_ptr() for copy in on._before.values()] == kept
    assert sum(copy.numel() for copy in on._before.values()) == 11 and not off._before
    assert on.state_dict() == {}, "no checkpoint holds it"


def cosines(policy, sharding=None, budget=60, max_norm=0.1):
    """`gradient/cosine` of three updates whose gradients are clipped, None of one that has none."""
    monitor, owner = GradientMonitor(cosine=True), SimpleNamespace(policy=policy, sharding=sharding)
    found = []
    for seed in SEEDS:
        batch = stale_batch(random_policy(), num_groups=3, group_size=2, seed=seed)
        micro_batches = batch.split(budget, batch.response_mask / batch.num_tokens, policy.layout)
        policy.zero_grad()
        for number, micro_batch in enumerate(micro_batches, 1):
            with gradient_sync(owner, when=number == len(micro_batches)):
                (micro_batch.weight * micro_batch.advantage * policy(micro_batch)[0]).sum().backward()
        clip_gradients(policy.parameters(), max_norm)
        found.append(after_step(monitor, policy.trained_parameters()))
    kept = sum(copy.numel() for copy in monitor._before.values())
    assert not any(isinstance(copy, DTensor) for copy in monitor._before.values())
    return found, kept


def test_neither_micro_batches_nor_clipping_change_the_cosine():
    policy = random_policy()
    (none, *once), _ = cosines(deepcopy(policy), budget=10**6)
    assert none is None and once[0] == pytest.approx(once[1]) and abs(once[0]) < 0.9
    for budget, max_norm in ((60, 0.1), (30, 1e9)):
        (_, *split), _ = cosines(deepcopy(policy), budget=budget, max_norm=max_norm)
        assert split == pytest.approx(once, abs=1e-5)


def on_rank(rank, port, folder):
    """Measures on one rank with its shards."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh, found = init_device_mesh("cpu", (2,)), []
    for way in WAYS:
        policy = random_policy()
        way.shard(policy, decoder_layers(policy.model), mesh)
        found.append(cosines(policy, way))
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_shards_of_two_ranks_have_the_cosine_of_one_process_and_half_of_the_copy_each(tmp_path):
    start_ranks(on_rank, args=(free_port(), tmp_path), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    (_, *expected), size = cosines(random_policy())
    for (found, kept), (other, other_kept) in zip(*ranks, strict=True):
        assert found == other and found[0] is None
        assert found[1:] == pytest.approx(expected, abs=1e-5)
        assert kept + other_kept == size and abs(kept - other_kept) < 0.1 * size
